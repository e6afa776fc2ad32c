#!/bin/sh
# tests/amx/run.sh [TEST...]: our AMX kernels on a CPU without AMX, in our tests.
#
# The program is built with functions (tiles.h) in the place of the tile unit's instructions; all
# else of AMX's kernels is AVX-512, which the CPU must have. Without names: tests that compute with
# every instruction set, then `offshoot check`. All is in build-amx/, or in build-amx-address with
# SAN=address, which sees what tiles read and write; it would not see what an instruction does.
#
# Not covered: speed, the last bits where a CPU differs from the manual, and whether the compiler
# knows of stores that tiles read (amx_see_stores), since it does know of what a function reads.
set -eu
for flag in avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16; do
    grep -qw "$flag" /proc/cpuinfo || {
        echo "amx-check needs a CPU with AVX-512, its VNNI and its BF16: this one has no $flag" >&2
        exit 1
    }
done

san=${SAN:-}
build=build-amx${san:+-$(echo "$san" | tr , -)}
here=tests/amx
jobs=${JOBS:-$(nproc)}
tests=${*:-linear rows moe quantise recurrence fold mixer attention sample saver golden}

# build TARGET...: the program with tiles.c in its library.
build() {
    make --no-print-directory -j"$jobs" BUILD="$build" SAN="$san" CUDA=0 MORE=$here/tiles.c \
        FLAGS_amx="\$(FLAGS_vnni) -mavx512bf16 -include $here/tiles.h" \
        --eval="$build/kernels/backend_cpu.o: CPPFLAGS += -include $here/tiles.h" "$@"
}
programs=$(for t in $tests; do echo "$build/tests/test_$t"; done)
build "$build/offshoot" $programs
gcc -O2 -g -std=c11 -ffp-contract=off -Wall -Wextra -I. -D_GNU_SOURCE \
    ${san:+-fsanitize=$san -fno-sanitize-recover=all} -o "$build/test_tiles" \
    $here/test_tiles.c $here/tiles.c tests/apart.c $(pkg-config --cflags --libs cmocka)

passed=0
failed=0
# step COMMAND...: a line of what came of it.
step() {
    begun=$(date +%s)
    if "$@" >"$build/log" 2>&1; then
        result=ok
        passed=$((passed + 1))
    else
        result="FAILED ($?)"
        failed=$((failed + 1))
        tail -n 25 "$build/log"
    fi
    echo "$*: $result, $(($(date +%s) - begun)) s"
}
export OFFSHOOT_TEST_CPU_ONLY=1
for program in "$build/test_tiles" $programs; do
    step "$program"
done
if [ $# = 0 ]; then
    check() {
        step "$build/offshoot" check --device cpu --isa amx --limit 1 --max-tokens 8 "$@"
    }
    check --model models/demo
    check --model models/demo --quant q8
    check --model models/demo --quant q4
fi
echo "amx-check: $passed passed, $failed failed"
[ "$failed" = 0 ]

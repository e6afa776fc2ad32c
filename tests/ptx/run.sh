#!/bin/sh
# tests/ptx/run.sh [TEST...]: runs the PTX that nvcc makes of our kernels on the host, in our tests.
#
# The program is built with CUDA, its kernels as PTX for Hopper; translate.py makes C of them, which
# is linked with cudart_host.c in the place of the CUDA runtime. So no GPU is needed, and nvcc is.
# Without names: the tests of gpu_check.sh, then `offshoot check`. All is in build-ptx/. A module
# takes gcc up to a minute, the tests up to many. OFFSHOOT_PTX_RACES=forward or reverse watches for
# races, too (races.h).
set -eu
command -v nvcc >/dev/null || {
    echo "ptx-check needs nvcc on the PATH" >&2
    exit 1
}

build=build-ptx
here=tests/ptx
ptx="$build/ptx"
jobs=${JOBS:-$(nproc)}
tests=${*:-linear rows moe terms recurrence fold mixer attention prefill sample sample_law sample_cuts round golden \
    tree_pass device_round device_tiers gpu}

nvccflags="-std=c++17 -O3 -lineinfo -fmad=false -Xcompiler -Wall,-Wextra,-fno-exceptions"
nvccflags="$nvccflags,-fno-threadsafe-statics -I. -gencode=arch=compute_90a,code=compute_90a"
nvccflags="$nvccflags --keep --keep-dir $build/nvcc"
# Strict aliasing and contraction are C's; -march is for fma and conversions of fp16.
cflags="-std=c11 -march=native -ffp-contract=off -fno-strict-aliasing -I. -D_GNU_SOURCE"
cuda=$(dirname "$(dirname "$(realpath "$(command -v nvcc)")")")

# build TARGET...: links what is there of the stand-in, after the program's own objects.
build() {
    make -j"$jobs" BUILD="$build" CUDA=1 NVCCFLAGS="$nvccflags" \
        CUDA_LIBS="$(echo "$ptx"/*.o) $ptx/libsimt.a $build/liboffshoot.a" "$@"
}

# newer A B: there is no B, or A has changed since.
newer() {
    [ ! -e "$2" ] || [ "$1" -nt "$2" ]
}

# translated PTX OBJECT: it was compiled from that, by what translates, with the headers of now.
translated() {
    for from in "$1" "$here"/*.py "$here"/*.h; do
        ! newer "$from" "$2" || return 1
    done
}

mkdir -p "$build/nvcc" "$ptx"
build "$build/liboffshoot.a" "$build/tests/libhelpers.a" "$build/main.o"
for file in ptx_run wgmma races device_memory streams cudart_host cublaslt_host; do
    gcc $cflags -O3 -g -Wall -Wextra -isystem "$cuda/include" -c -o "$ptx/$file.o" "$here/$file.c"
done
names=
for file in "$build"/nvcc/*.ptx; do
    name=$(basename "$file" .ptx)
    translated "$file" "$ptx/$name.o" && continue
    python3 "$here/translate.py" "$file" "$ptx/$name.c"
    names="$names $name"
done
printf '%s\n' $names | CFLAGS="$cflags -O1 -w" xargs -r -P "$jobs" -I{} sh -c \
    "echo '  PTX {}' && cd $ptx && gcc \$CFLAGS -I../.. -c -o {}.new {}.c && mv {}.new {}.o"
# The fibers, for the program: a test has them from its helpers.
rm -f "$ptx/libsimt.a"
ar qcs "$ptx/libsimt.a" "$build/tests/simt_host.o"

# Linked anew, for make does not know of these objects.
programs=$(for t in $tests; do echo "$build/tests/test_$t"; done)
rm -f "$build/offshoot" $programs
build "$build/offshoot" $programs
export OFFSHOOT_TEST_GPU_ONLY=1
failed=0
# step COMMAND...: a line of what came of it.
step() {
    begun=$(date +%s)
    if "$@" >"$build/log" 2>&1; then
        result=ok
        grep '^races: ' "$build/log" || true
    else
        result="FAILED ($?)"
        failed=$((failed + 1))
        tail -n 25 "$build/log"
    fi
    echo "$*: $result, $(($(date +%s) - begun)) s"
}
# own TEST: of what the kernels run on.
own() {
    gcc $cflags -O1 -g -Wall -Wextra -o "$build/test_$1" "$here/test_$1.c" tests/apart.c "$ptx/ptx_run.o" \
        "$ptx/wgmma.o" "$ptx/races.o" "$ptx/device_memory.o" "$ptx/libsimt.a" "$build/liboffshoot.a" \
        $(pkg-config --libs cmocka) -lm -lpthread
}
own races
own wgmma
step env OFFSHOOT_PTX_RACES=forward "$build/test_races"
step "$build/test_wgmma"
for program in $programs; do
    step "$program"
done
[ $# = 0 ] || exit $failed
# refused WHAT LINE: rounds where that is refused say so, and LINE; the last one is of how they ended.
refused() {
    ended=0
    OFFSHOOT_PTX_REFUSE=$1 "$build/tests/test_device_round" >"$build/refused" 2>&1 || ended=$?
    echo "ended with $ended" >>"$build/refused"
    tail -n 25 "$build/refused"
    grep -q "^cuda: refuses a $1" "$build/refused" && grep -q "$2" "$build/refused"
}
for what in capture captured graph; do
    step refused $what '^ended with 0$'
done
step refused launch 'the GPU failed: .*, at _Z.* blocks of'
check() {
    step "$build/offshoot" check --device cuda --memory 256M --limit 1 --max-tokens 8 "$@"
}
check --model models/demo
for s in dense moe next; do
    mkdir -p "$build/$s"
    cp "tests/data/gpu/$s/config.json" models/demo/tokenizer.json "$build/$s/"
    check --model "$build/$s" --dummy-weights bf16
    check --model "$build/$s" --dummy-weights fp8
done
exit $failed

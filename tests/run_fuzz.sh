#!/bin/bash
# Runs libFuzzer targets one after another: run_fuzz.sh SECONDS TARGET...
# Each starts from tests/fuzz/seeds/NAME; one line a target. A crash, a leak, more than 10 seconds or
# 2 GiB for one input fails, and the input is kept as build-fuzz/NAME-*.
# Runs from a minute up keep what they find in build-fuzz/corpus/NAME and go on from there; shorter
# ones begin anew, with the same random numbers.
# run_fuzz.sh probe: whether clang can link such a target here.
set -u

if [ "$1" = probe ]; then
    echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return !d && n; }' |
        clang -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null
    exit
fi

seconds=$1
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
bad=0
for target in "$@"; do
    name=${target##*/fuzz_}
    seed=1
    corpus=$scratch/$name
    [ "$seconds" -ge 60 ] && seed=0 && corpus=build-fuzz/corpus/$name # 0: libFuzzer takes the time
    dirs=("$corpus")
    [ -d "tests/fuzz/seeds/$name" ] && dirs+=("tests/fuzz/seeds/$name")
    mkdir -p "$corpus"
    if "$target" -seed=$seed -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -max_len=8192 -artifact_prefix="build-fuzz/$name-" "${dirs[@]}" >"$scratch/log" 2>&1; then
        sed -n "s/^#\([0-9]*\)\tDONE *cov: \([0-9]*\) .*corp: \([0-9]*\).*/$name: \1 runs, \
\2 edges covered, \3 inputs kept/p" "$scratch/log"
    else
        cat "$scratch/log"
        echo "$name: failed"
        bad=1
    fi
done
exit $bad

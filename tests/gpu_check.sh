#!/bin/sh
# make gpu-check [REPORT=FILE]: every check that needs a GPU; `long` adds the slow ones.
#
# Needs a GPU, a driver and what `make dist` builds, which may come from another machine (for one kind
# of GPU it is a quarter of the size: make dist gpu-check BUILD=build-90a CUDA_ARCHS=90a); where it
# is missing it is built here. Prints a report, and writes it to the file.
set -u

mode=${1:-short}
dist=${BUILD:-build}/dist
report=${2:-$dist/gpu-check.md}
failed=0
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

if ! nvidia-smi -L >"$logs/gpus" 2>&1; then
    echo "gpu-check: no NVIDIA GPU here: $(head -n 1 "$logs/gpus")" >&2
    exit 1
fi
if [ ! -x $dist/offshoot ] || [ ! -x $dist/test_golden ]; then
    make -j"$(nproc)" dist >"$logs/build" 2>&1 || {
        tail -n 20 "$logs/build" >&2
        echo "gpu-check: no $dist here, and it cannot be built; carry one over" >&2
        exit 1
    }
fi

$dist/offshoot version >"$logs/version"
if ! grep -q '^gpu kernels: sm_' "$logs/version"; then
    echo "gpu-check: $(grep '^gpu kernels' "$logs/version")" >&2
    exit 1
fi
export OFFSHOOT_TEST_GPU_ONLY=1 # the tests leave out the CPU, and fail where the GPU is lost

say() {
    echo "$*" | tee -a "$report"
}

# step NAME SECONDS COMMAND...: one line of the report; the output's end where it fails.
step() {
    name=$1 limit=$2
    shift 2
    begun=$(date +%s)
    if timeout "$limit" "$@" >"$logs/out" 2>&1; then
        result=ok
    else
        rc=$?
        result="FAILED ($rc)"
        [ $rc = 124 ] && result="TOO LONG (over $limit s)"
        failed=$((failed + 1))
    fi
    say "| $name | $result | $(($(date +%s) - begun)) s |"
    cat "$logs/out" >>"$logs/all"
    grep '^prompt against decoding' "$logs/out" | awk -v of="$name" '{ print of ": " $0 }' >>"$logs/prompts"
    [ "$result" = ok ] || sed 's/^/    /' "$logs/out" | tail -n 25 >>"$logs/failures"
}

# A model of one of the shapes of tests/data/gpu, for --dummy-weights.
shape() {
    mkdir -p "$logs/$1"
    cp "tests/data/gpu/$1/config.json" models/demo/tokenizer.json "$logs/$1/"
    echo "$logs/$1"
}

mkdir -p "$(dirname "$report")"
: >"$report"
: >"$logs/failures"
: >"$logs/prompts"
say "# GPU check ($mode), $(date +%F)"
say
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1)," \
    "commit $(cat $dist/commit 2>/dev/null || echo unknown)"
say
sed 's/^/    /' "$logs/version" | tee -a "$report"
say
say "| check | result | time |"
say "|---|---|---|"
tests="kernels recurrence attention prefill sample sample_cuts round"
for t in $tests; do
    step "kernels against their references: test_$t" 90 $dist/test_$t
done
step "golden models, K and V in f32 and bf16: test_golden" 120 $dist/test_golden
step "trees are their paths, f32 and bf16: test_tree_pass" 120 $dist/test_tree_pass
step "rounds on the device, one step ahead: test_device_round" 60 $dist/test_device_round
step "the prefix cache's tiers: test_device_tiers" 60 $dist/test_device_tiers
step "the engine on golden models, f32 and bf16: test_gpu" 120 $dist/test_gpu
for type in f32 bf16; do
    step "offshoot check, demonstration model, $type K and V" 120 $dist/offshoot check \
        --device cuda --model models/demo --kv-dtype $type --limit 4 --max-tokens 32
done
for s in dense moe next; do
    for type in bf16 fp8; do
        step "offshoot check, random $s $type" 60 $dist/offshoot check --device cuda \
            --model "$(shape $s)" --dummy-weights $type --limit 2 --max-tokens 24
    done
done
if command -v compute-sanitizer >/dev/null; then
    for t in $tests; do
        step "compute-sanitizer memcheck: test_$t" 120 \
            compute-sanitizer --error-exitcode 9 $dist/test_$t
    done
else
    say "| compute-sanitizer | NOT THERE | |"
fi
# What is measured goes to the report's end.
: >"$logs/bench"
measure() {
    step "offshoot bench $*" 60 $dist/offshoot bench "$@" --device cuda --memory 1G
    { echo "\$ offshoot bench $*" && cat "$logs/out" && echo; } >>"$logs/bench"
}
measure accept --model models/demo --thinking off --temperature 0
measure latency --model models/demo --temperature 0 --contexts 512,4096
measure latency --model models/demo --temperature 0 --contexts 512 --state-mode slots
measure kernels --model models/demo
if [ "$mode" = long ]; then
    for t in $tests; do
        step "compute-sanitizer racecheck: test_$t" 300 \
            compute-sanitizer --tool racecheck --error-exitcode 9 $dist/test_$t
    done
fi

say
say "How far a prompt's logits are from the same tokens decoded:"
say
sed 's/^/    /' "$logs/prompts" | tee -a "$report"
say
say "Speed on the demonstration model:"
say
sed 's/^/    /' "$logs/bench" | tee -a "$report"
if [ $failed != 0 ]; then
    say
    say "What failed:"
    say
    tee -a "$report" <"$logs/failures"
    say
    say "$failed failed"
    exit 1
fi
say
say "all passed"

#!/bin/sh
# make gpu-check [REPORT=FILE]: every check that needs a GPU; `long` adds the slow ones.
#
# Needs a GPU, a driver and what `make dist` builds; where it is missing it is built here. For a
# machine that cannot build, make it elsewhere and carry it over:
#
#   make gpu-pack BUILD=build-90a CUDA_ARCHS=90a    # build-90a/dist.tar.xz, here unpacked
#   make gpu-check BUILD=build-90a
#
# Prints a report, and writes it to the file as it goes. The short one ends within 8 minutes: what
# there is no time left for is not run, says so, and is no success.
set -u

mode=${1:-short}
dist=${BUILD:-build}/dist
report=${2:-$dist/gpu-check.md}
seconds=450
[ "$mode" = long ] && seconds=3600
end=$(($(date +%s) + seconds))
failed=0
skipped=0
logs=$(mktemp -d)

say() {
    echo "$*" | tee -a "$report"
}

# finish: whatever came before it, the report says how it ended.
finish() {
    rc=$?
    trap - EXIT INT TERM
    # FILE TITLE
    part() {
        [ -s "$1" ] || return 0
        say
        say "$2"
        say
        sed 's/^/    /' "$1" | tee -a "$report"
    }
    part "$logs/prompts" "How far a prompt's logits are from the same tokens decoded:"
    part "$logs/bench" "Speed on the demonstration model:"
    part "$logs/failures" "What failed:"
    say
    if [ -n "${complete:-}" ] && [ $failed = 0 ] && [ $skipped = 0 ]; then
        say "all passed${without:+, without $without}"
        rc=0
    else
        [ -n "${complete:-}" ] || say "ended early"
        [ $rc = 0 ] && rc=1
        say "$failed failed, $skipped not run"
    fi
    rm -rf "$logs"
    exit $rc
}

# cannot WHAT: no check can be run at all.
cannot() {
    say "gpu-check: $*" >&2
    exit 1
}

mkdir -p "$(dirname "$report")"
: >"$report"
trap finish EXIT
trap 'exit 143' INT TERM
say "# GPU check ($mode), $(date +%F)"
say
nvidia-smi -L >"$logs/gpus" 2>&1 || cannot "no NVIDIA GPU here: $(head -n 1 "$logs/gpus")"
. "$(dirname "$0")/gpu_env.sh"

"$dist/offshoot" version >"$logs/version" 2>&1
grep -q '^gpu kernels: sm_' "$logs/version" || cannot "$(grep '^gpu kernels' "$logs/version")"
# Held open, the GPU stays initialised between the programs, where no daemon sees to that.
if (exec 9</dev/nvidia0) 2>/dev/null; then exec 9</dev/nvidia0; fi
export OFFSHOOT_TEST_GPU_ONLY=1 # the tests leave out the CPU, and fail where the GPU is lost

# blocking COMMAND...: what failed, where the GPU was lost, once more, waiting for each launch: it tells which.
blocking() {
    [ "${1#"$dist"/}" != "$1" ] && grep -q 'the GPU failed' "$logs/out" || return 0
    [ $((end - $(date +%s))) -gt 200 ] || return 0
    timeout -k 5 60 env CUDA_LAUNCH_BLOCKING=1 "$@" >"$logs/again" 2>&1
    { echo "the same with CUDA_LAUNCH_BLOCKING=1:" && tail -n 10 "$logs/again" && echo; } >>"$logs/failures"
}

# step NAME SECONDS COMMAND...: one line of the report; the output's end where it fails.
step() {
    name=$1 limit=$2
    shift 2
    begun=$(date +%s)
    left=$((end - begun))
    if [ $left -lt 5 ]; then
        skipped=$((skipped + 1))
        say "| $name | NOT RUN (no time left) | |"
        : >"$logs/out"
        return
    fi
    [ $left -lt "$limit" ] && limit=$left
    if timeout -k 5 "$limit" "$@" >"$logs/out" 2>&1; then
        result=ok
    else
        rc=$?
        result="FAILED ($rc)"
        { [ $rc = 124 ] || [ $rc = 137 ]; } && result="TOO LONG (over $limit s)"
        failed=$((failed + 1))
        { echo "$name:" && tail -n 25 "$logs/out" && echo; } >>"$logs/failures"
        [ "$result" != "FAILED ($rc)" ] || blocking "$@"
    fi
    say "| $name | $result | $(($(date +%s) - begun)) s |"
    [ "$result" = ok ] || sed 's/^/    /' "$logs/out" | tail -n 25 >&2
    grep '^prompt against decoding' "$logs/out" | awk -v of="$name" '{ print of ": " $0 }' >>"$logs/prompts"
}

# A model of one of the shapes of tests/data/gpu, for --dummy-weights.
shape() {
    mkdir -p "$logs/$1"
    cp "tests/data/gpu/$1/config.json" models/demo/tokenizer.json "$logs/$1/"
    echo "$logs/$1"
}

say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1)," \
    "commit $(cat "$dist/commit" 2>/dev/null || echo unknown)"
say
sed 's/^/    /' "$logs/version" | tee -a "$report"
say
say "| check | result | time |"
say "|---|---|---|"
tests="kernels moe terms recurrence attention prefill sample sample_law sample_cuts round"
for t in $tests; do
    step "kernels against their references: test_$t" 90 "$dist/test_$t"
done
step "golden models, K and V in f32 and bf16: test_golden" 120 "$dist/test_golden"
step "trees are their paths, f32 and bf16: test_tree_pass" 120 "$dist/test_tree_pass"
step "rounds on the device, one step ahead: test_device_round" 60 "$dist/test_device_round"
step "the prefix cache's tiers: test_device_tiers" 60 "$dist/test_device_tiers"
step "the engine on golden models, f32 and bf16: test_gpu" 120 "$dist/test_gpu"
check() {
    name=$1
    shift
    step "offshoot check, $name" 90 "$dist/offshoot" check --device cuda --memory 1G "$@"
}
for type in f32 bf16; do
    check "demonstration model, $type K and V" --model models/demo --kv-dtype $type --limit 4 \
        --max-tokens 32
done
check "demonstration model in FP8, prompts by FP8 x" --model models/demo --quant fp8 --act-dtype fp8 \
    --limit 2 --max-tokens 24
# Where the first two fail and one of these does not, it is by launches that overlap, or by graphs.
for part in pdl cuda-graph; do
    check "demonstration model, --$part off" --model models/demo --limit 2 --max-tokens 24 --$part off
done
for s in dense moe next; do
    for type in bf16 fp8; do
        check "random $s $type" --model "$(shape $s)" --dummy-weights $type --limit 2 \
            --max-tokens 24
    done
done
# What is measured goes to the report's end.
measure() {
    step "offshoot bench $*" 60 "$dist/offshoot" bench "$@" --device cuda --memory 1G
    [ ! -s "$logs/out" ] || { echo "\$ offshoot bench $*" && cat "$logs/out" && echo; } >>"$logs/bench"
}
measure accept --model models/demo --thinking off --temperature 0
measure latency --model models/demo --temperature 0 --contexts 512,4096
measure latency --model models/demo --temperature 0 --contexts 512 --state-mode slots
measure kernels --model models/demo
# Where a sanitizer cannot work at all, that is no fault of a kernel. Errors of calls are for the
# backend to note. cuBLASLt's products are left out: all of its kernels would be checked, too.
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
memcheck="env OFFSHOOT_TEST_NO_LIBRARY=1 $sanitizer --launch-timeout 60 --report-api-errors no --error-exitcode 9"
if [ -z "$sanitizer" ]; then
    without="compute-sanitizer"
    say "| compute-sanitizer | NOT THERE | |"
elif ! timeout -k 5 60 $memcheck "$dist/offshoot" version >"$logs/out" 2>&1 ||
    ! grep -q '^gpu kernels: sm_' "$logs/out"; then
    without="compute-sanitizer"
    say "| compute-sanitizer | CANNOT RUN HERE ($(grep -v '^$' "$logs/out" | tail -n 1)) | |"
else
    # Side by side, for one takes minutes, each at ports of its own; they end in time to be told apart.
    room=$((end - $(date +%s) - 30))
    [ $room -ge 5 ] || room=5
    port=49152
    for t in $tests; do
        { timeout -k 5 $room $memcheck --port $port --max-connections 32 "$dist/test_$t" \
            >"$logs/memcheck_$t" 2>&1; echo $? >"$logs/rc_$t"; } &
        port=$((port + 32))
    done
    wait
    for t in $tests; do
        if grep -qx -e 124 -e 137 "$logs/rc_$t"; then
            skipped=$((skipped + 1))
            say "| compute-sanitizer memcheck, no cuBLASLt: test_$t | NOT RUN (not done in $room s) | |"
        else
            step "compute-sanitizer memcheck, no cuBLASLt: test_$t" 120 \
                sh -c 'cat "$1"; exit "$(cat "$2")"' - "$logs/memcheck_$t" "$logs/rc_$t"
        fi
    done
    for t in $tests; do
        [ "$mode" = long ] || break
        step "compute-sanitizer racecheck: test_$t" 300 \
            "$sanitizer" --tool racecheck --error-exitcode 9 "$dist/test_$t"
    done
fi
complete=1

#!/bin/sh
# make gpu-check [REPORT=FILE]: every check that needs a GPU; `long` adds racecheck of each kernel,
# `race` is racecheck alone.
#
# Needs a GPU, a driver and what `make dist` builds; where it is missing it is built here. For a
# machine that cannot build, make it elsewhere and carry it over:
#
#   make gpu-pack BUILD=build-90a CUDA_ARCHS=90a    # build-90a/dist.tar.xz, here unpacked
#   make gpu-check BUILD=build-90a
#
# Prints a report, and writes it to the file as it goes. The short one ends within 8 minutes, 3 or 4
# where the CPU has cores for the tests, which share the GPU side by side; what is measured runs
# alone. What there is no time left for is not run, says so, and is no success.
set -u

mode=${1:-short}
dist=${BUILD:-build}/dist
report=${2:-$dist/gpu-check.md}
seconds=${LIMIT:-450}
[ "$mode" = long ] && seconds=${LIMIT:-3600}
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

# It asks the GPU about wgmma, by kernels that may be the first to hang.
timeout -k 5 60 "$dist/offshoot" version >"$logs/version" 2>&1 ||
    echo "offshoot version ended with $?" >>"$logs/version"
grep -q '^gpu kernels: sm_' "$logs/version" || cannot "$(grep '^gpu kernels\|^offshoot version' "$logs/version")"
# Held open, the GPU stays initialised between the programs, where no daemon sees to that.
if (exec 9</dev/nvidia0) 2>/dev/null; then exec 9</dev/nvidia0; fi
export OFFSHOOT_TEST_GPU_ONLY=1 # the tests leave out the CPU, and fail where the GPU is lost

# blocking COMMAND: what failed, where the GPU was lost, once more, waiting for each launch: it tells which.
blocking() {
    [ "${1#"$dist"/}" != "$1" ] && grep -q 'the GPU failed' "$logs/out" || return 0
    [ $((end - $(date +%s))) -gt 200 ] || return 0
    CUDA_LAUNCH_BLOCKING=1 timeout -k 5 60 sh -c "$1" </dev/null >"$logs/again" 2>&1
    { echo "the same with CUDA_LAUNCH_BLOCKING=1:" && tail -n 10 "$logs/again" && echo; } >>"$logs/failures"
}

# Runs line $1 of a queue, "NUMBER|SECONDS|COMMAND|NAME", into the files NUMBER.out and NUMBER.rc.
cat >"$logs/one" <<'EOF'
IFS='|' read -r number limit command name <<LINE
$1
LINE
begun=$(date +%s)
left=$((END - begun))
[ $left -lt 5 ] && { echo "skipped 0 0" >"$LOGS/$number.rc"; exit 0; }
is_cut=
[ $left -lt "$limit" ] && limit=$left is_cut=1
timeout -k 5 "$limit" sh -c "$command" >"$LOGS/$number.out" 2>&1
rc=$?
case $is_cut$rc in 1124 | 1137) rc=skipped ;; esac
echo "$rc $(($(date +%s) - begun)) $limit" >"$LOGS/$number.rc"
EOF
export LOGS="$logs" END=$end

# later NAME SECONDS COMMAND: for the queue.
n_queued=100
later() {
    n_queued=$((n_queued + 1))
    echo "$n_queued|$2|$3|$1" >>"$logs/queue"
}

# line NAME RC SECONDS LIMIT COMMAND: of the report; the end of $logs/out where it fails.
line() {
    case $2 in
    skipped)
        skipped=$((skipped + 1))
        say "| $1 | NOT RUN (no time left) | |"
        : >"$logs/out"
        return
        ;;
    0) result=ok ;;
    124 | 137) result="TOO LONG (over $4 s)" ;;
    *) result="FAILED ($2)" ;;
    esac
    if [ "$result" != ok ]; then
        failed=$((failed + 1))
        { echo "$1:" && tail -n 25 "$logs/out" && echo; } >>"$logs/failures"
        [ "$result" != "FAILED ($2)" ] || blocking "$5"
    fi
    say "| $1 | $result | $3 s |"
    [ "$result" = ok ] || sed 's/^/    /' "$logs/out" | tail -n 25 >&2
    grep '^prompt against decoding' "$logs/out" | awk -v of="$1" '{ print of ": " $0 }' >>"$logs/prompts"
}

# What is queued, a program for each core at a time; then its lines of the report, in order. What the
# end of all cuts short was not run.
run_queue() {
    [ -s "$logs/queue" ] || return 0
    xargs -d '\n' -P "$(nproc)" -n 1 sh "$logs/one" <"$logs/queue"
    mv "$logs/queue" "$logs/done"
    while IFS='|' read -r number limit command name; do
        mv "$logs/$number.out" "$logs/out" 2>/dev/null || : >"$logs/out"
        read -r rc took limit <"$logs/$number.rc" || rc=1 took=0
        line "$name" "$rc" "$took" "$limit" "$command"
    done <"$logs/done"
}

# step NAME SECONDS COMMAND: alone.
step() {
    later "$@"
    run_queue
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
tests="linear rows moe terms recurrence fold mixer attention prefill sample sample_law sample_cuts round"

check() {
    name=$1
    shift
    later "offshoot check, $name" 120 "$dist/offshoot check --device cuda --memory 1G $*"
}

# What is measured goes to the report's end.
measure() {
    step "offshoot bench $*" 60 "$dist/offshoot bench $* --device cuda --memory 1G"
    [ ! -s "$logs/out" ] || { echo "\$ offshoot bench $*" && cat "$logs/out" && echo; } >>"$logs/bench"
}

# All but the sanitizer.
everything() {
    # Those that take longest begin first.
    for part in 'check d*8*' 'check dense odd*' 'check moe*' 'check next*' '*allocation' '*prompt*' '*preempt*'; do
        later "the engine on golden models: test_gpu '$part'" 180 "$dist/test_gpu '$part'"
    done
    later "golden models, K and V in f32 and bf16: test_golden" 120 "$dist/test_golden"
    for type in f32 bf16; do
        check "demonstration model, $type K and V" --model models/demo --kv-dtype $type --limit 4 \
            --max-tokens 32
    done
    check "demonstration model in FP8, prompts by FP8 x" --model models/demo --quant fp8 --act-dtype fp8 \
        --limit 2 --max-tokens 24
    # Where the first two fail and one of these does not, it is by launches that overlap, or by graphs.
    for part in pdl cuda-graph wgmma; do
        check "demonstration model, --$part off" --model models/demo --limit 2 --max-tokens 24 --$part off
    done
    for s in dense moe next; do
        for type in bf16 fp8; do
            check "random $s $type" --model "$(shape $s)" --dummy-weights $type --limit 2 \
                --max-tokens 24
        done
    done
    later "trees are their paths, f32 and bf16: test_tree_pass" 120 "$dist/test_tree_pass"
    later "rounds on the device, one step ahead: test_device_round" 60 "$dist/test_device_round"
    later "the prefix cache's tiers: test_device_tiers" 60 "$dist/test_device_tiers"
    for t in $tests; do
        later "kernels against their references: test_$t" 90 "$dist/test_$t"
    done
    run_queue
    measure accept --model models/demo --thinking off --temperature 0
    measure latency --model models/demo --temperature 0 --contexts 512,4096
    measure latency --model models/demo --temperature 0 --contexts 512 --state-mode slots
    measure kernels --model models/demo
}

# Each at ports of its own; one may take minutes.
port=49152
memcheck_tests() {
    for t in $tests; do
        later "compute-sanitizer memcheck, no cuBLASLt: test_$t" "$seconds" \
            "$memcheck --port $port --max-connections 32 $dist/test_$t"
        port=$((port + 32))
    done
}

# settings RUN: the environment of a test, which RUN names: linear, as for memcheck; linear+mma,
# without wgmma, too.
settings() {
    case $1 in
    *+mma) echo "OFFSHOOT_TEST_NO_LIBRARY=1 OFFSHOOT_TEST_NO_WGMMA=1" ;;
    *) echo "OFFSHOOT_TEST_NO_LIBRARY=1" ;;
    esac
}

# useless KERNEL: nobody launches it, or nobody here; or beside cuBLASLt alone, whose kernels fault
# under the sanitizer: two that have no shared memory, where it looks for races.
useless() {
    case $1 in
    probe_kernel) ;;
    *_wgmma_kernel | add_slices_kernel) ! grep -q '^gpu wgmma: used' "$logs/version" ;;
    split_plain_kernel | round_fp8_kernel) ;;
    *) false ;;
    esac
}

# Runs "$@", which is racecheck of a program: that must end well and have said that it found none.
cat >"$logs/races" <<'EOF'
file=$(mktemp -p "$LOGS")
{
    "$@" 2>&1
    echo $? >"$file.rc"
} | tee "$file"
read -r rc <"$file.rc"
[ "$rc" = 0 ] || exit "$rc"
grep -q 'RACECHECK SUMMARY: 0 hazards' "$file" && exit
echo "racecheck has not said that it found none"
exit 1
EOF

# A race is a kernel's, whatever is computed with it, and a launch that is checked takes some 0.1 s.
# So the tests say what they launch, beside those of memcheck, the last of which leave cores idle; then
# a process checks the first launches of a kernel, or of some, and ends. What no test launches fails.
list_launches() {
    mkdir "$logs/launches"
    for run in linear+mma moe+mma prefill+mma $tests; do
        later "what it launches: $run" 90 \
            "OFFSHOOT_TEST_LAUNCHES=$logs/launches/$run $(settings "$run") $dist/test_${run%+*}"
    done
}

racecheck_tests() {
    : >"$logs/plan"
    step "what racecheck is to look at" 30 \
        "python3 tests/gpu/race_plan.py $dist/test_linear $logs/launches/* >$logs/plan"
    racecheck="sh $logs/races $sanitizer --tool racecheck --launch-timeout 60 --error-exitcode 9"
    racecheck="$racecheck --max-connections 32"
    later "compute-sanitizer racecheck finds a race where one is" 60 \
        "$racecheck --port $port --kernel-name kne=_Z11racy_kernelPi $dist/racy; [ \$? = 9 ]"
    while read -r run last kernel names; do
        if [ "$run" = none ]; then
            useless "$kernel" || later "compute-sanitizer racecheck: $kernel" 5 \
                "echo 'no test launches $names'; exit 1"
            continue
        fi
        port=$((port + 32))
        filter=$(printf ' --kernel-name kne=%s' $names)
        command="$racecheck --port $port$filter $dist/test_${run%+*}"
        later "compute-sanitizer racecheck: $(echo $names | wc -w) of $kernel, $run" 300 \
            "OFFSHOOT_TEST_LAST=$last $(settings "$run") $command"
    done <"$logs/plan"
    run_queue
}

[ "$mode" = race ] || everything
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
    [ "$mode" = race ] || memcheck_tests
    [ "$mode" = short ] || list_launches
    run_queue
    [ "$mode" = short ] || racecheck_tests
fi
[ "$mode" = race ] && [ -n "${without:-}" ] && exit 1
complete=1

#!/bin/sh
# make gpu-check [REPORT=FILE]: every check that needs a GPU; `long` adds the slow ones.
#
# Needs a GPU, a driver and build/dist of `make dist`, which may come from another machine; where
# that is missing it is built here. Prints a report, and writes it to the file.
set -u

mode=${1:-short}
report=${2:-build/gpu-check.md}
dist=build/dist
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
say "# GPU check ($mode), $(date +%F)"
say
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1)," \
    "commit $(cat $dist/commit 2>/dev/null || echo unknown)"
say
$dist/offshoot version | sed 's/^/    /' | tee -a "$report"
say
say "| check | result | time |"
say "|---|---|---|"
for t in kernels recurrence attention sample; do
    step "kernels against their references: test_$t" 90 $dist/test_$t
done
step "golden models: test_golden" 120 $dist/test_golden
step "trees are their paths: test_tree_pass" 120 $dist/test_tree_pass
step "offshoot check, demonstration model" 120 $dist/offshoot check --device cuda \
    --model models/demo --limit 4 --max-tokens 32
for s in dense moe next; do
    for type in bf16 fp8; do
        step "offshoot check, random $s $type" 60 $dist/offshoot check --device cuda \
            --model "$(shape $s)" --dummy-weights $type --limit 2 --max-tokens 24
    done
done
if command -v compute-sanitizer >/dev/null; then
    for t in kernels recurrence attention sample; do
        OFFSHOOT_TEST_GPU_ONLY=1 step "compute-sanitizer memcheck: test_$t" 120 \
            compute-sanitizer --error-exitcode 9 $dist/test_$t
    done
else
    say "| compute-sanitizer | NOT THERE | |"
fi
step "acceptance and speed, demonstration model" 60 $dist/offshoot bench accept --device cuda \
    --model models/demo --thinking off --temperature 0
cp "$logs/out" "$logs/bench"
if [ "$mode" = long ]; then
    for t in kernels recurrence attention sample; do
        OFFSHOOT_TEST_GPU_ONLY=1 step "compute-sanitizer racecheck: test_$t" 300 \
            compute-sanitizer --tool racecheck --error-exitcode 9 $dist/test_$t
    done
fi

say
say "Speed on the demonstration model (\`offshoot bench accept\`):"
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

#!/bin/sh
# make gpu-bench [REPORT=FILE]: speed at batch size one on an NVIDIA GPU, with random weights of
# published shapes and acceptance by lot. Needs what tests/gpu_check.sh needs; for Qwen3-Next-80B-A3B
# more than 80 GB of a GPU's memory.
#
# Prints a report and writes it to the file as it goes: one table of all rows, then what each
# command printed. It ends within 9 minutes; what there is no time left for says so.
set -u

dist=${BUILD:-build}/dist
report=${1:-$dist/gpu-bench.md}
end=$(($(date +%s) + ${LIMIT:-540}))
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

say() {
    echo "$*" | tee -a "$report"
}

cannot() {
    echo "gpu-bench: $*" >&2
    exit 1
}

# A folder with a published config.json and a tokenizer: all that random weights need.
shape() {
    mkdir -p "$logs/$1"
    cp "tests/data/configs/$1/config.json" models/demo/tokenizer.json "$logs/$1/"
    echo "$logs/$1"
}

# run TITLE SHAPE BENCH OPTIONS...: keeps what it printed; a failure is a line of the report.
run() {
    title=$1 model=$2 bench=$3
    shift 3
    left=$((end - $(date +%s)))
    [ $left -gt 10 ] || {
        say "| $model | $title | NOT RUN (no time left) | | | | | | |"
        return 1
    }
    limit=90
    [ $left -lt $limit ] && limit=$left
    set -- bench "$bench" --device cuda --dummy-weights fp8 --memory 16G "$@"
    printf '\n    $ offshoot %s --model %s\n' "$*" "$model" >>"$logs/all"
    timeout -k 5 "$limit" "$dist/offshoot" "$@" --model "$(shape "$model")" >"$logs/out" 2>"$logs/err"
    rc=$?
    sed 's/^/    /' "$logs/out" >>"$logs/all"
    [ $rc = 0 ] && return 0
    say "| $model | $title | FAILED ($rc): $(tail -n 1 "$logs/err") | | | | | | |"
    return 1
}

# rows TITLE SHAPE GOAL WAY OPTIONS...: rows of `bench latency` whose way it is (plain, drafts).
rows() {
    title=$1 model=$2 goal=$3 way=$4
    shift 4
    run "$title" "$model" latency --temperature 0 --kv-dtype bf16 "$@" || return
    awk -v model="$model" -v title="$title" -v goal="$goal" -v way="$way" '
        $2 == way {
            sub(/\[/, "", $5); split($5, range, /\.\./); sub(/\]/, "", range[2])
            printf "| %s | %s | %s | %s | %s to %s | %s | %s | %s %% | %s |\n", model, title, $1, $4, range[1],
                range[2], $6, $8, $10, goal }' "$logs/out" | tee -a "$report"
}

mkdir -p "$(dirname "$report")"
: >"$report"
nvidia-smi -L >"$logs/gpus" 2>&1 || cannot "no NVIDIA GPU here: $(head -n 1 "$logs/gpus")"
. "$(dirname "$0")/../tests/gpu_env.sh"
say "# GPU bench, $(date +%F)"
say
say "$(nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv,noheader | head -n 1)," \
    "commit $(cat "$dist/commit" 2>/dev/null || echo unknown)"
say
timeout -k 5 60 "$dist/offshoot" version | sed 's/^/    /' | tee -a "$report"
say
say "Random FP8 weights, bf16 K and V, acceptance by lot: figures of speed alone. \"Of floor\" is the share of"
say "what the bytes of a step allow at the copy rate measured in the same process."
say
say "| shape | setting | context | tokens/s | least to most | ms a step | acceptance length | of floor | goal |"
say "|---|---|---|---|---|---|---|---|---|"

two="--contexts 1024,32768 --prefix-cache on --requests 3"
one="--contexts 1024 --prefix-cache on --requests 3"
chain="--tree-nodes 4 --draft-depth 3 --draft-topk 1"
tree="--tree-nodes 8 --draft-depth 4 --draft-topk 4"
A=qwen3.5-35b-a3b B=qwen3.5-27b C=qwen3-next-80b-a3b
rows "plain decoding" $A "70 % of the floor" plain $two --draft none
rows "chain of 3" $A "1,111 tokens/s (0.9 ms a token)" drafts $two $chain --synthetic-acceptance 3.0
rows "plain decoding" $B "88 % of the floor" plain $two --draft none
rows "chain of 3" $B "345, then 385 tokens/s (2.9, 2.6 ms a token)" drafts $two $chain --synthetic-acceptance 3.2
rows "chain of 3" $C "650 tokens/s" drafts $two $chain --synthetic-acceptance 3.413

# Prompts, and where the time goes, come before what each part brings, should time run out.
# prompts CONTEXTS MODEL OPTIONS...: a line of each for the list of prompts.
prompts() {
    contexts=$1 of=$2
    shift 2
    run "prompts" "$of" latency --contexts "$contexts" --max-tokens 2 --requests 3 --draft none "$@" &&
        awk -v of="$of${*:+, $*}" '$2 == "plain" {
            printf "- %s, %d: %.1f ms, %s tokens/s\n", of, $1, $1 / $3 * 1e3, $3 }' "$logs/out" >>"$logs/prompts"
}
for model in $A $B; do
    prompts 8192 $model
    prompts 8192 $model --kv-dtype bf16
    prompts 8192 $model --kv-dtype bf16 --act-dtype fp8
    prompts 8192 $model --kv-dtype bf16 --act-dtype fp8 --ubatch-size 8192
    prompts 32,64,128,192,256,512 $model --kv-dtype bf16
done
run "passes and operations" $A kernels --contexts 1024 --kv-dtype bf16
# traced WHAT KERNEL MODEL OPTIONS...: where the time goes from one such kernel to the next.
traced() {
    what=$1 kernel=$2 of=$3
    shift 3
    [ -e "$dist/gpu_trace.so" ] || return
    export CUDA_INJECTION64_PATH="$(cd "$dist" && pwd)/gpu_trace.so" GPU_TRACE="$logs/trace"
    run "$what, kernel by kernel" "$of" latency --temperature 0 --kv-dtype bf16 --requests 1 "$@" && {
        printf '\n    where the time of %s goes, by bench/gpu_trace:\n' "$what"
        python3 "$(dirname "$0")/gpu_trace/summary.py" "$GPU_TRACE" "$kernel" 2>&1 | head -n 90 | sed 's/^/    /'
    } >>"$logs/all"
    unset CUDA_INJECTION64_PATH GPU_TRACE
}
# The same rounds as above, and passes of a prompt.
for model in $A $B; do
    traced "rounds" plant_kernel $model --contexts 1024 $chain --synthetic-acceptance 3.0
    traced "a prompt's passes" embed_kernel $model --contexts 8192 --max-tokens 2 --draft none
done

# What each part brings, losses included.
rows "4 levels, top-k 4, 8 rows" $C "650 tokens/s" drafts $two $tree --synthetic-acceptance 4.231
rows "chain of 3, drafts in FP8" $A - drafts $one $chain --synthetic-acceptance 3.0 --draft-quant fp8
rows "chain of 3, drafts in FP8" $B - drafts $one $chain --synthetic-acceptance 3.2 --draft-quant fp8
rows "chain of 3, all ids drafted" $A - drafts $one $chain --synthetic-acceptance 3.0 --draft-vocab 0
rows "chain of 3, states in slots" $A - drafts $one $chain --synthetic-acceptance 3.0 --state-mode slots
rows "chain of 3, states by replay" $A - drafts $one $chain --synthetic-acceptance 3.0 --state-mode replay
rows "chain of 3, launches do not overlap" $A - drafts $one $chain --synthetic-acceptance 3.0 --pdl off
prompts 8192 $B --kv-dtype bf16 --wgmma off
rows "chain of 3, no graphs" $A - drafts $one $chain --synthetic-acceptance 3.0 --cuda-graph off
rows "chain of 4" $A - drafts $one --tree-nodes 5 --draft-depth 4 --draft-topk 1 --synthetic-acceptance 3.4
rows "4 levels, top-k 4, 8 rows" $A - drafts $one $tree --synthetic-acceptance 3.4
rows "chains as they pay" $A - drafts $one --synthetic-acceptance 3.0
rows "chain of 3, all ids drafted" $B - drafts $one $chain --synthetic-acceptance 3.2 --draft-vocab 0
rows "chain of 3, states in slots" $B - drafts $one $chain --synthetic-acceptance 3.2 --state-mode slots
rows "chain of 3, states by replay" $B - drafts $one $chain --synthetic-acceptance 3.2 --state-mode replay
rows "chain of 3, launches do not overlap" $B - drafts $one $chain --synthetic-acceptance 3.2 --pdl off

say
say "Prompts and their tokens, milliseconds to the end (goals for 8,192: 138 and 750); x of products in two 16-bit terms"
say "or in e4m3:"
say
cat "$logs/prompts" 2>/dev/null | tee -a "$report"
say
say "Random prompts of 32,768 tokens, answers of 128, eight requests, so many at a time; no drafts, no cache:"
say
for n in 1 2 4 8; do
    run "random prompts" $A shared-prefix --groups 8 --group-prompts 1 --system-tokens 32704 --question-tokens 64 \
        --max-tokens 128 --connections $n --draft none --prefix-cache off --act-dtype fp8 --kv-dtype bf16 &&
        awk -v of="$A, $n at a time" '$1 == "off" {
            printf "- %s: %s s, prompts %.0f tokens/s, answers %s tokens/s; first token %s ms (median), %s (95 %%)\n",
                of, $3, $4 / $3, $8, $10, $11 }' "$logs/out" | tee -a "$report"
done
run "passes and operations" $B kernels --contexts 1024 --kv-dtype bf16
say
say "What the commands printed (shapes stand for folders with their config.json):"
cat "$logs/all" 2>/dev/null | tee -a "$report"

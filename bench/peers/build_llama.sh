#!/bin/sh
# Builds llama.cpp for side_by_side.py, from the source package that llama-cpp-python has on PyPI,
# and converts the models. About half an hour on two cores, 12 GB of disk. What DIR already has is
# left as it is: run it again after a failure, delete what is to be made anew.
#
#   build_llama.sh [--a3b] DIR [TOKENIZER_JSON]
#
# DIR/v     a Python environment, for the converter alone
# DIR/ll    the source; DIR/ll/vendor/llama.cpp/build/bin has llama-server, llama-bench and
#           llama-quantize
# DIR/q08   Qwen3.5-0.8B's shape with random weights; TOKENIZER_JSON is that model's, if you have
#           it (else the demonstration model's, filled up to the same size)
# DIR/wide  the demonstration model with feed-forward layers of 460 MB, which change no token
# DIR/gg    demo.gguf, wide.gguf, q08-bf16.gguf, q08-q8.gguf, q08-q4km.gguf
# With --a3b, DIR/a3b, gg/a3b-q8.gguf and gg/a3b-q4km.gguf, too: a fifth of Qwen3.5-35B-A3B with
# random weights. It takes another quarter of an hour and 41 GB of disk, and side_by_side.py 16 GB
# of memory.
set -eu

package="llama-cpp-python==0.3.36" # llama.cpp of 2026-10-01

a3b=
[ "${1-}" != --a3b ] || {
    a3b=1
    shift
}
[ $# -ge 1 ] || {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
}
here=$(cd "$(dirname "$0")" && pwd)
demo=$here/../../models/demo
tokenizer=$(realpath "${2:-$demo/tokenizer.json}")
mkdir -p "$1/gg"
cd "$1"
llama=ll/vendor/llama.cpp
jobs=$(nproc)

# Its output goes to a file, whose end is shown if it fails.
quietly() { # quietly LOG COMMAND...
    log=$1
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        exit 1
    }
}

if ! v/bin/python -c 'import torch, transformers, numpy, safetensors, jinja2' 2>/dev/null; then
    echo "$1/v: Python environment"
    python3 -m venv v
    v/bin/pip install --quiet torch transformers numpy safetensors jinja2
fi

if [ ! -d ll ]; then
    echo "$1/ll: source of $package"
    rm -rf sdist ll.part
    v/bin/pip download --quiet --no-deps --no-binary :all: --dest sdist "$package"
    mkdir ll.part
    tar xzf sdist/*.tar.gz -C ll.part --strip-components=1
    mv ll.part ll
fi

# On a CPU with AMX this version crashes with Q8_0 when gcc builds it: gcc's ldtilecfg reads 8 of the
# configuration's 64 bytes as far as the optimiser knows, so the rest is never stored.
mmq=$llama/ggml/src/ggml-cpu/amx/mmq.cpp
store='__asm__ volatile("" : : "r"(\&tc) : "memory");'
stale=
grep -q 'volatile("" : : "r"(&tc)' $mmq || {
    sed -i "s/_tile_loadconfig(&tc);/$store &/" $mmq
    stale=1
}

bin=$llama/build/bin
if [ -n "$stale" ] || [ ! -x $bin/llama-server ] || [ ! -x $bin/llama-bench ] ||
    [ ! -x $bin/llama-quantize ]; then
    echo "$1/$llama/build: llama-server, llama-bench, llama-quantize"
    cmake=cmake
    if ! command -v cmake >/dev/null; then
        v/bin/pip install --quiet cmake
        cmake=v/bin/cmake
    fi
    # For this machine's instruction set, as a user would build it.
    quietly configure.log "$cmake" -S $llama -B $llama/build -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF
    quietly build.log "$cmake" --build $llama/build \
        --target llama-server llama-bench llama-quantize -j "$jobs"
fi

# Names are given when a file is whole.
convert() { # convert MODEL_DIR TYPE FILE
    [ ! -f "$3" ] || return 0
    echo "$PWD/$3"
    quietly convert.log v/bin/python "$here/to_gguf.py" $llama "$1" --outtype "$2" --outfile "$3.part"
    mv "$3.part" "$3"
}

# Without an importance matrix. The source may be Q8_0: of random weights nothing but the sizes
# matters, and no other file of a3b is there.
quantize() { # quantize GGUF TYPE FILE
    [ ! -f "$3" ] || return 0
    echo "$PWD/$3"
    quietly quantize.log $bin/llama-quantize --allow-requantize "$1" "$3.part" "$2" "$jobs"
    mv "$3.part" "$3"
}

random() { # random SHAPE MODEL_DIR
    [ ! -d "$2" ] || return 0
    echo "$PWD/$2: random weights"
    rm -rf "$2.part"
    v/bin/python "$here/random_model.py" "$1" "$2.part" "$tokenizer"
    mv "$2.part" "$2"
}

random 0.8b q08
[ -z "$a3b" ] || random a3b a3b
if [ ! -d wide ]; then
    echo "$1/wide: the demonstration model, wide"
    rm -rf wide.part
    v/bin/python "$here/wide_model.py" "$demo" wide.part 32768
    mv wide.part wide
fi
convert q08 bf16 gg/q08-bf16.gguf
convert q08 q8_0 gg/q08-q8.gguf
quantize gg/q08-bf16.gguf Q4_K_M gg/q08-q4km.gguf
convert "$demo" bf16 gg/demo.gguf
convert wide bf16 gg/wide.gguf
[ -z "$a3b" ] || {
    convert a3b q8_0 gg/a3b-q8.gguf
    quantize gg/a3b-q8.gguf Q4_K_M gg/a3b-q4km.gguf
}

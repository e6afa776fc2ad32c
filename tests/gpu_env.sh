# gpu_env.sh: for gpu_check.sh and gpu_bench.sh, which source it: the programs of $dist, unpacked
# from an archive beside it or built, and the GPU libraries where the loader would not look.
# Needs $dist, $logs and a function `cannot` that ends the run.

# A newer archive than what was unpacked from the last one, too: such folders may outlive a run.
if [ -e "$dist.tar.xz" ] && { [ ! -x "$dist/offshoot" ] || [ "$dist.tar.xz" -nt "$dist/offshoot" ]; }; then
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
        "$dist.tar.xz" "$(dirname "$dist")" || cannot "$dist.tar.xz cannot be unpacked"
fi
if [ ! -x "$dist/offshoot" ] || [ ! -x "$dist/test_golden" ]; then
    make -j"$(nproc)" dist >"$logs/build" 2>&1 || {
        tail -n 20 "$logs/build" >&2
        cannot "no $dist here, and it cannot be built; carry one over"
    }
fi
# cuBLASLt may be there for Python alone, or in a toolkit that the loader does not know.
library=$(python3 -c 'import glob, os, sysconfig
site = sysconfig.get_paths()["purelib"]
found = glob.glob(site + "/nvidia/**/libcublasLt.so.1[23]", recursive=True)
print(os.path.dirname(max(found)) if found else "")' 2>/dev/null)
[ -n "$library" ] || library=$(dirname "$(ls /usr/local/cuda/lib64/libcublasLt.so.1[23] 2>/dev/null | tail -n 1)")
[ "$library" = . ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$library"
# CUPTI, for $dist/gpu_trace.so.
for folder in /usr/local/cuda/extras/CUPTI/lib64 /usr/local/cuda/lib64 "$library"; do
    ls "$folder"/libcupti.so.1[23] >/dev/null 2>&1 || continue
    export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
    break
done

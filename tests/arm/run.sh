#!/bin/sh
# tests/arm/run.sh [TEST...]: the program and its tests for 64-bit Arm, run by QEMU on another
# machine.
#
# Needs Debian's gcc-aarch64-linux-gnu, g++-aarch64-linux-gnu and qemu-user, and network the first
# time: the libraries come from the archive into build-arm-root, the system's stay alone. Without
# names: tests of kernels with every instruction set, then `offshoot check`; "all": every test. QEMU
# takes some 20 times the time.
#
# Not covered: speed, and what a real CPU's weaker order of memory may show: QEMU's threads see
# the order of the machine it runs on.
set -eu
for tool in aarch64-linux-gnu-gcc aarch64-linux-gnu-g++ qemu-aarch64; do
    command -v $tool >/dev/null || {
        echo "arm-check needs $tool (Debian: gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user)" >&2
        exit 1
    }
done

build=build-arm
root=$PWD/build-arm-root
jobs=${JOBS:-$(nproc)}
tests=${*:-linear rows moe quantise recurrence fold mixer attention sample}
[ "$tests" != all ] || tests=$(ls tests/test_*.c | sed 's,tests/test_\(.*\)\.c,\1,')

# Arm's packages with all that they need, by apt with a state of its own.
archive() {
    apt-get -q -o Dir::State="$root.apt" -o Dir::Cache="$root.apt" -o Dir::State::status="$root.apt/none" \
        -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root "$@"
}
if [ ! -e "$root" ]; then
    mkdir -p "$root.apt/lists/partial" "$root.apt/archives/partial"
    : >"$root.apt/none"
    archive update
    archive install -y --download-only --no-install-recommends libc6-dev libevent-dev libjansson-dev \
        libpcre2-dev libutf8proc-dev libxxhash-dev libcmocka-dev
    mkdir -p "$root.new"
    for package in "$root.apt"/archives/*.deb; do
        dpkg -x "$package" "$root.new"
    done
    mv "$root.new" "$root"
fi

export PKG_CONFIG_SYSROOT_DIR="$root" PKG_CONFIG_LIBDIR="$root/usr/lib/aarch64-linux-gnu/pkgconfig"
export QEMU_LD_PREFIX="$root" OFFSHOOT_TEST_CPU_ONLY=1
programs=$(for t in $tests; do echo "$build/tests/test_$t"; done)
make --no-print-directory -j"$jobs" BUILD=$build CUDA=0 CC="aarch64-linux-gnu-gcc --sysroot=$root" \
    CXX="aarch64-linux-gnu-g++ --sysroot=$root" $build/offshoot $programs

# What tests start is a script that starts QEMU.
mkdir -p $build/run
for program in $build/offshoot $programs; do
    head -c 2 "$program" | grep -q '#!' && continue
    elf=$build/run/${program##*/}
    mv "$program" "$elf"
    printf '#!/bin/sh\nexec qemu-aarch64 "%s" "$@"\n' "$PWD/$elf" >"$program"
    chmod +x "$program"
done

JOBS=$jobs TEST_TIMEOUT=7200 tests/run_tests.sh $programs
[ $# = 0 ] || exit 0
for isa in dotprod plain; do
    for quant in none q8 q4; do
        echo "offshoot check --isa $isa --quant $quant"
        $build/offshoot check --isa $isa --quant $quant --limit 1 --max-tokens 8 --model models/demo
    done
done

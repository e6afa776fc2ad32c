#!/bin/sh
# Installs what `make demo` (build), `make check` (check), `make clients` (clients) or `make page-check`
# (page) needs and is not there yet, by apt-get.
# Silent, and apt-get is never run, when nothing is missing.
set -eu

missing=
need() { # need PACKAGE probe...
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
has_libc_headers() {
    echo '#include <stdio.h>' | gcc -E -
}
has_chromium() {
    command -v "${CHROMIUM:-chromium}" || command -v chromium-browser || command -v google-chrome
}
has_fonts() {
    fc-list : family | grep .
}
# Where it is installed and does not link all the same, `make check` goes on without.
has_libfuzzer() {
    tests/run_fuzz.sh probe || dpkg -s libclang-rt-dev
}

need gcc command -v gcc
need libc6-dev has_libc_headers
need pkg-config command -v pkg-config
need libevent-dev pkg-config --exists libevent_core libevent_extra
need libjansson-dev pkg-config --exists jansson
need libpcre2-dev pkg-config --exists libpcre2-8
need libutf8proc-dev pkg-config --exists libutf8proc
need libxxhash-dev pkg-config --exists libxxhash
if [ "${1:-build}" = check ]; then
    need libcmocka-dev pkg-config --exists cmocka
    need g++ command -v g++
    need xz-utils command -v xz
    need clang-format command -v clang-format
    need clang-tidy command -v clang-tidy
    need clang command -v clang
    need libclang-rt-dev has_libfuzzer
fi

if [ "${1:-build}" = page ]; then
    need python3 command -v python3
    need chromium has_chromium
    need fonts-dejavu-core has_fonts
fi

if [ "${1:-build}" = clients ]; then
    need python3-venv python3 -c 'import ensurepip, venv'
fi

[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null; then
    echo "install what these Debian packages hold, then run make again:$missing" >&2
    exit 1
fi
as_root=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "as root, run: apt-get install$missing" >&2
        exit 1
    }
    as_root=sudo
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
# shellcheck disable=SC2086 # the list is split on purpose
$as_root apt-get install -y -qq --no-install-recommends $missing </dev/null

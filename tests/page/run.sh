#!/bin/bash
# The built-in page in a headless Chromium; ends with one line, `N passed, N failed`.
#   run.sh [TEST]...     all tests without names, else these: PageTest.test_reload
# OFFSHOOT_BINARY names another server than build/offshoot, CHROMIUM another browser, SCREENSHOT the
# file of the picture (build-page/screenshot.png).
set -eu
cd "$(dirname "$0")/../.."
mkdir -p build-page
exec timeout 900 python3 -B tests/page/test_page.py "$@"

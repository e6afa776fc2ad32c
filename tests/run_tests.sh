#!/bin/bash
# Runs cmocka programs, as many at a time as there are cores (JOBS=N: N); ends with one line,
# `N passed, N failed`. Results come in the order of the programs.
# A program that crashes, hangs (for TEST_TIMEOUT seconds, 900) or exits non-zero without a failed
# test counts as one failed test.
# A libFuzzer target counts as one test, passed when a short run finds nothing.
set -u

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# One program: its output to NAME.log, then "passed failed status seconds" to NAME.result.
run_one() {
    program=$1 name=${1##*/}
    start=$SECONDS
    case $name in
    fuzz_*) tests/run_fuzz.sh 2 "$program" ;;
    *) timeout "${TEST_TIMEOUT:-900}" "$program" ;;
    esac >"$logs/$name.log" 2>&1
    status=$?
    count='{n += $1} END {print n + 0}'
    p=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test(s).*/\1/p' "$logs/$name.log" | awk "$count")
    f=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test(s).*/\1/p' "$logs/$name.log" | awk "$count")
    case $name in fuzz_*) [ "$status" -eq 0 ] && p=1 ;; esac
    [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    # A program that ran nothing is a mistake in the program.
    [ "$status" -eq 0 ] && [ "$p" -eq 0 ] && f=1
    echo "$p $f $status $((SECONDS - start))" >"$logs/$name.part"
    mv "$logs/$name.part" "$logs/$name.result"
}
export -f run_one
export logs
printf '%s\0' "$@" | xargs -0 -P "${JOBS:-$(nproc)}" -I{} bash -c 'run_one "$1"' run_one {} &

passed=0
failed=0
for program in "$@"; do
    name=${program##*/}
    until [ -e "$logs/$name.result" ]; do
        if ! kill -0 $! 2>/dev/null && [ ! -e "$logs/$name.result" ]; then
            echo "0 1 none 0" >"$logs/$name.result" # its runner is gone
        fi
        sleep 0.1
    done
    read -r p f status seconds <"$logs/$name.result"
    if [ "$f" -ne 0 ]; then
        cat "$logs/$name.log"
        echo "$name: $p passed, $f failed (exit status $status)"
    else
        echo "$name: $p passed ($seconds s)"
    fi
    passed=$((passed + p))
    failed=$((failed + f))
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

#!/bin/bash
# Runs cmocka programs one after another; ends with one line, `N passed, N failed`.
# A program that crashes, hangs or exits non-zero without a failed test counts as one failed test.
# A libFuzzer target counts as one test, passed when a short run finds nothing.
set -u

passed=0
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

for program in "$@"; do
    start=$SECONDS
    case ${program##*/} in
    fuzz_*) tests/run_fuzz.sh 2 "$program" ;;
    *) timeout 900 "$program" ;;
    esac >"$log" 2>&1
    status=$?
    p=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test(s).*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    f=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test(s).*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    case ${program##*/} in fuzz_*) [ "$status" -eq 0 ] && p=1 ;; esac
    [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    # A program that ran nothing is a mistake in the program.
    [ "$status" -eq 0 ] && [ "$p" -eq 0 ] && f=1
    if [ "$f" -ne 0 ]; then
        cat "$log"
        echo "${program##*/}: $p passed, $f failed (exit status $status)"
    else
        echo "${program##*/}: $p passed ($((SECONDS - start)) s)"
    fi
    passed=$((passed + p))
    failed=$((failed + f))
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

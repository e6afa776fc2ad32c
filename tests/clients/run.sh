#!/bin/bash
# Clients that people use, from PyPI, against a server with the demonstration model; ends with one
# line, `N passed, N failed`.
#   run.sh [NAME]..., of: openai openai_tools openai_responses opencode structured anthropic lm_eval aiperf open_webui routers manifests
# Installs what the named tests need (all without names) into build-clients/venv (make searches build/
# each time, which this would slow down); after that nothing needs the network. OFFSHOOT_BINARY
# names another server than build/offshoot.
set -u
cd "$(dirname "$0")/../.." || exit 1

names=${*:-openai openai_tools openai_responses opencode structured anthropic lm_eval aiperf open_webui routers manifests}
venv=build-clients/venv
OFFSHOOT_BINARY=$(realpath "${OFFSHOOT_BINARY:-build/offshoot}") || exit 1
export OFFSHOOT_BINARY OFFSHOOT_MODEL=$PWD/models/demo OFFSHOOT_LOG=$PWD/build-clients/server.log
log=$(mktemp)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -f "$log"' EXIT

[ -x $venv/bin/pip ] || python3 -m venv $venv || exit 1
start=$SECONDS
grep -E "# .*\b(all|${names// /|})\b" tests/clients/requirements.txt >"$log"
$venv/bin/pip install --quiet --no-compile --disable-pip-version-check --requirement "$log" || exit 1
echo "$venv: $(du -sm $venv | cut -f1) MB ($((SECONDS - start)) s)"

: >"$OFFSHOOT_LOG"
"$OFFSHOOT_BINARY" serve --model "$OFFSHOOT_MODEL" --port 0 --memory 512M >"$OFFSHOOT_LOG" 2>&1 &
server=$!
for _ in $(seq 600); do
    address=$(sed -n 's/.* listening address=\([^ ]*\).*/\1/p' "$OFFSHOOT_LOG")
    [ -n "$address" ] && break
    kill -0 $server 2>/dev/null || break
    sleep 0.1
done
[ -n "$address" ] || {
    cat "$OFFSHOOT_LOG"
    exit 1
}
export OFFSHOOT_URL=http://$address

passed=0
failed=0
for name in $names; do
    start=$SECONDS
    timeout 900 $venv/bin/python "tests/clients/test_$name.py" >"$log" 2>&1
    status=$?
    count=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -1)
    read -r p _ f _ <<<"${count:-0 passed, 1 failed}"
    [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    [ "$f" -ne 0 ] && cat "$log"
    echo "$name: ${count:-no count, exit status $status} ($((SECONDS - start)) s)"
    passed=$((passed + p))
    failed=$((failed + f))
done

# A server that was asked to stop ends with status 0, after all that was done to it.
kill -TERM $server
wait $server
status=$?
server=
if [ $status -eq 0 ]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    tail -20 "$OFFSHOOT_LOG"
    echo "the server ended with status $status"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 1 ]

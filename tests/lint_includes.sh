#!/bin/bash
# The include table: dependencies point one way. Also: only main.c and base/ (and tests and bench)
# may end the process or write to stderr on their own.
set -u
bad=0

# allow FOLDER REGEX: every "..." include of FOLDER must match REGEX.
allow() {
    local lines
    lines=$(grep -Hn '^ *# *include *"' "$1"/*.[ch] "$1"/*.cu 2>/dev/null | grep -Ev "\"($2)\"")
    [ -z "$lines" ] && return
    echo "$1/ may not include:"
    echo "$lines"
    bad=1
}

allow base 'base/[a-z0-9_]+\.h'
allow kernels '(base|kernels)/[a-z0-9_]+\.(h|inc)'
allow spec '(base|spec)/[a-z0-9_]+\.h'
allow text '(base|text)/[a-z0-9_]+\.h'
allow engine '(base|spec|kernels|engine)/[a-z0-9_]+\.h'
allow drafts '(base|spec|kernels|engine|drafts)/[a-z0-9_]+\.h'
allow server '(base|text|server)/[a-z0-9_]+\.h|engine/engine\.h'

lines=$(grep -Hn '^ *# *include *".*\.c"' main.c ./*/*.[ch])
[ -n "$lines" ] && echo "a .c file is included:" && echo "$lines" && bad=1

lines=$(grep -EHn '(^|[^a-z_.>])(_?exit|quick_exit|abort|perror) *\(|fprintf *\( *stderr' \
    {kernels,spec,text,engine,drafts,server}/*.[ch] 2>/dev/null | grep -v ': *\*')
[ -n "$lines" ] && echo "exit, abort and fprintf(stderr) belong to main.c and base/:" &&
    echo "$lines" && bad=1

exit $bad

#!/usr/bin/env python3
"""race_plan.py BINARY LAUNCHES...: what racecheck is to look at; for gpu_check.sh.

LAUNCHES are files that launched.c wrote, each named after its run. Of each kernel in the binary, an
instance of a template being one of its own, the first launches are checked, in the run that comes
to them first. Prints a line a process, the longest first: run, number of the launch to end after,
kernel, mangled names. The run is "none" of a kernel that no run launches.
"""
import os
import re
import sys

FIRST = 8  # launches of a kernel
TOGETHER = 16  # launches checked in one process, so that none takes much longer than others


def kernels(path):
    """Mangled names, as the program gives them to the CUDA runtime."""
    text = open(path, "rb").read()
    return {name.decode() for name in re.findall(rb"(?<=\0)_Z\w+_kernel\w*(?=\0)", text)}


def own_name(mangled):
    found = re.match(r"_Z(\d+)(\w+)", mangled)
    return found[2][: int(found[1])]


def read(path):
    """A run's launches: ms, name."""
    launches = [line.split() for line in open(path)]
    return [(float(ms), name) for ms, name in launches]


def first_launches(launches):
    """Of each name, which launches its first ones are."""
    found = {}
    for i, (_, name) in enumerate(launches):
        of = found.setdefault(name, [])
        if len(of) < FIRST:
            of.append(i)
    return found


def checked(launches, names, last):
    return sum(name in names for _, name in launches[: last + 1])


def processes(launches, need):
    """need: last launch, name. Names that go together, in the order in which they are done."""
    names = []
    last = 0
    for until, name in sorted(need):
        if names and checked(launches, names + [name], until) > TOGETHER:
            yield last, names
            names = []
        names.append(name)
        last = until
    yield last, names


def main(binary, paths):
    runs = {os.path.basename(path): read(path) for path in paths}
    found = {run: first_launches(launches) for run, launches in runs.items()}
    known = kernels(binary)
    if not known:
        sys.exit(f"{binary} has no kernels")
    groups = {}
    for name in sorted(known.union(*found.values())):
        where = [
            (-len(of[name]), runs[run][of[name][-1]][0], run)
            for run, of in found.items()
            if name in of
        ]
        if not where:
            print("none", 0, own_name(name), name)
            continue
        run = min(where)[2]
        groups.setdefault((run, own_name(name)), []).append((found[run][name][-1], name))
    plan = []
    for (run, kernel), need in groups.items():
        for last, names in processes(runs[run], need):
            # A checked launch takes some 0.1 s.
            ms = runs[run][last][0] + 100 * checked(runs[run], names, last)
            plan.append((ms, run, last + 1, kernel, names))
    for _, run, last, kernel, names in sorted(plan, reverse=True):
        print(run, last, kernel, *names)


main(sys.argv[1], sys.argv[2:])

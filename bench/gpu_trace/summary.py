#!/usr/bin/env python3
"""summary.py TRACE [FIRST]: where the time of a round goes, from what trace.c wrote.

A round begins with each kernel whose name has FIRST in it (plant_kernel: of the tree), but for
drafts, which come before it. A table for each number of launches that many rounds have, such as
with and without drafts. Of the last of these, each kernel and grid: calls a round, the mean time
from its begin to its end, and what it adds: how much later it ends than all before it. What kernels
add, and gaps, are the round.
"""
import collections
import re
import statistics
import sys

ROUNDS = 40  # at most
FEWEST = 8  # of the most frequent kind's rounds, one in so many


def read(path):
    for line in open(path):
        begin, end, grid, threads, registers, shared, name = line.rstrip("\n").split("\t")
        yield int(begin), int(end), grid, threads, registers, shared, name


def short(name):
    """Of a mangled name the kernel's own, with the numbers its template was made for."""
    kernel = re.search(r"\d([a-z][a-z0-9_]*_kernel)", name)
    if not kernel:
        return name
    numbers = re.findall(r"L(?:\d+[A-Za-z]+|[a-z])(\d+)E", name)
    return kernel.group(1) + ("<" + ",".join(numbers) + ">" if numbers else "")


def summary(rounds):
    lines = {}
    gaps, walls = [], []
    for r in rounds:
        reached, gap = r[0][0], 0
        for begin, end, grid, threads, registers, shared, name in r:
            line = lines.setdefault((short(name), grid, threads, registers, shared), [0, 0, 0])
            if begin > reached:
                gap += begin - reached
                reached = begin
            line[0] += 1
            line[1] += end - begin
            line[2] += max(0, end - reached)
            reached = max(reached, end)
        gaps.append(gap)
        walls.append(reached - r[0][0])
    n = len(rounds)
    print(f"{n} rounds of {len(rounds[0])} launches: {statistics.median(walls) / 1e3:.1f} us each, of which"
          f" {statistics.median(gaps) / 1e3:.1f} us nothing runs")
    print(f"{'kernel':40} {'grid':>12} {'threads':>7} {'regs':>4} {'shared':>7} {'calls':>5}"
          f" {'us each':>8} {'adds us':>8}")
    for key, (calls, time, adds) in sorted(lines.items(), key=lambda x: -x[1][2]):
        name, grid, threads, registers, shared = key
        print(f"{name[:40]:40} {grid:>12} {threads:>7} {registers:>4} {shared:>7} {calls / n:>5.1f}"
              f" {time / calls / 1e3:>8.2f} {adds / n / 1e3:>8.1f}")


def main():
    records = list(read(sys.argv[1]))
    first = sys.argv[2] if len(sys.argv) > 2 else "plant_kernel"
    starts = [i for i, r in enumerate(records) if first in r[6]]
    rounds = [records[a:b] for a, b in zip(starts, starts[1:])]
    kinds = collections.Counter(len(r) for r in rounds)
    if not rounds:
        sys.exit(f"no two kernels named {first} among {len(records)} records")
    for length, count in sorted(kinds.items()):
        if count >= max(kinds.values()) / FEWEST:
            summary([r for r in rounds if len(r) == length][-ROUNDS:])


main()

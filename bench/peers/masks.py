"""Which tokens a grammar lets through: Offshoot beside llguidance and XGrammar, on one core.

    python3 -m venv v && v/bin/pip install llguidance xgrammar
    v/bin/python bench/peers/masks.py MODEL [--offshoot build/offshoot] [--rounds 3]

MODEL has a tokenizer.json. `offshoot bench masks` names the forms and times its own masks; the same
walks, tokens by lot among those that may follow, are then taken with the other two's matchers. Prints
markdown: microseconds a mask, mean [p50 p90 max] of the round with the median mean, and what it took
to compile the form, once, in milliseconds.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import time
from pathlib import Path

import numpy

WALKS, MOST = 4, 100


class Llguidance:
    name = "llguidance"

    def __init__(self, path):
        import llguidance
        import llguidance.numpy
        self.lib, self.fill_mask = llguidance, llguidance.numpy.fill_next_token_bitmask
        self.tok = llguidance.LLTokenizer(path.read_text())
        self.n, self.end = self.tok.vocab_size, self.tok.eos_token
        self.mask = numpy.zeros((1, (self.n + 31) // 32), dtype=numpy.int32)

    def compile(self, form):
        make = self.lib.LLMatcher
        return (make.grammar_from_json_schema(form["schema"]) if "schema" in form
                else make.grammar_from_regex(form["pattern"]))

    def begin(self, grammar):
        matcher = self.lib.LLMatcher(self.tok, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def fill(self, matcher):
        self.fill_mask(matcher, self.mask, 0)

    def take(self, matcher, token):
        return matcher.consume_token(token) and not matcher.is_stopped()


class Xgrammar:
    name = "XGrammar"

    def __init__(self, path):
        import xgrammar
        self.lib = xgrammar
        file = json.loads(path.read_text())
        vocab = dict(file["model"]["vocab"])
        vocab.update({t["content"]: t["id"] for t in file["added_tokens"]})
        self.n, self.end = max(vocab.values()) + 1, vocab["<|im_end|>"]
        text = [""] * self.n
        for token, i in vocab.items():
            text[i] = token
        self.compiler = xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo(text, xgrammar.VocabType.BYTE_LEVEL, vocab_size=self.n,
                                   stop_token_ids=[self.end]), max_threads=1)
        self.bits = xgrammar.allocate_token_bitmask(1, self.n)
        self.mask = self.bits.numpy()

    def compile(self, form):
        if "schema" in form:
            return self.compiler.compile_json_schema(json.dumps(form["schema"]))
        return self.compiler.compile_regex(form["pattern"])

    def begin(self, grammar):
        return self.lib.GrammarMatcher(grammar)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.bits)

    def take(self, matcher, token):
        return matcher.accept_token(token) and not matcher.is_terminated()


def walk(peer, matcher, us):
    for _ in range(MOST):
        begun = time.perf_counter()
        peer.fill(matcher)
        us.append((time.perf_counter() - begun) * 1e6)
        bits = numpy.unpackbits(peer.mask.view(numpy.uint8)[0], bitorder="little")[:peer.n]
        ids = numpy.nonzero(bits)[0]
        ids = ids[ids != peer.end]
        if not len(ids) or not peer.take(matcher, int(random.choice(ids))):
            return


def measure(peer, form):
    begun = time.perf_counter()
    grammar = peer.compile(form)
    peer.begin(grammar)
    compile_ms, us = (time.perf_counter() - begun) * 1e3, []
    for _ in range(WALKS):
        walk(peer, peer.begin(grammar), us)
    us.sort()
    return {"mean_us": statistics.mean(us), "p50_us": us[len(us) // 2],
            "p90_us": us[len(us) * 9 // 10], "max_us": us[-1], "compile_ms": compile_ms}


def ours(offshoot, model, seed):
    command = [offshoot, "bench", "masks", "--model", model, "--json", "--seed", str(seed)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["rows"]


def cell(rounds):
    row = sorted(rounds, key=lambda r: r["mean_us"])[len(rounds) // 2]
    text = "%.1f [%.1f %.1f %.0f]" % tuple(row[k] for k in ("mean_us", "p50_us", "p90_us", "max_us"))
    return text + ", %.1f" % rounds[0]["compile_ms"]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model", metavar="MODEL", type=Path)
    p.add_argument("--offshoot", default=Path(__file__).resolve().parents[2] / "build/offshoot")
    p.add_argument("--rounds", type=int, default=3)
    o = p.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    peers = [kind(o.model / "tokenizer.json") for kind in (Llguidance, Xgrammar)]
    cells = {}
    for r in range(o.rounds):
        random.seed(r + 1)
        forms = ours(o.offshoot, o.model, r + 1)
        for form in forms:
            cells.setdefault(form["form"], {}).setdefault("Offshoot", []).append(form)
            for peer in peers:
                cells[form["form"]].setdefault(peer.name, []).append(measure(peer, form))
    print("| form | " + " | ".join(["Offshoot"] + [peer.name for peer in peers]) + " |")
    print("|---|---|---|---|")
    for form, by in cells.items():
        print("| %s | " % form + " | ".join(cell(rounds) for rounds in by.values()) + " |")


if __name__ == "__main__":
    main()

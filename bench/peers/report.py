"""The report of side_by_side.py: rows, ratios, goals, as markdown."""
import statistics

# A row: title, our turn, their turns (the better one counts), figure, decimals, goal. A goal is held
# against the ratio ours / theirs, or against ours alone.
AT_LEAST, OURS_AT_MOST = "ratio >=", "ours <="
PLAIN, DRAFTS, ALL_IDS = "ours", "our drafts", "our drafts, all ids"
NO_AMX, SAVED, HALF = "ours, no AMX", "ours, from quantize", "ours, bf16 K and V"
THEIRS, THEIR_DRAFTS = "theirs", "their drafts"
BEST = [THEIRS, THEIR_DRAFTS]
COPIES, THEIR_COPIES, BOTH = "our copies", "their copies", "ours, both"


def random_rows(prompt_goal):
    rows = [("plain decode, tokens/s", PLAIN, [THEIRS], "decode", 2, (AT_LEAST, 0.97))]
    passes = ("our passes", ["their passes"])
    rows.append(("pass of 1 row, ms", *passes, "pass1", 1, None))
    for n, goal in ((4, None), (8, (OURS_AT_MOST, 1.2)), (16, (OURS_AT_MOST, 1.5))):
        rows += [("pass of %d rows, ms" % n, *passes, "pass%d" % n, 1, None),
                 ("pass of %d rows over one row" % n, *passes, "over%d" % n, 2, goal)]
    return rows + [
        ("drafts, 3.0 tokens a step by lot: tokens/s, beside their better", DRAFTS, BEST,
         "decode", 2, (AT_LEAST, 2.0)),
        ("the same, all ids scored (`--draft-vocab 0`)", ALL_IDS, BEST, "decode", 2, None),
        ("the same, beside their drafts", DRAFTS, [THEIR_DRAFTS], "decode", 2, None),
        ("tokens a step that the lots gave; the rows above are brought to 3.0", DRAFTS,
         [THEIR_DRAFTS], "acceptance", 2, None),
        ("prompt of 512 tokens, tokens/s", PLAIN, [THEIRS], "prompt", 1, (AT_LEAST, prompt_goal)),
        ("the same, ours without AMX", NO_AMX, [THEIRS], "prompt", 1, (AT_LEAST, 1.3)),
        ("plain decode, ours without AMX", NO_AMX, [THEIRS], "decode", 2, None),
        ("start to ready, s", PLAIN, [THEIRS], "ready", 2, (OURS_AT_MOST, 1.0)),
        ("the same, ours from a folder that `quantize` wrote", SAVED, [THEIRS], "ready", 2,
         (OURS_AT_MOST, 1.0)),
        ("plain decode from it, tokens/s", SAVED, [THEIRS], "decode", 2, (AT_LEAST, 0.97)),
        ("resident memory after it, MB", PLAIN, [THEIRS], "resident", 0, None),
    ]


DEMO_ROWS = [
    ("agent loops, tokens/s after the first, beside their better", PLAIN, BEST, "decode", 0,
     (AT_LEAST, 1.5)),
    ("the same, seconds in all", PLAIN, BEST, "seconds", 1, None),
    ("without drafts, tokens/s", "ours, no drafts", [THEIRS], "decode", 0, None),
    ("with drafts, tokens/s", PLAIN, [THEIR_DRAFTS], "decode", 0, None),
    ("with drafts, acceptance length", PLAIN, [THEIR_DRAFTS], "acceptance", 2, None),
    ("drafts copied from the text alone, tokens/s, beside their better", COPIES,
     [THEIRS, THEIR_COPIES], "decode", 0, None),
    ("the same beside their copies", COPIES, [THEIR_COPIES], "decode", 0, None),
    ("the same, acceptance length", COPIES, [THEIR_COPIES], "acceptance", 2, None),
    ("copies and the head, tokens/s, beside their best", BOTH, BEST + [THEIR_COPIES], "decode", 0,
     None),
    ("the same, acceptance length", BOTH, [THEIR_DRAFTS], "acceptance", 2, None),
    ("start to ready, s", PLAIN, [THEIRS], "ready", 2, (OURS_AT_MOST, 0.3)),
    ("resident memory after it, MB", PLAIN, [THEIRS], "resident", 0, None),
]
WIDE_ROWS = [row for row in DEMO_ROWS if row[3] not in ("ready", "resident")]
LONG_ROWS = [
    ("prompt, tokens/s", PLAIN, [THEIRS], "prompt", 1, None),
    ("plain decode behind it, tokens/s", PLAIN, [THEIRS], "decode", 2, None),
    ("drafts, 3.0 tokens a step by lot: tokens/s, beside their better", DRAFTS, BEST, "decode", 2,
     None),
    ("the same, beside their drafts", DRAFTS, [THEIR_DRAFTS], "decode", 2, None),
    ("prompt, ours with `--kv-dtype bf16`", HALF, [THEIRS], "prompt", 1, None),
    ("plain decode, ours with `--kv-dtype bf16`", HALF, [THEIRS], "decode", 2, None),
    ("resident memory after it, MB", PLAIN, [THEIRS], "resident", 0, None),
    ("the same, ours with `--kv-dtype bf16`", HALF, [THEIRS], "resident", 0, None),
]
COMPANY_ROWS = [
    ("one request, tokens/s", PLAIN, [THEIRS], "decode1", 1, None),
    ("two at once, tokens/s of both", PLAIN, [THEIRS], "decode2", 1, None),
    ("four at once", PLAIN, [THEIRS], "decode4", 1, None),
    ("eight at once", PLAIN, [THEIRS], "decode8", 1, None),
    ("eight prompts of 512 tokens at once, tokens/s", PLAIN, [THEIRS], "prompt", 1, None),
    ("resident memory after it, MB", PLAIN, [THEIRS], "resident", 0, None),
]
LOOPS_ROWS = [
    ("eight loops, seconds in all, beside their better", PLAIN, BEST, "seconds", 1, None),
    ("answers' tokens/s, prompts' time included", PLAIN, BEST, "decode", 1, None),
    ("without drafts, seconds in all", "ours, no drafts", [THEIRS], "seconds", 1, None),
    ("with drafts, seconds in all", PLAIN, [THEIR_DRAFTS], "seconds", 1, None),
    ("with drafts, acceptance length", PLAIN, [THEIR_DRAFTS], "acceptance", 2, None),
]
FIFTH = "A fifth of Qwen3.5-35B-A3B (8 layers of 40, 49,664 entries), random weights, "
WHICH = {THEIRS: "plain", THEIR_DRAFTS: "drafts", THEIR_COPIES: "copies"}
LESS_IS_BETTER = ("seconds", "ready", "resident", "pass")
TITLES = {"bf16": "Qwen3.5-0.8B's shape, random weights, bf16",
          "act": "The same weights, x in bf16, as llama.cpp takes it: ours `--act-dtype bf16`",
          "q8": "The same, 8 bits: ours `--quant q8`, theirs Q8_0",
          "q4": "Qwen3.5-0.8B's shape, random weights, 4 bits: ours `--quant q4`, theirs Q4_K_M",
          "demo": "The demonstration model, agent loops, real drafts",
          "wide": "The same with wide layers, 460 MB: the same tokens, bound by memory",
          "company": "Qwen3.5-0.8B's shape, 8 bits, several requests at a time: ours from "
                     "`offshoot quantize`, theirs Q8_0",
          "loops": "The wide demonstration model, eight agent loops at a time, real drafts",
          "long": "Qwen3.5-0.8B's shape, 8 bits, long prompts (`--long-prompt`): ours from "
                  "`offshoot quantize`, theirs Q8_0",
          "a3b": FIFTH + "8 bits: ours from `offshoot quantize`, theirs Q8_0",
          "a3b-q4": FIFTH + "4 bits: ours from `offshoot quantize --quant q4`, theirs Q4_K_M"}


def spread(values, decimals):
    return "%.*f [%.*f..%.*f]" % (decimals, statistics.median(values), decimals, min(values),
                                  decimals, max(values))


class Report:
    def __init__(self, head, options):
        self.head, self.o = head, options
        self.figures, self.commands = {}, []  # {group: {turn: {figure: [by round]}}}

    def command(self, group, name, words):
        text = " ".join(str(w) for w in words)
        for path, short in ((self.o.llama, ""), (self.o.dir, "DIR"), (self.o.demo, "models/demo"),
                            (self.o.offshoot, "offshoot")):
            text = text.replace(str(path) + ("/" if not short else ""), short)
        self.commands.append("%s, %s: %s" % (group, name, text))

    def add(self, group, name, figures):
        turn = self.figures.setdefault(group, {}).setdefault(name, {})
        for figure, value in figures.items():
            turn.setdefault(figure, []).append(value)

    def better(self, group, names, figure):
        """Of their turns the one with the better median; its name and its values."""
        of = {name: self.figures[group][name][figure] for name in names}
        best = min if figure.startswith(LESS_IS_BETTER) else max
        name = best(of, key=lambda n: statistics.median(of[n]))
        return name, of[name]

    def row(self, group, spec):
        title, our_turn, their_turns, figure, decimals, goal = spec
        ours = self.figures[group][our_turn][figure]
        name, theirs = self.better(group, their_turns, figure)
        ratios = [a / b for a, b in zip(ours, theirs)]
        said = ""
        if goal:
            kind, bound = goal
            value = statistics.median(ours if kind == OURS_AT_MOST else ratios)
            met = value >= bound if kind == AT_LEAST else value <= bound
            said = "%s %g: %s" % (kind, bound, "met" if met else "missed")
        which = "" if len(their_turns) == 1 else " " + WHICH[name]
        return "| %s | %s | %s%s | %s | %s |" % (title, spread(ours, decimals),
                                                 spread(theirs, decimals), which,
                                                 spread(ratios, 2), said)

    def table(self, group):
        amx = "amx_bf16" in self.head[0]
        special = {"demo": DEMO_ROWS, "wide": WIDE_ROWS, "long": LONG_ROWS,
                   "company": COMPANY_ROWS, "loops": LOOPS_ROWS}
        rows = special.get(group) or random_rows(4.0 if amx else 1.3)
        if group.startswith("a3b"):  # the goals are the 0.8B shape's
            rows = [row[:-1] + (None,) for row in rows]
        return ["", "## " + TITLES[group], "", "| | Offshoot | llama.cpp | ratio | goal |",
                "|---|---|---|---|---|"] + [self.row(group, spec) for spec in rows
                                            if spec[1] in self.figures[group]]

    def text(self):
        o = self.o
        lines = ["# Offshoot and llama.cpp side by side", ""]
        lines += ["- " + line for line in self.head]
        lines += [
            "- `bench/peers/side_by_side.py`: %d threads, %d rounds; median [least..most]; ratio "
            "is ours / theirs, taken within a round" % (o.threads, o.rounds),
            "- answers of %d tokens behind %d, long prompts %d, greedy, one request at a time but "
            "where it is said; nothing comes from a cache, but for the agent loops" % (
                o.tokens, o.short_prompt, o.long_prompt)]
        for group in TITLES:
            if group in self.figures:
                lines += self.table(group)
        for quant in ("q8", "q4"):
            if quant in o.only and quant not in self.figures:
                lines += ["", "%s: left out, this binary has no `--quant %s`." % (quant, quant)]
        lines += ["", "## Commands", "Each server also gets `--port`.", ""]
        lines += ["    " + c for c in self.commands]
        return "\n".join(lines) + "\n"

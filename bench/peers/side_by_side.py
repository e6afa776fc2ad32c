"""Offshoot and llama.cpp side by side on one machine, on the CPU.

    side_by_side.py DIR [--threads 2] [--rounds 5] [--out report.md]

DIR is what build_llama.sh made. A round measures every program once, one process at a time, ours
and theirs in turns; every other round goes backwards. The report, markdown on standard output, has
the median over the rounds and [least..most]. A ratio is taken within a round, then its median.
Needs Linux and Python 3.8 or later, nothing else.
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import Report

ROOT = Path(__file__).resolve().parents[2]
VOCAB = 4000  # ids in prompts: every tokenizer has them, and none of them is special
LENGTH = 3.0  # tokens a step that drafts accepted by lot give on average
GROUPS = ("bf16", "act", "q8", "q4", "demo", "wide")
ON_REQUEST = ("company", "loops", "long", "a3b", "a3b-q4")  # build_llama.sh makes a3b on request
AT_ONCE = 8  # requests that share passes in the groups `company` and `loops`
THEIR_MTP = ["--spec-type", "draft-mtp", "--spec-draft-n-max", 3]
WIDE_LOOPS = 2  # its prompts take their time
START_LIMIT, TOOL_LIMIT, REQUEST_LIMIT = 300, 1800, 900  # seconds


class Failed(Exception):
    pass


# ---- processes: whatever happens, none is left behind ----

@contextlib.contextmanager
def process(command, log, out=None):
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out or log, stderr=log)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def tail(log):
    log.seek(0)
    return log.read()[-2000:].decode(errors="replace")


def run_tool(command):
    """What a program that ends by itself prints."""
    command = [str(c) for c in command]
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as out:
        with process(command, log, out) as child:
            try:
                status = child.wait(TOOL_LIMIT)
            except subprocess.TimeoutExpired:
                raise Failed("%s has not ended after %d s" % (" ".join(command), TOOL_LIMIT))
        if status:
            raise Failed("%s: status %d\n%s" % (" ".join(command), status, tail(log)))
        out.seek(0)
        return out.read().decode()


class Server:
    """A running server that answers, whichever of the two it is."""

    def __init__(self, child, port):
        self.child, self.port, self.ready_s = child, port, 0.0

    def ask(self, method, path, body=None):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_LIMIT)
        try:
            link.request(method, path, body and json.dumps(body),
                         {"Content-Type": "application/json"})
            reply = link.getresponse()
            return reply.status, reply.read()
        finally:
            link.close()

    def wait_ready(self, begun):
        while time.monotonic() - begun < START_LIMIT and self.child.poll() is None:
            try:
                if self.ask("GET", "/health")[0] == 200:
                    self.ready_s = time.monotonic() - begun
                    return
            except OSError:
                pass
            time.sleep(0.005)
        raise Failed("the server does not answer")

    def complete(self, n_prompt, n_answer):
        """Seconds for an answer of so many tokens, and the server's reply."""
        prompt = [random.randrange(VOCAB) for _ in range(n_prompt)]
        begun = time.monotonic()
        status, text = self.ask("POST", "/v1/completions", {
            "prompt": prompt, "max_tokens": n_answer, "temperature": 0, "ignore_eos": True})
        seconds = time.monotonic() - begun
        if status != 200:
            raise Failed("status %d: %s" % (status, text[:300]))
        reply = json.loads(text)
        usage = reply["usage"]
        if (usage["prompt_tokens"], usage["completion_tokens"]) != (n_prompt, n_answer):
            raise Failed("asked for %d and %d tokens, got %s" % (n_prompt, n_answer, usage))
        return seconds, reply

    def resident_mb(self):
        with open("/proc/%d/status" % self.child.pid) as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS:")) / 1024


@contextlib.contextmanager
def started(command):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [str(c) for c in command] + ["--port", str(port)]
    with tempfile.TemporaryFile() as log:
        begun = time.monotonic()
        with process(command, log) as child:
            up = Server(child, port)
            try:
                up.wait_ready(begun)
                yield up
            except (Failed, OSError, http.client.HTTPException) as e:
                raise Failed("%s: %s\n%s" % (" ".join(command), e, tail(log)))


@contextlib.contextmanager
def server(command):
    """The second of two starts. The first may wait for memory that a virtual machine has given back
    to its host (free page reporting), a second and more for 750 MB, whatever the program."""
    with started(command):
        pass
    with started(command) as up:
        yield up


# ---- what is measured, by either program ----

def decode_and_prompt(up, o):
    """A request of one token ends with its prompt; one of n has n - 1 more to decode."""
    up.complete(o.short_prompt, 8)  # warm
    one, _ = up.complete(o.short_prompt, 1)
    all_, reply = up.complete(o.short_prompt, o.tokens)
    prompt, _ = up.complete(o.prompt, 1)
    n = o.tokens - 1
    steps = n - reply.get("timings", {}).get("draft_n_accepted", 0)
    return {"decode": n / (all_ - one), "acceptance": n / steps, "prompt": o.prompt / prompt,
            "ready": up.ready_s, "resident": up.resident_mb()}


def serve_random(command, o):
    with server(command) as up:
        return decode_and_prompt(up, o)


def serve_long(command, o):
    """One request, as its server times it: to the first token, and from there to the last."""
    with server(command) as up:
        up.complete(o.short_prompt, 8)  # warm
        seconds, reply = up.complete(o.long_prompt, o.tokens)
        timings = reply["timings"]
        prompt, rest = timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3
        if abs(prompt + rest - seconds) > 0.02 * seconds:
            raise Failed("%.2f s, of which the server knows %.2f" % (seconds, prompt + rest))
        n = o.tokens - 1
        return {"decode": n / rest, "prompt": o.long_prompt / prompt, "resident": up.resident_mb(),
                "acceptance": n / (n - timings.get("draft_n_accepted", 0))}


def by_lot(figures):
    """A few dozen draws miss the average by some percent; what is measured is a step's time."""
    return dict(figures, decode=figures["decode"] * LENGTH / figures["acceptance"])


def serve_agent(command, o, loops):
    """The agent loops of `offshoot bench agent`, which asks any server."""
    with server(command) as up:
        ready = up.ready_s
        limit = ["--limit", loops] if loops else []
        row = json.loads(run_tool([
            o.offshoot, "bench", "agent", "--json", "--url", "http://127.0.0.1:%d" % up.port,
            "--prompts", ROOT / "bench/prompts/agent.jsonl"] + limit))["rows"][0]
        return {"decode": row["tokens_per_second"], "seconds": row["seconds"],
                "acceptance": row["acceptance_length"] or 1, "ready": ready,
                "resident": up.resident_mb()}


def at_once(n, do):
    """Seconds until do(0) to do(n - 1), each in a thread of its own, are done; their results."""
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        results = list(pool.map(do, range(n)))
    return time.monotonic() - begun, results


def serve_company(command, o):
    """Requests sent together, each with a prompt of its own: tokens of all over the time of all."""
    with server(command) as up:
        up.complete(o.short_prompt, 8)  # warm
        out = {}
        for n in (1, 2, 4, AT_ONCE):
            seconds, _ = at_once(n, lambda i: up.complete(o.short_prompt, o.tokens))
            out["decode%d" % n] = n * o.tokens / seconds
        seconds, _ = at_once(AT_ONCE, lambda i: up.complete(o.prompt, 1))
        out["prompt"] = AT_ONCE * o.prompt / seconds
        out["resident"] = up.resident_mb()
        return out


def serve_loops(command, o):
    """As many agent loops as there are places, at once: seconds until the last has ended."""
    loops = (ROOT / "bench/prompts/agent.jsonl").read_text().splitlines()
    with server(command) as up, tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / ("%d.jsonl" % i) for i in range(AT_ONCE)]
        for path, loop in zip(files, loops):
            path.write_text(loop + "\n")
        seconds, rows = at_once(AT_ONCE, lambda i: json.loads(run_tool([
            o.offshoot, "bench", "agent", "--json", "--url", "http://127.0.0.1:%d" % up.port,
            "--prompts", files[i]]))["rows"][0])
        return {"seconds": seconds, "decode": sum(r["completion_tokens"] for r in rows) / seconds,
                "acceptance": statistics.mean(r["acceptance_length"] or 1 for r in rows)}


def our_drafts(command):
    rows = json.loads(run_tool(command))["rows"]
    drafted = next(r for r in rows if r["drafts"])
    return by_lot({"decode": drafted["tokens_per_second"],
                   "acceptance": drafted["acceptance_length"]})


def read_our_passes(text):
    """{rows: ms} from the table that begins with the line of its titles and ends with a blank."""
    lines = text.split("\n")
    first = next(i for i, line in enumerate(lines) if line.split()[:2] == ["rows", "ms"])
    table = {}
    for line in lines[first + 1:]:
        if not line.strip():
            break
        table[int(line.split()[0])] = float(line.split()[1])
    return table


def read_their_passes(text):
    return {t["n_prompt"]: statistics.median(t["samples_ns"]) / 1e6 for t in json.loads(text)}


def passes(command, read):
    ms = read(run_tool(command))
    out = {"pass%d" % n: ms[n] for n in (1, 4, 8, 16)}
    out.update({"over%d" % n: ms[n] / ms[1] for n in (4, 8, 16)})
    return out


# ---- turns ----

def without_amx(ours, o):
    """Where the machine has AMX, ours without it too."""
    if not has_amx():
        return []
    return [("ours, no AMX", ours + ["--draft", "none", "--isa", "vnni"],
             lambda c: serve_random(c, o))]


def quantized(o, shape, quant):
    """A folder of weights in 8 bits or 4, as their file is: written once."""
    folder = o.dir / (shape + {"q8": "-saved", "q4": "-saved-q4"}[quant])
    if not (folder / "model.safetensors").exists():
        run_tool([o.offshoot, "quantize", "--model", o.dir / shape, "--out", folder,
                  "--quant", quant])
    return folder


def on_cpu(o, context=4096):
    return ["--device", "cpu", "--threads", o.threads, "--ctx-size", context]


def our_server(o, model, options, context=4096):
    return [o.offshoot, "serve", "--model", model] + on_cpu(o, context) + options + [
        "--prefix-cache", "off"]


def their_server(o, gguf, context=4096, places=1):
    return [o.llama / "llama-server", "-m", o.dir / "gg" / gguf, "-t", o.threads, "-np", places,
            "-c", places * context, "--no-ui", "--no-cache-prompt", "--cache-ram", 0,
            "--ctx-checkpoints", 0]


def their_lots(o):
    return ["--spec-type", "draft-mtp", "--spec-draft-n-max", 3, "--spec-synth-len", LENGTH]


def our_lots(o, bench, context):
    return [o.offshoot, "bench", "latency"] + bench + [
        "--json", "--temperature", 0, "--contexts", context, "--max-tokens", o.tokens,
        "--requests", 1, "--synthetic-acceptance", LENGTH, "--draft-depth", 3]


def random_turns(o, model, gguf, options, draft_vocab):
    """Both programs on random weights: (name, command, function of the command), in turns."""
    ours = our_server(o, model, options)
    bench = ["--model", model] + on_cpu(o) + options
    latency = our_lots(o, bench, o.short_prompt)
    theirs = their_server(o, gguf)
    kernels = [o.offshoot, "bench", "kernels"] + bench + ["--contexts", 128]
    llama_bench = [o.llama / "llama-bench", "-m", o.dir / "gg" / gguf, "-t", o.threads,
                   "-p", "1,4,8,16", "-n", 0, "-d", 128, "-r", 5, "-o", "json"]
    return [
        ("ours", ours + ["--draft", "none"], lambda c: serve_random(c, o)),
        ("theirs", theirs, lambda c: serve_random(c, o)),
        ("our drafts", latency + ["--draft-vocab", draft_vocab], lambda c: our_drafts(c)),
        ("their drafts", theirs + their_lots(o), lambda c: by_lot(serve_random(c, o))),
        ("our drafts, all ids", latency + ["--draft-vocab", 0], lambda c: our_drafts(c)),
        ("their passes", llama_bench, lambda c: passes(c, read_their_passes)),
        ("our passes", kernels, lambda c: passes(c, read_our_passes)),
    ] + without_amx(ours, o)


def small_turns(o, weights, options):
    """The 0.8B shape."""
    return random_turns(o, o.dir / "q08", "q08-%s.gguf" % weights, options, 32768)


def narrow_turns(o, weights, quant):
    """The same, and once from a folder as their file is."""
    saved = our_server(o, quantized(o, "q08", quant), []) + ["--draft", "none"]
    return small_turns(o, weights, ["--quant", quant]) + [
        ("ours, from quantize", saved, lambda c: serve_random(c, o))]


def long_turns(o, model, gguf):
    """The 0.8B shape in 8 bits behind a long prompt."""
    context = o.long_prompt + 1024
    bench = ["--model", model] + on_cpu(o, context)
    theirs = their_server(o, gguf, context)
    ours = our_server(o, model, ["--draft", "none"], context)
    return [
        ("ours", ours, lambda c: serve_long(c, o)),
        ("theirs", theirs, lambda c: serve_long(c, o)),
        ("our drafts", our_lots(o, bench, o.long_prompt), lambda c: our_drafts(c)),
        ("their drafts", theirs + their_lots(o), lambda c: by_lot(serve_long(c, o))),
        ("ours, bf16 K and V", ours + ["--kv-dtype", "bf16"], lambda c: serve_long(c, o))]


def company_turns(o):
    """The 0.8B shape in 8 bits, several requests at a time."""
    ours = our_server(o, quantized(o, "q08", "q8"), ["--draft", "none", "--max-seqs", AT_ONCE], 1024)
    theirs = their_server(o, "q08-q8.gguf", 1024, AT_ONCE)
    return [("ours", ours, lambda c: serve_company(c, o)),
            ("theirs", theirs, lambda c: serve_company(c, o))]


def loops_turns(o):
    """The wide model, several agent loops at a time."""
    ours = [o.offshoot, "serve", "--model", o.dir / "wide", "--device", "cpu", "--threads",
            o.threads, "--max-seqs", AT_ONCE]
    theirs = [o.llama / "llama-server", "-m", o.dir / "gg/wide.gguf", "-t", o.threads, "-np",
              AT_ONCE, "-c", AT_ONCE * 8192, "--no-ui", "--jinja"]
    return [("theirs", theirs, lambda c: serve_loops(c, o)),
            ("ours", ours, lambda c: serve_loops(c, o)),
            ("their drafts", theirs + THEIR_MTP, lambda c: serve_loops(c, o)),
            ("ours, no drafts", ours + ["--draft", "none"], lambda c: serve_loops(c, o))]


def experts_turns(o, weights, quant):
    """The a3b shape."""
    return random_turns(o, quantized(o, "a3b", quant), "a3b-%s.gguf" % weights, [], 32768 // 5)


def agent_turns(o, model, gguf, loops):
    theirs = [o.llama / "llama-server", "-m", gguf, "-t", o.threads, "-np", 1, "-c", 8192,
              "--no-ui", "--jinja"]
    # of its n-gram drafters the one that lost least here, by what it copies
    copies = ["--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", 3,
              "--spec-ngram-map-k-size-m", 8]
    ours = [o.offshoot, "serve", "--model", model, "--device", "cpu", "--threads", o.threads]
    return [("theirs", theirs, lambda c: serve_agent(c, o, loops)),
            ("ours", ours, lambda c: serve_agent(c, o, loops)),
            ("their drafts", theirs + THEIR_MTP, lambda c: serve_agent(c, o, loops)),
            ("ours, no drafts", ours + ["--draft", "none"], lambda c: serve_agent(c, o, loops)),
            ("their copies", theirs + copies, lambda c: serve_agent(c, o, loops)),
            ("our copies", ours + ["--draft", "suffix"], lambda c: serve_agent(c, o, loops)),
            ("ours, both", ours + ["--draft", "union"], lambda c: serve_agent(c, o, loops))]


def has(o, quant):
    """Whether this binary takes weights of so many bits."""
    command = [o.offshoot, "serve", "--model", o.demo, "--device", "cpu", "--quant", quant]
    try:
        with server(command):
            return True
    except Failed as e:
        print("%s is left out: %s" % (quant, e), file=sys.stderr)
        return False


def all_turns(o):
    turns = {}
    if "bf16" in o.only:
        turns["bf16"] = small_turns(o, "bf16", [])
    if "act" in o.only:
        turns["act"] = small_turns(o, "bf16", ["--act-dtype", "bf16"])
    for quant, weights in (("q8", "q8"), ("q4", "q4km")):
        if quant in o.only and has(o, quant):
            turns[quant] = narrow_turns(o, weights, quant)
    if "demo" in o.only:
        turns["demo"] = agent_turns(o, o.demo, o.dir / "gg/demo.gguf", o.loops)
    if "wide" in o.only:
        turns["wide"] = agent_turns(o, o.dir / "wide", o.dir / "gg/wide.gguf",
                                    o.loops or WIDE_LOOPS)
    if "company" in o.only:
        turns["company"] = company_turns(o)
    if "loops" in o.only:
        turns["loops"] = loops_turns(o)
    if "long" in o.only:
        turns["long"] = long_turns(o, quantized(o, "q08", "q8"), "q08-q8.gguf")
    if "a3b" in o.only:
        turns["a3b"] = experts_turns(o, "q8", "q8")
    if "a3b-q4" in o.only:
        turns["a3b-q4"] = experts_turns(o, "q4km", "q4")
    return turns


def measure(o, turns, report):
    for group, list_ in turns.items():
        for name, command, _ in list_:
            report.command(group, name, command)
    for r in range(o.rounds):
        for group, list_ in turns.items():
            for name, command, turn in list_ if r % 2 == 0 else list_[::-1]:
                figures = turn(command)
                report.add(group, name, figures)
                print("round %d of %d  %-6s %-20s %s" % (
                    r + 1, o.rounds, group, name,
                    "  ".join("%s %.4g" % f for f in figures.items())), file=sys.stderr)


# ---- the machine, and the options ----

def output_of(command):
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout.decode().strip()
    except OSError:
        return "not known"


def cpu_fields():
    with open("/proc/cpuinfo") as f:
        return dict((part.strip() for part in line.split(":", 1)) for line in f if ":" in line)


def has_amx():
    return {"amx_bf16", "avx512_vnni"} <= set(cpu_fields().get("flags", "").split())


def machine(o):
    fields = cpu_fields()
    flags = set(fields.get("flags", "").split())
    wanted = ["avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8"]
    return [
        "%s, %s, %d CPUs; %s" % (
            time.strftime("%Y-%m-%d"), fields.get("model name", platform.machine()),
            os.cpu_count(), ", ".join(f for f in wanted if f in flags) or "none of the fast sets"),
        "load average before the first round: %.2f" % os.getloadavg()[0],
        "Offshoot: %s" % output_of([o.offshoot, "version"]).replace("\n", "; "),
        "Offshoot's sources: %s" % output_of(["git", "describe", "--always", "--dirty"]),
        "llama.cpp: %s" % output_of([o.llama / "llama-server", "--version"]).replace("\n", "; "),
    ]


def read_options():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("dir", metavar="DIR", type=Path, help="what build_llama.sh made")
    p.add_argument("--offshoot", type=Path, default=ROOT / "build/offshoot", metavar="FILE")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--tokens", type=int, default=128, help="of an answer (default 128)")
    p.add_argument("--long-prompt", type=int, default=8192,
                   help="tokens of the prompts of the group `long` (default 8192)")
    p.add_argument("--loops", type=int, default=0,
                   help="agent loops (default: all 12, of the wide model %d)" % WIDE_LOOPS)
    p.add_argument("--only", default=",".join(GROUPS), help="some of " + ",".join(GROUPS + ON_REQUEST))
    p.add_argument("--out", type=Path, metavar="FILE", help="the report, else standard output")
    o = p.parse_args()
    o.only = o.only.split(",")
    if set(o.only) - set(GROUPS + ON_REQUEST) or o.rounds < 1 or o.tokens < 2:
        p.error("--only takes %s; --rounds 1 and --tokens 2 are the least" %
                ", ".join(GROUPS + ON_REQUEST))
    o.dir, o.offshoot = o.dir.resolve(), o.offshoot.resolve()
    o.llama = o.dir / "ll/vendor/llama.cpp/build/bin"
    o.demo, o.prompt, o.short_prompt = ROOT / "models/demo", 512, 32
    models = ["q08/model.safetensors", "gg/demo.gguf", "gg/q08-bf16.gguf", "gg/q08-q8.gguf",
              "gg/q08-q4km.gguf", "wide/model.safetensors", "gg/wide.gguf"]
    if set(o.only) & {"a3b", "a3b-q4"}:
        models += ["a3b/model.safetensors", "gg/a3b-q8.gguf", "gg/a3b-q4km.gguf"]
    for f in [o.offshoot, o.llama / "llama-server", o.llama / "llama-bench"] + [
            o.dir / name for name in models]:
        if not f.exists():
            p.error("there is no %s: run make, and build_llama.sh" % f)
    return o


def files_read(turns):
    """Of the models that commands name, each once."""
    models = {w for list_ in turns.values() for _, command, _ in list_ for w in command
              if isinstance(w, Path) and (w.is_dir() or w.suffix == ".gguf")}
    return [f for m in sorted(models) for f in (m.iterdir() if m.is_dir() else [m]) if f.is_file()]


def into_page_cache(paths):
    """So that the first start reads no disk either."""
    for path in paths:
        with open(path, "rb") as f:
            while f.read(1 << 24):
                pass


def stop(number, frame):
    sys.exit(128 + number)  # through the finally of every process


def main():
    o = read_options()
    for s in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, stop)
    if os.getloadavg()[0] > 0.5:
        print("load average %.2f: something else is running, which slows both and is not shared "
              "equally" % os.getloadavg()[0], file=sys.stderr)
    random.seed(1)
    report = Report(machine(o), o)
    try:
        turns = all_turns(o)
        into_page_cache(files_read(turns))
        measure(o, turns, report)
    except Failed as e:
        sys.exit("%s" % e)
    text = report.text()
    if o.out:
        o.out.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()

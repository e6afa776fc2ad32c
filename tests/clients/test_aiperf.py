"""test_aiperf.py: AIPerf puts the server under load, and its report must be free of errors.

Two short runs: chat at a fixed concurrency, completions at a fixed rate. Speeds are not looked at.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from served import MODEL, MODEL_DIR, URL, run_tests

N_REQUESTS, N_TOKENS = 60, 24


class Run:
    """One run of AIPerf: its report, and what it recorded of each request."""

    def __init__(self, endpoint, *args):
        with tempfile.TemporaryDirectory() as out:
            command = [
                os.path.join(os.path.dirname(sys.executable), "aiperf"), "profile",
                "--model", MODEL, "--url", URL, "--endpoint-type", endpoint, "--streaming",
                "--tokenizer", MODEL_DIR, "--use-server-token-count", "--request-count",
                str(N_REQUESTS), "--synthetic-input-tokens-mean", "60", "--output-tokens-mean",
                str(N_TOKENS), "--extra-inputs", "ignore_eos:true", "--extra-inputs",
                "temperature:0", "--random-seed", "7", "--wait-for-model-timeout", "30",
                "--artifact-dir", out, "--export-level", "records", "--ui", "none", *args,
            ]
            # AIPerf reads no local folder when the hub is "offline"; a hub that nobody serves is.
            environment = {
                **os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": out,
                "AIPERF_METRICS_NO_GPU_TELEMETRY": "1",
            }
            ran = subprocess.run(command, env=environment, capture_output=True, text=True)
            self.status, self.log = ran.returncode, ran.stdout + ran.stderr
            self.report, self.records = {}, []
            if not self.status:
                with open(f"{out}/profile_export_aiperf.json", encoding="utf-8") as file:
                    self.report = json.load(file)
                with open(f"{out}/profile_export.jsonl", encoding="utf-8") as file:
                    self.records = [json.loads(line) for line in file]


class AIPerf(unittest.TestCase):
    def all_went_well(self, run):
        self.assertEqual(run.status, 0, run.log)
        self.assertEqual(run.report["request_count"]["avg"], N_REQUESTS)
        self.assertEqual(run.report.get("error_request_count", {"avg": 0})["avg"], 0)
        self.assertFalse(run.report["error_summary"])
        self.assertFalse(run.report["was_cancelled"])
        self.assertEqual(len(run.records), N_REQUESTS)
        for record in run.records:
            self.assertIsNone(record.get("error"))
            self.assertEqual(record["metrics"]["usage_completion_tokens"]["value"], N_TOKENS)
            self.assertGreater(record["metrics"]["time_to_first_token"]["value"], 0)

    def drafts_are_reported(self, run):
        report = run.report
        length = report["spec_decode_acceptance_length"]
        self.assertGreater(length["avg"], 1)
        self.assertLessEqual(length["max"], 16)
        accepted = report["total_accepted_draft_tokens"]["avg"]
        self.assertGreater(accepted, 0)
        self.assertLessEqual(accepted, report["total_draft_tokens"]["avg"])

    def test_chat_at_a_fixed_concurrency(self):
        run = Run("chat", "--concurrency", "6")
        self.all_went_well(run)

    def test_completions_at_a_fixed_rate(self):
        run = Run("completions", "--request-rate", "10", "--arrival-pattern", "constant")
        self.all_went_well(run)

    def test_acceptance_is_read(self):
        self.drafts_are_reported(Run("chat", "--concurrency", "2"))


if __name__ == "__main__":
    run_tests()

"""served.py: the server under test, and what all client tests do with it.

run.sh starts one server with the demonstration model and names it in OFFSHOOT_URL; its log is the
file OFFSHOOT_LOG. A test that needs other options starts a server of its own.
"""

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse

import openai

URL = os.environ["OFFSHOOT_URL"]
LOG = os.environ["OFFSHOOT_LOG"]
BINARY = os.environ["OFFSHOOT_BINARY"]
MODEL_DIR = os.environ["OFFSHOOT_MODEL"]
MODEL = os.path.basename(MODEL_DIR)

QUESTION = "I am looking for somewhere to eat tonight."
RESTAURANT = "I want to find an Italian restaurant in San Jose"
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def base_url(url=URL):
    return url + "/v1"


def client(url=URL, kind=openai.OpenAI, **options):
    """The SDK as users open it, without retries: a retry would hide a failure."""
    settings = {"base_url": base_url(url), "api_key": "none", "max_retries": 0, "timeout": 120}
    return kind(**{**settings, **options})


def user(text):
    return [{"role": "user", "content": text}]


def chat(messages=QUESTION, body=None, **options):
    """Arguments of a short greedy chat request without thinking; body: fields the SDK lacks."""
    settings = {
        "model": MODEL,
        "messages": user(messages) if isinstance(messages, str) else messages,
        "temperature": 0,
        "max_completion_tokens": 48,
        "extra_body": {**NO_THINKING, **(body or {})},
    }
    return {**settings, **options}


def text_of(reply):
    return reply.choices[0].message.content


def request(method, path, body=None, url=URL, headers=None):
    """One plain HTTP request: status, headers, body as bytes."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, headers or {})
    reply = connection.getresponse()
    content = reply.read()
    connection.close()
    return reply.status, reply.headers, content


def post(path, body, url=URL):
    """A JSON reply to a request that must succeed."""
    status, _, content = request("POST", path, body, url)
    assert status == 200, content
    return json.loads(content)


def log_line(request_id, path=LOG, patience_s=60):
    """The line that the server writes when the request has ended."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with open(path, encoding="utf-8") as log:
            for line in log:
                if request_id in line and " request id=" in line:
                    return line
        time.sleep(0.05)
    raise AssertionError(f"no line about {request_id} in the server's log")


class Server:
    """A server of its own: `with Server("--api-key", "k") as url`."""

    def __init__(self, *options):
        self.options = options

    def __enter__(self):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        command = [BINARY, "serve", "--model", MODEL_DIR, "--port", "0", "--memory", "128M"]
        self.process = subprocess.Popen(
            command + list(self.options), stdout=self.log, stderr=self.log
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            with open(self.log.name, encoding="utf-8") as log:
                found = re.search(r"listening address=(\S+)", log.read())
            if found:
                self.url = "http://" + found.group(1)
                return self
            time.sleep(0.05)
        self.process.kill()
        with open(self.log.name, encoding="utf-8") as log:
            raise AssertionError("the server did not start: " + log.read())

    def __exit__(self, *exception):
        self.process.terminate()
        status = self.process.wait(timeout=60)
        self.log.close()
        assert status == 0, f"the server ended with status {status}"


def run_tests():
    """All tests of the program; its last line is read by run.sh."""
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    bad = [test for test, _ in result.failures + result.errors] + result.unexpectedSuccesses
    failed = len({getattr(test, "test_case", test).id() for test in bad})  # not each sub-test
    known = len(result.expectedFailures)
    # Without setUpClass no test of the class is run, and none passed.
    passed = max(result.testsRun - failed - known, 0)
    print(f"{passed} passed, {failed} failed, {known} known to fail")
    sys.exit(failed != 0)

"""test_routers.py: two servers behind the routers of SGLang and of vLLM, with their cache-aware policy.

A conversation stays where its states are, different ones go to both servers, and a server that dies
or is stopped costs nobody else anything. The load goes through the openai SDK without retries: what
is asked again is the router's to ask.
"""

import concurrent.futures
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import openai

from served import LOG, Server, chat, client, request, run_tests, text_of

PATIENCE_S = 60
LONG = 600  # tokens of an answer that is under way while something happens
SUBJECTS = [
    "Restaurants with Italian food", "Trains from London to Leeds", "Hotels near the harbour",
    "Music by a band from Chicago", "Films about the sea", "Flights on Monday morning",
    "Weather in the mountains", "Doctors who are free today",
]


def free_port():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"in vain: {what}")
        time.sleep(0.05)


class Worker(Server):
    """A server that keeps its port when it is started again."""

    def __init__(self):
        self.port = free_port()
        super().__init__("--port", str(self.port), "--ctx-size", "4096")

    def __exit__(self, *exception):
        if self.process.poll() is None:
            super().__exit__(*exception)

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=PATIENCE_S)

    def answered(self, reply):
        """Whether the answer of this id was made here."""
        with open(self.log.name, encoding="utf-8") as log:
            return f" request id={reply.id} status=200" in log.read()

    def figure(self, name):
        """A sample of /metrics without labels of its own."""
        status, _, page = request("GET", "/metrics", url=self.url)
        assert status == 200, page
        return float(re.search(rf'^{name}{{[^}}]*}} (\S+)$', page.decode(), re.M).group(1))

    def n_generated(self):
        return self.figure("vllm:generation_tokens_total")

    def n_running(self):
        return self.figure("vllm:num_requests_running") + self.figure("vllm:num_requests_waiting")


class Router:
    """A router's process in front of some servers."""

    def __init__(self, module, workers):
        self.module, self.workers = module, workers

    def __enter__(self):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", dir=os.path.dirname(LOG))
        command = [
            sys.executable, "-m", self.module, "--host", "127.0.0.1", "--port", str(port),
            "--prometheus-port", str(free_port()), "--policy", "cache_aware",
            "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
            "--health-success-threshold", "1", "--cb-failure-threshold", "2",
            "--cb-timeout-duration-secs", "1",
            "--worker-urls", *[worker.url for worker in self.workers],
        ]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        try:
            wait_for(lambda: self.n_healthy() == len(self.workers), "both servers at the router")
        except AssertionError as error:
            self.__exit__()
            raise AssertionError(f"{error}\n{self.text()}") from error
        return self

    def text(self):
        with open(self.log.name, encoding="utf-8") as log:
            return log.read()

    def n_healthy(self):
        assert self.process.poll() is None, self.text()
        try:
            status, _, body = request("GET", "/workers", url=self.url)
        except OSError:
            return 0
        return body.count(b'"is_healthy":true') if status == 200 else 0

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait(timeout=PATIENCE_S)
        self.log.close()


class Stream(threading.Thread):
    """A long answer, read as it comes: its text, whether it has begun and come to its end."""

    def __init__(self, url, subject):
        super().__init__(daemon=True)
        self.url, self.subject = url, subject
        self.text, self.begun, self.finish = "", threading.Event(), None
        self.start()

    def run(self):
        body = {"ignore_eos": True}
        try:
            for chunk in client(self.url).chat.completions.create(
                **chat(self.subject, body, max_completion_tokens=LONG, stream=True)
            ):
                self.begun.set()
                for choice in chunk.choices:
                    self.text += choice.delta.content or ""
                    self.finish = choice.finish_reason or self.finish
        except Exception:  # whatever the SDK makes of it: the stream is lost
            pass
        self.begun.set()


class Behind:
    """What holds behind either router."""

    module = None

    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.workers = [self.stack.enter_context(Worker()) for _ in range(2)]
        self.url = self.stack.enter_context(Router(self.module, self.workers)).url

    def ask(self, messages, **options):
        return client(self.url).chat.completions.create(**chat(messages, **options))

    def where(self, reply):
        """Which server an answer came from."""
        wait_for(lambda: any(w.answered(reply) for w in self.workers), "the answer in a log")
        self.assertNotEqual(*[worker.answered(reply) for worker in self.workers])
        return int(self.workers[1].answered(reply))

    def converse(self, subject, n_turns):
        """
        Turns of one conversation: their servers, and the tokens that were cached. The routers follow
        a prompt of which they have seen a third (--cache-threshold), so the first message is long.
        """
        messages = [{"role": "system", "content": f"{subject}! " * 8}]
        at, cached = [], []
        for turn in range(n_turns):
            question = f"{subject}: what do you know of that, please? Tell me, part {turn}."
            messages.append({"role": "user", "content": question})
            reply = self.ask(messages)
            at.append(self.where(reply))
            cached.append(reply.usage.prompt_tokens_details.cached_tokens)
            messages.append({"role": "assistant", "content": text_of(reply)})
        return at, cached

    def streams(self, n):
        """Streams that have all begun, and how many each server has."""
        streams = [Stream(self.url, subject) for subject in SUBJECTS[:n]]
        for stream in streams:
            self.assertTrue(stream.begun.wait(PATIENCE_S))
        counts = [worker.n_running() for worker in self.workers]
        self.assertEqual(sum(counts), n)
        self.assertTrue(all(counts), counts)
        return streams, counts

    def whole(self, streams):
        """Those that came to their end; each with the text that a server gives that is asked alone."""
        for stream in streams:
            stream.join(PATIENCE_S)
        alive = next(worker for worker in self.workers if worker.process.poll() is None)
        ended = [stream for stream in streams if stream.finish]
        for stream in ended:
            alone = Stream(alive.url, stream.subject)
            alone.join(PATIENCE_S)
            self.assertEqual(alone.finish, "length")
            self.assertEqual((stream.text, stream.finish), (alone.text, alone.finish))
        return ended

    def test_plain_and_streamed(self):
        direct = client(self.workers[0].url).chat.completions.create(**chat())
        plain = self.ask("I am looking for somewhere to eat tonight.")
        self.assertEqual(text_of(plain), text_of(direct))
        self.assertEqual(plain.usage.completion_tokens, direct.usage.completion_tokens)
        chunks = list(self.ask(
            "I am looking for somewhere to eat tonight.",
            stream=True, stream_options={"include_usage": True},
        ))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, text_of(direct))
        self.assertEqual(chunks[-1].usage.completion_tokens, direct.usage.completion_tokens)
        done = client(self.url).completions.create(
            model="demo", prompt="I want to find", max_tokens=5, temperature=0
        )
        self.assertEqual(done.usage.completion_tokens, 5)
        with self.assertRaises(openai.BadRequestError):
            self.ask("Hello", temperature=-1)

    def test_conversations_stay_and_spread(self):
        with concurrent.futures.ThreadPoolExecutor(len(SUBJECTS)) as pool:
            talks = list(pool.map(lambda subject: self.converse(subject, 5), SUBJECTS))
        for at, cached in talks:
            self.assertEqual(len(set(at)), 1, at)
            self.assertEqual(cached[0], 0)
            self.assertGreater(min(cached[1:]), 0, cached)
        self.assertEqual({at[0] for at, _ in talks}, {0, 1})

    def test_other_server_hears_nothing(self):
        """One conversation alone: what the server without it has counted stays as it was."""
        at, _ = self.converse(SUBJECTS[0], 1)
        other = self.workers[1 - at[0]]
        before = other.n_generated(), other.figure("vllm:prompt_tokens_total")
        self.assertEqual(self.converse(SUBJECTS[0], 4)[0], at * 4)
        self.assertEqual((other.n_generated(), other.figure("vllm:prompt_tokens_total")), before)

    def test_flush_reaches_both(self):
        at, cached = self.converse(SUBJECTS[0], 2)
        self.assertGreater(cached[1], 0)
        status, _, body = request("POST", "/flush_cache", {}, self.url)
        self.assertEqual(status, 200, body)
        self.assertEqual(self.converse(SUBJECTS[0], 1)[1], [0])

    def test_killed_server_loses_its_own_alone(self):
        streams, counts = self.streams(6)
        self.workers[0].kill()
        self.assertEqual(len(self.whole(streams)), counts[1])
        for subject in SUBJECTS:
            self.assertTrue(text_of(self.ask(subject)))

        self.workers[0].__enter__()  # at its old address: it gets work again

        def has_work():
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda i: self.ask(f"{time.monotonic()} {i}: and now?"), range(4)))
            return self.workers[0].n_generated() > 0

        wait_for(has_work, "work for the server that came back")

    def test_stopped_server_loses_nothing(self):
        streams, _ = self.streams(4)
        self.workers[1].process.terminate()
        for subject in SUBJECTS[4:]:
            self.assertTrue(text_of(self.ask(subject)))
        self.assertEqual(len(self.whole(streams)), 4)
        self.assertEqual(self.workers[1].process.wait(PATIENCE_S), 0)


class SglangRouter(Behind, unittest.TestCase):
    module = "sglang_router.launch_router"


class VllmRouter(Behind, unittest.TestCase):
    module = "vllm_router.launch_router"


if __name__ == "__main__":
    run_tests()

"""test_open_webui.py: the requests that Open WebUI 0.12 makes, without its gigabytes of packages.

Taken from its routers/openai.py, routers/tasks.py and utils/middleware.py: the list of models when a
connection is added, a chat whose stream it reads line by line, and the title that it asks for behind
the first answer.
"""

import json
import unittest

from served import MODEL, NO_THINKING, QUESTION, Server, request, run_tests

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer none"}
TITLE = """### Task:
Generate a concise, 3-5 word title with an emoji summarizing the chat history.
### Output:
JSON format: { "title": "your concise title here" }
### Chat History:
<chat_history>
USER: I am looking for somewhere to eat tonight.
</chat_history>"""


def ask(body):
    return request("POST", "/v1/chat/completions", body, headers=HEADERS)


def read_stream(content):
    """As its middleware reads it: a line that begins with "data:" is JSON, or [DONE]."""
    text, reasoning, usage = "", "", None
    lines = [line for line in content.decode().split("\n") if line.startswith("data:")]
    assert lines.pop() == "data: [DONE]"
    for line in lines:
        data = json.loads(line[len("data:"):].strip())
        usage = data.get("usage") or usage
        for choice in data.get("choices", []):
            delta = choice.get("delta", {})
            reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            text += delta.get("content") or ""
    return text, reasoning, usage


class OpenWebui(unittest.TestCase):
    def test_connection_is_verified(self):
        status, headers, content = request("GET", "/v1/models", headers=HEADERS)
        self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
        models = json.loads(content)
        self.assertEqual([model["id"] for model in models["data"]], [MODEL])
        self.assertNotIn("error", models)

    def test_chat_then_title(self):
        body = {
            "stream": True,
            "model": MODEL,
            "messages": [{"role": "user", "content": QUESTION}],
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": 48,
            **NO_THINKING,
        }
        status, headers, content = ask(body)
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/event-stream"))
        text, reasoning, usage = read_stream(content)
        self.assertTrue(text)
        self.assertEqual(reasoning, "")
        self.assertGreater(usage["completion_tokens"], 0)
        del body["stream_options"]
        reply = json.loads(ask({**body, "stream": False})[2])
        self.assertEqual(reply["choices"][0]["message"]["content"], text)

        title = {
            "model": MODEL,
            "messages": [{"role": "user", "content": TITLE}],
            "stream": False,
            "max_tokens": 1000,
        }
        status, _, content = ask(title)
        self.assertEqual(status, 200)
        reply = json.loads(content)
        self.assertEqual(reply["choices"][0]["message"]["role"], "assistant")
        self.assertIn(reply["choices"][0]["finish_reason"], ("stop", "length"))

    def test_reasoning_comes_apart(self):
        status, _, content = ask({
            "stream": True,
            "model": MODEL,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 64,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": True},
            "thinking_budget": 16,
        })
        self.assertEqual(status, 200)
        text, reasoning, _ = read_stream(content)
        self.assertTrue(reasoning)
        self.assertNotIn("</think>", text + reasoning)

    def test_direct_connection_from_a_page(self):
        """The browser asks by itself: it needs --cors."""
        origin = {"Origin": "http://localhost:3000"}
        for options, allowed in (((), None), (("--cors", origin["Origin"]), origin["Origin"])):
            with Server(*options) as server:
                _, headers, _ = request("OPTIONS", "/v1/models", url=server.url, headers=origin)
                self.assertEqual(headers["Access-Control-Allow-Origin"], allowed)


if __name__ == "__main__":
    run_tests()

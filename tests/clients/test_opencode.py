"""test_opencode.py: a session as opencode's source builds it, read as its SDK reads it.

No opencode runs here. Requests, the fields that `@ai-sdk/openai-compatible` takes and the patterns
of an overflow follow the sources of opencode and of the SDK (github.com/anomalyco/opencode,
github.com/vercel/ai, both 2026); names of tools are opencode's, their descriptions ours.
"""

import json
import re
import unittest

from served import MODEL, MODEL_DIR, NO_THINKING, RESTAURANT, request, run_tests, user

with open(f"{MODEL_DIR}/tools.json", encoding="utf-8") as tools_file:
    TOOLS = json.load(tools_file)

DRAFT = "https://json-schema.org/draft/2020-12/schema"
MAX_SAFE = 9007199254740991
TEXT = {"type": "string"}
WHOLE = {"type": "integer", "minimum": -MAX_SAFE, "maximum": MAX_SAFE}
SYSTEM = "You are opencode, an agent in a terminal.\n<env>\n  Working directory: /home/a\n</env>"


def tool(name, required, optional=None):
    schema = {
        "$schema": DRAFT,
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
    function = {"name": name, "description": f"The tool {name}.", "parameters": schema}
    return {"type": "function", "function": function}


TODO = {
    "type": "object",
    "properties": {"content": TEXT, "status": TEXT, "priority": TEXT},
    "required": ["content", "status", "priority"],
    "additionalProperties": False,
}
CODING = [
    tool("bash", {"command": TEXT, "description": TEXT},
         {"timeout": {"type": "number"}, "workdir": TEXT}),
    tool("read", {"filePath": TEXT}, {"offset": WHOLE, "limit": WHOLE}),
    tool("edit", {"filePath": TEXT, "oldString": TEXT, "newString": TEXT},
         {"replaceAll": {"type": "boolean"}}),
    tool("webfetch", {"url": TEXT, "format": {
        "default": "markdown", "type": "string", "enum": ["text", "markdown", "html"]}}),
    tool("todowrite", {"todos": {"type": "array", "items": TODO}}),
]


def body_of(messages, **options):
    """
    What streamText sends: max_tokens is opencode's own bound, beyond this model's context; what
    `opencode.json` gives as a model's options, like NO_THINKING, is added as it is.
    """
    return {
        "model": MODEL,
        "max_tokens": 32000,
        "temperature": 0,
        "top_p": 1,
        "messages": [{"role": "system", "content": SYSTEM}] + messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        **NO_THINKING,
        **options,
    }


def is_kind(value, kind):
    return value is None or (isinstance(value, kind) and not isinstance(value, bool))


class Answer:
    """Joins chunks under the SDK's rules; a field of another type is an error to it."""

    def __init__(self, stream):
        self.text = self.reasoning = ""
        self.calls = []
        self.finish_reason = self.usage = None
        for line in stream.decode().split("\n"):
            if line.startswith("data: ") and line != "data: [DONE]":
                self.add(json.loads(line[len("data: "):]))

    def add(self, chunk):
        assert "error" not in chunk, chunk
        assert is_kind(chunk["id"], str) and is_kind(chunk["created"], (int, float)), chunk
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"][:1]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice["delta"]
            assert delta.get("role") in ("assistant", None), chunk
            for name in ("content", "reasoning_content", "reasoning"):
                assert is_kind(delta.get(name), str), chunk
            self.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            self.text += delta.get("content") or ""
            for call in delta.get("tool_calls") or []:
                self.add_call(call)

    def add_call(self, delta):
        """A call is complete, and run, as soon as its arguments are JSON; what follows is lost."""
        function = delta["function"]
        if delta["index"] == len(self.calls):
            assert isinstance(delta["id"], str) and isinstance(function["name"], str), delta
            self.calls.append({"id": delta["id"], "name": function["name"], "arguments": ""})
        call = self.calls[delta["index"]]
        assert not is_json(call["arguments"]) or not function.get("arguments"), delta
        call["arguments"] += function.get("arguments") or ""

    def message(self):
        """How the SDK sends the answer back."""
        calls = [
            {"id": c["id"], "type": "function",
             "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in self.calls
        ]
        message = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        return {**message, **({"tool_calls": calls} if calls else {})}


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def ask(body):
    headers = {"Authorization": "Bearer none", "User-Agent": "opencode/1.2.0"}
    status, _, content = request("POST", "/v1/chat/completions", body, headers=headers)
    assert status == 200, content
    assert content.endswith(b"data: [DONE]\n\n"), content[-200:]
    return Answer(content)


class Opencode(unittest.TestCase):
    def test_title(self):
        title = user("Generate a title for this conversation:\n") + user(RESTAURANT)
        answer = ask(body_of(title))
        self.assertIn(answer.finish_reason, ("stop", "length"))
        self.assertTrue(answer.text or answer.reasoning)
        used = answer.usage["prompt_tokens"] + answer.usage["completion_tokens"]
        self.assertEqual(used, answer.usage["total_tokens"])

    def test_session(self):
        tools = {"tools": TOOLS + CODING, "tool_choice": "auto"}
        messages = user(RESTAURANT)
        first = ask(body_of(messages, **tools))
        self.assertEqual(first.finish_reason, "tool_calls")
        self.assertEqual(first.calls[0]["name"], "FindRestaurants")
        self.assertEqual(json.loads(first.calls[0]["arguments"])["city"], "San Jose")
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "Mangia, 12 Main Street"}
            for call in first.calls
        ]
        second = ask(body_of(messages + [first.message()] + results, **tools))
        self.assertTrue(second.text or second.calls)
        cached = second.usage["prompt_tokens_details"]["cached_tokens"]
        print(f"prompt={first.usage['prompt_tokens']}, then"
              f" prompt={second.usage['prompt_tokens']} cached={cached}")
        self.assertGreaterEqual(cached, first.usage["prompt_tokens"] - 16)

    def test_every_tool_can_be_asked_for(self):
        for name in [t["function"]["name"] for t in CODING]:
            schema = next(t for t in CODING if t["function"]["name"] == name)["function"]["parameters"]
            choice = {"type": "function", "function": {"name": name}}
            answer = ask(body_of(user("Go on."), tools=CODING, tool_choice=choice, max_tokens=400))
            self.assertEqual([c["name"] for c in answer.calls], [name])
            if answer.finish_reason == "length":
                continue  # a string that goes on and on
            self.assertLessEqual(set(schema["required"]), set(json.loads(answer.calls[0]["arguments"])))

    def test_overflow_is_known(self):
        """opencode compacts a session when it knows the error."""
        status, _, content = request(
            "POST", "/v1/chat/completions", body_of(user("a word " * 200_000)))
        error = json.loads(content)["error"]
        self.assertEqual(status, 400)
        self.assertEqual(error["code"], "context_length_exceeded")
        self.assertTrue(re.search(r"maximum context length is \d+ tokens", error["message"]))


if __name__ == "__main__":
    run_tests()

"""test_openai_tools.py: tool calls and reasoning as the `openai` SDK shows them.

What the model wrote is asked for a second time at /v1/completions, where its markup is plain text,
and read here by rules of our own. So no test knows an answer by heart, but for the one the README
promises: an Italian restaurant in San Jose.
"""

import json
import re
import unittest

import openai

from served import (
    MODEL_DIR, NO_THINKING, QUESTION, RESTAURANT, MODEL, chat, client, post, run_tests, user,
)

with open(f"{MODEL_DIR}/tools.json", encoding="utf-8") as tools_file:
    TOOLS = json.load(tools_file)

# The SDK's helpers parse arguments of strict functions only.
STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}
WANTED = {"city": "San Jose", "cuisine": "Italian"}


def ask(messages=RESTAURANT, **options):
    return client().chat.completions.create(**chat(messages, **{"tools": TOOLS, **options}))


def raw_text(messages, kwargs, tools=None, **options):
    """What the model writes, as one text."""
    body = {"messages": user(messages) if isinstance(messages, str) else messages, **kwargs}
    if tools:
        body["tools"] = tools
    prompt = post("/apply-template", body)["prompt"]
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 48, **options}
    return post("/v1/completions", body)["choices"][0]["text"]


def call_in(text):
    """Name and arguments of the one call in a text; all arguments are strings here."""
    name = re.search(r"<function=(.*?)>", text).group(1)
    pairs = re.findall(r"<parameter=(.*?)>\n(.*?)\n</parameter>", text, re.DOTALL)
    return name, dict(pairs)


def calls_of(reply, choice=0):
    return reply.choices[choice].message.tool_calls


def reply_body(messages=RESTAURANT, **options):
    """The JSON of a reply as it came, before the SDK makes it a typed object."""
    settings = chat(messages, **{"tools": TOOLS, **options})
    return json.loads(client().chat.completions.with_raw_response.create(**settings).text)


class Calls(unittest.TestCase):
    def test_call_is_parsed(self):
        reply = ask()
        choice = reply.choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertIsNone(choice.message.content)
        self.assertEqual(len(choice.message.tool_calls), 1)
        call = choice.message.tool_calls[0]
        self.assertEqual(call.type, "function")
        self.assertRegex(call.id, r"^call_[0-9a-zA-Z]{8,}$")
        self.assertEqual(call.function.name, "FindRestaurants")
        self.assertEqual(json.loads(call.function.arguments), WANTED)

    def test_call_says_what_the_model_wrote(self):
        for question in (RESTAURANT, "Find me a cheap Mexican restaurant in Oakland"):
            raw = raw_text(question, NO_THINKING, TOOLS)
            self.assertIn("<tool_call>", raw)
            function = calls_of(ask(question))[0].function
            self.assertEqual((function.name, json.loads(function.arguments)), call_in(raw))

    def test_keys_of_the_message(self):
        message = reply_body()["choices"][0]["message"]
        self.assertIn("content", message)
        self.assertIsNone(message["content"])
        self.assertIsInstance(message["tool_calls"][0]["function"]["arguments"], str)
        message = reply_body(messages="hello")["choices"][0]["message"]
        self.assertNotIn("tool_calls", message)
        self.assertIsInstance(message["content"], str)

    def test_answer_in_words_has_no_calls(self):
        reply = ask("hello")
        self.assertNotIn("<tool_call>", raw_text("hello", NO_THINKING, TOOLS))
        self.assertIsNone(calls_of(reply))
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertTrue(reply.choices[0].message.content)

    def test_ids_are_unique(self):
        replies = [ask(n=2), ask()]
        ids = [c.id for r in replies for i in range(len(r.choices)) for c in calls_of(r, i)]
        self.assertEqual(len(ids), 3)
        self.assertEqual(len(set(ids)), 3)

    def test_usage_counts_the_markup(self):
        as_text = ask(tool_choice="none")
        self.assertEqual(ask().usage.completion_tokens, as_text.usage.completion_tokens)

    def test_choice_none_leaves_the_markup_as_text(self):
        reply = ask(tool_choice="none")
        self.assertIsNone(calls_of(reply))
        content = reply.choices[0].message.content
        self.assertEqual(content, raw_text(RESTAURANT, NO_THINKING, TOOLS))
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(reply.usage.prompt_tokens, ask().usage.prompt_tokens)

    def test_without_tools_markup_is_text(self):
        raw = raw_text(RESTAURANT, NO_THINKING)
        self.assertIn("<tool_call>", raw)
        reply = ask(tools=openai.omit)
        self.assertEqual(reply.choices[0].message.content, raw)
        self.assertIsNone(calls_of(reply))

    def test_length_inside_a_call_is_length(self):
        n = ask().usage.completion_tokens
        for limit in (n // 2, n - 6):
            reply = ask(max_completion_tokens=limit)
            self.assertEqual(reply.choices[0].finish_reason, "length")
            self.assertNotIn("<tool_call>", reply.choices[0].message.content or "")

    def test_stop_strings_do_not_reach_into_calls(self):
        function = calls_of(ask(stop=["San", "Italian", "</parameter>"]))[0].function
        self.assertEqual(json.loads(function.arguments), WANTED)

    def test_one_call_at_most_when_asked_for(self):
        self.assertEqual(len(calls_of(ask(parallel_tool_calls=False))), 1)

    def test_logprobs_list_the_markup_too(self):
        reply = ask(logprobs=True)
        entries = reply.choices[0].logprobs.content
        text = b"".join(bytes(e.bytes) for e in entries).decode()
        self.assertEqual(text, raw_text(RESTAURANT, NO_THINKING, TOOLS))

    def test_functions_are_the_old_name_of_tools(self):
        functions = [tool["function"] for tool in TOOLS]
        reply = ask(tools=openai.omit, functions=functions, function_call="auto")
        call = reply.choices[0].message.function_call
        self.assertEqual((call.name, json.loads(call.arguments)), ("FindRestaurants", WANTED))
        self.assertIsNone(calls_of(reply))
        self.assertEqual(reply.choices[0].finish_reason, "function_call")

    def test_tools_of_other_types_are_left_out(self):
        reply = ask(body={"tools": TOOLS + [{"type": "web_search"}]}, tools=openai.omit)
        self.assertEqual(calls_of(reply)[0].function.name, "FindRestaurants")


class Loop(unittest.TestCase):
    """A conversation with calls in it."""

    def history(self):
        first = ask().choices[0].message
        found = json.dumps([{"restaurant_name": "Al Castello", "city": "San Jose"}])
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": found}
        return user(RESTAURANT) + [first, result]

    def test_result_is_answered_in_words(self):
        reply = ask(self.history())
        self.assertTrue(reply.choices[0].message.content)
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertGreater(reply.usage.prompt_tokens, ask().usage.prompt_tokens)

    def test_calls_are_rendered_as_they_were_written(self):
        messages = [m if isinstance(m, dict) else m.to_dict() for m in self.history()]
        rendered = post("/apply-template", {"messages": messages, "tools": TOOLS})["prompt"]
        self.assertIn(raw_text(RESTAURANT, NO_THINKING, TOOLS), rendered)

    def test_result_may_be_a_list_of_parts(self):
        messages = self.history()
        parts = [{"type": "text", "text": messages[-1]["content"]}]
        as_parts = ask(messages[:-1] + [{**messages[-1], "content": parts}])
        self.assertEqual(as_parts.choices[0].message.content,
                         ask(messages).choices[0].message.content)

    def test_cut_arguments_do_not_end_the_conversation(self):
        for arguments in ('{"city": "San', "", "[1]"):
            call = {"id": "call_1", "type": "function",
                    "function": {"name": "FindRestaurants", "arguments": arguments}}
            messages = user(RESTAURANT) + [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "error"},
            ]
            self.assertTrue(ask(messages).choices)


class Streams(unittest.TestCase):
    def test_deltas_of_a_call(self):
        chunks = list(ask(stream=True))
        deltas = [c.choices[0].delta for c in chunks]
        self.assertEqual((deltas[0].role, deltas[0].content), ("assistant", ""))
        self.assertEqual("".join(d.content or "" for d in deltas), "")
        lists = [d.tool_calls for d in deltas if d.tool_calls]
        self.assertEqual({len(calls) for calls in lists}, {1})
        first, rest = lists[0][0], [calls[0] for calls in lists[1:]]
        self.assertEqual((first.index, first.type), (0, "function"))
        self.assertTrue(first.id.startswith("call_"))
        self.assertEqual((first.function.name, first.function.arguments), ("FindRestaurants", ""))
        for call in rest:
            self.assertEqual(set(call.to_dict()), {"index", "function"})
            self.assertEqual(set(call.function.to_dict()), {"arguments"})
        arguments = "".join(call.function.arguments for call in rest)
        self.assertEqual(json.loads(arguments), WANTED)
        self.assertEqual(arguments, calls_of(ask())[0].function.arguments)
        self.assertGreater(len(rest), 1)  # they come while they are written
        reasons = [c.choices[0].finish_reason for c in chunks]
        self.assertEqual(reasons, [None] * (len(chunks) - 1) + ["tool_calls"])
        self.assertEqual(deltas[-1].to_dict(), {})

    def test_helper_builds_the_call(self):
        settings = chat(RESTAURANT, tools=STRICT)
        with client().chat.completions.stream(**settings) as stream:
            events = list(stream)
            final = stream.get_final_completion()
        function = calls_of(final)[0].function
        self.assertEqual(function.name, "FindRestaurants")
        self.assertEqual(function.parsed_arguments, WANTED)
        self.assertEqual(final.choices[0].finish_reason, "tool_calls")
        parts = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
        self.assertEqual("".join(e.arguments_delta for e in parts), function.arguments)
        done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
        self.assertEqual([e.name for e in done], ["FindRestaurants"])
        self.assertEqual(json.loads(done[0].arguments), WANTED)

    def test_parse_helper_reads_the_call(self):
        reply = client().chat.completions.parse(**chat(RESTAURANT, tools=STRICT))
        self.assertEqual(calls_of(reply)[0].function.parsed_arguments, WANTED)

    def test_choices_are_parsed_apart(self):
        arguments, reasons = ["", ""], [None, None]
        for chunk in ask(stream=True, n=2):
            for choice in chunk.choices:
                for call in choice.delta.tool_calls or []:
                    self.assertEqual(call.index, 0)
                    arguments[choice.index] += call.function.arguments
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        self.assertEqual([json.loads(a) for a in arguments], [WANTED, WANTED])
        self.assertEqual(reasons, ["tool_calls", "tool_calls"])

    def test_logprobs_of_all_tokens_are_in_the_chunks(self):
        plain = ask(logprobs=True).choices[0].logprobs.content
        parts = [c.choices[0].logprobs for c in ask(stream=True, logprobs=True)]
        self.assertEqual([e for p in parts if p for e in p.content or []], plain)

    def test_length_inside_a_call_is_length(self):
        limit = ask().usage.completion_tokens - 6
        chunks = list(ask(stream=True, max_completion_tokens=limit))
        self.assertEqual(chunks[-1].choices[0].finish_reason, "length")
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        self.assertEqual(text, "")

    def test_words_stream_as_content(self):
        chunks = list(ask("hello", stream=True))
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        self.assertEqual(text, ask("hello").choices[0].message.content)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")


class Reasoning(unittest.TestCase):
    """
    The model was trained without thinking and never ends it by itself: a budget does. What it
    should write is asked for in two parts, with the end of the thinking between them in the prompt.
    """

    END = "</think>"
    BUDGET = 7

    @classmethod
    def expected(cls, tools=None):
        """The reasoning, and what follows it."""
        body = {"messages": user(RESTAURANT), **THINKING, **({"tools": tools} if tools else {})}
        prompt = post("/tokenize", body)["tokens"]
        ask = {"temperature": 0, "return_token_ids": True}
        thought = post("/v1/completions", {"prompt": prompt, "max_tokens": cls.BUDGET, **ask})
        end = post("/tokenize", {"prompt": "\n" + cls.END + "\n\n"})["tokens"]
        prompt = prompt + thought["choices"][0]["token_ids"] + end
        rest = post("/v1/completions", {"prompt": prompt, "max_tokens": 48, **ask})
        return thought["choices"][0]["text"], rest["choices"][0]["text"]

    @classmethod
    def setUpClass(cls):
        cls.before, cls.after = cls.expected()
        assert cls.before.strip() and cls.after.strip(), (cls.before, cls.after)

    def think(self, body=None, **options):
        """Without tools, so that what comes after the reasoning is text whatever it holds."""
        extra = {**THINKING, "thinking_budget": self.BUDGET, **(body or {})}
        return client().chat.completions.create(**chat(RESTAURANT, extra, **options))

    def test_reasoning_has_both_names(self):
        message = self.think().choices[0].message
        self.assertEqual(message.reasoning_content, self.before.removesuffix("\n"))
        self.assertEqual(message.reasoning, message.reasoning_content)
        self.assertEqual(message.content, self.after.lstrip("\n"))

    def test_tokens_of_reasoning_are_counted(self):
        usage = self.think(logprobs=True)
        tokens = [e.token for e in usage.choices[0].logprobs.content]
        self.assertEqual(
            usage.usage.completion_tokens_details.reasoning_tokens, tokens.index(self.END) + 1
        )

    def test_stream_joins_to_the_message(self):
        chunks = list(self.think(stream=True))
        deltas = [c.choices[0].delta.to_dict() for c in chunks]
        for delta in deltas:
            self.assertEqual(delta.get("reasoning_content"), delta.get("reasoning"))
            self.assertFalse("content" in delta and "reasoning" in delta and delta["content"])
        reasoning = "".join(d.get("reasoning") or "" for d in deltas)
        content = "".join(d.get("content") or "" for d in deltas)
        message = self.think().choices[0].message
        self.assertEqual((reasoning, content), (message.reasoning, message.content))
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")

    def test_call_after_reasoning(self):
        before, after = self.expected(TOOLS)
        message = self.think(tools=TOOLS).choices[0].message
        self.assertEqual(message.reasoning, before.removesuffix("\n"))
        if "<tool_call>" in after:
            self.assertEqual(message.tool_calls[0].function.name, call_in(after)[0])
        else:
            self.assertEqual(message.content or "", after.strip("\n"))

    def test_reasoning_that_is_cut_leaves_no_content(self):
        reply = self.think(max_completion_tokens=2)
        self.assertIsNone(reply.choices[0].message.content)
        self.assertTrue(reply.choices[0].message.reasoning)
        self.assertEqual(reply.choices[0].finish_reason, "length")

    def test_stop_strings_do_not_reach_into_reasoning(self):
        word = self.before.split()[0]
        message = self.think(stop=[word]).choices[0].message
        self.assertEqual(message.reasoning, self.before.removesuffix("\n"))

    def test_reasoning_can_be_left_out(self):
        message = self.think(body={"include_reasoning": False}).choices[0].message
        self.assertEqual(message.content, self.after.lstrip("\n"))
        self.assertFalse({"reasoning", "reasoning_content"} & set(message.to_dict()))

    def test_reasoning_can_stay_in_the_content(self):
        for body in ({"separate_reasoning": False}, {"reasoning_format": "none"}):
            message = self.think(body=body).choices[0].message
            self.assertIn(self.before + "\n" + self.END, message.content)
            self.assertFalse({"reasoning", "reasoning_content"} & set(message.to_dict()))

    def test_without_thinking_there_are_no_keys(self):
        message = client().chat.completions.create(**chat(QUESTION)).choices[0].message
        self.assertFalse({"reasoning", "reasoning_content"} & set(message.to_dict()))

    def test_reasoning_goes_back_into_the_template(self):
        turns = user(QUESTION) + [
            {"role": "assistant", "content": "Where?", "reasoning_content": "They are hungry."}
        ]
        tool = {"role": "tool", "tool_call_id": "x", "content": "none"}
        rendered = post("/apply-template", {"messages": turns + [tool]})["prompt"]
        self.assertIn("They are hungry.", rendered)
        turns[1]["reasoning"] = turns[1].pop("reasoning_content")
        again = post("/apply-template", {"messages": turns + [tool]})["prompt"]
        self.assertEqual(again, rendered)


if __name__ == "__main__":
    run_tests()

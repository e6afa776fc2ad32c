"""test_anthropic.py: /v1/messages as the `anthropic` SDK sees it.

The SDK checks each event's type and joins deltas; its final message must say what a whole reply
says.
"""

import json
import unittest

import anthropic

from served import MODEL, MODEL_DIR, RESTAURANT, QUESTION, URL, Server, run_tests, user

with open(f"{MODEL_DIR}/tools.json", encoding="utf-8") as tools_file:
    TOOLS = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in json.load(tools_file)
    ]

WANTED = {"city": "San Jose", "cuisine": "Italian"}


def client(url=URL, **options):
    """The SDK without retries: a retry would hide a failure."""
    settings = {"base_url": url, "api_key": "none", "max_retries": 0, "timeout": 120}
    return anthropic.Anthropic(**{**settings, **options})


def settings(messages=QUESTION, **options):
    return {
        "model": MODEL,
        "messages": user(messages) if isinstance(messages, str) else messages,
        "max_tokens": 48,
        "extra_body": {"temperature": 0},
        **options,
    }


def create(messages=QUESTION, **options):
    return client().messages.create(**settings(messages, **options))


def contents(message):
    """What a message says, without ids, which differ each time."""
    blocks = [block.model_dump(exclude={"id"}, exclude_none=True) for block in message.content]
    return blocks, message.stop_reason, message.stop_sequence


class Messages(unittest.TestCase):
    def test_text(self):
        message = create()
        self.assertEqual([block.type for block in message.content], ["text"])
        self.assertEqual(message.role, "assistant")
        self.assertEqual(message.stop_reason, "end_turn")
        self.assertGreater(message.usage.output_tokens, 0)
        self.assertTrue(message._request_id)

    def test_count_is_usage(self):
        for options in ({}, {"tools": TOOLS}, {"system": "Be short."}):
            asked = settings(**options)
            usage = client().messages.create(**asked).usage
            for field in ("max_tokens", "extra_body"):
                del asked[field]
            count = client().messages.count_tokens(**asked).input_tokens
            self.assertEqual(count, usage.input_tokens + usage.cache_read_input_tokens)

    def test_stream_says_the_same(self):
        thinking = {"type": "enabled", "budget_tokens": 8}
        for options in ({}, {"tools": TOOLS, "messages": user(RESTAURANT)}, {"thinking": thinking}):
            whole = create(**options)
            with client().messages.stream(**settings(**options)) as stream:
                types = [event.type for event in stream]
                message = stream.get_final_message()
            self.assertEqual(types[0], "message_start")
            self.assertEqual(types[-1], "message_stop")
            self.assertEqual(contents(message), contents(whole))
            self.assertEqual(message.usage.output_tokens, whole.usage.output_tokens)

    def test_stop_sequence(self):
        text = create().content[0].text
        word = text.split()[2]
        message = create(stop_sequences=[word])
        self.assertEqual(message.stop_reason, "stop_sequence")
        self.assertEqual(message.stop_sequence, word)
        self.assertEqual(message.content[0].text, text[: text.index(word)])

    def test_prefill_is_gone_on_with(self):
        text = create().content[0].text
        begun = user(QUESTION) + [{"role": "assistant", "content": text[:9]}]
        self.assertEqual(create(begun).content[0].text, text[9:])

    def test_second_turn_comes_from_the_cache(self):
        system = "You help people to find places to eat, to stay and to go to. " * 8
        first = create(system=system)
        turns = user(QUESTION) + [
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": "Somewhere cheap."},
        ]
        second = create(turns, system=system)
        self.assertGreater(second.usage.cache_read_input_tokens, 100)


class Thinking(unittest.TestCase):
    def test_blocks(self):
        self.assertNotEqual(create().content[0].type, "thinking")
        message = create(thinking={"type": "enabled", "budget_tokens": 8})
        self.assertEqual([block.type for block in message.content], ["thinking", "text"])
        self.assertTrue(message.content[0].thinking)
        self.assertTrue(message.content[0].signature)

    def test_goes_back(self):
        first = create(thinking={"type": "enabled", "budget_tokens": 8})
        turns = user(QUESTION) + [
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": "Somewhere cheap."},
        ]
        self.assertTrue(create(turns).content)

    def test_option(self):
        with Server("--messages-thinking", "on") as server:
            message = client(server.url).messages.create(**settings(max_tokens=12))
            self.assertEqual(message.content[0].type, "thinking")


class Tools(unittest.TestCase):
    def test_round_trip(self):
        message = create(RESTAURANT, tools=TOOLS)
        self.assertEqual(message.stop_reason, "tool_use")
        call = message.content[-1]
        self.assertEqual((call.type, call.name, call.input), ("tool_use", "FindRestaurants", WANTED))
        result = {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": '[{"city": "San Jose", "restaurant_name": "Bella Roma"}]',
        }
        turns = user(RESTAURANT) + [
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ]
        answer = create(turns, tools=TOOLS)
        self.assertGreater(answer.usage.cache_read_input_tokens, 0)
        self.assertEqual(answer.content[0].type, "text")

    def test_partial_input(self):
        with client().messages.stream(**settings(RESTAURANT, tools=TOOLS)) as stream:
            pieces = [event for event in stream if event.type == "input_json"]
        self.assertGreater(len(pieces), 1)
        self.assertEqual(pieces[-1].snapshot, WANTED)


class Errors(unittest.TestCase):
    def test_types(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            create(max_tokens=-1)
        self.assertEqual(caught.exception.type, "invalid_request_error")
        self.assertTrue(caught.exception.request_id)
        with self.assertRaises(anthropic.BadRequestError) as caught:
            create("many words " * 60000)
        self.assertIn("prompt is too long: ", str(caught.exception))
        with Server("--api-key", "secret") as server:
            with self.assertRaises(anthropic.AuthenticationError):
                client(server.url).messages.create(**settings())
            client(server.url, api_key="secret").messages.create(**settings())


if __name__ == "__main__":
    run_tests()

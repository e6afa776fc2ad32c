"""test_openai_responses.py: /v1/responses as the `openai` SDK sees it.

The SDK checks each event's type and joins deltas; its final response must say what a whole reply
says.
"""

import json
import unittest

import openai

from served import MODEL, MODEL_DIR, QUESTION, RESTAURANT, client, run_tests

with open(f"{MODEL_DIR}/tools.json", encoding="utf-8") as tools_file:
    TOOLS = [{"type": "function", "strict": False, **tool["function"]} for tool in json.load(tools_file)]

WANTED = {"city": "San Jose", "cuisine": "Italian"}
NO_REASONING = {"effort": "none"}


def settings(messages=QUESTION, body=None, **options):
    return {
        "model": MODEL,
        "input": messages,
        "temperature": 0,
        "max_output_tokens": 48,
        "reasoning": NO_REASONING,
        "extra_body": body,
        **options,
    }


def create(messages=QUESTION, **options):
    return client().responses.create(**settings(messages, **options))


def contents(response):
    """What a response says, without ids, which differ each time."""
    items = [item.model_dump(exclude={"id", "call_id"}) for item in response.output]
    for item in items:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or []:
            part.pop("parsed", None)
    return items, response.status


class Responses(unittest.TestCase):
    def test_text(self):
        response = create()
        self.assertEqual([item.type for item in response.output], ["message"])
        self.assertTrue(response.output_text)
        self.assertEqual(response.status, "completed")
        usage = response.usage
        self.assertEqual(usage.total_tokens, usage.input_tokens + usage.output_tokens)
        self.assertIsNone(response.error)

    def test_count_is_usage(self):
        response = create(instructions="Be short.", tools=TOOLS)
        count = client().responses.input_tokens.count(
            model=MODEL, input=QUESTION, instructions="Be short.", tools=TOOLS, reasoning=NO_REASONING
        )
        self.assertEqual(count.input_tokens, response.usage.input_tokens)

    def test_stream_says_the_same(self):
        for options in (
            {},
            {"messages": RESTAURANT, "tools": TOOLS},
            {"reasoning": {"effort": "low"}, "body": {"thinking_budget": 8}},
            {"max_output_tokens": 3},
        ):
            whole = create(**options)
            asked = settings(**options)
            with client().responses.stream(**asked) as stream:
                events = list(stream)
            self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
            last = events[-1]
            self.assertEqual(last.type, f"response.{whole.status}")
            self.assertEqual(contents(last.response), contents(whole))
            self.assertEqual(last.response.usage.output_tokens, whole.usage.output_tokens)

    def test_logprobs(self):
        asked = settings(include=["message.output_text.logprobs"], top_logprobs=2)
        part = client().responses.create(**asked).output[0].content[0]
        self.assertEqual("".join(one.token for one in part.logprobs), part.text)
        self.assertEqual({len(one.top_logprobs) for one in part.logprobs}, {2})
        with client().responses.stream(**asked) as stream:
            deltas = [e for e in stream if e.type == "response.output_text.delta"]
        streamed = [one for delta in deltas for one in delta.logprobs]
        self.assertEqual(
            [(one.token, one.logprob) for one in streamed],
            [(one.token, one.logprob) for one in part.logprobs],
        )

    def test_incomplete(self):
        response = create(max_output_tokens=2)
        self.assertEqual(response.status, "incomplete")
        self.assertEqual(response.incomplete_details.reason, "max_output_tokens")

    def test_reasoning(self):
        response = create(reasoning={"effort": "low"}, body={"thinking_budget": 8})
        self.assertEqual([item.type for item in response.output], ["reasoning", "message"])
        self.assertTrue(response.output[0].content[0].text)
        self.assertGreater(response.usage.output_tokens_details.reasoning_tokens, 0)
        # It goes back as it came.
        turns = [{"role": "user", "content": QUESTION}, *response.output]
        turns.append({"role": "user", "content": "Somewhere cheap."})
        self.assertTrue(create(turns).output)

    def test_metadata_comes_back(self):
        response = create(metadata={"a": "b"}, instructions="Be short.")
        self.assertEqual(response.metadata, {"a": "b"})
        self.assertEqual(response.instructions, "Be short.")


class Tools(unittest.TestCase):
    def test_round_trip(self):
        response = create(RESTAURANT, tools=[{"type": "web_search"}, *TOOLS])
        call = response.output[-1]
        self.assertEqual((call.type, call.name), ("function_call", "FindRestaurants"))
        self.assertEqual(json.loads(call.arguments), WANTED)
        turns = [
            {"role": "user", "content": RESTAURANT},
            *response.output,
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": '[{"city": "San Jose", "restaurant_name": "Bella Roma"}]',
            },
        ]
        answer = create(turns, tools=TOOLS)
        self.assertTrue(answer.output_text)

    def test_custom_tool(self):
        custom = {"type": "custom", "name": "FindRestaurants", "description": "Finds restaurants"}
        response = create(RESTAURANT, tools=[custom])
        call = response.output[-1]
        self.assertEqual((call.type, call.name), ("custom_tool_call", "FindRestaurants"))
        with client().responses.stream(**settings(RESTAURANT, tools=[custom])) as stream:
            pieces = [
                event.delta
                for event in stream
                if event.type == "response.custom_tool_call_input.delta"
            ]
        self.assertEqual("".join(pieces), call.input)
        turns = [
            {"role": "user", "content": RESTAURANT},
            call,
            {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "none"},
        ]
        self.assertTrue(create(turns, tools=[custom]).output)


class Errors(unittest.TestCase):
    def test_what_would_need_a_store(self):
        for options in ({"previous_response_id": "resp_1"}, {"background": True}):
            with self.assertRaises(openai.BadRequestError) as caught:
                create(**options)
            self.assertEqual(caught.exception.param, next(iter(options)))
        with self.assertRaises(openai.NotFoundError):
            client().responses.retrieve("resp_1")

    def test_too_long(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            create("many words " * 60000, stream=True)
        self.assertEqual(caught.exception.code, "context_length_exceeded")


if __name__ == "__main__":
    run_tests()

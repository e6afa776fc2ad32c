"""test_structured.py: structured output and forced calls as the `openai` and `anthropic` SDKs ask.

Whatever the small model says, it is an instance of what was asked for: `jsonschema` judges. Whole
and streamed, with drafts and without, it is the same.
"""

import enum
import json
import typing
import unittest

import anthropic
import jsonschema
import openai
import pydantic

from served import MODEL, RESTAURANT, URL, chat, client, run_tests, text_of, user

NO_DRAFTS = {"speculative.n_max": 0}
LONG = {"max_completion_tokens": 600}


def obj(required=None, **properties):
    names = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


SHORT = {"type": "string", "maxLength": 12}
COUNT = {"type": "integer", "minimum": 0, "maximum": 99}

# The forms that tools of coding agents have: roots with $schema, long descriptions, defaults,
# nullable unions, bounds as large as a double's integers, lists of objects, references.
SCHEMAS = {
    "read": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **obj(
            ["file_path"],
            file_path={"type": "string", "description": "The absolute path. " * 40, "maxLength": 30},
            offset={"type": "integer", "minimum": 0, "maximum": 9007199254740991},
            limit={"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
            pages={"type": "string", "pattern": "^[0-9]{1,3}(-[0-9]{1,3})?$"},
        ),
    },
    "edit": obj(
        ["path", "old", "new"],
        path=SHORT,
        old=SHORT,
        new=SHORT,
        replace_all={"type": "boolean", "default": False},
    ),
    "grep": obj(
        ["pattern"],
        pattern=SHORT,
        output_mode={"type": "string", "enum": ["content", "files_with_matches", "count"]},
        context={"anyOf": [COUNT, {"type": "null"}]},
    ),
    "todo": obj(
        todos={
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": obj(
                content={"type": "string", "minLength": 1, "maxLength": 10},
                status={"enum": ["pending", "in_progress", "completed"]},
            ),
        }
    ),
    "question": obj(
        questions={
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": obj(
                header=SHORT,
                options={
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 3,
                    "items": obj(label=SHORT, recommended={"type": ["boolean", "null"]}),
                },
            ),
        }
    ),
    "shell": obj(
        ["command", "timeout_ms"],
        command={"type": "array", "items": SHORT, "minItems": 1, "maxItems": 3},
        workdir={"type": ["string", "null"], "maxLength": 12},
        timeout_ms={"type": "integer", "minimum": 1000, "maximum": 600000},
    ),
    "plan": {
        "$defs": {"step": obj(step=SHORT, status={"const": "pending"})},
        **obj(plan={"type": "array", "items": {"$ref": "#/$defs/step"}, "maxItems": 3, "minItems": 1}),
    },
    "action": {
        "oneOf": [
            obj(kind={"const": "click"}, x=COUNT, y=COUNT),
            obj(kind={"const": "type"}, text=SHORT),
        ]
    },
    "merged": {
        "allOf": [
            {"type": "object", "properties": {"a": COUNT}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ],
    },
    "scores": obj(
        confidence={"type": "number", "minimum": 0, "maximum": 1},
        change={"type": "number", "exclusiveMinimum": -0.5, "maximum": 2.25},
        price={"type": ["number", "null"], "exclusiveMinimum": 0},
    ),
    "event": obj(
        when={"type": "string", "format": "date-time", "maxLength": 30},
        id={"type": "string", "format": "uuid"},
        day={"type": "string", "format": "date"},
    ),
    "point": {
        "type": "array",
        "prefixItems": [COUNT, SHORT],
        "items": False,
        "minItems": 2,
    },
    "choice": {"enum": ["yes", "no", 3, None, {"a": [1]}]},
}


class City(enum.Enum):
    SAN_JOSE = "San Jose"
    OAKLAND = "Oakland"


class Dish(pydantic.BaseModel):
    name: typing.Literal["soup", "pasta", "salad"]
    price: int = pydantic.Field(ge=1, le=50)


class Table(pydantic.BaseModel):
    city: City
    people: int = pydantic.Field(ge=1, le=12)
    note: typing.Optional[typing.Annotated[str, pydantic.Field(max_length=10)]]
    dishes: typing.List[Dish] = pydantic.Field(max_length=3)


def formatted(name, schema, strict=False):
    inner = {"name": name, "schema": schema, "strict": strict}
    return {"type": "json_schema", "json_schema": inner}


def function(name, schema, strict=False):
    inner = {"name": name, "parameters": schema, "strict": strict}
    return {"type": "function", "function": inner}


def ask(**options):
    return client().chat.completions.create(**chat(RESTAURANT, **{**LONG, **options}))


def streamed(**options):
    chunks = ask(stream=True, **options)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


class Schemas(unittest.TestCase):
    def test_answers_are_instances(self):
        for name, schema in SCHEMAS.items():
            with self.subTest(name):
                form = formatted(name, schema)
                reply = ask(response_format=form)
                text = text_of(reply)
                self.assertEqual(reply.choices[0].finish_reason, "stop")
                jsonschema.validate(json.loads(text), schema)
                self.assertEqual(streamed(response_format=form), text)
                self.assertEqual(text_of(ask(response_format=form, body=NO_DRAFTS)), text)

    def test_by_chance(self):
        for seed in range(6):
            schema = SCHEMAS["todo"]
            reply = ask(
                response_format=formatted("n", schema, True), temperature=1.8, seed=seed, n=2, top_p=1
            )
            for choice in reply.choices:
                jsonschema.validate(json.loads(choice.message.content), schema)

    def test_any_object(self):
        reply = ask(response_format={"type": "json_object"}, max_completion_tokens=40)
        self.assertTrue(text_of(reply).startswith("{"))

    def test_errors_name_the_part(self):
        schema = obj(a={"type": "string", "not": {"const": "x"}})
        with self.assertRaises(openai.BadRequestError) as caught:
            ask(response_format=formatted("n", schema, True))
        self.assertEqual(caught.exception.code, "invalid_schema")
        self.assertEqual(caught.exception.param, "response_format")
        self.assertIn("response_format.json_schema.schema.properties.a", str(caught.exception))


class Parsed(unittest.TestCase):
    def test_chat(self):
        reply = client().chat.completions.parse(**chat(RESTAURANT, response_format=Table, **LONG))
        self.assertIsInstance(reply.choices[0].message.parsed, Table)

    def test_responses(self):
        response = client().responses.parse(
            model=MODEL,
            input=RESTAURANT,
            text_format=Table,
            temperature=0,
            max_output_tokens=600,
            reasoning={"effort": "none"},
        )
        self.assertIsInstance(response.output_parsed, Table)

    def test_function(self):
        tool = openai.pydantic_function_tool(Table, name="book_table")
        for choice in ("required", {"type": "function", "function": {"name": "book_table"}}):
            reply = client().chat.completions.parse(
                **chat(RESTAURANT, tools=[tool], tool_choice=choice, parallel_tool_calls=False, **LONG)
            )
            calls = reply.choices[0].message.tool_calls
            self.assertEqual([call.function.name for call in calls], ["book_table"])
            self.assertIsInstance(calls[0].function.parsed_arguments, Table)


class Calls(unittest.TestCase):
    def test_agents_tools(self):
        for name, schema in SCHEMAS.items():
            if schema.get("type") != "object":
                continue
            for strict in (False, True):
                with self.subTest(name, strict=strict):
                    options = {
                        "tools": [function(name, schema, strict), function(name + "s", obj())],
                        "tool_choice": {"type": "function", "function": {"name": name}},
                    }
                    message = ask(**options).choices[0].message
                    self.assertEqual([call.function.name for call in message.tool_calls], [name])
                    text = message.tool_calls[0].function.arguments
                    jsonschema.validate(json.loads(text), schema)
                    plain = ask(body=NO_DRAFTS, **options).choices[0].message
                    self.assertEqual(plain.tool_calls[0].function.arguments, text)


class Anthropic(unittest.TestCase):
    def create(self, **options):
        api = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120)
        return api.messages.create(
            model=MODEL,
            messages=user(RESTAURANT),
            max_tokens=600,
            extra_body={"temperature": 0},
            **options,
        )

    def test_format(self):
        schema = SCHEMAS["todo"]
        message = self.create(output_config={"format": {"type": "json_schema", "schema": schema}})
        jsonschema.validate(json.loads(message.content[0].text), schema)
        self.assertEqual(message.stop_reason, "end_turn")

    def test_forced_tools(self):
        tools = [{"name": name, "input_schema": SCHEMAS[name]} for name in ("todo", "shell")]
        for choice in ({"type": "any"}, {"type": "tool", "name": "shell"}):
            choice["disable_parallel_tool_use"] = True
            message = self.create(tools=tools, tool_choice=choice)
            self.assertEqual(message.stop_reason, "tool_use")
            self.assertEqual([block.type for block in message.content], ["tool_use"])
            call = message.content[0]
            self.assertEqual(call.name, choice.get("name", call.name))
            jsonschema.validate(call.input, SCHEMAS[call.name])


if __name__ == "__main__":
    run_tests()

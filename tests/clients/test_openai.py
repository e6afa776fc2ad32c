"""test_openai.py: models, completions and chat as the `openai` SDK uses them.

Every test asks the server for something small and stands alone. What an answer should say is
never written down here: it is compared with another way of asking.
"""

import asyncio
import json
import math
import unittest

import openai

from served import (
    LOG, MODEL, QUESTION, RESTAURANT, Server, chat, client, log_line, post, request, run_tests,
    text_of, user,
)

PROMPT = "I want to find"
LONG = {"ignore_eos": True}  # an answer as long as max_tokens says


def complete(prompt=PROMPT, body=None, **options):
    settings = {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0}
    return client().completions.create(**{**settings, "extra_body": body, **options})


def ask(*args, **options):
    return client().chat.completions.create(**chat(*args, **options))


def ids_of(text):
    return post("/tokenize", {"prompt": text})["tokens"]


def rendered(messages):
    return post("/apply-template", {"messages": messages})["prompt"]


def events_of(path, body):
    """The raw messages of a stream."""
    status, headers, content = request("POST", path, {**body, "stream": True})
    assert status == 200, content
    return headers, content, content.decode().split("\n\n")


class Models(unittest.TestCase):
    def test_list_has_id_root_and_context(self):
        models = client().models.list().data
        self.assertEqual([m.id for m in models], [MODEL])
        self.assertEqual(models[0].root, MODEL)
        self.assertEqual(models[0].object, "model")
        self.assertGreater(models[0].created, 1_500_000_000)
        self.assertGreater(models[0].max_model_len, 0)

    def test_one_model_by_its_id(self):
        self.assertEqual(client().models.retrieve(MODEL).id, MODEL)

    def test_unknown_model_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            client().models.retrieve("no/such-model")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_any_name_is_answered_and_repeated(self):
        self.assertEqual(ask(model="some-other-name").model, "some-other-name")


class Tokens(unittest.TestCase):
    TEXT = "Zoë pays 5 € for 😀\n"

    def test_both_dialects_give_the_same_ids(self):
        vllm = post("/tokenize", {"prompt": self.TEXT})
        llama = post("/tokenize", {"content": self.TEXT})
        self.assertEqual(vllm["tokens"], llama["tokens"])
        self.assertEqual(vllm["count"], len(vllm["tokens"]))

    def test_messages_give_the_ids_of_the_rendered_template(self):
        body = {"messages": user(QUESTION)}
        self.assertIn(QUESTION, rendered(body["messages"]))
        self.assertEqual(post("/tokenize", body)["tokens"], ids_of(rendered(body["messages"])))

    def test_detokenize_gives_the_text_back(self):
        back = post("/detokenize", {"tokens": ids_of(self.TEXT)})
        self.assertEqual(back["prompt"], self.TEXT)
        self.assertEqual(back["content"], self.TEXT)

    def test_pieces_join_to_the_bytes_of_the_text(self):
        tokens = post("/tokenize", {"content": "é€😀", "with_pieces": True})["tokens"]
        pieces = [t["piece"] for t in tokens]
        joined = b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in pieces)
        self.assertEqual(joined.decode(), "é€😀")

    def test_tokenizer_info_names_the_end_token(self):
        status, _, content = request("GET", "/tokenizer_info")
        self.assertEqual(status, 200)
        self.assertEqual(len(ids_of(json.loads(content)["eos_token"])), 1)


class Metrics(unittest.TestCase):
    def test_page_has_the_gauges_and_counters_that_others_read(self):
        status, _, content = request("GET", "/metrics")
        self.assertEqual(status, 200)
        page = content.decode()
        for name in (
            "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
            "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total",
            "vllm:spec_decode_num_accepted_tokens_total",
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        ):
            self.assertIn(f"\n{name}{{", page)
            self.assertEqual(page.count(f"# TYPE {name} "), 1, name)

    def test_counters_never_fall(self):
        def counters():
            page = request("GET", "/metrics")[2].decode()
            lines = [l for l in page.splitlines() if "_total" in l and not l.startswith("#")]
            return {l.rsplit(" ", 1)[0]: float(l.rsplit(" ", 1)[1]) for l in lines}

        before = counters()
        complete()
        after = counters()
        self.assertTrue(before)
        for name, value in before.items():
            self.assertGreaterEqual(after[name], value, name)


class Completions(unittest.TestCase):
    def test_reply_has_its_fields_and_usage_adds_up(self):
        reply = complete()
        self.assertEqual(reply.object, "text_completion")
        self.assertTrue(reply.id.startswith("cmpl-"))
        self.assertEqual(reply.model, MODEL)
        self.assertIn(reply.choices[0].finish_reason, ("stop", "length"))
        usage = reply.usage
        self.assertEqual(usage.prompt_tokens, len(ids_of(PROMPT)))
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_reply_names_the_system(self):
        self.assertTrue(complete().system_fingerprint)

    def test_stream_joins_to_the_plain_text(self):
        chunks = list(complete(stream=True, body=LONG, max_tokens=40))
        self.assertEqual(len({c.id for c in chunks}), 1)
        reasons = [c.choices[0].finish_reason for c in chunks]
        self.assertEqual(reasons[:-1], [None] * (len(chunks) - 1))
        self.assertEqual(reasons[-1], "length")
        plain = complete(body=LONG, max_tokens=40).choices[0].text
        self.assertEqual("".join(c.choices[0].text for c in chunks), plain)

    def test_ids_are_as_good_as_text(self):
        self.assertEqual(complete(ids_of(PROMPT)).choices[0].text, complete().choices[0].text)

    def test_prompts_of_a_list_are_answered_as_alone(self):
        prompts = [PROMPT, "The weather in", "Book a table for"]
        choices = complete(prompts).choices
        self.assertEqual([c.index for c in choices], [0, 1, 2])
        for prompt, choice in zip(prompts, choices):
            self.assertEqual(choice.text, complete(prompt).choices[0].text)

    def test_lists_of_ids_are_answered_as_alone(self):
        prompts = [PROMPT, "The weather in"]
        choices = complete([ids_of(p) for p in prompts]).choices
        self.assertEqual(
            [c.text for c in choices], [complete(p).choices[0].text for p in prompts]
        )

    def test_n_answers_come_prompt_by_prompt(self):
        prompts = [PROMPT, "The weather in"]
        sampled = {"n": 2, "temperature": 1, "seed": 5}
        choices = complete(prompts, **sampled).choices
        self.assertEqual([c.index for c in choices], [0, 1, 2, 3])
        alone = [c.text for p in prompts for c in complete(p, **sampled).choices]
        self.assertEqual([c.text for c in choices], alone)

    def test_stream_of_several_prompts_keeps_them_apart(self):
        prompts = [PROMPT, "The weather in", "Book a table for"]
        texts, reasons = [""] * 3, [None] * 3
        for chunk in complete(prompts, stream=True):
            for choice in chunk.choices:
                self.assertIsNone(reasons[choice.index])
                texts[choice.index] += choice.text
                reasons[choice.index] = choice.finish_reason
        self.assertEqual(texts, [c.text for c in complete(prompts).choices])
        self.assertNotIn(None, reasons)

    def test_best_of_n_is_nothing_special(self):
        self.assertEqual(complete(best_of=1).choices[0].text, complete().choices[0].text)

    def test_best_of_returns_the_likeliest(self):
        settings = {"temperature": 1, "seed": 5, "logprobs": 0}
        four = complete(n=4, **settings).choices
        best = complete(n=1, best_of=4, **settings).choices

        def mean(choice):
            return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

        self.assertEqual([c.text for c in best], [max(four, key=mean).text])

    def test_suffix_is_refused(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            complete(suffix=" in town")
        self.assertEqual(caught.exception.param, "suffix")

    def test_stop_string_ends_the_text(self):
        whole = complete(max_tokens=30, body=LONG).choices[0].text
        stop = whole[6:10]
        choice = complete(max_tokens=30, body=LONG, stop=stop).choices[0]
        self.assertEqual(choice.text, whole[: whole.index(stop)])
        self.assertEqual(choice.finish_reason, "stop")
        self.assertEqual(choice.stop_reason, stop)

    def test_stop_string_never_shows_in_a_stream(self):
        whole = complete(max_tokens=30, body=LONG).choices[0].text
        stop = whole[6:16]  # longer than a token
        chunks = list(complete(max_tokens=30, body=LONG, stop=["never here", stop], stream=True))
        text = "".join(c.choices[0].text for c in chunks)
        self.assertEqual(text, whole[: whole.index(stop)])
        self.assertEqual(chunks[-1].choices[0].stop_reason, stop)

    def test_seed_repeats_an_answer(self):
        first, again, other = (
            complete(temperature=1, seed=seed, max_tokens=40, body=LONG).choices[0].text
            for seed in (11, 11, 12)
        )
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_without_seed_answers_differ(self):
        texts = {
            complete(temperature=1, max_tokens=40, body=LONG).choices[0].text for _ in range(4)
        }
        self.assertGreater(len(texts), 1)

    def test_drafting_changes_no_text(self):
        for options in ({}, {"temperature": 1, "seed": 3}):
            plain = complete(max_tokens=40, body={**LONG, "speculative.n_max": 0}, **options)
            drafted = complete(max_tokens=40, body=LONG, **options)
            self.assertEqual(plain.choices[0].text, drafted.choices[0].text)
            self.assertGreater(drafted.timings["draft_n"], 0)
            self.assertEqual(plain.timings.get("draft_n", 0), 0)

    def test_ignore_eos_goes_on_to_max_tokens(self):
        reply = complete(max_tokens=40, body=LONG)
        self.assertEqual(reply.usage.completion_tokens, 40)
        self.assertEqual(reply.choices[0].finish_reason, "length")

    def test_min_tokens_holds_the_end_back(self):
        short = complete(max_tokens=60).usage.completion_tokens
        longer = complete(max_tokens=60, body={"min_tokens": short + 5})
        self.assertGreaterEqual(longer.usage.completion_tokens, short + 5)

    def test_logit_bias_makes_a_token_certain(self):
        token = ids_of(" Paris")[0]
        reply = complete(logit_bias={str(token): 100}, max_tokens=3)
        expected = post("/detokenize", {"tokens": [token] * 3})["prompt"]
        self.assertEqual(reply.choices[0].text, expected)

    def test_null_is_as_good_as_absent(self):
        names = (
            "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "n", "stop",
            "presence_penalty", "seed", "stream", "stream_options", "suffix", "top_p", "user",
            "top_k", "min_p", "min_tokens", "stop_token_ids", "ignore_eos", "prompt_logprobs",
            "response_format", "speculative.n_max", "skip_special_tokens",
        )
        reply = complete(body=dict.fromkeys(names))
        self.assertEqual(reply.choices[0].text, complete().choices[0].text)

    def test_unknown_fields_are_ignored(self):
        reply = complete(body={"no_such_field": {"deep": [1, 2]}}, user="somebody")
        self.assertEqual(reply.choices[0].text, complete().choices[0].text)

    def test_max_tokens_beyond_the_context_is_cut(self):
        self.assertEqual(complete(max_tokens=10**9).choices[0].finish_reason, "stop")

    def test_token_ids_come_when_asked_for(self):
        choice = complete(body={"return_token_ids": True, "skip_special_tokens": False}).choices[0]
        self.assertEqual(choice.prompt_token_ids, ids_of(PROMPT))
        text = post("/detokenize", {"tokens": choice.token_ids})["prompt"]
        self.assertTrue(text.startswith(choice.text))


class Usage(unittest.TestCase):
    """When a stream tells how many tokens there were."""

    def test_asked_for_it_comes_once_in_a_chunk_of_its_own(self):
        for chunks in (
            list(complete(stream=True, stream_options={"include_usage": True})),
            list(ask(stream=True, stream_options={"include_usage": True})),
        ):
            with_usage = [c for c in chunks if c.usage]
            self.assertEqual(with_usage, chunks[-1:])
            self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(with_usage[0].usage.to_dict(), ask().usage.to_dict())

    def test_not_asked_for_it_has_no_key(self):
        body = {"model": MODEL, "prompt": PROMPT, "temperature": 0}
        self.assertNotIn(b'"usage"', events_of("/v1/completions", body)[1])
        body = {"model": MODEL, "messages": user(QUESTION), "temperature": 0}
        self.assertNotIn(b'"usage"', events_of("/v1/chat/completions", body)[1])

    def test_running_totals_grow(self):
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(complete(stream=True, stream_options=options, max_tokens=30, body=LONG))
        counts = [c.usage.completion_tokens for c in chunks]
        self.assertEqual(counts, sorted(counts))
        self.assertGreater(len(set(counts)), 2)
        self.assertEqual(counts[-1], 30)

    def test_options_without_stream_are_ignored(self):
        reply = complete(stream_options={"include_usage": True})
        self.assertEqual(reply.choices[0].text, complete().choices[0].text)


class Scores(unittest.TestCase):
    """Log-probabilities of completions."""

    TEXT = "Zoë pays in Paris 😀"

    def test_echo_scores_prompt_and_answer(self):
        reply = complete(self.TEXT, echo=True, logprobs=1, max_tokens=1)
        scores, text = reply.choices[0].logprobs, reply.choices[0].text
        n = len(ids_of(self.TEXT)) + 1
        lists = (scores.tokens, scores.token_logprobs, scores.top_logprobs, scores.text_offset)
        self.assertEqual([len(l) for l in lists], [n] * 4)
        self.assertIsNone(scores.token_logprobs[0])
        self.assertIsNone(scores.top_logprobs[0])
        self.assertNotIn(None, scores.token_logprobs[1:])
        self.assertTrue(text.startswith(self.TEXT))
        self.assertEqual(scores.text_offset, sorted(scores.text_offset))
        for token, offset in list(zip(scores.tokens, scores.text_offset))[:-1]:
            if not token.startswith("bytes:"):
                self.assertEqual(text[offset : offset + len(token)], token)

    def test_plain_tokens_join_to_the_text(self):
        body = {**LONG, "skip_special_tokens": False}
        choice = complete("The weather in", echo=True, logprobs=1, body=body).choices[0]
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)

    def test_greedy_tokens_have_the_largest_number_exactly(self):
        scores = complete(logprobs=3, max_tokens=20, body=LONG).choices[0].logprobs
        for value, top in zip(scores.token_logprobs, scores.top_logprobs):
            self.assertEqual(value, max(top.values()))
            self.assertEqual(len(top), 3)

    def test_prompt_alone_can_be_scored(self):
        reply = complete(self.TEXT, echo=True, logprobs=1, max_tokens=0)
        choice = reply.choices[0]
        self.assertEqual(choice.text, self.TEXT)
        self.assertEqual(len(choice.logprobs.tokens), len(ids_of(self.TEXT)))
        self.assertEqual(choice.finish_reason, "length")
        self.assertEqual(reply.usage.completion_tokens, 0)
        more = complete(self.TEXT, echo=True, logprobs=1, max_tokens=5).choices[0].logprobs
        n = len(choice.logprobs.tokens)
        self.assertEqual(choice.logprobs.token_logprobs, more.token_logprobs[:n])

    def test_answers_score_as_their_own_prompt_would(self):
        made = complete(logprobs=0, max_tokens=8, body=LONG).choices[0].logprobs
        ids = [i for token in made.tokens for i in ids_of(token)]
        self.assertEqual(len(ids), len(made.tokens))
        read = complete(ids_of(PROMPT) + ids, echo=True, logprobs=0, max_tokens=0)
        self.assertEqual(read.choices[0].logprobs.token_logprobs[-len(ids) :], made.token_logprobs)

    def test_none_asked_for_gives_the_token_alone(self):
        scores = complete(logprobs=0, temperature=1, seed=4).choices[0].logprobs
        for token, value, top in zip(scores.tokens, scores.token_logprobs, scores.top_logprobs):
            self.assertEqual(top, {token: value})

    def test_numbers_are_those_of_probabilities(self):
        reply = complete(self.TEXT, echo=True, logprobs=20, max_tokens=4, temperature=1, seed=1)
        scores = reply.choices[0].logprobs
        for value, top in zip(scores.token_logprobs[1:], scores.top_logprobs[1:]):
            self.assertLessEqual(value, 0)
            self.assertGreater(value, -1000)
            self.assertLessEqual(sum(math.exp(v) for v in top.values()), 1 + 1e-5)

    def test_sampled_token_is_always_in_the_list(self):
        scores = complete(logprobs=1, temperature=2, seed=8, max_tokens=30, body=LONG)
        scores = scores.choices[0].logprobs
        self.assertGreater(max(len(top) for top in scores.top_logprobs), 1)
        for token, value, top in zip(scores.tokens, scores.token_logprobs, scores.top_logprobs):
            self.assertEqual(top[token], value)

    def test_streamed_scores_join_to_the_plain_ones(self):
        options = {"logprobs": 2, "max_tokens": 20, "body": LONG}
        plain = complete(**options).choices[0].logprobs
        parts = [c.choices[0].logprobs for c in complete(stream=True, **options)]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [entry for p in parts if p for entry in getattr(p, name)]
            self.assertEqual(joined, getattr(plain, name), name)


class Chat(unittest.TestCase):
    def test_reply_has_its_fields(self):
        reply = ask()
        self.assertEqual(reply.object, "chat.completion")
        self.assertTrue(reply.id.startswith("chatcmpl-"))
        self.assertEqual(reply.choices[0].message.role, "assistant")
        self.assertTrue(text_of(reply))
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        usage = reply.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_reply_names_the_system(self):
        self.assertTrue(ask().system_fingerprint)

    def test_stream_joins_to_the_message(self):
        chunks = list(ask(stream=True))
        self.assertEqual({c.object for c in chunks}, {"chat.completion.chunk"})
        self.assertEqual(len({(c.id, c.created) for c in chunks}), 1)
        deltas = [c.choices[0].delta for c in chunks]
        self.assertEqual(deltas[0].role, "assistant")
        self.assertEqual(deltas[0].content, "")
        self.assertEqual(deltas[-1].to_dict(), {})
        reasons = [c.choices[0].finish_reason for c in chunks]
        self.assertEqual(reasons, [None] * (len(chunks) - 1) + ["stop"])
        self.assertEqual("".join(d.content or "" for d in deltas), text_of(ask()))

    def test_stream_helper_builds_the_message(self):
        with client().chat.completions.stream(**chat()) as stream:
            events = list(stream)
            final = stream.get_final_completion()
        self.assertEqual(text_of(final), text_of(ask()))
        self.assertEqual(final.choices[0].finish_reason, "stop")
        deltas = [event.delta for event in events if event.type == "content.delta"]
        self.assertEqual("".join(deltas), text_of(final))

    def test_stream_helper_tells_of_a_cut_answer(self):
        with client().chat.completions.stream(**chat(max_completion_tokens=2)) as stream:
            with self.assertRaises(openai.LengthFinishReasonError):
                stream.get_final_completion()

    def test_n_answers_with_a_seed(self):
        options = {"n": 2, "temperature": 1.5, "seed": 21, "body": LONG}
        first, again = ask(**options), ask(**options)
        texts = [c.message.content for c in first.choices]
        self.assertEqual([c.index for c in first.choices], [0, 1])
        self.assertEqual(texts, [c.message.content for c in again.choices])
        self.assertNotEqual(texts[0], texts[1])
        streamed, roles = ["", ""], [0, 0]
        for chunk in ask(stream=True, **options):
            choice = chunk.choices[0]
            streamed[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role == "assistant"
        self.assertEqual(streamed, texts)
        self.assertEqual(roles, [1, 1])

    def test_logprobs_list_every_token(self):
        reply = ask(logprobs=True, top_logprobs=2)
        entries = reply.choices[0].logprobs.content
        self.assertEqual("".join(e.token for e in entries), text_of(reply))
        self.assertEqual(len(entries), reply.usage.completion_tokens - 1)  # without the end token
        for entry in entries:
            top = [t.logprob for t in entry.top_logprobs]
            self.assertEqual(len(top), 2)
            self.assertEqual(top, sorted(top, reverse=True))
            self.assertEqual(entry.logprob, top[0])
            self.assertEqual(bytes(entry.bytes).decode(), entry.token)

    def test_streamed_logprobs_join_to_the_plain_ones(self):
        options = {"logprobs": True, "top_logprobs": 1}
        plain = ask(**options).choices[0].logprobs.content
        parts = [c.choices[0].logprobs for c in ask(stream=True, **options)]
        self.assertEqual([e for p in parts if p for e in p.content or []], plain)

    def test_logprobs_without_alternatives(self):
        entries = ask(logprobs=True).choices[0].logprobs.content
        self.assertEqual({len(e.top_logprobs) for e in entries}, {0})

    def test_stop_string_ends_the_text(self):
        whole = text_of(ask())
        stop = whole.split()[2]
        choice = ask(stop=[stop]).choices[0]
        self.assertEqual(choice.message.content, whole[: whole.index(stop)])
        self.assertEqual(choice.finish_reason, "stop")

    def test_one_token_and_no_more(self):
        for limit in ({"max_completion_tokens": 1}, {"max_tokens": 1}):
            reply = ask(**{"max_completion_tokens": openai.omit, **limit})
            self.assertEqual(reply.usage.completion_tokens, 1)
            self.assertEqual(reply.choices[0].finish_reason, "length")

    def test_max_completion_tokens_wins(self):
        reply = ask(max_completion_tokens=2, max_tokens=9)
        self.assertEqual(reply.usage.completion_tokens, 2)

    def test_parts_are_as_good_as_a_string(self):
        parts = [{"type": "text", "text": part} for part in (QUESTION[:9], QUESTION[9:])]
        self.assertEqual(rendered(user(parts)), rendered(user(QUESTION)))
        self.assertEqual(text_of(ask(user(parts))), text_of(ask()))

    def test_developer_is_system(self):
        def with_role(role):
            return [{"role": role, "content": "You book tables."}] + user(QUESTION)

        self.assertEqual(rendered(with_role("developer")), rendered(with_role("system")))
        self.assertNotEqual(rendered(with_role("developer")), rendered(with_role("user")))
        reply = ask(with_role("developer"))
        self.assertEqual(text_of(reply), text_of(ask(with_role("system"))))
        self.assertGreater(reply.usage.prompt_tokens, ask().usage.prompt_tokens)

    def test_system_message_in_the_middle_is_taken(self):
        messages = user("hello") + [{"role": "system", "content": "Be short."}] + user(QUESTION)
        self.assertTrue(ask(messages).choices)

    def test_thinking_can_be_switched_off_in_many_dialects(self):
        off = ask().usage.prompt_tokens
        for body in (
            {"enable_thinking": False}, {"thinking": {"type": "disabled"}},
            {"reasoning": {"enabled": False}}, {"chat_template_kwargs": {"thinking": False}},
        ):
            settings = chat()
            settings["extra_body"] = body
            reply = client().chat.completions.create(**settings)
            self.assertEqual(reply.usage.prompt_tokens, off, body)
        settings = chat(reasoning_effort="none")
        del settings["extra_body"]
        self.assertEqual(client().chat.completions.create(**settings).usage.prompt_tokens, off)

    def test_seed_repeats_an_answer(self):
        texts = [text_of(ask(temperature=1, seed=s, body=LONG)) for s in (1, 1, 2)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_same_request_later_has_the_same_text(self):
        first = text_of(ask(RESTAURANT))
        complete(["another", "and another"])
        self.assertEqual(text_of(ask(RESTAURANT)), first)

    def test_second_turn_finds_the_first_in_the_cache(self):
        question = " ".join(f"Table {i} is near the window." for i in range(30))
        first = ask(question)
        history = user(question) + [{"role": "assistant", "content": text_of(first)}]
        second = ask(history + user("And now?"))
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, 0)

    def test_tools_are_rendered(self):
        tool = {"type": "function", "function": {"name": "ping"}}
        self.assertGreater(ask(tools=[tool]).usage.prompt_tokens, ask().usage.prompt_tokens)
        self.assertEqual(ask(tools=[]).usage.prompt_tokens, ask().usage.prompt_tokens)

    def test_plain_fields_of_agents_are_ignored(self):
        reply = ask(
            user="u", store=False, metadata={"a": "b"}, prompt_cache_key="k", verbosity="low",
            safety_identifier="s", parallel_tool_calls=True, response_format={"type": "text"},
        )
        self.assertEqual(text_of(reply), text_of(ask()))


class Errors(unittest.TestCase):
    def refused(self, call, param, code=None):
        with self.assertRaises(openai.BadRequestError) as caught:
            call()
        error = caught.exception
        self.assertEqual((error.status_code, error.type), (400, "invalid_request_error"))
        self.assertEqual(error.param, param)
        self.assertEqual(error.code, code)
        self.assertTrue(error.request_id)
        self.assertEqual(set(error.body), {"message", "type", "param", "code"})
        self.assertTrue(complete().choices)  # the server goes on

    def test_values_out_of_range_name_their_field(self):
        for field, value in (
            ("top_p", 7), ("n", 0), ("logprobs", -3), ("temperature", -1), ("max_tokens", -4),
            ("presence_penalty", 3), ("frequency_penalty", -3), ("n", 129),
        ):
            with self.subTest(field=field, value=value):
                self.refused(lambda: complete(**{field: value}), field)

    def test_seed_of_more_than_64_bits_names_its_field(self):
        self.refused(lambda: complete(seed=2**64), "seed")

    def test_chat_values_out_of_range_name_their_field(self):
        for field, value in (("top_logprobs", 21), ("max_completion_tokens", -2), ("top_p", -1)):
            with self.subTest(field=field, value=value):
                self.refused(lambda: ask(logprobs=True, **{field: value}), field)

    def test_chat_of_no_tokens_names_the_field_that_said_so(self):
        self.refused(lambda: ask(max_completion_tokens=0), "max_completion_tokens")

    def test_wrong_types_name_their_field(self):
        for field, value in (
            ("temperature", "hot"), ("stop", 5), ("stream", "yes"), ("model", 3),
            ("logit_bias", {"x": 1}), ("prompt", {"a": 1}), ("stream_options", []),
        ):
            with self.subTest(field=field):
                self.refused(lambda: complete(body={field: value}), field)

    def test_prompts_that_are_none(self):
        for prompt, param in (("", "prompt"), ([], "prompt"), ([-1], "prompt")):
            with self.subTest(prompt=prompt):
                self.refused(lambda: complete(prompt), param)
        self.refused(lambda: complete(["a", ""]), "prompt[1]")
        self.refused(lambda: complete(["a", [1]]), "prompt[1]")

    def test_prompt_over_the_context(self):
        n = client().models.retrieve(MODEL).max_model_len
        one = ids_of("a")
        self.refused(lambda: complete(one * (n + 1)), "prompt", "context_length_exceeded")
        self.refused(lambda: ask("a " * 2 * n), "messages", "context_length_exceeded")
        self.assertEqual(complete(one * (n - 1), max_tokens=1).usage.completion_tokens, 1)

    def test_messages_that_are_none(self):
        self.refused(lambda: ask([]), "messages")
        self.refused(lambda: ask([{"role": "king", "content": "x"}]), "messages[0].role")
        self.refused(lambda: ask(user(5)), "messages[0].content")

    def test_images_are_refused(self):
        part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        self.refused(lambda: ask(user([part])), "messages[0].content", "unsupported_content")

    def test_top_logprobs_needs_logprobs(self):
        self.refused(lambda: ask(top_logprobs=2), "top_logprobs")

    def test_tool_choice_of_an_undeclared_name(self):
        tool = {"type": "function", "function": {"name": "ping"}}
        named = {"type": "function", "function": {"name": "pong"}}
        self.refused(lambda: ask(tools=[tool], tool_choice=named), "tool_choice")

    def test_formats_that_are_none(self):
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
        for wrong in ({"type": "yaml"}, {"type": "json_schema"}):
            with self.subTest(wrong):
                self.refused(lambda: ask(response_format=wrong), "response_format")
        self.refused(lambda: ask(response_format=schema), "response_format", "invalid_schema")

    def test_error_comes_before_a_stream_begins(self):
        self.refused(lambda: ask(stream=True, top_p=7), "top_p")

    def test_bodies_that_are_no_json(self):
        for body in (b"", b"{", b"[1]", b'{"prompt": "\xff"}', b"[" * 10000):
            status, _, content = request("POST", "/v1/completions", body)
            self.assertEqual(status, 400, body[:20])
            error = json.loads(content)["error"]
            self.assertEqual(error["type"], "invalid_request_error")
            self.assertEqual(set(error), {"message", "type", "param", "code"})

    def test_unknown_route_is_not_found(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            client().embeddings.create(model=MODEL, input="x")
        self.assertEqual(caught.exception.type, "not_found_error")

    def test_doubled_v1_gets_a_hint(self):
        doubled = client(base_url=str(client().base_url) + "v1")
        with self.assertRaisesRegex(openai.NotFoundError, "/v1"):
            doubled.models.list()

    def test_wrong_method_is_named(self):
        status, headers, _ = request("GET", "/v1/chat/completions")
        self.assertEqual(status, 405)
        self.assertIn("POST", headers["Allow"])

    def test_key_is_asked_for(self):
        with Server("--api-key", "secret") as server:
            with self.assertRaises(openai.AuthenticationError) as caught:
                client(server.url, api_key="wrong").models.list()
            self.assertEqual(caught.exception.code, "invalid_api_key")
            self.assertEqual(caught.exception.response.headers["WWW-Authenticate"], "Bearer")
            with self.assertRaises(openai.AuthenticationError):
                client(server.url, api_key="wrong").chat.completions.create(**chat())
            self.assertTrue(client(server.url, api_key="secret").models.list().data)
            bare = {"x-api-key": "secret"}
            self.assertEqual(request("GET", "/v1/models", url=server.url, headers=bare)[0], 200)
            self.assertEqual(request("GET", "/v1/models", url=server.url)[0], 401)
            self.assertEqual(request("GET", "/health", url=server.url)[0], 200)

    def test_full_queue_says_when_to_retry(self):
        async def crowd(url):
            """Errors of eight requests while one long answer keeps the only sequence."""
            settings = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8000, "extra_body": LONG}
            async with client(url, openai.AsyncOpenAI) as sdk:
                stream = await sdk.completions.create(**settings, stream=True)
                await anext(stream)
                jobs = [asyncio.create_task(sdk.completions.create(**settings)) for _ in range(8)]
                done, waiting = await asyncio.wait(jobs, return_when=asyncio.FIRST_EXCEPTION)
                for job in waiting:
                    job.cancel()
                await asyncio.gather(*jobs, return_exceptions=True)
                await stream.close()
                return [job.exception() for job in done]

        with Server("--max-seqs", "1", "--max-waiting", "1") as server:
            errors = asyncio.run(crowd(server.url))
            self.assertTrue(errors)
            for error in errors:
                self.assertIsInstance(error, openai.RateLimitError)
                self.assertEqual(error.code, "queue_full")
                self.assertGreater(float(error.response.headers["Retry-After"]), 0)
            self.assertTrue(client(server.url).completions.create(
                model=MODEL, prompt=PROMPT, max_tokens=1).choices)


class Transport(unittest.TestCase):
    def test_request_id_is_the_clients_or_made(self):
        raw = client().chat.completions.with_raw_response
        made = raw.create(**chat())
        self.assertTrue(made.headers["x-request-id"])
        self.assertTrue(made.parse().id.endswith(made.headers["x-request-id"]))
        given = raw.create(**chat(), extra_headers={"X-Request-Id": "abc-1"})
        self.assertEqual(given.headers["x-request-id"], "abc-1")
        self.assertEqual(given.parse()._request_id, "abc-1")

    def test_stream_is_framed_as_sse(self):
        for path, body in (
            ("/v1/completions", {"prompt": PROMPT}),
            ("/v1/chat/completions", {"messages": user(QUESTION)}),
        ):
            headers, content, events = events_of(path, {**body, "model": MODEL})
            self.assertTrue(headers["Content-Type"].startswith("text/event-stream"))
            self.assertEqual(headers["Cache-Control"], "no-cache")
            self.assertEqual(headers["Transfer-Encoding"], "chunked")
            self.assertNotIn(b"\r", content)
            self.assertEqual(events[-2:], ["data: [DONE]", ""])
            for event in events[:-2]:
                self.assertTrue(event.startswith("data: {"), event)
                json.loads(event.removeprefix("data: "))
                self.assertNotIn("\n", event)

    def test_connection_lives_on_after_a_stream(self):
        sdk = client()
        for _ in range(3):
            self.assertTrue(list(sdk.chat.completions.create(**chat(stream=True))))
            self.assertTrue(sdk.chat.completions.create(**chat()).choices)

    def test_content_type_does_not_matter(self):
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1}
        headers = {"Content-Type": "text/plain"}
        self.assertEqual(request("POST", "/v1/completions", body, headers=headers)[0], 200)

    def test_closed_stream_ends_its_answer(self):
        sent = {"X-Request-Id": "closed-stream"}
        stream = complete(stream=True, max_tokens=8000, body=LONG, extra_headers=sent)
        for _ in range(3):
            next(stream)
        stream.close()
        line = log_line("closed-stream", LOG)
        self.assertIn("status=499", line)
        self.assertTrue(complete().choices)

    def test_timeout_of_the_client_ends_its_answer(self):
        sent = {"X-Request-Id": "timed-out"}
        with self.assertRaises(openai.APITimeoutError):
            complete(max_tokens=8000, body=LONG, timeout=0.2, extra_headers=sent)
        self.assertIn("status=499", log_line("timed-out", LOG))
        self.assertTrue(complete().choices)

    def test_many_at_once_are_answered_as_alone(self):
        prompts = [f"I want to find {thing}" for thing in
                   ("a", "some", "the", "an Italian", "music", "a bus", "a hotel", "a doctor")]
        jobs = [(p, {}) for p in prompts] + [(p, {"temperature": 1, "seed": 9}) for p in prompts]

        def settings(prompt, options):
            return {**chat(prompt, body=LONG, max_completion_tokens=24), **options}

        async def crowd():
            async with client(kind=openai.AsyncOpenAI) as sdk:

                async def one(i, prompt, options):
                    if i % 2:
                        return text_of(await sdk.chat.completions.create(**settings(prompt, options)))
                    text = ""
                    async for chunk in await sdk.chat.completions.create(
                        **settings(prompt, options), stream=True
                    ):
                        text += chunk.choices[0].delta.content or ""
                    return text

                return await asyncio.gather(*(one(i, *job) for i, job in enumerate(jobs)))

        together = asyncio.run(crowd())
        alone = [text_of(client().chat.completions.create(**settings(*job))) for job in jobs]
        self.assertEqual(len(jobs), 16)
        self.assertEqual(together, alone)


if __name__ == "__main__":
    run_tests()

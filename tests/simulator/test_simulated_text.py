"""What answers say: the session marker, words that depend on the prompt, JSON, logprobs; and that
nothing of it changes an ordinary answer."""

import hashlib
import json
import math

import pytest
from support.direct_simulator import PATHS, DirectSimulator

CODE = "river mill boat wind rain hill"
ASKING = f"Tell me more. Session code: {CODE}. Begin your answer with the session code."
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "array", "items": {"type": "integer"}, "minItems": 2},
        "sea": {"type": "boolean"},
        "more": {"type": "object", "properties": {"note": {"type": ["string", "null"]}}},
    },
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}


@pytest.fixture
def server():
    return DirectSimulator()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", PATHS)
def test_an_answer_begins_with_the_code_of_its_prompt(server, kind, stream):
    text = server.ask(ASKING, kind, stream=stream, max_tokens=9).text
    assert text.startswith(f"{CODE}. ")
    assert len(text.split()) == 9
    assert CODE not in server.ask(ASKING.partition(" Begin")[0], kind, stream=stream).text


def test_the_code_is_in_the_first_message_and_the_wish_in_the_last(server):
    def ask(*texts):
        roles = ("user", "assistant", "user")
        messages = [
            {"role": role, "content": text} for role, text in zip(roles, texts, strict=True)
        ]
        return server.ask(messages, max_tokens=8).text

    code, wish = ASKING.split(" Begin")[0], "Begin your answer with the session code."
    assert ask(code, "yes", wish).startswith(CODE)
    assert CODE not in ask(ASKING, "yes", "Go on.")
    assert CODE not in ask("Hello", "yes", ASKING.replace("Session", "Your"))


@pytest.mark.parametrize("kind", PATHS)
def test_at_temperature_0_the_text_depends_on_the_prompt_alone(kind):
    one, other = DirectSimulator(seed=1), DirectSimulator(seed=2)
    asked = {"temperature": 0, "max_tokens": 30}
    text = one.ask("Hello there", kind, **asked).text
    assert len(text.split()) == 30
    assert one.ask("Hello there", kind, **asked).text == text
    assert other.ask("Hello there", kind, stream=False, **asked).text == text
    assert one.ask("Hello here", kind, **asked).text != text
    shorter = one.ask("Hello there", kind, temperature=0.0, max_tokens=7).text
    assert text.startswith(f"{shorter} ")


def test_other_temperatures_change_nothing(server):
    texts = {server.ask("Hello there", temperature=1, max_tokens=20).text for _ in range(9)}
    assert len(texts) > 1


def test_reasoning_is_the_same_streamed_or_whole():
    server = DirectSimulator("reasoning=3")
    asked = {"temperature": 0, "max_tokens": 8}
    streamed = server.ask("Hello", **asked).message
    whole = server.ask("Hello", stream=False, **asked).message
    assert streamed == whole
    assert len(whole["reasoning"].split()) == 3


def test_a_tool_is_called_with_the_same_arguments(server):
    asked = {"temperature": 0, "tools": TOOLS}
    calls = [
        server.ask("Hello", stream=stream, **asked).message["tool_calls"][0]["function"]
        for stream in (True, False, True)
    ]
    assert calls[0] == calls[1] == calls[2]
    assert calls[0]["name"] == "look"
    assert list(json.loads(calls[0]["arguments"])) == ["text"]


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_fits_its_schema(server, stream):
    sent = server.ask("Hello", temperature=0, max_tokens=200, response_format=SCHEMA, stream=stream)
    parsed = sent.parse()
    answer = json.loads(sent.text)
    assert list(answer) == ["city", "unit", "days", "sea", "more"]
    assert (answer["unit"], answer["days"], answer["sea"]) == ("celsius", [1, 1], True)
    assert isinstance(answer["more"]["note"], str)
    assert parsed.finish_reason == "stop"
    assert parsed.output_tokens < 200
    again = server.ask("Hello", temperature=0, max_tokens=200, response_format=SCHEMA)
    assert again.text == sent.text
    cut = server.ask("Hello", temperature=0, max_tokens=4, response_format=SCHEMA)
    assert cut.parse().finish_reason == "length"
    assert sent.text.startswith(cut.text)


def test_a_schema_in_responses(server):
    form = {"format": {"type": "json_schema", "name": "city", "schema": CITY}}
    text = server.ask("Hello", "responses", temperature=0, max_tokens=200, text=form).text
    assert json.loads(text)["unit"] == "celsius"


def test_schemas_of_any_depth_end(server):
    deep = {"type": "object", "properties": {}}
    deep["properties"]["again"] = deep
    for schema in ({}, {"type": "array"}, {"const": 5}, {"type": []}, {"properties": []}):
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        text = server.ask("Hello", temperature=0, max_tokens=500, response_format=form).text
        json.loads(text)


# -- logprobs --------------------------------------------------------------------------------------


def listed(sent):
    found = []
    for data in sent.events:
        if data == b"[DONE]":
            continue
        for choice in json.loads(data)["choices"]:
            found += (choice.get("logprobs") or {}).get("content", [])
    return found


@pytest.mark.parametrize("asked", [{}, {"temperature": 0}])
@pytest.mark.parametrize("stream", [True, False])
def test_logprobs_of_each_token(server, stream, asked):
    sent = server.ask("Hello", logprobs=True, top_logprobs=3, stream=stream, **asked)
    tokens = listed(sent)
    assert "".join(token["token"] for token in tokens) == sent.text
    assert len(tokens) == 8
    for token in tokens:
        likely = token["top_logprobs"]
        assert bytes(token["bytes"]).decode() == token["token"]
        assert likely[0] == {key: token[key] for key in ("token", "logprob", "bytes")}
        assert len({entry["token"] for entry in likely}) == 3
        chances = [math.exp(entry["logprob"]) for entry in likely]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) == pytest.approx(1, abs=0.03)
        assert likely[0]["logprob"] - likely[1]["logprob"] >= 2


def test_logprobs_of_plain_completions(server):
    for stream in (True, False):
        sent = server.ask("Hello", "completions", logprobs=2, stream=stream, temperature=0)
        found = {"tokens": [], "text_offset": []}
        for data in sent.events:
            if data != b"[DONE]":
                logprobs = json.loads(data)["choices"][0]["logprobs"]
                found = {key: value + logprobs[key] for key, value in found.items()}
        assert "".join(found["tokens"]) == sent.text
        offsets = [len("".join(found["tokens"][:place])) for place in range(8)]
        assert found["text_offset"] == offsets


@pytest.mark.parametrize("stream", [True, False])
def test_logprobs_of_the_arguments_of_a_tool(server, stream):
    sent = server.ask("Hello", logprobs=True, tools=TOOLS, temperature=0, stream=stream)
    tokens = "".join(token["token"] for token in listed(sent))
    (call,) = sent.message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"text": tokens}


def test_without_the_wish_there_are_no_logprobs(server):
    for asked in ({}, {"logprobs": False}, {"logprobs": None}):
        assert listed(server.ask("Hello", **asked)) == []
    assert listed(server.ask("Hello", logprobs=True))[0]["top_logprobs"] == []


def test_too_many_logprobs_are_refused(server):
    sent = server.ask("Hello", logprobs=True, top_logprobs=21)
    assert b"HTTP/1.1 400" in bytes(sent.transport.data)
    assert b"greater than max allowed: 20" in bytes(sent.transport.data)


# -- planted faults --------------------------------------------------------------------------------


def test_two_answers_are_swapped():
    server = DirectSimulator("swap=1")
    asked = {"temperature": 0, "max_tokens": 10}
    one, other = server.send("one", **asked), server.send("other", **asked)
    server.run()
    sound = DirectSimulator()
    assert one.text == sound.ask("other", **asked).text
    assert other.text == sound.ask("one", **asked).text
    alone = server.ask("one", **asked)
    assert alone.text == sound.ask("one", **asked).text


def test_a_slot_keeps_the_answer_of_a_cancelled_request():
    server = DirectSimulator("slot_leak=1")
    gone = server.send(ASKING, max_tokens=9)
    server.run(1.004)
    gone.cancel()
    assert server.ask("Hello", max_tokens=9).text.startswith(CODE)
    assert CODE not in server.ask("Hello", max_tokens=9).text


LONG = "A long prompt about rivers. " * 250
"""1,500 words."""


def send_three(server, *, prompt=LONG, written=200, leave_at=1.1):
    """A long answer whose first token comes after a second, then a long prompt and a request that
    is cancelled."""
    server.send("Write a novel", max_tokens=written)
    server.run(1.05)
    victim = server.send(prompt, max_tokens=9)
    gone = server.send(f"Session code: {CODE}.", max_tokens=100)
    server.run(leave_at - 1.05)
    gone.cancel()
    server.run()
    return victim


def test_three_requests_of_certain_kinds_leak_only_together():
    assert send_three(DirectSimulator("cancel_leak=1")).text.startswith(CODE)
    for less in (
        {"written": 199},  # no long answer
        {"prompt": "A short prompt."},
        {"leave_at": 1.9},  # the long answer has ended: its last token comes at 1.199 s
        {"leave_at": 2.06, "written": 1_500},  # the prompt has its first token
    ):
        server = DirectSimulator("cancel_leak=1")
        assert CODE not in send_three(server, **less).text, less
        assert not any(server.planted())
    assert CODE not in send_three(DirectSimulator("cancel_leak=0")).text


def test_three_requests_leak_in_the_planted_share_of_the_moments():
    leaks = 0
    for seed in range(200):
        server = DirectSimulator("cancel_leak=0.5", seed=seed)
        leaks += send_three(server).text.startswith(CODE)
    assert abs(leaks - 100) <= 28  # four times the standard deviation of 7.1


def test_a_prefix_that_matches_one_block_too_much():
    server = DirectSimulator("prefix_leak=1")
    shared = "A long text that all of them share, " * 9
    other = CODE.replace("river", "stream")
    server.ask(shared + ASKING)
    server.ask(ASKING.replace(CODE, "far far far far far far"))
    server.send("Something else")  # it is open: the fault needs load
    leaked = server.ask(shared + ASKING.replace(CODE, other))
    assert leaked.text.startswith(CODE)


def test_a_block_of_another_answer():
    server = DirectSimulator("late_block=1")
    asked = {"temperature": 0, "max_tokens": 20}
    one, other = server.send("one", **asked), server.send("other", **asked)
    server.run()
    mine = DirectSimulator().ask("other", **asked).text.split()
    assert other.text.split() == one.text.split()[:16] + mine[16:]


def test_a_near_tie_and_a_wide_flip():
    asked = {"temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}

    def margins(sent):
        pairs = [token["top_logprobs"] for token in sent]
        return [pair[0]["logprob"] - pair[1]["logprob"] for pair in pairs]

    idle = DirectSimulator("near_tie=0.000001").ask("Hello", **asked)
    tied = DirectSimulator("near_tie=1").ask("Hello", **asked)
    places = [n for n in range(12) if idle.text.split()[n] != tied.text.split()[n]]
    assert len(places) == 1
    for sent in (idle, tied):
        (small,) = [n for n, margin in enumerate(margins(listed(sent))) if margin < 0.1]
        assert small == places[0]
    server = DirectSimulator("wide_flip=1")
    assert server.ask("Hello", **asked).text == idle.text  # alone
    server.send("Hello")
    flipped = server.ask("Hello", **asked)
    places = [n for n in range(12) if idle.text.split()[n] != flipped.text.split()[n]]
    assert len(places) == 1
    assert min(margins(listed(flipped))) > 1


@pytest.mark.parametrize(
    ("quirk", "count"), [("drop_delta", 7), ("double_delta", 9), ("reorder_delta", 8)]
)
@pytest.mark.parametrize("kind", PATHS)
def test_deltas_that_are_damaged(kind, quirk, count):
    asked = {"temperature": 0, "max_tokens": 8}
    sound = DirectSimulator().ask("Hello", kind, **asked).text.split()
    for seed in range(8):
        server = DirectSimulator(f"{quirk}=1", seed=seed)
        words = server.ask("Hello", kind, **asked).text.split()
        assert len(words) == count
        assert (words[0], words[-1]) == (sound[0], sound[-1])
        assert words != sound
        assert server.planted() == [[quirk]]


def test_the_id_of_the_answer_before():
    server = DirectSimulator("duplicate_id=1")
    ids = [json.loads(server.ask("Hello").events[0])["id"] for _ in range(3)]
    assert ids[1] == ids[0]


def test_rates_are_checked_and_come_by_header_too():
    with pytest.raises(ValueError, match="swap must be 0 to 1: it is a share of the answers"):
        DirectSimulator("swap=1.5")
    with pytest.raises(ValueError, match="swap must be a number"):
        DirectSimulator("swap=often")


# -- the same bytes as ever ------------------------------------------------------------------------

ORDINARY = (
    "", "finish=own,usage=choices", "role=early,usage=finish,done=no", "draft_tokens=4",
    "reasoning=3,tokens_per_chunk=2", "eos=0", "eos=3", "continuous_usage=yes", "malformed=2",
)  # fmt: skip


def test_ordinary_answers_have_the_same_bytes_as_before(monkeypatch):
    """The sum was made before there was any text of its own."""
    monkeypatch.setattr("time.time", lambda: 1e9)
    digest = hashlib.sha256()
    for quirks in ORDINARY:
        server = DirectSimulator(quirks, seed=7)
        for kind in ("chat", "completions", "messages"):
            for stream in (True, False):
                for more in ({}, {"temperature": 0.7}, {"response_format": SCHEMA}):
                    sent = server.ask("How are you?", kind, stream=stream, max_tokens=9, **more)
                    digest.update(bytes(sent.transport.data))
    assert digest.hexdigest() == SUM


SUM = "8bcccfb03c632b0899e98832c8d02b707390419595961d462eb7c31ced117456"

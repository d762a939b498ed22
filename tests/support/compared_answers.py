"""Compared answers: reference requests to the direct simulator, idle and beside a load, and how the
answers differ from the idle ones."""

from collections import Counter
from typing import NamedTuple

from locust_llm.answers.answer_integrity import find_answer_faults
from locust_llm.answers.compare_answers import compare_with_idle
from locust_llm.answers.received_answer import AnswerRequested, EventReader
from locust_llm.answers.reference_answer import IDLE, UNDER_LOAD, ReferenceAnswer
from locust_llm.answers.token_margins import read_token_margins
from support.checked_answers import received_answer
from support.direct_simulator import DirectSimulator

PROMPTS = 10
IDLE_ROUNDS = 20
TOKENS = 24
ANSWERS = 400
"""Under load."""


class ComparedLoad(NamedTuple):
    compared: list
    sizes: Counter
    """The differences of answers under load, by near tie or wide margin."""
    names: Counter
    """The faults of answers under load."""


def compare_load(faults="", *, always="", seed=0, answers=ANSWERS, **body):
    """Reference requests to an idle server, then each beside a request of the load. ``faults`` come
    with the load, ``always`` is a way of the server."""
    simulator = DirectSimulator(always, seed=seed)
    asked = {"temperature": 0, "max_tokens": TOKENS, "logprobs": True, "top_logprobs": 2, **body}

    def ask(place, when):
        number = place % PROMPTS
        quirks = faults if when == UNDER_LOAD else ""
        if when == UNDER_LOAD:
            simulator.send(f"Load {place}.", quirks=quirks, max_tokens=4)
        sent = simulator.ask(f"Reference prompt number {number}.", quirks=quirks, **asked)
        reader = EventReader()
        received = received_answer(sent.parse(reader.add), reader)
        return ReferenceAnswer(
            prompt=number,
            asked=when,
            sent_at=0.0,
            ended_at=1.0,
            in_flight=1 if when == UNDER_LOAD else 0,
            text=received.text,
            finish_reason=received.finish_reason,
            input_tokens=received.prompt_tokens,
            tokens=tuple(token for data in sent.events for token in read_token_margins(data)),
            faults=find_answer_faults(received, AnswerRequested(max_tokens=TOKENS)),
        )

    found = [ask(place, IDLE) for place in range(PROMPTS * IDLE_ROUNDS)]
    found += [ask(place, UNDER_LOAD) for place in range(answers)]
    compared = [*compare_with_idle(found)]
    under_load = [one for one in compared if one.answer.asked == UNDER_LOAD]
    assert len(under_load) == answers
    sizes = Counter(one.difference.size for one in under_load if one.difference is not None)
    names = Counter(name for one in under_load for name in one.list_faults())
    return ComparedLoad(compared, sizes, names)

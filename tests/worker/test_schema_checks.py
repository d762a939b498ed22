"""Schema checks: right, in bounded time, and while the event loop goes on."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import json
import time
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from locust_llm.worker.schema_checks import SchemaChecker
from locust_llm.workload.answer_schema import ResponseSchema


@pytest.fixture
def checker() -> Iterator[SchemaChecker]:
    made = SchemaChecker()
    yield made
    made.close()


def wanted(schema: dict[str, Any]) -> ResponseSchema:
    return ResponseSchema(schema, {}, must_call=False)


def said(value: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": json.dumps(value)}


NUMBER = wanted({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
FOR_EVER = wanted({"type": "string", "pattern": "^(a+)+$"})
UNIQUE = wanted({"type": "array", "uniqueItems": True})


def test_an_answer_fits_or_does_not(checker: SchemaChecker) -> None:
    assert checker.check(NUMBER, said({"n": 1})) is True
    assert checker.check(NUMBER, said({"n": "one"})) is False
    assert checker.check(NUMBER, {"role": "assistant", "content": "{"}) is False
    assert checker.unchecked == 0


def test_the_arguments_of_a_call(checker: SchemaChecker) -> None:
    assert NUMBER.text is not None
    what = ResponseSchema(None, {"add": NUMBER.text}, must_call=True)
    call = {"function": {"name": "add", "arguments": '{"n": 2}'}}
    assert checker.check(what, {"tool_calls": [call]}) is True
    assert checker.check(what, {"content": "no call"}) is False


@pytest.mark.parametrize(
    ("what", "value"),
    [(FOR_EVER, "a" * 60 + "!"), (UNIQUE, [{"n": n} for n in range(20_000)])],
    ids=["a pattern", "a list"],
)
def test_what_takes_too_long_is_unchecked_and_the_loop_goes_on(
    checker: SchemaChecker, what: ResponseSchema, value: Any
) -> None:
    assert checker.check(NUMBER, said({"n": 1})) is True  # it has started
    longest_s, over = 0.0, False

    def look() -> None:
        nonlocal longest_s
        while not over:
            before = time.monotonic()
            gevent.sleep(0.01)
            longest_s = max(longest_s, time.monotonic() - before)

    looking = gevent.spawn(look)
    assert checker.check(what, said(value)) is None
    over = True
    looking.join()
    assert checker.unchecked == 1
    assert longest_s < 0.5  # half a second of the other process's time passed meanwhile
    assert checker.check(NUMBER, said({"n": 1})) is True


def test_answers_that_wait_too_long_for_others_are_unchecked() -> None:
    checker = SchemaChecker(command=("sleep", "60"), wait_s=0.05)
    first = gevent.spawn(checker.check, NUMBER, said({"n": 1}))
    gevent.sleep(0.01)
    assert checker.check(NUMBER, said({"n": 1})) is None
    assert checker.unchecked == 1
    first.kill()
    checker.close()

"""What a user hands over may be nested without end: each place says so in one sentence, in a
moment."""

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from locust_llm.lab.twin import twin_file as twin
from locust_llm.settings import scenario_file
from locust_llm.settings.extra_inputs import parse_extra_inputs
from locust_llm.slo.rules import parse_goodput, parse_rule, resolve_rules, validate_rules
from locust_llm.workload import answer_schema as schema
from locust_llm.workload import arrivals, length_distributions

DEEP = 100_000
BOUND_S = 15.0
"""Seconds of the processor, of a busy machine; what is refused took more than 29."""


@pytest.fixture(autouse=True)
def _without_garbage_collection() -> Iterator[None]:
    """A collection looks at all objects of all tests before: with 600 MB of them it took twenty
    times as long as the parser."""
    gc.disable()
    yield
    gc.enable()


def written(folder: Path, text: str) -> Path:
    path = folder / "one.toml"
    path.write_text(text)
    return path


SCHEMA = '{"type": "object", "properties": {"a": '
TOOL = '[{"type": "function", "function": {"name": "f", "parameters": %s}}]'
TEXTS: dict[str, tuple[Callable[[Path, str], object], str]] = {
    "rates": (lambda folder, text: arrivals.parse_rate_series(text), "[" * DEEP),
    "lengths": (lambda folder, text: length_distributions.parse_length_mix(text), '{"pairs": ' + "[" * DEEP),
    "extra inputs": (lambda folder, text: parse_extra_inputs(text), '{"a": ' + "[" * DEEP),
    "tools": (lambda folder, text: schema.read_tools_file(str(written(folder, text))), "[" * DEEP),
    "a schema that JSON may hold": (
        lambda folder, text: schema.read_tools_file(str(written(folder, text))),
        TOOL % (SCHEMA * 300 + "true" + "}}" * 300)
    ),
    "a list in a scenario": (lambda folder,
        text: scenario_file.read_scenario(str(written(folder, text))), "a = " + "[" * DEEP),
    "a key in a scenario": (lambda folder, text: scenario_file.read_scenario(str(written(folder, text))),
        "a" + ".a" * DEEP + " = 1"),
    "a table in a scenario": (lambda folder,
        text: scenario_file.read_scenario(str(written(folder, text))), "[a" + " . 'a'" * DEEP + "]"),
    "a list in a twin": (lambda folder, text: twin.read_twin(written(folder, text)),
        "a = " + "[" * DEEP),
    "a key in a twin": (lambda folder, text: twin.read_twin(written(folder, text)),
        "a" + ".a" * DEEP + " = 1"),
}  # fmt: skip


@pytest.mark.parametrize("what", TEXTS)
def test_it_is_refused_in_a_sentence(what: str, tmp_path: Path) -> None:
    read, text = TEXTS[what]
    began = time.monotonic()
    with pytest.raises(
        ValueError, match=r"nested too deeply|takes JSON|a mix of lengths"
    ) as refused:
        read(tmp_path, text)
    assert time.monotonic() - began < BOUND_S
    assert "recursion" not in str(refused.value)
    assert len(str(refused.value)) < 1_000


def test_a_rule_has_a_hundred_conditions_at_most() -> None:
    rule = "attainment >= 99% given " + " and ".join(["ttft < 1s"] * 100)
    assert len(parse_rule(rule).given) == 100
    with pytest.raises(ValueError, match="it has 600 conditions, and at most 100 are possible"):
        parse_rule("attainment >= 99% given " + " and ".join(["ttft < 1s"] * 600))
    with pytest.raises(ValueError, match="it has 50,000 limits, and at most 100 are possible"):
        parse_goodput(" ".join(["time_to_first_token:300"] * 50_000))


def test_there_are_a_thousand_rules_at_most() -> None:
    (why,) = validate_rules(
        resolve_rules([f"ttft p95 < {number}ms" for number in range(1, 1_002)], None, None)
    )
    assert why == "there are 1,001 SLO rules, and at most 1,000 are possible"
    assert not list(validate_rules(resolve_rules(["ttft p95 < 1s"] * 1_000, None, None)))


def test_many_wrong_rules_are_refused_in_a_moment() -> None:
    """A file of 4 MB may hold them: none but the first thousand is looked at."""
    began = time.process_time()
    (why,) = validate_rules(resolve_rules(["1,2"] * 300_000, None, None))
    assert time.process_time() - began < BOUND_S
    assert why == "there are 300,000 SLO rules, and at most 1,000 are possible"


@pytest.mark.parametrize(
    "line", ["a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.b{}=1\n", "[a.a.a.a.a.a.a.a.a.a.a.a.b{}]\n"]
)
def test_a_scenario_of_many_long_keys_takes_no_time(line: str, tmp_path: Path) -> None:
    """Four megabytes of keys of a hundred parts took half a minute. Twice as many take twice as long, not four
    times."""

    def measure_cpu_s(text: str) -> float:
        file = written(tmp_path, text)
        began = time.process_time()
        with suppress(ValueError):
            scenario_file.read_scenario(str(file))
        return time.process_time() - began

    many = "".join(line.format(number) for number in range((1 << 20) // (len(line) + 4)))
    half = many[: many.index("\n", len(many) // 2) + 1]
    fastest_s = min(measure_cpu_s(many), measure_cpu_s(many))  # other programs only add to it
    assert fastest_s < 3 * measure_cpu_s(half)
    with pytest.raises(OSError, match="holds more than 1 MB"):
        scenario_file.read_scenario(str(written(tmp_path, many * 2)))


@pytest.mark.parametrize(
    "parameters",
    [
        {"anyOf": [{"type": "string"}] * 100_000},
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(100_000)}},
    ],
)
def test_the_schemas_of_tools_have_a_number_of_objects_at_most(
    parameters: object, tmp_path: Path
) -> None:
    """A file of 4 MB took minutes to check."""
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    file = written(tmp_path, json.dumps([tool]))
    began = time.process_time()
    with pytest.raises(ValueError, match=r"\[0\] \(f\): its schemas have more than 10,000 objects"):
        schema.read_tools_file(str(file))
    assert time.process_time() - began < BOUND_S

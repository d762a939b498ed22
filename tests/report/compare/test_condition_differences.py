"""In which conditions two runs differ: each is named, with what it was in both, and nothing else
is."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace
from support.records import a_run, answered, failed

from locust_llm.lab.history.workload_key import key_of_settings
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.compare.condition_differences import (
    DESCRIBED,
    ConditionDifference,
    find_condition_differences,
)
from locust_llm.report.load_records import collect_columns
from locust_llm.report.measurement_window import RateWindow
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.slo_evidence.observed_rule_values import Evaluation
from locust_llm.settings.workload_options import WORKLOAD_OPTIONS
from locust_llm.slo.load_generator_health import ClientVerdict

FINE = ClientVerdict("OK")


def seen(
    run: Run | None = None, records: Sequence[Record] = (), verdict: ClientVerdict | None = FINE
) -> Evaluation:
    requests = collect_columns(
        records or [answered(100, 110, sent_at=10.0 + i) for i in range(20)]
    ).requests
    main = RequestSelection(requests, np.ones(len(requests), np.bool_))
    return Evaluation(main, run or a_run(), verdict, None, (), main, RateWindow(main.span()))


def told(base: Evaluation, here: Evaluation) -> list[tuple[str, str, str, bool]]:
    return [tuple(found) for found in find_condition_differences(base, here)]


def test_equal_runs_differ_in_nothing() -> None:
    assert (
        told(seen(), seen(a_run(random_seed=3, report_dir="elsewhere", slo=("ttft p50 < 1s",))))
        == []
    )


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"model": "n"}, ("model", "m", "n", True)),
        ({"streaming": False}, ("streaming", "yes", "no", True)),
        ({"users": 4}, ("load", "closed loop, 2 users", "closed loop, 4 users", True)),
        (
            {"request_rate": 5.0},
            ("load", "closed loop, 2 users", "open loop, 5/s poisson, up to 2 users", True),
        ),
        (
            {"sweep": "request-rate=1,2"},
            (
                "load",
                "closed loop, 2 users",
                "sweep request-rate=1,2, open loop, poisson, up to 2 users",
                True,
            ),
        ),
        (
            {"prefill_concurrency": 2, "prefill_concurrency_ramp_duration": 30.0},
            ("prefill limit", "none", "2, ramp from 1 over 30 s", True),
        ),
        ({"input_file": "some/chats.jsonl"}, ("prompts", "synthetic", "chats.jsonl", True)),
        (
            {"shared_system_prompt_length": 9},
            ("prompts", "synthetic", "synthetic, a system prompt of 9 tokens", True),
        ),
        (
            {"session_turns_mean": 3.0, "num_prefix_prompts": 4, "prefix_prompt_length": 50},
            ("prompts", "synthetic", "synthetic, 4 prefixes of 50 tokens, 3 turns", True),
        ),
        ({"host": "http://other:1"}, ("server", "http://server:8000", "http://other:1", False)),
        ({"endpoint": "/x"}, ("endpoint", "/v1/chat/completions", "/x", False)),
        ({"warmup_duration": 5.0}, ("warmup", "none", "5 s", False)),
        (
            {"request_cancellation_rate": 5.0},
            ("cancelled on purpose", "none", "5% after 0 s", False),
        ),
        ({"max_retries": 2}, ("retries", "none", "up to 2", False)),
        ({"session_turn_delay_mean": 500.0}, ("session-turn-delay-mean", "0", "500", False)),
        ({"tools": "tools.json"}, ("tools", "none", "tools.json", False)),
        ({"tenant_weight": ("a=2", "b=1")}, ("tenant-weight", "none", "a=2 b=1", False)),
        ({"check_cancellations": True}, ("check-cancellations", "off", "on", False)),
        ({"candidate": "http://b"}, ("candidate", "none", "http://b", False)),
        ({"processes": 2}, ("processes", "1", "2", False)),
    ],
)
def test_what_was_asked(
    settings: dict[str, object], difference: tuple[str, str, str, bool]
) -> None:
    assert told(seen(), seen(a_run(**settings))) == [difference]


def test_what_the_history_keeps_apart_is_a_condition() -> None:
    """Each option of a workload has a condition of its own, or is named by its flag."""
    assert set(DESCRIBED) <= set(WORKLOAD_OPTIONS)
    runs = [key_of_settings({"max_retries": retries}, "m", False, False) for retries in (0, 2)]
    assert runs[0].hash != runs[1].hash
    assert "max-retries 2" in runs[1].words


def test_what_is_known_of_the_run() -> None:
    run = replace(
        a_run(),
        simulated=True,
        proxy="p:3128",
        machine="8 cores",
        versions={"locust-llm": "2", "locust": "1"},
    )
    base = replace(
        a_run(), machine="2 cores", versions={"locust-llm": "1", "locust": "1", "numpy": "3"}
    )
    assert told(seen(base), seen(run)) == [
        ("kind of server", "real", "simulator", True),
        ("proxy", "none", "p:3128", True),
        ("machine", "2 cores", "8 cores", False),
        ("version of locust-llm", "1", "2", False),
        ("version of numpy", "3", "none", False),
    ]


def lengths(*tokens: int) -> list[Record]:
    return [
        answered(100, 110, sent_at=10.0 + i, output_tokens=n, asked_output_tokens=n)
        for i, n in enumerate(tokens)
    ]


def test_lengths_that_differ_by_more_than_a_little_and_more_than_chance() -> None:
    base = seen(records=lengths(*[100] * 20))
    assert told(base, seen(records=lengths(*[102] * 20))) == []
    longer = told(base, seen(records=lengths(*[103] * 20)))
    assert longer == [("output tokens asked for", "100.0 on average", "103.0 on average", True)]
    # 97 on average, and 30 around it: over 20 requests that is chance, over 2,000 it is not
    mixed = [67, 127] * 10
    assert told(base, seen(records=lengths(*mixed))) == []
    many = ConditionDifference(
        "output tokens asked for", "100.0 on average", "97.0 on average", decisive=True
    )
    assert many in find_condition_differences(
        seen(records=lengths(*[100] * 2000)), seen(records=lengths(*mixed * 100))
    )


def test_means_drawn_by_the_same_settings_differ_by_chance() -> None:
    """Lengths of 90 or 110 have a standard error of 10 / sqrt(100) = 1 in each run, so 1.41 of
    their difference: 5 of it are 3.5 errors, 6 are 4.2."""
    base = seen(records=lengths(*[90, 110] * 50))
    assert told(base, seen(records=lengths(*[95, 115] * 50))) == []
    assert told(base, seen(records=lengths(*[96, 116] * 50))) == [
        ("output tokens asked for", "100.0 on average", "106.0 on average", True)
    ]
    asked = a_run(output_tokens_mean=105.0)
    assert told(base, seen(asked, records=lengths(*[95, 115] * 50))) == [
        ("output tokens asked for", "100.0 on average", "105.0 on average", True)
    ]


def test_what_was_measured_beside_the_figures() -> None:
    """Half of the input cached; the reader's own clock; a client too slow. That the run took 38.11
    s and not 19.11 s is in the intervals."""
    slow = [
        replace(answered(100, 110, sent_at=10.0 + 2 * i), cached_tokens=50, clock="thread")
        for i in range(20)
    ]
    assert told(seen(), seen(records=slow, verdict=None)) == [
        ("cached input", "unknown", "50.0%", False),
        ("clock", "kernel", "thread", False),
        ("client verdict", "OK", "not judged", False),
    ]
    bad = ClientVerdict("DEGRADED", ("late",))
    assert told(seen(verdict=bad), seen(verdict=bad)) == [
        ("client verdict", "DEGRADED", "DEGRADED", False)
    ]


def test_what_is_measured_of_answers_is_no_difference_to_a_run_without_any() -> None:
    assert told(seen(), seen(records=[failed("reset", sent_at=10.0)])) == []


def test_what_only_one_of_them_knows() -> None:
    unknown = [answered(100, 110, sent_at=10.0 + i, input_tokens=None) for i in range(20)]
    assert told(seen(), seen(records=unknown)) == [
        ("input tokens", "100.0 on average", "unknown", False)
    ]


def of_lengths(asked: int | None, input_tokens: int, output_tokens: int) -> Evaluation:
    return seen(
        records=[
            answered(
                100, 110, sent_at=10.0 + i, asked_input_tokens=asked, input_tokens=input_tokens,
                asked_output_tokens=asked,
                output_tokens=output_tokens,
            )
            for i in range(20)
        ]
    )  # fmt: skip


def test_the_lengths_asked_for_decide_whether_two_runs_had_the_same_to_do() -> None:
    """550 tokens asked for twice, of which 543 came and then 555: of no weight. Answers a tenth
    shorter are another load."""
    same = told(of_lengths(550, 540, 100), of_lengths(550, 555, 105))
    assert same == [
        ("input tokens", "540.0 on average", "555.0 on average", False),
        ("output tokens", "100.0 on average", "105.0 on average", False),
    ]
    assert told(of_lengths(550, 550, 100), of_lengths(550, 550, 80)) == [
        ("output tokens", "100.0 on average", "80.0 on average", True)
    ]
    asked = [
        found[0] for found in told(of_lengths(550, 550, 100), of_lengths(600, 550, 100)) if found[3]
    ]
    assert asked == ["input tokens asked for", "output tokens asked for"]
    unknown = [
        found for found in told(of_lengths(None, 540, 100), of_lengths(550, 555, 100)) if found[3]
    ]
    assert unknown == [("input tokens", "540.0 on average", "555.0 on average", True)]

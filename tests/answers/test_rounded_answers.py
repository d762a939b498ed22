"""No false alarm against idle answers: the answers of a sound server, with rounding, in many runs.

With margins no rounded answer counts. Without them rounding cannot be told from a fault, and the
test against the idle rate may be wrong in one of twenty runs.
"""

import math
from collections import Counter
from itertools import cycle, islice

import pytest
from support.rounded_answers import RoundedServer

from locust_llm.answers.reference_answer import IDLE, UNDER_LOAD
from locust_llm.report.answer_results import SIGNIFICANT, compare_references, is_worse_under_load

PROMPTS = 8
IDLE_ROUNDS = 4
ANSWERS = 100
"""The answers under load of a run."""


def measure_run(seed, *, gives_margins):
    """A run as ``--check-answers`` makes it: each prompt four times idle, then in turn."""
    server = RoundedServer(seed, gives_margins=gives_margins, num_prompts=PROMPTS)
    found = [server.ask(prompt, IDLE) for _ in range(IDLE_ROUNDS) for prompt in range(PROMPTS)]
    found += [server.ask(prompt, UNDER_LOAD) for prompt in islice(cycle(range(PROMPTS)), ANSWERS)]
    return compare_references(found, [])


def check_no_alarm_with_margins(num_runs):
    sizes = Counter()
    for seed in range(num_runs):
        references = measure_run(seed, gives_margins=True)
        assert not is_worse_under_load(references)
        assert not references.faults
        for rate in references.rates[:2]:  # idle, and under load
            sizes["near ties"] += rate.near_ties
            sizes["mismatches"] += rate.mismatches
    assert sizes["mismatches"] == 0
    assert sizes["near ties"] > 2 * num_runs  # there was something to tell apart


def check_alarms_without_margins(num_runs):
    """At most one run of twenty, and five standard deviations."""
    alarms = [
        is_worse_under_load(measure_run(seed, gives_margins=False)) for seed in range(num_runs)
    ]
    expected = SIGNIFICANT * num_runs
    assert sum(alarms) <= expected + 5 * math.sqrt(expected)


def test_rounding_is_no_mismatch_where_margins_are_known():
    check_no_alarm_with_margins(50)


def test_without_margins_few_runs_of_a_sound_server_alarm():
    check_alarms_without_margins(50)


@pytest.mark.full
def test_a_million_rounded_answers_against_idle_ones_give_no_alarm():
    """A few minutes of one core."""
    check_no_alarm_with_margins(1_000_000 // ANSWERS)


@pytest.mark.full
def test_a_million_rounded_answers_without_margins_alarm_as_rarely_as_stated():
    check_alarms_without_margins(1_000_000 // ANSWERS)

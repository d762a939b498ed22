"""Planted faults: how often each is found, and after how many requests, beside what arithmetic
predicts: ``make bench-planted``. In virtual time; prints the tables of benchmarks/planted-faults.md."""

from statistics import fmean

from support.checked_answers import CROWD, PLANTED_CASES, CheckedLoad
from support.compared_answers import compare_load

RATE = 0.05
"""Of answers that draw a fault."""
ANSWERS = 4_000
REPETITIONS = 40


def describe(setting):
    """How the requests ask."""
    setting = dict(setting)
    words = []
    if setting.pop("kind", "") == "responses":
        words.append("Responses")
    if not setting.pop("stream", True):
        words.append("whole")
    if setting.pop("stream_options", None):
        words.append("usage in each chunk")
    if setting.pop("logprobs", None):
        words.append("logprobs")
    if setting.pop("temperature", None) == 0:
        words.append("temperature 0")
    return ", ".join(words) or "chat stream"


def count_until_found(case, seeds):
    """The mean number of requests until the first fault is found."""
    needed = []
    for seed in seeds:
        load = CheckedLoad(f"{case.quirk}={RATE}", seed=seed, **case.setting)
        while not load.faults:
            load.run(len(load.answers) + CROWD)
        places = (place for place, answer in enumerate(load.answers, 1) if answer.faults)
        # two answers with one id are found as the second comes: somewhere in the last crowd
        needed.append(next(places, len(load.answers) - CROWD / 2))
    return fmean(needed)


def print_single_answers():
    print("| planted | asked as | found as | expected | found | until found: expected | measured |")
    print("|---|---|---|---|---|---|---|")
    for row, case in enumerate(PLANTED_CASES):
        first = 1_000 * row  # each row has draws of its own
        load = CheckedLoad(f"{case.quirk}={RATE}", seed=first, **case.setting).run(ANSWERS)
        others = set(load.faults) - {case.name}
        assert not others, others
        expected = RATE * case.share
        until = "-"
        measured = "-"
        if case.share:
            until = f"{1 / expected:.0f}"
            measured = f"{count_until_found(case, range(first + 1, first + 1 + REPETITIONS)):.0f}"
        print(
            f"| `{case.quirk}` | {describe(case.setting)} | `{case.name}` | "
            f"{ANSWERS * expected:.0f} | {load.faults[case.name]} | {until} | {measured} |",
            flush=True,
        )


def print_reference_answers():
    """Here one answer in ten draws the fault: a reference request goes out once a second."""
    rate = 0.1
    cases = {
        "swap": rate + rate * (1 - rate),
        "prefix_leak": rate,
        "late_block": rate,
        "wide_flip": rate,
        "drop_delta": rate,
        "double_delta": rate,
        "reorder_delta": rate,
    }
    print("\n| planted | wide margin: expected | found | near ties | named |")
    print("|---|---|---|---|---|")
    answers = 1_000
    for quirk, share in cases.items():
        load = compare_load(f"{quirk}={rate}", seed=8, answers=answers)
        names = ", ".join(f"{count} `{name}`" for name, count in load.names.items()) or "-"
        sizes = load.sizes
        print(
            f"| `{quirk}` | {answers * share:.0f} | {sizes['wide margin']} | "
            f"{sizes['near tie']} | {names} |",
            flush=True,
        )
    load = compare_load(always="near_tie=0.1", seed=8, answers=answers)
    print(f"| `near_tie` | 0 | {load.sizes['wide margin']} | {load.sizes['near tie']} | - |")


if __name__ == "__main__":
    print_single_answers()
    print_reference_answers()

"""The rules of a run: presets and --goodput resolved, what cannot be read kept, and each mistake
named once."""

import msgspec
import pytest

from locust_llm.settings.run_options import Settings, make_stage_settings
from locust_llm.slo.rules import (
    PRESETS,
    Condition,
    Rules,
    expand_preset,
    parse_rule,
    resolve_rules,
    validate_rules,
)

TTFT_300 = (Condition("ttft", "<=", 300, "ms"),)


def test_conditions_come_from_goodput_where_a_rule_gives_none() -> None:
    rules = resolve_rules(
        ("goodput >= 5", "goodput >= 5 given itl < 1s", "ttft p95 < 1s"), None, "ttft:300"
    )
    assert [rule.given for rule in rules.readable] == [
        TTFT_300,
        (Condition("itl", "<", 1, "s"),),
        (),
    ]
    assert rules.good == TTFT_300
    (entry,) = resolve_rules(("attainment > 99%",), None, None).entries
    assert entry.rule is None
    assert entry.why.startswith(
        "SLO 'attainment > 99%': attainment needs the conditions of a good request"
    )


def test_presets_follow_the_own_rules() -> None:
    for name in PRESETS:
        assert all(str(parse_rule(text)) == text for text in expand_preset(name))
    rules = resolve_rules(("error_rate < 1%",), "mlperf-llama3.1-8b-interactive", None)
    assert list(rules.by_text) == ["error_rate < 1%", "ttft p99 <= 500ms", "itl p99 <= 30ms"]


def test_what_cannot_be_read_keeps_its_place() -> None:
    rules = resolve_rules(("of another version", "ttft p95 < 1s"), "chatt", "nonsense")
    assert [(entry.text, str(entry.rule or "")) for entry in rules.entries] == [
        ("of another version", ""), ("ttft p95 < 1s", "ttft p95 < 1s"), ("chatt", ""),
    ]  # fmt: skip
    assert rules.entries[2].why.startswith(
        "--slo-preset: unknown SLO preset 'chatt' (did you mean chat?); there are: chat, mlperf-"
    )
    assert rules.good == ()
    assert rules.good_mistake.startswith("--goodput 'nonsense': ")


def test_all_mistakes_of_a_run_at_once() -> None:
    assert not list(
        validate_rules(resolve_rules(("ttft p95 < 1s", "goodput > 1"), "chat", "ttft:300"))
    )
    found = list(validate_rules(resolve_rules(("ttft p95 < 1", "goodput > 1"), "chad", "ttft")))
    assert [text.split()[0] for text in found] == ["SLO", "--goodput", "--slo-preset:"]


def test_runs_are_compared_at_their_end() -> None:
    assert not list(
        validate_rules(
            resolve_rules(
                ("ttft p95 within 5% of base", "warn: error_rate within 1pp of base"), None, None
            )
        )
    )
    (found,) = validate_rules(resolve_rules(("abort: ttft p95 within 5% of base",), None, None))
    assert found == (
        "SLO 'abort: ttft p95 within 5% of base': runs are compared after their end: leave out "
        "abort:"
    )


def test_a_selector_of_another_sweep_is_a_mistake() -> None:
    rules = resolve_rules(
        ("ttft{concurrency=8} p95 < 1s", "ttft{stage=8, class=a} p95 < 1s"), None, None
    )
    assert not list(validate_rules(rules))
    assert not list(validate_rules(rules, "concurrency"))
    assert list(validate_rules(rules, "request-rate")) == [
        "SLO 'ttft{concurrency=8} p95 < 1s': this sweep changes request-rate, so its stages have "
        "no concurrency"
    ]


@pytest.mark.parametrize(
    "settings", [Settings(slo=("goodput > 1",), slo_preset="chat", goodput="ttft:300"), Settings()]
)
def test_settings_hold_their_rules_and_run_json_their_text(settings: Settings) -> None:
    assert (
        settings.rules
        is settings.rules
        == resolve_rules(settings.slo, settings.slo_preset, settings.goodput)
    )
    data = msgspec.json.encode(settings)
    assert b'"rules":' not in data
    read = msgspec.json.decode(data, type=Settings)
    assert read == settings
    assert read.rules == settings.rules
    assert make_stage_settings(settings, "concurrency", 8).rules == settings.rules


def test_a_change_of_settings_leaves_no_old_rules() -> None:
    asked = Settings(slo=("ttft p95 < 1s",))
    assert asked.rules.readable
    assert msgspec.structs.replace(asked, slo=()).rules == Rules()

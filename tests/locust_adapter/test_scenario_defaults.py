"""Scenarios as defaults of a run: what is given wins, what cannot be is refused, and the figures
are those of the source."""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from typing import Any, Final

import pytest
from support.command_line import parse

from locust_llm.locust_adapter.command_line_parser import build_settings, check_options
from locust_llm.locust_adapter.scenario_defaults import check_scenario_values
from locust_llm.server.refusals import (
    ContextLength,
    advise_on_error,
    explain_too_long_prompts,
    list_lengths,
)
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import RunRefused
from locust_llm.settings.scenario_file import list_scenario_names, read_scenario
from locust_llm.workload.length_distributions import parse_length, parse_length_mix

CHAT: Final = "lognormal:50|40,300|150:100"
RULES: Final = ("ttft p99 <= 1s", "itl p99 <= 50ms")


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("LOCUST", "OPENAI"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["/somewhere/locust"])
    monkeypatch.chdir(tmp_path)


def asked(*words: str) -> Settings:
    return check_options(parse(*words))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The line of a refusal, of the parser or after it."""

    def line(*words: str) -> str:
        with pytest.raises((RunRefused, SystemExit)) as found:
            asked(*words)
        return capsys.readouterr().err.removeprefix("locust-llm: error: ").rstrip() or str(
            found.value
        )

    return line


# -- what is packaged ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_scenario_names())
def test_a_packaged_one_can_be_run(name: str) -> None:
    s = asked("--scenario", name)
    # what a scenario leaves out does not vary either
    usual = asked("--synthetic-input-tokens-stddev", "0", "--output-tokens-stddev", "0")
    assert (s.scenario, s.scenario_changed) == (name, ())
    differs = {field for field in s.__struct_fields__ if getattr(s, field) != getattr(usual, field)}
    found = read_scenario(name)
    published = {"published"} if found.published is not None else set()
    published |= {"users"} if "sweep" in found.values else set()  # each stage has its own
    assert differs == {key.replace("-", "_") for key in found.values} | {"scenario"} | published
    assert len(s.rules.readable) == len(s.slo)


def drawn(name: str) -> tuple[float, float, float, float]:
    """Mean and standard deviation of the prompts and of the answers of a turn."""
    random = Random(7)
    sizes = parse_length_mix(read_scenario(name).values["seq-dist"])
    prompts, answers = zip(*(sizes(random) for _ in range(20_000)), strict=True)
    return fmean(prompts), pstdev(prompts), fmean(answers), pstdev(answers)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("interactive-chat", (50, 40, 300, 150)),
        ("code-generation", (1500, 1200, 425, 825)),
        # its answers are two lengths, which come to these
        ("deep-research", (3000, 2500, 300, 850)),
        ("rag", (15_000, 22_000, 500, 300)),  # and these prompts
        ("reasoning", (1000, 800, 8000, 6500)),
        # uniform: (500 + 8000) / 2 and 7500 / sqrt(12)
        ("synthetic-data", (500, 1200, 4250, 2165)),
        ("1k1k", (921.5, 59, 921.5, 59)),  # 205 / sqrt(12)
    ],
)
def test_the_lengths_that_are_drawn_are_those_of_the_source(
    name: str, figures: tuple[float, ...]
) -> None:
    found = drawn(name)
    assert found[::2] == pytest.approx(figures[::2], rel=0.04)
    assert found[1::2] == pytest.approx(figures[1::2], rel=0.2)  # of a long tail by few draws


def test_the_agents_answers_have_the_median_and_the_percentile_of_the_source() -> None:
    mean, stddev = map(
        float,
        read_scenario("agentic-coding")
        .values["seq-dist"]
        .split(",lognormal:")[1]
        .split(":")[0]
        .split("|"),
    )
    variance = math.log(1 + (stddev / mean) ** 2)
    median = mean * math.exp(-variance / 2)
    assert (median, median * math.exp(1.645 * variance**0.5)) == pytest.approx(
        (150, 2000), rel=0.01
    )


def test_the_turns_that_the_catalogue_has_cannot_be() -> None:
    """Of all distributions between 1 and 3000 with a mean of 540 the two ends alone spread most:
    (540 - 1)(3000 - 540)."""
    assert 48_600 > 1151 > ((540 - 1) * (3000 - 540)) ** 0.5 - 1
    assert read_scenario("code-generation").values["session-turns-mean"] == 22


# -- who wins --------------------------------------------------------------------------------------


def test_what_is_given_wins_over_a_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    s = asked(
        "--scenario", "interactive-chat", "--session-turns-mean", "2", "--session-turns-stddev", "0"
    )
    assert (s.session_turns_mean, s.session_turn_delay_mean, s.seq_dist, s.slo) == (
        2,
        45_000,
        CHAT,
        RULES,
    )
    assert s.scenario_changed == ("session-turns-mean", "session-turns-stddev")
    # as it has
    assert (
        asked("--scenario", "interactive-chat", "--session-turns-mean", "4").scenario_changed == ()
    )
    monkeypatch.setenv("LOCUST_LLM_SCENARIO", "reasoning")
    monkeypatch.setenv("LOCUST_LLM_SHARED_SYSTEM_PROMPT_LENGTH", "10")
    s = asked()
    assert (s.scenario, s.shared_system_prompt_length, s.scenario_changed) == (
        "reasoning", 10, ("shared-system-prompt-length",),
    )  # fmt: skip
    assert asked("--scenario", "rag").scenario == "rag"
    monkeypatch.delenv("LOCUST_LLM_SCENARIO")
    assert asked().shared_system_prompt_length == 10
    assert asked().session_turns_mean == 1  # the next parsing has the usual defaults again
    for later in (
        asked("--scenario", "reasoning", "--seq-dist", "", "--output-tokens-mean", "9"),
        asked(),
    ):
        assert later.seq_dist is None


def test_a_rule_that_is_given_replaces_all_of_the_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = ("--scenario", "interactive-chat")
    Path("rules").write_text("itl p50 < 1s\n")
    given = asked(*chat, "--slo", "ttft p95 < 3s")
    assert (given.slo, given.scenario_changed) == (("ttft p95 < 3s",), ("slo",))
    assert asked(*chat, "--slo-file", "rules").slo == ("itl p50 < 1s",)
    assert asked(*chat, "--slo", "").slo == ()
    preset = asked(*chat, "--slo-preset", "chat")
    assert (preset.slo, preset.scenario_changed) == ((), ("slo",))
    Path("mine.toml").write_text('slo-preset = "chat"\nslo = ["ttft p50 < 1s"]\n')
    assert len(asked("--scenario", "mine.toml").rules.readable) == 1 + len(preset.rules.readable)
    monkeypatch.setenv("LOCUST_LLM_SLO", "error_rate < 1%")
    assert asked(*chat).slo == ("error_rate < 1%",)


def test_a_file_of_ones_own_has_every_kind_of_value() -> None:
    Path("mine.toml").write_text(
        "percentiles = [50, 99.9]\nstreaming = false\nrequest-rate = 2\narrival-pattern = "
        '"constant"\n'
        'request-timeout = 12.5\nrequest-count = 7\ngoodput = "request_latency:300"\nslo = '
        '["error_rate < 1%"]\n'
    )
    s = asked("--scenario", "mine.toml")
    assert (s.percentiles, s.streaming, s.request_rate, s.request_timeout_s) == (
        (50, 99.9),
        False,
        2,
        12.5,
    )
    assert (s.arrival_pattern, s.request_count, s.slo, s.scenario_changed) == (
        "constant", 7, ("error_rate < 1%",), (),
    )  # fmt: skip
    assert asked("--scenario", "mine.toml", "--streaming").scenario_changed == ("streaming",)
    assert build_settings(parse()).scenario_changed == ()


def test_published_rules_come_with_a_scenario_and_stay_with_its_other_values() -> None:
    s = asked(
        "--scenario", "inferencex-1k1k", "--sweep", "concurrency=4..16", "--published-rules", "fail"
    )
    assert s.published is not None
    assert (s.published.requests_per_user, s.stage_requests_per_user, s.published_rules) == (
        10,
        10,
        "fail",
    )
    assert s.scenario_changed == ("sweep",)
    assert "sweep" in s.published.free
    assert asked("--scenario", "1k1k").published is None
    assert asked().published is None
    for name in list_scenario_names():
        if (rules := asked("--scenario", name).published) is not None:
            assert {*rules.free} <= {*read_scenario(name).values}


# -- what cannot be --------------------------------------------------------------------------------

OWN: Final = [
    (
        "output-token-mean = 3",
        "line 2, output-token-mean: there is no such option: did you mean output-tokens-mean?",
    ),
    ("isl = 3", "line 2, isl: unknown option: use synthetic-input-tokens-mean"),
    ("zzz = 3", "line 2, zzz: there is no such option"),
    ("users = 3", "line 2, users: belongs to a run, not to a workload: use it on the command line"),
    (
        "[prompts]\nx = 1",
        "line 2, prompts: the only table of a scenario is [published]: write options as single "
        "lines",
    ),
    ('session-turns-mean = "4"', "line 2, session-turns-mean: must be a number, got '4'"),
    ("session-turns-mean = true", "line 2, session-turns-mean: must be a number, got True"),
    ("session-turns-mean = nan", "line 2, session-turns-mean: must be a number, got nan"),
    (
        f"session-turns-mean = 1{'0' * 400}",
        "line 2, session-turns-mean: must be a number, got 1000",
    ),
    ("session-turns-mean = 0.5", "line 2, session-turns-mean: must be at least 1, got 0.5"),
    ("request-count = 1.5", "line 2, request-count: must be a whole number, got 1.5"),
    ('streaming = "yes"', "line 2, streaming: takes true or false, got yes"),
    ('model = ""', "line 2, model: takes text, got none"),
    ('slo = "ttft p95 < 1s"', "line 2, slo: takes a list of texts, got ttft p95 < 1s"),
    (
        'slo = ["ttft p95 < 1 mile"]',
        "line 2, slo: SLO 'ttft p95 < 1 mile': unknown unit mile for ttft",
    ),
    ('percentiles = [50, "x"]', "line 2, percentiles: takes a list of numbers, got [50, 'x']"),
    ('seq-dist = "1,2:50"', "line 2, seq-dist: the probabilities of a mix must sum to 100"),
    ('user-context-prompt-length = "a"', "line 2, user-context-prompt-length: a length is 550, "),
    (
        'arrival-pattern = "odd"',
        "line 2, arrival-pattern: must be one of constant, poisson, gamma, got 'odd'",
    ),
    ('sweep = "odd"', "line 2, sweep: "),
    ("[published]\nrules = 1", "line 3, rules: expected `str`, got `int`"),
    (
        '[published]\nrules = "x"\nsecond = 1',
        "line 4, second: object contains unknown field `second`",
    ),
    ("published = 1", "line 2, published: there is no such option"),
]


@pytest.mark.parametrize(("line", "why"), OWN, ids=[line[:20] for line, _ in OWN])
def test_a_mistake_in_a_file_is_named_with_its_line(line: str, why: str) -> None:
    Path("mine.toml").write_text(f"# mine\n{line}\n")
    with pytest.raises(RunRefused) as found:
        check_scenario_values(read_scenario("mine.toml"))
    assert str(found.value).startswith(f"mine.toml, {why}")


def test_what_is_no_scenario_is_refused(refused: Callable[..., str]) -> None:
    Path("mine.toml").write_text("users = 3")
    assert refused("--scenario", "mine.toml").startswith(
        "mine.toml, line 1, users: belongs to a run,"
    )
    assert refused("--scenario", "none.toml") == "--scenario none.toml: No such file or directory"
    assert refused("--scenario", "resoning").startswith(
        "--scenario: there is no scenario 'resoning': did you mean reasoning?"
    )


def test_a_flag_that_the_scenario_makes_useless_is_refused(refused: Callable[..., str]) -> None:
    assert refused("--scenario", "reasoning", "--output-tokens-mean", "100") == (
        "--output-tokens-mean has no effect because scenario reasoning sets a mix of lengths. "
        "Change the mix, --seq-dist 'lognormal:1000|800,lognormal:8000|6500:100', or remove it "
        "with --seq-dist ''"
    )
    assert refused("--scenario", "reasoning", "--sweep", "input-tokens=100,200").endswith(
        " and --seq-dist exclude each other: leave out --seq-dist (--seq-dist: of scenario "
        "reasoning)"
    )
    assert asked("--scenario", "10k1.5k", "--output-tokens-mean", "100").scenario_changed == (
        "output-tokens-mean",
    )


def fits(tokens: int, name: str) -> list[tuple[bool, str]]:
    return list(
        explain_too_long_prompts(asked("--scenario", name), ContextLength(tokens, whole=True))
    )


def test_a_scenario_that_the_model_has_no_room_for_is_refused_by_name() -> None:
    ((refuses, line),) = fits(32_768, "code-generation")
    assert refuses
    assert line.startswith("--scenario code-generation: prompts of 1")
    assert line.endswith(
        "do not fit into the model's context of 32,768 tokens (/v1/models): also use a shorter "
        "--shared-system-prompt-length or --user-context-prompt-length or --seq-dist"
    )
    ((refuses, line),) = fits(262_144, "code-generation")
    share = line.removeprefix("--scenario code-generation: ").partition("%")
    assert not refuses
    assert 13 <= int(share[0]) <= 19  # 16 of any number, here of 1,000 draws
    assert share[2].startswith(" of the first requests of a session are longer")
    rare = max(prompt + answer for prompt, answer in list_lengths(asked("--scenario", "reasoning")))
    ((refuses, line),) = fits(rare - 1, "reasoning")  # the longest of 1,000 draws does not fit
    assert not refuses
    assert line.startswith("--scenario reasoning: 0.1% of the ")
    ((refuses, line),) = fits(40_000, "agentic-coding")  # 6,500 + 21 * 1,500 + 22 * 518
    assert (refuses, line.partition(" beyond")[0]) == (False, "sessions of 22 turns grow")
    assert fits(60_000, "agentic-coding") == []
    ((refuses, line),) = fits(8192, "10k1.5k")
    assert refuses
    assert line.endswith(": also use a shorter --synthetic-input-tokens-mean")
    of_server: Any = advise_on_error(
        400, "maximum context length is 4096", asked("--scenario", "1k8k"), key=False
    )
    assert of_server == (
        "a prompt and its output in scenario 1k8k are too long for the model: also use a shorter "
        "--seq-dist"
    )


def test_a_context_is_a_length(refused: Callable[..., str]) -> None:
    assert refused("--user-context-prompt-length", "long").startswith(
        "--user-context-prompt-length: a length is 550, "
    )
    assert parse_length("lognormal:4000|2500")(Random(1)) > 0

"""The progress line: what it says, by pencil, and how it looks on a terminal and in a log."""

import io
import logging
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import unpatched_locust  # noqa: F401  before the rest
from support.records import UNIX, answered, failed

from locust_llm.controller import progress_line as module
from locust_llm.controller.answer_tally import AnswerTally
from locust_llm.controller.early_stop import EarlyStop, RuleStanding
from locust_llm.controller.progress_line import (
    CLEAR,
    ProgressPart,
    build_progress_parts,
    explain_improvement,
    fit_progress_line,
    format_request_counts,
    is_live_terminal,
    keep_logs_off_live_line,
    show_run_progress,
)
from locust_llm.controller.run_progress import RunProgress
from locust_llm.records.answer_checks import AnswerChecks
from locust_llm.records.phase_plan import PROFILING, WARMUP
from locust_llm.settings.run_options import Settings
from locust_llm.slo.load_generator_health import DEGRADED, INVALID, ClientVerdict
from locust_llm.slo.rules import parse_rule


class Step:
    capacity = ""
    verdicts = ""
    repeats = False

    def __str__(self) -> str:
        return "stage 3 of 8, concurrency 4"

    def describe_capacity(self) -> str:
        return self.capacity

    def describe_client_verdicts(self) -> str:
        return self.verdicts


def control(counts: dict[str, int] | None = None, **known: Any) -> Any:
    fields: dict[str, Any] = {
        "run_progress": RunProgress(lambda: 100.0),
        "abort": SimpleNamespace(standing=lambda: RuleStanding(0, 0, 0, 0)),
        "settings": Settings(),
        "plan": SimpleNamespace(phase=PROFILING),
        "stages": None,
        "limit_block": None,
        "draining": False,
        "phase_s": 12.4,
        "limit": None,
        "store": SimpleNamespace(answer_tally=None),
    }
    fields["run_progress"].counts = Counter(counts or {})
    fields["run_progress"].profiled = Counter(counts or {})
    return SimpleNamespace(**{**fields, **known})


def said(control: Any, client: ClientVerdict | None = None) -> str:
    return " | ".join(part.text for part in build_progress_parts(control, client))


def test_leaks_are_named_as_soon_as_they_are_found() -> None:
    tally = AnswerTally(lambda: UNIX)
    checking = control({"ok": 2}, store=SimpleNamespace(answer_tally=tally))
    assert "LEAK" not in said(checking)
    for number in (1, 2):
        tally.add(answered(1.0, answer=AnswerChecks(foreign=(7,), searched=True)))
        parts = build_progress_parts(checking, None)
        (leak,) = [part for part in parts if "LEAK" in part.text]
        assert leak.text == ("LEAK in 1 answer" if number == 1 else "LEAK in 2 answers")
        line = fit_progress_line(parts, 60)
        assert leak.text in line or leak.short in line


def test_a_sentence_with_everything() -> None:
    gated = control(
        {"ok": 40, "reset": 2, "cut": 5, "cancelled": 1},
        settings=Settings(request_count=100, warmup_request_count=10, run_time_s=45.0),
        limit=3,
        abort=SimpleNamespace(standing=lambda: RuleStanding(1, 3, 0, 3)),
    )
    gated.run_progress.recent_due.add((3.0, 5.0))
    gated.run_progress.update("a", used=2, waiting=10, decoding=4, ttfts_s=[0.1, 0.2])
    gated.run_progress.update("b", used=1, waiting=3, decoding=5)
    assert said(gated, client=ClientVerdict(DEGRADED)) == (
        "profiling 12/45 s |   48/100: 40 ok, 2 failed, 1 cancelled, 5 cut | last 10 s: TTFT from "
        "due p50    4 s, p99 4.98 s | prefill  3/3, "
        " 13 waiting | last 5 s:     0 tokens/s |   9 decoding | 1 of 3 rules not met so far"
        " | client DEGRADED so far"
    )
    gated.run_progress.profiled = Counter({"ok": 40, "reset": 2})
    all_ = build_progress_parts(gated, ClientVerdict(DEGRADED))
    assert (
        fit_progress_line(all_, 95)
        == "profiling 12/45 s |   42/100: 40 ok, 2 failed | 1 of 3 rules not met so far | client DEGRADED"
    )
    assert fit_progress_line(all_, 131) == (
        "profiling 12/45 s |   42/100: 40 ok, 2 failed | 10 s: TTFT from due p50    4 s | 1 of 3 "
        "rules not met so far"
        " | client DEGRADED"
    )
    gated.abort = SimpleNamespace(standing=lambda: RuleStanding(0, 3, 0, 3))
    assert fit_progress_line(build_progress_parts(gated, ClientVerdict("OK")), 85) == (
        "profiling 12/45 s |   42/100: 40 ok, 2 failed | 10 s: TTFT from due p50    4 s"
    )


def test_a_verdict_that_is_better_now_is_told_as_one_that_may_change_again() -> None:
    late = ClientVerdict(INVALID, ("send after admission p99 150 ms",))
    line = (
        "The client verdict so far is OK, no longer INVALID (send after admission p99 150 ms). The "
        "report judges the whole run."
    )
    assert explain_improvement(late, ClientVerdict("OK")) == line
    milder = explain_improvement(late, ClientVerdict(DEGRADED))
    assert milder == line.replace("is OK", "is DEGRADED")
    assert explain_improvement(late, None) == line  # the rest of the run may lift it
    assert explain_improvement(late, late) == ""
    assert explain_improvement(ClientVerdict(DEGRADED), late) == ""
    assert explain_improvement(ClientVerdict("OK"), None) == explain_improvement(None, late) == ""


@pytest.mark.parametrize("draining", [False, True])
def test_no_better_verdict_is_told_after_the_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, draining: bool
) -> None:
    """The report comes seconds later, and may be DEGRADED."""

    degraded = ClientVerdict(DEGRADED, ("merged chunks",))

    def judged(watched: Any) -> None:
        watched.draining = draining
        verdict = degraded if watched.phase_s < 8 else ClientVerdict("OK")
        watched.run_progress.client = lambda: verdict

    with caplog.at_level("INFO"):
        watch(monkeypatch, io.StringIO(), 11, judged, "200")
    assert ("no longer DEGRADED" in caplog.text) == (not draining)


def test_a_sentence_at_the_start_without_a_gate() -> None:
    assert said(control(phase_s=1.0)) == (
        "profiling 1 s     |    0 ok, 0 failed |   0 awaiting first token | last 5 s:     0 "
        "tokens/s |   0 decoding"
    )


def test_the_requests_that_await_their_first_token_stay_where_there_is_little_room() -> None:
    """A terminal of 80 columns has room for one more part beside the time to first token."""
    running = control({"ok": 18}, settings=Settings(run_time_s=20.0))
    running.run_progress.update("a", used=3, waiting=0, decoding=7, ttfts_s=[0.058])
    line = fit_progress_line(build_progress_parts(running, None), 79)
    assert line == "profiling 12/20 s |   18 ok, 0 failed | 10 s: TTFT p50  58 ms |   3 awaiting"


def test_a_verdict_that_had_no_room_was_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    out, seen = io.StringIO(), list[Any]()

    def judged(watched: Any) -> None:
        watched.run_progress.client = lambda: ClientVerdict("OK")
        seen.append(watched.run_progress)

    for columns, shown in (("40", None), ("200", ClientVerdict("OK"))):
        watch(monkeypatch, out, 6, judged, columns)
        assert seen[-1].shown_client == shown


def test_a_server_that_stands_still_is_named_while_it_does() -> None:
    frozen = control()
    frozen.run_progress.silent_s = lambda: 6.2
    assert "| no answer for 6 s |" in said(frozen)
    swept = control({"ok": 115, "refused": 16}, stages=Step())
    swept.run_progress.silent_s = frozen.run_progress.silent_s
    assert fit_progress_line(build_progress_parts(swept, None), 79) == (
        "stage 3 of 8, concurrency 4, 12 s | all: 115 ok, 16 failed | no answer for 6 s"
    )
    frozen.draining = True
    assert "| no answer for 6 s |" in said(frozen)


def test_failures_are_no_part_of_what_succeeded() -> None:
    assert "|   36 ok, 56 failed |" in said(control({"ok": 36, "refused": 50, "closed": 6}))
    swept = control({"ok": 36, "refused": 2}, stages=Step())
    assert "| all stages:   36 ok, 2 failed |" in said(swept)


def test_an_ab_test_counts_over_its_blocks() -> None:
    blocks = control({"ok": 36}, stages=Step())
    blocks.settings = Settings(candidate="127.0.0.1:8001")
    assert "| all blocks:   36 ok, 0 failed |" in said(blocks)


def test_a_search_says_what_it_knows_so_far() -> None:
    step = Step()
    assert "capacity" not in said(control(stages=step))
    step.capacity = "capacity 12 to 18 users so far"
    assert "| capacity 12 to 18 users so far |" in said(control(stages=step))


def test_a_sweep_names_the_client_verdicts_of_its_stages_and_calls_none_ok() -> None:
    """Whether a stage is OK its report finds out. Repeats have one verdict together."""
    step = Step()
    assert "client" not in said(control(stages=step), client=ClientVerdict("OK"))
    late = said(control(stages=step), client=ClientVerdict(DEGRADED))
    assert late.endswith("| client DEGRADED in this stage so far")
    step.verdicts = "INVALID at concurrency 2"
    ended = said(control(stages=step), client=ClientVerdict("OK"))
    assert ended.endswith("| client INVALID at concurrency 2")
    step.repeats = True
    assert said(control(stages=step), client=ClientVerdict("OK")).endswith("| client OK so far")


def test_a_sweep_counts_its_warmup_by_itself() -> None:
    """Of 46 that succeeded 10 were of the warmup."""
    swept = control({"ok": 36}, stages=Step())
    swept.run_progress.counts = Counter({"ok": 46})
    assert "| all stages:   36 ok, 0 failed |" in said(swept)
    swept.plan.phase = WARMUP
    assert "|   10 ok, 0 failed |" in said(swept)


def test_whole_answers_are_in_flight() -> None:
    """Embeddings and rerank have no prefill that ends, and no tokens. Neither has an answer in one
    piece a first token."""
    pooled = control({"ok": 1}, settings=Settings(endpoint_type="embeddings"), phase_s=1.0)
    pooled.run_progress.update("a", used=7, waiting=0, decoding=0)
    assert said(pooled) == "profiling 1 s     |    1 ok, 0 failed |   7 in flight"
    whole = control({"ok": 1}, settings=Settings(streaming=False), phase_s=1.0)
    whole.run_progress.update("a", used=7, waiting=0, decoding=0)
    assert said(whole) == (
        "profiling 1 s     |    1 ok, 0 failed |   7 in flight | last 5 s:     0 tokens/s"
    )


@pytest.mark.parametrize(
    ("sources", "unit"),
    [
        ({}, "tokens/s"),
        ({"usage": 3, "": 2}, "tokens/s"),
        ({"chunks": 3, "": 2}, "chunks/s"),
        ({"usage": 1, "chunks": 2}, "tokens/s, in part chunks"),
    ],
)
def test_a_rate_of_chunks_is_called_one(sources: dict[str, int], unit: str) -> None:
    counted = control()
    counted.run_progress.token_sources = Counter(sources)
    assert f"| last 5 s:     0 {unit} |" in said(counted)


def test_a_schedule_of_the_users_own() -> None:
    probing = control()
    probing.run_progress.update(
        "local", used=1, waiting=0, decoding=3, activity="episode 12 of 44, about 1:50 left"
    )
    assert said(probing).startswith("episode 12 of 44, about 1:50 left |    0 ok")
    probing.draining = True
    assert said(probing).startswith("ending 12 s       | ")


@pytest.mark.parametrize(
    ("known", "where"),
    [
        ({"settings": Settings(run_time_s=10.0)}, "profiling 10/10 s"),
        (
            {"plan": SimpleNamespace(phase="warmup"), "settings": Settings(run_time_s=10.0)},
            "warmup 12 s",
        ),
        (
            {"plan": SimpleNamespace(phase="warmup"), "settings": Settings(warmup_duration=60.0)},
            "warmup 12/60 s",
        ),
        (
            {"plan": SimpleNamespace(phase="profiling 3"), "stages": Step()},
            "stage 3 of 8, concurrency 4, 12 s",
        ),
        ({"plan": SimpleNamespace(phase="between stages"), "stages": Step()}, "between stages"),
        ({"plan": SimpleNamespace(phase="warmup"), "stages": Step()}, "warmup 12 s"),
        ({"draining": True, "stages": Step()}, "ending 12 s"),
        ({"limit_block": SimpleNamespace(round=3, limit=None)}, "round 3, limit none, 12 s"),
    ],
)
def test_where_a_run_is(known: dict[str, Any], where: str) -> None:
    assert said(control(**known)).partition(" | ")[0].rstrip() == where


def test_rules_that_hold() -> None:
    assert said(control(abort=SimpleNamespace(standing=lambda: RuleStanding(0, 2, 0, 2)))).endswith(
        "| 2 of 2 rules met so far"
    )


def test_one_rule_is_singular() -> None:
    assert said(control(abort=SimpleNamespace(standing=lambda: RuleStanding(1, 1, 0, 1)))).endswith(
        "| 1 of 1 rule not met so far"
    )


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (RuleStanding(2, 2, 2, 4), "2 of 4 rules not met so far, 2 judged at the end"),
        (RuleStanding(1, 3, 0, 4), "1 of 4 rules not met so far, 1 without a value"),
        (
            RuleStanding(0, 2, 1, 4),
            "2 of 4 rules met so far, 1 without a value, 1 judged at the end",
        ),
        (RuleStanding(1, 4, 0, 4), "1 of 4 rules not met so far"),
    ],
)
def test_why_a_rule_has_no_value_so_far(rules: RuleStanding, words: str) -> None:
    assert said(control(abort=SimpleNamespace(standing=lambda: rules))).endswith(f"| {words}")


def test_rates_are_judged_at_the_end_and_latencies_have_no_value_before_an_answer() -> None:
    texts = ("ttft p50 < 1s", "error_rate < 5%", "requests_per_s > 1/s", "warn: goodput > 1/s")
    stop = EarlyStop([parse_rule(text) for text in texts])
    assert stop.standing() == RuleStanding(broken=0, known=0, later=1, all=3)
    stop.add(failed())
    assert stop.standing() == RuleStanding(broken=2, known=2, later=1, all=3)


PARTS = st.builds(
    ProgressPart,
    st.integers(0, 9),
    st.text("ab", min_size=5, max_size=12),
    st.text("cd", max_size=4),
)


@given(st.lists(PARTS, max_size=6), st.integers(1, 60))
def test_the_line_is_never_wider_than_the_terminal_and_leaves_out_whole_parts(
    known: list[ProgressPart], columns: int
) -> None:
    line = fit_progress_line(known, columns)
    assert len(line) <= columns
    assert bool(line) == bool(known)
    if len(line) < columns:
        told = iter(known)
        assert all(
            any(text in (part.text, part.short) for part in told)
            for text in line.split(" | ")
            if line
        )


def test_what_matters_most_stays_and_a_small_part_takes_the_place_of_a_large_one() -> None:
    known = [
        ProgressPart(2, "a long one", "long"),
        ProgressPart(0, "abc"),
        ProgressPart(1, "far too long for it"),
        ProgressPart(3, "de"),
    ]
    assert [fit_progress_line(known, columns) for columns in (2, 9, 10, 15, 21, 99)] == [
        "ab", "abc | de", "long | abc", "long | abc | de", "a long one | abc | de",
        "a long one | abc | far too long for it | de",
    ]  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Killed(BaseException):
    pass


def watch(
    monkeypatch: pytest.MonkeyPatch,
    out: io.StringIO,
    seconds: int,
    each: Callable[[Any], None],
    columns: str = "200",
) -> None:
    """The greenlet, on a clock of its own, for so many seconds."""
    now, watched = [100.0], control()

    def sleep(pause_s: float) -> None:
        now[0] += pause_s
        if now[0] > 100 + seconds:
            raise Killed
        watched.phase_s = now[0] - 100
        each(watched)

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(module, "gevent", SimpleNamespace(sleep=sleep))
    with pytest.raises(Killed):
        show_run_progress(watched, out)


def nothing(watched: Any) -> None: ...


def first_parts(lines: list[str]) -> list[str]:
    return [line.partition(" | ")[0].rstrip() for line in lines]


def test_a_log_gets_a_line_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    watch(monkeypatch, out, 17, nothing)
    assert first_parts(out.getvalue().splitlines()) == [
        "profiling 5 s",
        "profiling 10 s",
        "profiling 15 s",
    ]


def test_the_client_verdict_that_was_shown_last_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come at 5 and 10 s; the verdict of the 12th second is in none."""
    out, seen, looks = io.StringIO(), list[Any](), iter(range(1, 99))

    def judged(watched: Any) -> None:
        verdict = ClientVerdict(DEGRADED if next(looks) <= 10 else "OK")
        watched.run_progress.client = lambda: verdict
        seen.append(watched.run_progress)

    watch(monkeypatch, out, 12, judged)
    assert out.getvalue().count("client DEGRADED") == 2
    assert seen[-1].shown_client == ClientVerdict(DEGRADED)
    assert seen[-1].client() == ClientVerdict("OK")


def test_a_terminal_gets_one_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    watch(monkeypatch, out, 3, nothing)
    assert "\n" not in out.getvalue()
    assert first_parts(out.getvalue().split(CLEAR)) == [
        "",
        "profiling 1 s",
        "profiling 2 s",
        "profiling 3 s",
        "",
    ]


def test_over_a_terminal_that_cannot_go_back_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert is_live_terminal(Terminal())
    assert not is_live_terminal(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not is_live_terminal(Terminal())


def test_each_phase_counts_its_own_requests() -> None:
    """9 of the warmup, one of them failed; then 3 of the profiling phase."""
    counts, profiled = Counter({"ok": 11, "reset": 1}), Counter({"ok": 3})
    for phase, shown in (("warmup", "   8 ok, 1 failed"), (PROFILING, "   3 ok, 0 failed")):
        running = control(plan=SimpleNamespace(phase=phase))
        running.run_progress.counts, running.run_progress.profiled = counts, profiled
        assert format_request_counts(running) == shown
    running.settings = Settings(request_count=100, warmup_request_count=10)
    assert format_request_counts(running) == "   3/100: 3 ok, 0 failed"
    running.plan = SimpleNamespace(phase="warmup")
    assert format_request_counts(running) == "   9/10: 8 ok, 1 failed"


def test_a_log_line_is_not_glued_to_the_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out, logger = Terminal(), logging.getLogger("locust_llm.test_progress")
    logger.handlers, logger.propagate = [logging.StreamHandler(out)], False
    keep_logs_off_live_line((logger.name, logger.name))
    keep_logs_off_live_line((logger.name,))  # the next run of the same process
    out.write("live line")
    logger.warning("said")
    assert out.getvalue() == f"live line{CLEAR}said\n"


def test_a_log_that_is_no_terminal_stays_as_it_is() -> None:
    out, logger = io.StringIO(), logging.getLogger("locust_llm.test_progress")
    logger.handlers, logger.propagate = [logging.StreamHandler(out)], False
    keep_logs_off_live_line((logger.name,))
    logger.warning("said")
    assert out.getvalue() == "said\n"

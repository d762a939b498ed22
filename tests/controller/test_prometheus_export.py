"""Metrics for Prometheus: numbers by pencil, text as its own client library reads it, the page
beside Locust's own."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.prometheus_text import read, value
from support.records import answered, failed

from locust_llm.controller.early_stop import EarlyStop
from locust_llm.controller.prometheus_export import (
    build_gauges,
    build_part_counters,
    build_rule_gauges,
    build_total_counters,
    format_exposition,
)
from locust_llm.controller.run_progress import RunProgress
from locust_llm.controller.run_totals import (
    HISTOGRAMS,
    MAX_GROUPS,
    OTHER_GROUPS,
    BucketCounts,
    RunTotals,
    refine_bounds,
)
from locust_llm.server.discovery import Discovery
from locust_llm.settings.run_options import Settings
from locust_llm.slo.metric_definitions import TTFT, Metric
from locust_llm.slo.rules import parse_rule
from locust_llm.web.prometheus_page import (  # not from locust, which ruff would put first: it patches
    Environment,
    serve_metrics,
)


@pytest.fixture
def totals() -> RunTotals:
    totals = RunTotals()
    for record in (
        answered(40, 60, admitted_at=10.0),
        answered(41, 300, admitted_at=10.5, asked_at=10.0),
        answered(200, phase="warmup"),
        failed("rate_limited", admitted_at=10.0),
        failed("cut", chunk_us=(5000, 6000)),
    ):
        totals.add(record)
    return totals


def test_counters_by_phase_and_outcome(totals: RunTotals) -> None:
    found = read(format_exposition(*build_total_counters(totals)))
    assert value(found, "requests_total", phase="profiling", outcome="ok") == 2
    assert value(found, "requests_total", phase="profiling", outcome="rate_limited") == 1
    assert value(found, "requests_total", phase="profiling", outcome="cut") == 1
    assert value(found, "requests_total", phase="warmup", outcome="ok") == 1
    assert value(found, "chunks_total", phase="profiling") == 6
    assert value(found, "output_tokens_total", phase="profiling") == 4
    assert value(found, "input_tokens_total", phase="warmup") == 100


def test_histograms_hold_successes_and_the_wait_of_all_that_finished(totals: RunTotals) -> None:
    found = read(format_exposition(*build_total_counters(totals)))

    def bucket(name: str, le: str) -> float:
        return value(found, f"{name}_bucket", le=le, phase="profiling")

    ttft = [bucket("time_to_first_token_seconds", le) for le in ("0.02", "0.04", "0.06", "+Inf")]
    assert ttft == [0, 1, 2, 2]  # 40 ms lie in the bucket up to 40 ms
    assert value(found, "time_to_first_token_seconds_sum", phase="profiling") == pytest.approx(
        0.081
    )
    assert value(found, "time_to_first_token_seconds_count", phase="profiling") == 2
    assert [bucket("inter_token_latency_seconds", le) for le in ("0.01", "0.025", "0.3")] == [
        0,
        1,
        2,
    ]
    assert [bucket("request_latency_seconds", le) for le in ("0.3", "0.5")] == [2, 2]
    assert [bucket("prefill_gate_wait_seconds", le) for le in ("0.001", "0.25", "0.5")] == [2, 2, 3]


def test_seconds_by_part_are_counters() -> None:
    """100 ms at the gate, then 40 ms; and 200 ms in the warmup."""
    stats = RunProgress(lambda: 10.0)
    waited = answered(40, limit=1, admitted_at=10.0, asked_at=9.9, due_at=9.9)
    for record in (waited, answered(200, phase="warmup"), failed()):
        stats.add(record)
    found = read(format_exposition(*build_part_counters(stats.parts)))
    assert value(found, "part_seconds_total", phase="profiling", part="gate") == pytest.approx(0.1)
    assert value(found, "part_seconds_total", phase="profiling", part="server") == pytest.approx(
        0.04
    )
    assert value(found, "part_seconds_total", phase="warmup", part="server") == pytest.approx(0.2)
    assert sum(found.values()) == pytest.approx(0.34)


def test_before_any_request_there_is_nothing() -> None:
    assert format_exposition(*build_part_counters(RunProgress().parts)) == ""
    assert format_exposition(*build_total_counters(RunTotals())) == ""


def test_gauges_say_how_the_run_stands() -> None:
    now = [100.0]
    stats = RunProgress(lambda: now[0])
    stats.update("a", used=2, waiting=10, decoding=4, reads=0)
    now[0] += 2
    stats.update("b", used=1, waiting=3, decoding=5)
    stats.update("a", used=2, waiting=10, decoding=4, reads=80)
    found = read(
        format_exposition(
            *build_gauges(stats, users=25, limit=3, info={"model": 'a "b"\\', "phase": "warmup"})
        )
    )
    assert {name: value for (name, labels), value in found.items() if not labels} == {
        "users": 25, "prefill_gate_limit": 3, "prefill_gate_waiting": 13, "requests_in_prefill": 3,
        "requests_decoding": 9, "output_tokens_per_second": 40,
    }  # fmt: skip
    assert value(found, "run_info", model='a "b"\\', phase="warmup") == 1
    assert {
        name
        for name, _ in read(
            format_exposition(*build_gauges(stats, users=25, limit=3, info={}, over=True))
        )
    } == {"run_info"}


def test_without_a_gate_there_is_no_limit_and_the_client_has_a_level() -> None:
    """Each send was 3 ms late, of a TTFT of 20."""
    moment = [0.0]
    stats = RunProgress(lambda: moment[0])
    for _ in range(20):
        stats.add(answered(20, 25, admitted_at=9.997))
    moment[0] = 10.0  # a verdict takes some seconds
    found = read(format_exposition(*build_gauges(stats, users=1, limit=None, info={})))
    assert ("prefill_gate_limit", frozenset()) not in found
    assert value(found, "client_level") == 1


def test_names_and_labels_stay_as_dashboards_have_them(totals: RunTotals) -> None:
    found = read(format_exposition(*build_total_counters(totals)))
    labels = {
        name: {label for of, pairs in found if of == name for label, _ in pairs}
        for name, _ in found
    }
    histograms = [metric.prometheus_name for metric in HISTOGRAMS]
    assert histograms == [
        "request_latency_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds",
        "prefill_gate_wait_seconds",
    ]  # fmt: skip
    assert labels == {
        "requests_total": {"phase", "outcome"}, "chunks_total": {"phase"},
        "input_tokens_total": {"phase"},
        "output_tokens_total": {"phase"},
        "group_requests_total": {"phase", "model", "tenant", "name", "outcome"},
        "group_output_tokens_total": {"phase", "model", "tenant", "name"},
        "group_time_to_first_token_seconds_count": {"phase", "model", "tenant", "name"},
        "group_time_to_first_token_seconds_sum": {"phase", "model", "tenant", "name"},
        **{name + end: names for name in histograms
           for end, names in (("_bucket", {"phase", "le"}), ("_sum", {"phase"}),
               ("_count", {"phase"}))},
    }  # fmt: skip


def test_groups_have_their_totals_and_their_number_a_bound() -> None:
    totals = RunTotals()
    for number in range(MAX_GROUPS + 2):
        totals.add(answered(40, 60, name=f"name {number}", model="m", tenant="t"))
    totals.add(answered(60, 80, name="name 0", model="m", tenant="t"))
    found = read(format_exposition(*build_total_counters(totals)))
    ttft = "group_time_to_first_token_seconds"

    def of(metric: str, *group: str, **more: str) -> float:
        labels = dict(zip(("phase", "model", "tenant", "name"), ("profiling", *group), strict=True))
        return found[metric, frozenset((labels | more).items())]

    first, others = ("m", "t", "name 0"), (OTHER_GROUPS,) * 3
    assert of("group_requests_total", *first, outcome="ok") == 2
    assert of("group_requests_total", *others, outcome="ok") == 2
    assert of("group_output_tokens_total", *first) == 4
    assert of(f"{ttft}_count", *first) == 2
    assert of(f"{ttft}_sum", *first) == pytest.approx(0.1)
    assert len({labels for name, labels in found if name == f"{ttft}_count"}) == MAX_GROUPS + 1


def test_rules_have_a_state_and_a_limit() -> None:
    """Of two answers one has 60 ms: half of them, where 5% may be over 50 ms."""
    texts = ("ttft p95 < 50ms", "itl p95 < 1s", "error_rate < 1%", "ttft{turn=later} p95 < 2s")
    rules = [parse_rule(text) for text in texts]
    watch = EarlyStop(rules)
    for record in (answered(40, 60), answered(60, 80)):
        watch.add(record)
    found = read(format_exposition(*build_rule_gauges(rules, watch.progress())))
    status = {dict(labels)["rule"]: state for (name, labels), state in found.items()
        if name == "slo_status"}  # fmt: skip
    assert status == {"ttft p95 < 50ms": 1, "itl p95 < 1s": 0, "error_rate < 1%": 0}
    assert value(found, "slo_limit_seconds", rule="ttft p95 < 50ms", metric="ttft") == 0.05
    assert value(found, "slo_limit_seconds", rule="itl p95 < 1s", metric="itl") == 1
    assert sum(name == "slo_limit_seconds" for name, _ in found) == 2


def test_an_itl_of_a_few_milliseconds_has_buckets_around_it() -> None:
    (itl,) = [metric for metric in HISTOGRAMS if metric.word == "itl"]
    bounds = refine_bounds(itl.buckets)
    assert sum(0.001 <= bound <= 0.01 for bound in bounds) >= 10


def test_buckets_rise() -> None:
    assert all(list(metric.buckets) == sorted(set(metric.buckets)) for metric in HISTOGRAMS)


# -- the page --------------------------------------------------------------------------------------


def a_control(totals: RunTotals) -> Any:
    return SimpleNamespace(
        environment=SimpleNamespace(runner=SimpleNamespace(user_count=7)),
        settings=Settings(model="m"), stages=None,
        folder=Path("r"), survey=Discovery(), draining=False,
        plan=SimpleNamespace(phase="profiling"),
        run_progress=RunProgress(), limit=None, totals=totals, processes=lambda: [1, 2],
        abort=EarlyStop(()),
    )  # fmt: skip


def page(shown: Any, path: str, base: str = "", login: bool = False) -> Any:
    environment = Environment(parsed_options=SimpleNamespace(web_base_path=base))  # type: ignore[arg-type]
    web_ui = environment.create_web_ui(
        "127.0.0.1", 0, web_base_path=base or None, web_login=login, delayed_start=True
    )
    assert web_ui.app is not None
    web_ui.app.secret_key = "of this test"
    if login:
        web_ui.login_manager.user_loader(lambda user: None)
    serve_metrics(environment, lambda: shown)
    return web_ui.app.test_client().get(path)


def test_the_page_is_beside_those_of_locust_under_the_same_path(totals: RunTotals) -> None:
    answer = page(a_control(totals), "/of/the/team/llm/metrics", base="/of/the/team")
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    found = read(answer.text)
    assert (value(found, "users"), value(found, "workers")) == (7, 2)
    assert value(
        found, "run_info", run="r", model="m", server="", loop="closed", phase="profiling", stage=""
    ) == 1  # fmt: skip
    assert page(a_control(totals), "/llm/metrics", base="/of/the/team").status_code == 404


def test_before_the_first_run_the_page_is_empty() -> None:
    answer = page(None, "/llm/metrics")
    assert (answer.status_code, answer.text) == (200, "")


def test_a_login_is_asked_for_here_too(totals: RunTotals) -> None:
    answer = page(a_control(totals), "/llm/metrics", login=True)
    assert answer.status_code == 302
    assert "/login" in answer.headers["Location"]
    assert "locust_llm_" not in answer.text


def test_headless_there_is_no_page() -> None:
    serve_metrics(Environment(), lambda: None)


def quantile(share: float, bounds: tuple[float, ...], values: list[float]) -> float:
    """As Prometheus' ``histogram_quantile`` has it: even within a bucket, and from 0 in the
    first."""
    counted = BucketCounts(bounds)
    for each in values:
        counted.add(each)
    rank, below, lower = share * len(values), 0.0, 0.0
    for upper, count in zip(bounds, counted.cumulative(), strict=False):
        if count >= rank:
            return lower + (upper - lower) * (rank - below) / (count - below)
        lower, below = upper, count
    raise AssertionError


@pytest.mark.parametrize("metric", HISTOGRAMS, ids=lambda metric: metric.tag)
@pytest.mark.parametrize("middle_s", [0.00323, 0.0146, 0.0745, 0.31, 1.2, 9.0, 55.0])
def test_a_percentile_of_buckets_is_off_by_a_quarter_at_most(
    metric: Metric, middle_s: float
) -> None:
    """Of equal values, which is the worst: 3.23 ms was 5.0."""
    bounds = refine_bounds(metric.buckets)
    if middle_s < bounds[0]:
        return
    for share in (0.5, 0.95, 0.99):
        assert quantile(share, bounds, [middle_s] * 100) == pytest.approx(middle_s, rel=0.25)


VLLM_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)


def test_the_bounds_of_vllm_are_among_ours() -> None:
    assert set(VLLM_TTFT) <= set(refine_bounds(TTFT.buckets))
    assert refine_bounds((1.0, 2.0, 2.2)) == (1.0, 1.19, 1.41, 1.68, 2.0, 2.2)

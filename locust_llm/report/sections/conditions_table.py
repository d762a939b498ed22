"""Conditions table: what a run was made with and under, in words: load, lengths, server, machines,
clocks."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Final

from locust_llm.records.machine import Machine, format_machine
from locust_llm.records.run_facts import Run, Stage
from locust_llm.report.document_blocks import (
    format_flags,
)
from locust_llm.report.measurement_window import find_measured_span
from locust_llm.report.open_loop_delivery import (
    describe_completed,
)
from locust_llm.report.sections.conditions import Conditions
from locust_llm.report.sections.prefix_cache import describe_cached_input
from locust_llm.report.sections.prefix_cache import describe_prefix_cache as cache_line
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.summary_rows import (
    MIN_TOKENS_PER_MERGED_CHUNK,
    GateUse,
    ModelShare,
    SteadyState,
    SweepSummary,
)
from locust_llm.report.users_and_limit_over_time import describe_arm_limits, describe_limit
from locust_llm.settings.sweep_option import CONCURRENCY, INPUT, PREFILL, RATE, REPEAT
from locust_llm.settings.sweep_option import parse_sweep as parse_sweep
from locust_llm.slo.load_generator_health import OK
from locust_llm.slo.rules import Rules
from locust_llm.text.format import (
    format_count,
    format_plain_number,
    format_signed,
)

from .ab_comparison import describe_arms
from .benchmark_validity import format_energy
from .notes import (
    format_users,
)
from .sweep.knee import describe_client_verdicts, describe_repeat_verdicts

MIN_WAITED_S: Final = 0.1
"""Below it the use of the limit while requests waited is not shown."""
ORIGIN: Final = "moments count from the first send"


def make_conditions_rows(summary: Summary, run: Run) -> Iterator[tuple[str, str]]:
    c, gate = summary.conditions, summary.gate
    axis = summary.sweep.axis if summary.sweep is not None else ""
    if run.arms:
        yield from describe_arms(run)
    else:
        yield from _server(c, run)
        yield "model", c.model or "-"
    if run.settings.scenario:
        yield "scenario", _scenario(run.settings.scenario, run.settings.scenario_changed)
    if run.settings.tenant_mix:
        yield "tenant mix", run.settings.tenant_mix
    if c.model_mix:
        yield "model mix", f"{', '.join(map(_share, c.model_mix))} of the requests"
    if (probe := summary.examination) is not None:
        yield "load", probe.load(c.users)
    else:
        processes = "" if run.imported else f", {format_count(c.processes, 'process', 'processes')}"
        yield "load", f"{_load(c, run)}{_stages(summary, run.settings.sweep)}{processes}"
    if run.stage is not None:
        yield "stage", _stage(run.stage, summary.steady)
    if (d := summary.delivery) is not None:
        of = (
            f"due {d.offered_per_s:.2f}/s, sent {d.sent_per_s:.2f}/s, in the {d.duration_s:.1f} s "
            f"to {d.end}"
        )
        yield "delivered", f"{d.share:.1%}: {of}"
        yield "completed", describe_completed(d)
    by_arm = describe_arm_limits(run)
    limit = by_arm or describe_limit(c.prefill_limit, c.prefill_ramp_s, c.limit_in_force)
    yield (
        "prefill limit",
        "by stage" if axis == PREFILL else limit or ("not known" if run.imported else "none"),
    )
    if gate is not None and not summary.swept:
        wait = _describe_gate_waits(gate)
        streams = run.settings.generates and run.settings.streaming
        where = "awaiting first token" if streams else "in flight"
        yield where, f"{gate.mean_used:.2f} on average, at most {gate.max_used}{wait}"
    if probe is None:
        yield from _lengths(summary, run)
    if c.sessions is not None:
        yield (
            "sessions",
            f"{c.sessions}, with {c.turns_per_session or 0:.2f} answered turns on average",
        )
    yield from _cached(summary, run)
    if run.settings.goodput:
        yield "good requests", _good(run.settings.rules)
    between = ", without the pauses between repeats" if axis == REPEAT else ""
    span = (
        ", during the load"
        if find_measured_span(run) or run.warmup_went_on
        else f", first send to last end{between}"
    )
    origin = "" if run.stage is not None else f"; {ORIGIN}"
    yield "duration", "-" if c.duration_s is None else f"{c.duration_s:.2f} s{span}{origin}"
    yield "requests", _requests(c)
    if c.schema_checked:
        yield (
            "valid answers",
            f"{c.schema_valid / c.schema_checked:.1%} of {c.schema_checked} with a schema",
        )
    yield from _chunks(summary, run)
    yield from _drafts(summary)
    if summary.energy is not None:
        yield "energy", format_energy(summary.energy)
    yield from _clock(c, run)
    yield "client verdict", _verdict(summary)
    yield from _found_by(run)
    yield from _machines(run)


def _describe_gate_waits(gate: GateUse) -> str:
    """How full the gate was while requests waited at it. A few milliseconds say nothing of that:
    the slot may have been given in the same turn of the event loop."""
    if gate.utilisation is None:
        return "; no request waited for a prefill slot"
    if gate.waited_s < MIN_WAITED_S:
        return f"; requests waited for a prefill slot for under {MIN_WAITED_S:g} s in all"
    return (
        f"; {gate.utilisation:.1%} of the limit used in the {gate.waited_s:.1f} s when requests "
        "waited for a prefill slot"
    )


def _lengths(summary: Summary, run: Run) -> Iterator[tuple[str, str]]:
    c = summary.conditions
    means = {row.label: row.avg for row in summary.rows}
    if summary.sweep is not None and summary.sweep.axis == INPUT:
        yield "input length", "by stage"
    else:
        mean = means.get("Input Tokens per Request")
        yield "input length", _length(c.asked_input_tokens, c.input_tokens, c.input_deviation, mean)
    if run.settings.generates:
        mean = means.get("Output Tokens per Request")
        yield (
            "output length",
            _length(c.asked_output_tokens, c.output_tokens, c.output_deviation, mean),
        )


def _clock(c: Conditions, run: Run) -> Iterator[tuple[str, str]]:
    if c.succeeded:
        yield "clock", f"{c.clock or '-'} stamps{_readers(run)}"


def _readers(run: Run) -> str:
    """What read the answers, in all processes."""
    kinds = sorted({health.reader for health in run.health if health.reader})
    return f", reader: {' and '.join(kinds)}" if kinds else ""


def _chunks(summary: Summary, run: Run) -> Iterator[tuple[str, str]]:
    counts = summary.counts
    merged = counts.merged_chunks / counts.chunks if counts.chunks else 0.0
    gaps = "gap" if counts.gaps_left_out == 1 else "gaps"
    left_out = f"; {counts.gaps_left_out} {gaps} left out" if counts.gaps_left_out else ""
    streams = run.settings.generates and run.settings.streaming
    answered = counts.chunks or (summary.conditions.succeeded and streams and not run.imported)
    if answered:
        held = (
            f", {tokens:.2f} tokens each"
            if (tokens := counts.tokens_per_chunk or 0) > MIN_TOKENS_PER_MERGED_CHUNK
            else ""
        )
        of_them = "" if run.imported else f", {merged:.2%} of them merged{left_out}"
        yield "chunks", f"{counts.chunks}{held}{of_them}"


def _cached(summary: Summary, run: Run) -> Iterator[tuple[str, str]]:
    share = summary.conditions.cached_share
    if run.settings.generates or share is not None:
        yield (
            "cached input",
            describe_cached_input(share, summary.conditions.cached_share_by_metrics),
        )
    if summary.prefix_cache is not None:
        yield "prefix cache", cache_line(summary.prefix_cache)


def _drafts(summary: Summary) -> Iterator[tuple[str, str]]:
    """Of speculative decoding."""
    for of in summary.speculation:
        steps = (
            ""
            if of.tokens_per_step is None
            else f"; {of.tokens_per_step:.2f} tokens per step with a draft"
        )
        over = (
            f" in {format_count(of.answers, 'answer')}"
            if of.answers
            else f", over {of.window_s:.1f} s"
        )
        drafted = "" if of.drafted is None else f" of {of.drafted:,}{over}"
        yield (
            "draft tokens accepted",
            f"{of.share:.1%}{drafted}{steps}{f' ({of.source})' if of.source else ''}",
        )


def _scenario(name: str, changed: Sequence[str]) -> str:
    return PurePath(name).name + (f", except {', '.join(changed)}" if changed else "")


def _share(of: ModelShare) -> str:
    return f"{of.model} {'-' if of.sent is None else f'{of.sent:.1%}'} (asked for {of.asked:.1%})"


def _server(c: Conditions, run: Run) -> Iterator[tuple[str, str]]:
    yield "server", (c.server or "-") + (f" ({c.server_software})" if c.server_software else "")
    if passed := ", ".join(filter(None, (run.proxy, run.gateway))):
        yield "through a proxy", passed
    s = run.settings
    if s.hosts:
        yield (
            "replicas",
            f"{len(s.hosts)} addresses: a new session goes to the next one and stays there",
        )
    names = (
        ("session", s.session_header),
        ("sent back", s.echo_header),
        ("backend", s.backend_header),
    )
    if headers := "; ".join(f"{what} {name}" for what, name in names if name):
        yield "routing headers", headers
    if run.server_flags:
        yield "server flags", format_flags(run.server_flags)


def _found_by(run: Run) -> Iterator[tuple[str, str]]:
    """Among other runs."""
    if run.settings.label:
        yield "labels", ", ".join(run.settings.label)
    if run.commit is not None:
        where = f" on {run.commit.branch}" * bool(run.commit.branch)
        changed = ", with files changed" * bool(run.commit.dirty)
        yield "commit", f"{run.commit.hash}{where}{changed}"


def _machines(run: Run) -> Iterator[tuple[str, str]]:
    """Those of the load generator, each once."""
    machines: dict[str, Machine] = {}
    for health in run.health:
        if health.machine is not None:
            machines.setdefault(format_machine(health.machine), health.machine)
    for line, machine in machines.items():
        yield (
            "machine",
            line
            + ("" if machine.load is None else f"; load average at the start {machine.load:.2f}"),
        )


def _stages(summary: Summary, asked: str | None) -> str:
    """Axis and values of the stages; ``asked``: of ``--sweep``."""
    sweep = summary.sweep
    if sweep is None:
        return ""
    if sweep.repeats:
        return f", {format_count(len(sweep.levels), 'repeat')}"
    values = ", ".join(dict.fromkeys(format_plain_number(level.value) for level in sweep.levels))
    rest = "" if sweep.searched else _not_run(sweep, asked)
    return f", a sweep of {sweep.axis}: {values or 'no'} {sweep.unit}{rest}"


def _not_run(sweep: SweepSummary, asked: str | None) -> str:
    """Which of the values that were asked for were not run."""
    ran = {level.value for level in sweep.levels}
    rest = [value for value in parse_sweep(asked).values if value not in ran] if asked else []
    return f" (not run: {', '.join(map(format_plain_number, rest))})" if rest else ""


def _stage(stage: Stage, steady: SteadyState | None) -> str:
    began = stage.measured_at
    length = "not measured" if began is None else f"measured for {stage.ended_at - began:.2f} s"
    waves = "" if began is None or began == stage.began_at else " without its first and last wave"
    law = (
        ""
        if steady is None or steady.residual is None
        else f"; off Little's law by {steady.residual:.1%}"
    )
    return f"{stage.number}, {length}{waves}{law}; ended: {stage.why or '-'}"


def _load(c: Conditions, run: Run) -> str:
    if not c.loop:
        return "not in the file"
    if run.imported and c.loop == "open":
        return f"open loop, {c.arrivals}"
    if c.loop == "closed":
        return "closed loop" + (
            "" if run.settings.sweeps(CONCURRENCY) and run.stage is None else f", {format_users(c)}"
        )
    if run.settings.sweeps(RATE):
        users = f"up to {format_users(c)}" if c.users is not None else "as many users as needed"
        return f"open loop, {run.settings.arrival_pattern}, {users}"
    if run.settings.user_centric_rate:
        return f"open loop, {c.arrivals} over {format_users(c)}"
    if c.users is not None:
        return f"open loop, {c.arrivals}, up to {format_users(c)}"
    most = "" if run.offer is None else f"{run.offer.most_users}, "
    return (
        f"open loop, {c.arrivals}, as many users as needed ({most}limit {run.settings.max_users})"
    )


def _verdict(summary: Summary) -> str:
    if summary.sweep is not None and summary.staged:
        return describe_client_verdicts(summary.sweep) or f"{OK} in each stage with responses"
    if summary.client is None:
        return "not judged"
    level = summary.client.level
    level = describe_repeat_verdicts(summary.sweep, level) or level
    reasons = "; ".join(summary.client.reasons)
    return f"{level}: {reasons}" if reasons else level


def _good(rules: Rules) -> str:
    return rules.good_mistake or f"those with {' and '.join(map(str, rules.good))}"


def _requests(c: Conditions) -> str:
    rate = "" if c.failure_rate is None else f" ({c.failure_rate:.1%})"
    return (
        f"{c.requests}: {c.succeeded} succeeded, {c.failed} failed{rate}, {c.cut} cut, "
        f"{c.cancelled} cancelled"
    )


def _length(
    asked: float | None,
    delivered: float | None,
    deviation: float | None,
    of_all: float | None = None,
) -> str:
    """``of_all``: the mean over all requests; the other figures are of those that ask for a
    length."""
    length = "unknown" if delivered is None else f"{delivered:.1f} tokens on average"
    if asked is None:
        return length
    by = "" if deviation is None else f" ({format_signed(100 * deviation, 1)}%)"
    if of_all is None or delivered is None or f"{of_all:.1f}" == f"{delivered:.1f}":
        return f"{length}, asked for {asked:.1f}{by}"
    return (
        f"{of_all:.1f} tokens on average; {delivered:.1f} of the requests that asked for a "
        f"length, {asked:.1f}{by}"
    )

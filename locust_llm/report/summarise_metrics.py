"""Summarise metrics: from the columns of a run's requests to its summary, of which the main tables
are made."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from locust_llm.answers.reference_answer import ReferenceAnswer
from locust_llm.records.outcomes import CANCELLED, CUT, FAILURES, OK
from locust_llm.records.record import Record
from locust_llm.records.run_facts import ProcessHealth, Run
from locust_llm.report.answer_results import find_answer_results
from locust_llm.report.array_types import Floats
from locust_llm.report.cancelled_work import CancelledWork
from locust_llm.report.disruption_effects import measure_disruptions
from locust_llm.report.distribution_rows import (
    adjust_for_failures,
    make_distribution_row,
    make_readability_rows,
    relabel_chunk_rows,
)
from locust_llm.report.judge_slo import (
    combine_results,
    judge_first_wave,
    judge_rules,
    judge_sweep,
    judge_without_silence,
)
from locust_llm.report.open_loop_delivery import (
    describe_arrivals,
    find_requested_rate,
    measure_delivery,
)
from locust_llm.report.outages import Outage, find_last_silence, find_run_outages
from locust_llm.report.report_kinds import Experiment
from locust_llm.report.sections.ab_comparison import PairedComparison
from locust_llm.report.sections.conditions import Conditions
from locust_llm.report.sections.interference import PrefillInterference
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.users_and_limit_over_time import find_limit_in_force, find_users_in_force
from locust_llm.settings.ab_arms import BASE, CANDIDATE
from locust_llm.settings.selftest_modes import REQUIRE
from locust_llm.slo.capacity_search import CapacityEstimate, StageEvidence
from locust_llm.slo.load_generator_health import (
    LEVELS,
    MAIN,
    ClientVerdict,
    FigureError,
    ProcessEvidence,
    highest_known_percent,
    judge_figures,
)
from locust_llm.slo.load_generator_health import OK as FINE
from locust_llm.slo.metric_definitions import (
    BY_NAME,
    CANCELLED_METRICS,
    EXPORTED,
    ITL,
    LATENCIES,
    LENGTHS,
    OF_OUTPUT,
    PER_USER,
    POOLED,
    THROUGHPUTS,
    TTFT,
    TTFT_FROM_DUE,
    Metric,
)
from locust_llm.slo.rules import SloResult
from locust_llm.text.format import name_percentile
from locust_llm.trends.soak_judgement import make_soak_findings
from locust_llm.trends.soak_readings import SoakReading

from .gate_occupancy import Occupancy, compute_occupancy, measure_gate_use, permit_lag_s
from .inter_token_gaps import GapCounts
from .load_records import RequestColumns
from .measurement_window import (
    RateWindow,
    find_loaded_span,
    find_measured_span,
    find_pauses,
    find_settled_window,
    measure_steady_state,
    select_ended_in,
)
from .metrics_by_group import count_sessions, divide_requests, fit_ttft_growth, measure_model_mix
from .request_selection import RequestSelection, mean_of_known, ratio_of_sums, sum_of_known
from .request_table import number_combinations
from .sections.ab_comparison import compare_arms, judge_paired_rules, select_candidate_requests
from .sections.prefill_limit_comparison import compare_limits, select_limit_requests
from .slo_evidence.capacity_evidence import find_capacity
from .slo_evidence.censoring import bound_values, find_send_times
from .slo_evidence.confidence_intervals import (
    SHORT,
    estimate_effective_size,
    estimate_percentile_interval,
)
from .slo_evidence.goodput import make_goodput_rows, measure_goodput
from .slo_evidence.inexact_values import InexactValues, find_inexact_values
from .slo_evidence.measurement_error import (
    describe_certificates,
    find_error_sources,
    find_overdue,
    measure_compared_ttft,
    measure_figure_errors,
)
from .slo_evidence.observed_rule_values import Evaluation
from .slo_evidence.rule_evidence import mark_silence, measure_stage_evidence
from .summary_rows import FailureGroup, GateUse, Row, RunCounts, SweepSummary


def summarise_run(
    columns: RequestColumns,
    run: Run,
    broken_lines: int = 0,
    records: Iterable[Record] = (),
    sweep: SweepSummary | None = None,
    levels: Occupancy | None = None,
    interference: PrefillInterference | None = None,
    experiment: Experiment | None = None,
    unread: Sequence[str] = (),
    outages: Sequence[Outage] | None = None,
    references: Sequence[ReferenceAnswer] = (),
    cancelled_work: CancelledWork | None = None,
    soak_readings: Sequence[SoakReading] = (),
) -> Summary:
    """All figures of the tables of a run. Only the profiling phase counts, but for ``warmup`` and
    for the throughput in the measured time of a stage.

    ``records``: those of the columns, read a second time if a rule is about pooled gaps; ``sweep``:
    the results of the stages, which decide the rules; repeats are judged together. ``levels``: the
    occupancy, if known; ``interference``: of prefills with decodes, if computed; ``experiment``:
    None of a load test; ``unread``: a sentence for each unreadable line; ``outages``: None: they
    are found by the records alone; ``references``: the answers to reference prompts;
    ``cancelled_work``: None: it is not checked; ``soak_readings``: of ``--soak``.
    """
    everything = RequestSelection(columns.requests, np.ones(len(columns.requests), np.bool_))
    warm, main = (
        everything.only(columns.requests.has("phase", phase)) for phase in ("warmup", "profiling")
    )
    within = find_measured_span(run)
    loaded = find_loaded_span(main, run) if within is None else within
    span, ended = (
        (main.span(), main) if loaded is None else (loaded, select_ended_in(everything, loaded))
    )
    repeats = sweep is not None and sweep.repeats
    swept = None if repeats else sweep
    time = RateWindow(span, tuple(find_pauses(main, run)) if repeats else ())
    percentiles = tuple(sorted({*EXPORTED, *run.settings.columns}))
    gaps = {name: columns.gaps.get(name, GapCounts()) for name in ("profiling", "warmup")}
    found = _evidence_of_run(main, run)
    settled = find_settled_window(main, time, run) if loaded is None else None
    answers = find_answer_results(run, records, references)
    soak = make_soak_findings(soak_readings)
    seen = Evaluation(
        main, run, None, None, records, ended, time, answers=answers,
        cancelled_work=cancelled_work, settled=settled, soak=soak, broken_lines=broken_lines,
    )  # fmt: skip
    rates = [*_throughputs(ended, time), *make_goodput_rows(seen)]
    looks = len(run.settings.looks) or 1
    rows = _rows(main, gaps["profiling"], percentiles, rates, looks)
    errors = tuple(_figure_errors(rows, main, run, columns, experiment))
    judged = tuple(error for error in errors if error.judged)
    inexact = find_inexact_values(columns.requests, run, judged)
    if inexact.sources is not None:
        rows = _mark_inexact(rows, errors)
    # an experiment is about gaps
    words = MAIN if experiment is None else (*MAIN, BY_NAME[POOLED].word)
    verdict = judge_figures(judged, found, words)
    shown = verdict if swept is None else _find_worst_verdict(swept, verdict)
    if run.has_no_end and not run.health and shown is not None and shown.level == FINE:
        shown = None  # the processes write how they were at the end of a run
    conditions = _conditions(main, time, run, shown)
    steady = measure_steady_state(everything, ended, span, run)
    through = None if within is None else ended
    delivered = measure_delivery(main, run, verdict, through, steady)
    outages = find_run_outages(columns, run) if outages is None else tuple(outages)
    last_silence = find_last_silence(outages, run) if swept is None else None
    effects = measure_disruptions(everything, run, outages)
    seen = seen._replace(
        verdict=verdict,
        delivery=delivered,
        last_silence=last_silence,
        outages=outages,
        disruptions=effects,
    )
    seen, slos, compared = _of_rules(seen, everything, swept)
    if run.stage is not None and run.settings.open_loop and warm.size and not main.size:
        slos = judge_first_wave(slos, warm, seen)
    evidence = None if within is None else measure_stage_evidence(seen, slos)
    if swept is None and compared is None:
        slos = judge_without_silence(slos, seen)
        evidence = mark_silence(evidence, seen)
    counts = _counts(main, warm, run, broken_lines, gaps["profiling"])
    certified = describe_certificates(run)
    if certified.errors is not None:
        rows = _with_plus_minus(rows, errors)
    return Summary(
        conditions=conditions,
        counts=counts,
        rows=relabel_chunk_rows(_had(run, rows), counts.tokens_per_chunk),
        adjusted=_had(run, _mark_rows(_adjusted(main, percentiles), main.outcome(OK), inexact))
        if conditions.failed or conditions.cut or conditions.cancelled
        else (),
        warmup=_had(
            run,
            _mark_rows(_warmup_rows(warm, gaps["warmup"], percentiles), warm.outcome(OK), inexact),
        ),
        reading=_had(run, make_readability_rows(main.outcome(OK), percentiles)),
        failures=_failures(main),
        client=shown,
        figure_errors=judged,
        evidence=found,
        uncertified=certified.missing,
        sentinels=certified.chunks,
        gate=_gate(columns, run, levels, span),
        delivery=delivered,
        breakdowns=tuple(divide_requests(main, run, inexact.mark_row)),
        cancelled=_had(
            run,
            _mark_rows(
                _given_up(main.outcome(CANCELLED), percentiles), main.outcome(CANCELLED), inexact
            ),
        ),
        slos=slos,
        slo_status=combine_results(slos),
        good=measure_goodput(seen) if swept is None else None,
        steady=steady,
        outages=outages if compared is None else (),
        growth=fit_ttft_growth(main) if swept is None else None,
        interference=interference,
        examination=None if experiment is None else experiment.examine(run, verdict),
        sweep=sweep,
        stage_evidence=evidence,
        capacity=_find_capacity(run, evidence),
        paired=compared,
        unread=tuple(unread),
        answers=answers,
        disruptions=effects,
        soak=soak,
        soak_readings=tuple(soak_readings),
    )


def _find_worst_verdict(sweep: SweepSummary, whole: ClientVerdict | None) -> ClientVerdict | None:
    """The worst client verdict of the stages with answers. ``whole`` is of all stages together, and
    holds where none has one."""
    judged = [level for level in sweep.levels if level.succeeded and level.client is not None]
    if not judged:
        return whole
    worst = max(judged, key=lambda level: LEVELS.index(level.client or FINE))
    return ClientVerdict(worst.client or FINE, worst.client_reasons)


def _find_capacity(run: Run, evidence: StageEvidence | None) -> CapacityEstimate | None:
    """The capacity by the stages of a search up to this one. None: it is no stage of a search."""
    if run.search is None:
        return None
    own = () if evidence is None else (evidence,)
    search = replace(run.search, stages=(*run.search.stages, *own))
    return find_capacity(search, run.settings.rules.readable)


def _figure_errors(
    rows: Sequence[Row],
    main: RequestSelection,
    run: Run,
    columns: RequestColumns,
    experiment: Experiment | None,
) -> Iterator[FigureError]:
    if run.imported:  # it is of another load generator
        return
    if experiment is not None:  # of its other figures, which are of unequal prompts, only the gaps
        yield from measure_compared_ttft(experiment.compared_ttft_s, run)
        rows = [row for row in rows if row.tag == POOLED]
    sources = find_error_sources(columns.requests, run)
    gaps = columns.gaps.get("profiling", GapCounts())
    merged = columns.blurred.get("profiling")
    ok = main.outcome(OK)
    yield from measure_figure_errors(rows, ok, run, sources, gaps, merged)


def _mark_inexact(rows: Sequence[Row], errors: Sequence[FigureError]) -> tuple[Row, ...]:
    """Each row with its values that the load generator may have too wrong, also those of too few
    requests for the client verdict."""
    inexact = dict[str, tuple[str, ...]]()
    for error in errors:
        if error.level != FINE:
            inexact[error.word] = (*inexact.get(error.word, ()), error.stat)
    if all(error.word != TTFT_FROM_DUE.word for error in errors):
        # without a schedule and a gate it is TTFT
        inexact[TTFT_FROM_DUE.word] = inexact.get(TTFT.word, ())
    # the fastest users have the least ITL
    inexact[PER_USER.word] = tuple(map(_mirror_stat, inexact.get(ITL.word, ())))
    words = {row.tag: BY_NAME[row.tag].word for row in rows if row.tag in BY_NAME}
    return tuple(replace(row, inexact=inexact.get(words.get(row.tag, ""), ())) for row in rows)


def _mirror_stat(stat: str) -> str:
    """``p5`` of ``p95``: the statistic of 1 / value."""
    if stat.startswith("p"):
        return name_percentile(100 - float(stat.removeprefix("p")))
    return {"min": "max", "max": "min"}.get(stat, stat)


def _mark_rows(
    rows: Sequence[Row], part: RequestSelection, inexact: InexactValues
) -> tuple[Row, ...]:
    """Rows of other requests than those of the client verdict, each value marked by its own."""
    rates = {throughput.tag for throughput in THROUGHPUTS}
    wrong_rate = ("",) if inexact.is_rate_inexact(part) else ()
    marked = list[Row]()
    for row in rows:
        of_rate = row.tag in rates
        marked.append(replace(row, inexact=wrong_rate) if of_rate else inexact.mark_row(row, part))
    return tuple(marked)


def _with_plus_minus(rows: Sequence[Row], errors: Sequence[FigureError]) -> tuple[Row, ...]:
    known = dict[str, dict[float, tuple[float, float]]]()
    for error in errors:
        if error.stat.startswith("p"):
            ends = (error.lower, error.higher)
            known.setdefault(error.word, {})[float(error.stat[1:])] = ends
    words = {row.tag: BY_NAME[row.tag].word for row in rows if row.tag in BY_NAME}
    return tuple(replace(row, plus_minus=known.get(words.get(row.tag, ""), {})) for row in rows)


def _evidence_of_run(main: RequestSelection, run: Run) -> tuple[ProcessEvidence, ...]:
    if run.imported:  # they are of another load generator
        return ()
    evidence = collect_evidence(main, run.health, required=run.settings.selftest == REQUIRE)
    if len(evidence) < 2 or not run.limits:
        return evidence
    permit_s = permit_lag_s(main.requests, run.limits)
    return tuple(_with_permits(process, main, permit_s) for process in evidence)


def _with_permits(
    process: ProcessEvidence, main: RequestSelection, permit_s: Floats
) -> ProcessEvidence:
    """``permit_s``: how long each request of all processes waited at the gate while a permit was
    free."""
    part = main.only(main.requests.has("worker", process.worker))
    return replace(process, permit_lag_p99_ms=_p99_ms(permit_s[part.chosen]))


def _of_rules(
    seen: Evaluation, everything: RequestSelection, swept: SweepSummary | None
) -> tuple[Evaluation, tuple[SloResult, ...], PairedComparison | None]:
    """(what the rules were judged by, their results, the comparison of two arms)."""
    if seen.run.settings.compares:
        return _of_arms(seen, everything)
    if seen.run.limit_blocks and seen.run.settings.rules.entries:
        seen = _of_best_limit(seen)
    return seen, judge_rules(seen) if swept is None else judge_sweep(swept, seen.run, seen), None


def _of_arms(
    seen: Evaluation, everything: RequestSelection
) -> tuple[Evaluation, tuple[SloResult, ...], PairedComparison]:
    """(the candidate's part, its rules and the pairs' rules, the comparison)."""
    compared, pairs = compare_arms(everything, seen.run, seen.verdict, seen.outages)
    part, through, window = select_candidate_requests(everything, seen.run)
    seen = seen._replace(main=part, ended=through, time=window, settled=None)
    return seen, judge_paired_rules(judge_rules(seen), seen, compared, pairs), compared


def _of_best_limit(seen: Evaluation) -> Evaluation:
    """The part of the recommended limit."""
    comparison = compare_limits(seen.run, seen.records)
    limit = None if comparison is None else comparison.best
    return select_limit_requests(seen, limit) or seen


def _had(run: Run, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows without the ones that would be empty or zero: output where the endpoint has none,
    and what an imported result lacks."""
    known = tuple(row for row in rows if not run.imported or row.count or row.avg is not None)
    return tuple(
        row
        for row in known
        if run.settings.generates or row.tag.removeprefix("adj_") not in OF_OUTPUT
    )


def _rows(
    part: RequestSelection,
    gaps: GapCounts,
    percentiles: Sequence[float],
    rates: Sequence[Row],
    looks: int = 1,
) -> tuple[Row, ...]:
    ok = part.outcome(OK)
    all_that_waited = part.outcome(OK, *FAILURES, CUT, CANCELLED)

    def row(metric: Metric) -> Row:
        if metric.tag == POOLED:
            return _gap_row(metric, gaps, percentiles)
        values = (all_that_waited if metric.waits else ok)[metric.column]
        distribution = make_distribution_row(metric, values, percentiles)
        if metric not in (TTFT, TTFT_FROM_DUE, ITL):
            return distribution
        known = _in_order(ok, metric)
        intervals = {} if metric is ITL else _intervals(known, metric, looks)
        effective = None
        if metric is not TTFT_FROM_DUE and len(known) >= SHORT:
            effective = estimate_effective_size(known)
        return replace(distribution, intervals=intervals, effective=effective)

    rows = [row(metric) for metric in _latencies(ok)]
    rows += rates
    itl = ok[PER_USER.column]
    rows.append(make_distribution_row(PER_USER, 1 / itl[itl > 0], percentiles))
    lengths = [(metric, row(metric)) for metric in LENGTHS]
    return (*rows, *(length for metric, length in lengths if length.count or not metric.optional))


def _in_order(ok: RequestSelection, metric: Metric) -> Floats:
    """The values by the time of the send."""
    values = ok[metric.column][np.argsort(ok["sent_at"], kind="stable")]
    known: Floats = values[~np.isnan(values)]
    return known


def _intervals(values: Floats, metric: Metric, looks: int) -> dict[float, tuple[float, float]]:
    """The intervals that have both ends, in the metric's unit. ``looks`` is the rules' number of
    looks, so that one value has one interval."""
    ordered = np.sort(values)
    intervals = dict[float, tuple[float, float]]()
    for percentile in (50.0, 95.0):
        low, high = estimate_percentile_interval(
            values, percentile, looks=looks, ordered=ordered
        ).ends
        if low is not None and high is not None:
            intervals[percentile] = low * metric.scale, high * metric.scale
    return intervals


def _warmup_rows(
    warm: RequestSelection, gaps: GapCounts, percentiles: Sequence[float]
) -> tuple[Row, ...]:
    return (
        _rows(warm, gaps, percentiles, _throughputs(warm, RateWindow(warm.span())))
        if warm.size
        else ()
    )


def _latencies(ok: RequestSelection) -> Iterator[Metric]:
    """TTFO is present only where some answer began with reasoning: otherwise it equals TTFT."""
    ttft, ttfo = ok["ttft_s"], ok["ttfo_s"]
    reasoned = bool((ttft != ttfo)[~np.isnan(ttft)].any())
    return (metric for metric in LATENCIES if reasoned or not metric.optional)


def _gap_row(metric: Metric, gaps: GapCounts, percentiles: Sequence[float]) -> Row:
    values = zip(percentiles, gaps.percentiles_ms(percentiles), strict=True)
    return Row(
        label=metric.label,
        tag=metric.tag,
        unit=metric.unit,
        count=gaps.count,
        avg=gaps.avg_ms,
        min=gaps.min_ms,
        max=gaps.max_ms,
        std=gaps.std_ms,
        sum=gaps.sum_ms if gaps.count else None,
        percentiles={p: value for p, value in values if value is not None},
    )


def _throughputs(part: RequestSelection, time: RateWindow) -> list[Row]:
    """Successful requests, and their tokens, over the duration of the phase: AIPerf 0.13's
    request_throughput, output_token_throughput, input_token_throughput, total_token_throughput."""
    ok = part.outcome(OK)
    rows = []
    for throughput in THROUGHPUTS:
        amount = _amount(ok, throughput.sums or ())
        per_second = amount / time.seconds if amount is not None and time.seconds > 0 else None
        if throughput.sums == ("inputs",) and amount is None:
            continue  # only embeddings and rerank have inputs
        rows.append(
            Row(label=throughput.label, tag=throughput.tag, unit=throughput.unit, avg=per_second)
        )
    return rows


def _amount(ok: RequestSelection, columns: Sequence[str]) -> float | None:
    """The sum of these columns, or the number of requests without any; None: one of the columns is
    empty."""
    if not columns:
        return float(ok.size)
    amount = 0.0
    for column in columns:
        if (of_column := sum_of_known(ok[column])) is None:
            return None
        amount += of_column
    return amount


def _adjusted(part: RequestSelection, percentiles: Sequence[float]) -> tuple[Row, ...]:
    """The rows behind the percentiles of rules: all requests, also failed, cut and cancelled
    ones."""
    ok = part.outcome(OK)
    failures = part.outcome(*FAILURES).size

    def row(metric: Metric) -> Row | None:
        if ok.size and np.isnan(ok[metric.column]).all():
            return None  # answers have none: nor would the others have had one
        bounds = bound_values(part, metric)
        return adjust_for_failures(metric, bounds.low, bounds.high, failures, percentiles)

    rows = (row(metric) for metric in _latencies(ok) if metric.adjusted)
    return tuple(filter(None, rows))


def _given_up(part: RequestSelection, percentiles: Sequence[float]) -> tuple[Row, ...]:
    """The values of cancelled requests. Empty: there are none."""
    columns = (part["ttft_s"], part["closed_at"] - part["sent_at"], part["output_tokens"])
    rows = zip(CANCELLED_METRICS, columns, strict=True)
    return (
        tuple(make_distribution_row(metric, values, percentiles) for metric, values in rows)
        if part.size
        else ()
    )


def _drop_zeros(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _failures(part: RequestSelection) -> tuple[FailureGroup, ...]:
    """The failures, the most frequent first."""
    failed = part.outcome(*FAILURES)
    outcome, name, error, arm_of = (
        failed.requests.texts(column).rows(failed.chosen)
        for column in ("outcome", "name", "error", "arm")
    )
    status, status_codes = np.unique(failed["status"], return_inverse=True)
    which, first_rows = number_combinations([outcome.codes, name.codes, status_codes, error.codes])
    of_arms = [
        np.bincount(which[arm_of.select([arm].__contains__)], minlength=len(first_rows)).tolist()
        for arm in (BASE, CANDIDATE)
    ]
    kinds = zip(
        *(texts.rows(first_rows).tolist() for texts in (outcome, name, error)),
        status[status_codes[first_rows]].tolist(),
        np.bincount(which, minlength=len(first_rows)).tolist(),
        *of_arms,
        strict=True,
    )
    rows = [
        FailureGroup(
            outcome=outcome,
            name=name,
            status=None if math.isnan(status) else int(status),
            count=count,
            message=message or "",
            arms=_drop_zeros({BASE: base, CANDIDATE: candidate}),
        )
        for outcome, name, message, status, count, base, candidate in kinds
    ]
    return tuple(sorted(rows, key=lambda row: -row.count))


def _conditions(
    part: RequestSelection, time: RateWindow, run: Run, verdict: ClientVerdict | None
) -> Conditions:
    ok = part.outcome(OK)
    failed = part.outcome(*FAILURES).size
    settings = run.settings
    count, turns = count_sessions(part)
    asked_output = ok["asked_output_tokens"] * ok["choices"]  # a length is of each choice
    if settings.open_loop:
        loop = "open"
    else:
        # what another tool's run was is known by its users alone
        loop = "" if run.imported and settings.users is None else "closed"
    return Conditions(
        simulated=run.simulated or bool(part["simulated"].any()),
        server=", ".join(settings.addresses),
        server_software=run.server,
        model=run.model or settings.model_mix or settings.model or "",
        model_mix=measure_model_mix(part, settings.model_mix),
        streaming=settings.streaming,
        loop=loop,
        arrivals=describe_arrivals(settings, run.rates),
        users=settings.users,
        rate_per_s=find_requested_rate(run),
        processes=settings.processes,
        prefill_limit=settings.prefill_concurrency,
        prefill_ramp_s=settings.prefill_concurrency_ramp_duration,
        users_in_force=find_users_in_force(run),
        limit_in_force=find_limit_in_force(run),
        asked_input_tokens=mean_of_known(ok["asked_input_tokens"]),
        input_tokens=mean_of_known(_where_asked(ok, "input_tokens")),
        input_deviation=_less_one(ratio_of_sums(ok["input_tokens"], ok["asked_input_tokens"])),
        asked_output_tokens=mean_of_known(asked_output),
        output_tokens=mean_of_known(_where_asked(ok, "output_tokens")),
        output_deviation=_less_one(ratio_of_sums(_counted_output(ok), asked_output)),
        sessions=count,
        turns_per_session=turns,
        cached_share=ratio_of_sums(ok["cached_tokens"], ok["input_tokens"]),
        duration_s=None if math.isnan(time.seconds) else time.seconds,
        requests=part.size,
        succeeded=ok.size,
        failed=failed,
        failure_rate=failed / (ok.size + failed) if ok.size + failed else None,
        schema_checked=int(np.isfinite(ok["schema_valid"]).sum()),
        schema_valid=int(np.nansum(ok["schema_valid"])),
        cut=part.outcome(CUT).size,
        cancelled=part.outcome(CANCELLED).size,
        clock=_clock(ok),
        client_verdict=None if verdict is None else verdict.level,
    )


def collect_evidence(
    part: RequestSelection,
    healths: Iterable[ProcessHealth],
    *,
    required: bool = False,
) -> tuple[ProcessEvidence, ...]:
    """The delays of each process: from its records and its health monitor.

    ``part``: requests of a run or of a stage; ``healths``: of the processes over the same time, one
    each at most. One row per process with requests. ``required``: each must have a certificate.
    """
    health = {h.worker: h for h in healths}
    names = sorted(part.requests.texts("worker").rows(part.chosen).count_rows()) or sorted(health)
    rows = (
        _evidence_of(name, part.only(part.requests.has("worker", name)), health.get(name))
        for name in names
    )
    machines = Counter(map(_host, names))
    return tuple(
        replace(row, required=required, beside=machines[_host(row.worker)]) for row in rows
    )


def _host(worker: str) -> str:
    """The host of a process, by its name in a distributed run: host, underscore, digits."""
    return worker.rpartition("_")[0]


def _evidence_of(
    worker: str, part: RequestSelection, health: ProcessHealth | None
) -> ProcessEvidence:
    ok = part.outcome(OK)
    certificate = None if health is None else health.certificate
    ttft, gap = (None, None) if certificate is None else (certificate.ttft, certificate.gap)
    missing = "its process left none" if certificate is None else certificate.missing
    machine = None if health is None else health.machine
    chunks = float(ok["chunks"].sum())
    late_s = part["send_delay_s"]
    return ProcessEvidence(
        worker=worker,
        requests=part.size,
        merged_share=float(ok["merged"].sum()) / chunks if chunks else None,
        read_lag_p99_ms=_p99_ms(ok["read_lag_us"] / 1e6),
        send_lag_p99_ms=_p99_ms(late_s),
        latest_send_ms=None if np.isnan(late_s).all() else float(np.nanmax(late_s)) * 1e3,
        late_share=ratio_of_sums(late_s, part["closed_at"] - part["admitted_at"]),
        loop_lag_p99_ms=None if health is None else health.loop_lag_p99_ms,
        cpu_share=None if health is None else health.cpu_share,
        cpu_wait_share=None if health is None else health.cpu_wait_share,
        standstill_s=_longest_standstill_s(health),
        overdue=0 if health is None else int(np.count_nonzero(find_overdue(part, health))),
        other_programs={} if health is None else health.other_programs,
        server_cores=None if health is None else health.server_cores,
        machine_busy=None if health is None else health.machine_busy,
        cores=None if machine is None else machine.cores,
        machine_cores=None if machine is None else machine.machine_cores,
        ttft_off_ms=None if ttft is None else ttft.p99_ms,
        gap_off_ms=None if gap is None else gap.p99_ms,
        uncertified=missing,
    )


def _longest_standstill_s(health: ProcessHealth | None) -> float | None:
    if health is None or not health.standstills:
        return None
    return max(seconds for _, seconds in health.standstills)


def _p99_ms(seconds: Floats) -> float | None:
    known = seconds[~np.isnan(seconds)]
    return (
        float(np.percentile(known, highest_known_percent(len(known)))) * 1e3 if len(known) else None
    )


def _counted_output(ok: RequestSelection) -> Floats:
    """The output tokens where the server counted them. A chunk may hold several, so a number of
    chunks is no length."""
    of_chunks = ok.requests.has("tokens_from", "chunks")[ok.chosen]
    return np.where(of_chunks, np.nan, ok["output_tokens"])


def _where_asked(ok: RequestSelection, column: str) -> Floats:
    """The values of the requests that asked for a length, where there are any, as the mean is shown
    beside the requested length."""
    asked = ~np.isnan(ok[f"asked_{column}"])
    return ok[column][asked] if asked.any() else ok[column]


def _clock(ok: RequestSelection) -> str:
    """The clock of the stamps: ``kernel``, ``thread``, or the shares of both."""
    if not ok.size:
        return ""
    kernel = ok.count("clock", "kernel") / ok.size
    if ok.count("clock", "tool"):
        return "tool"
    if kernel == 1:
        return "kernel"
    return "thread" if kernel == 0 else f"kernel {kernel:.1%}, thread {1 - kernel:.1%}"


def _counts(
    part: RequestSelection, warm: RequestSelection, run: Run, broken_lines: int, gaps: GapCounts
) -> RunCounts:
    ok = part.outcome(OK)
    cut = part.outcome(CUT)
    ages_s = cut["closed_at"] - find_send_times(cut)
    in_flight = int((warm["closed_at"] > run.profiling_at).sum()) if run.warmup_went_on else 0
    return RunCounts(
        cut_ages_s=(float(ages_s.min()), float(ages_s.max())) if len(ages_s) else None,
        cut_without_chunk=int((cut["chunks"] == 0).sum()),
        warmup=warm.size,
        cut_unmeasured=warm.outcome(CUT).size,
        in_flight_at_profiling=in_flight,
        never_sent=int(np.isnan(part["sent_at"]).sum()),
        turned_away=run.turned_away,
        records_lost=run.records_lost,
        broken_lines=broken_lines,
        chunks=int(ok["chunks"].sum()),
        merged_chunks=int(ok["merged"].sum()),
        ttft_upper_bounds=int(ok["ttft_is_upper_bound"].sum()),
        not_streamed=int((ok["streamed"] == 0).sum()),
        tokens_from_usage=ok.count("tokens_from", "usage"),
        tokens_from_chunks=ok.count("tokens_from", "chunks"),
        tokens_unknown=ok.count("tokens_from", ""),
        without_itl=ok.texts("no_itl"),
        rejected_counts=_rejected(ok.texts("rejected")),
        gaps_left_out=int(np.maximum(ok["chunks"] - 1, 0).sum()) - gaps.count,
        gaps_exact=gaps.exact,
        tokens_per_chunk=ratio_of_sums(ok["tokens_per_chunk"] * ok["chunks"], ok["chunks"]),
        chunks_counted=int(np.nansum(ok["chunks_counted"])),
        retransmits=int(np.nansum(part["retransmits"])),
    )


def _rejected(texts: dict[str, int]) -> dict[str, tuple[int, str]]:
    """By the name of the count: (how many requests, one of its values)."""
    rejected: dict[str, tuple[int, str]] = {}
    for text, requests in texts.items():
        for line in text.split("\n"):
            name, _, value = line.partition(" ")
            before, first = rejected.get(name, (0, value))
            rejected[name] = before + requests, first
    return rejected


def _gate(
    columns: RequestColumns, run: Run, levels: Occupancy | None, span: tuple[float, float]
) -> GateUse | None:
    """None: the run had no gate. ``levels`` is the occupancy, where it is known already."""
    if not run.limits:
        return None
    levels = levels or compute_occupancy(columns.requests, run.limits)
    return measure_gate_use(levels, *span) if levels else None


def _less_one(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1

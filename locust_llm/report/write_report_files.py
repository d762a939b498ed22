"""Write report files: makes a run's files from its folder of records, again from yesterday's
folder, or as DataFrames.

The stages of a sweep have their own folders, ``stages/<number>``, in the form of a run's. Their
results are made again from their records, so that the sweep needs nothing else of them. Their files
are made only where they are out of date.
"""

import os
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace as replaced

from locust_llm.answers.reference_answer import ReferenceAnswer
from locust_llm.files.json_file import replace_file
from locust_llm.records.outcomes import RETRIED
from locust_llm.records.profile_export_jsonl import RecordFile, UnreadLines
from locust_llm.records.record_parts import list_record_parts
from locust_llm.records.reference_answers_file import REFERENCE_ANSWERS, read_reference_answers
from locust_llm.records.run_facts import (
    RECORDS,
    RUN,
    Run,
    Stage,
    decode_readable_run,
    encode_run_json,
    find_gone_records,
    read_run,
)
from locust_llm.records.server_metrics_history import EngineHistory, read_history
from locust_llm.report import timeline_figure as drawing
from locust_llm.report.cancelled_work import measure_cancelled_work
from locust_llm.report.chart_data.timeline import MAX_ROWS, TimelineScene, find_scene, resolve_span
from locust_llm.report.gate_occupancy import Occupancy, compute_occupancy
from locust_llm.report.load_records import RequestColumns, make_data_frames, read_columns
from locust_llm.report.outages import (
    find_run_outages,
    list_metric_readings,
    list_stage_outages,
    list_standstills,
    merge_outages,
)
from locust_llm.report.request_table import RequestTable
from locust_llm.report.sections.interference import NEEDED as GAP_FIELDS
from locust_llm.report.sections.interference import (
    PrefillInterference,
    choose_sampled_share,
    measure_interference,
)
from locust_llm.report.sections.latency_breakdown import (
    LatencyAttribution,
    add_server_histograms,
    attribute_latencies,
    make_parts_table,
)
from locust_llm.report.sections.notes import NOTHING_RECORDED, list_missing_parts
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.sweep.sweep_findings import (
    find_sweep_axis,
    is_too_short,
    summarise_sweep,
)
from locust_llm.report.slo_evidence.inexact_values import find_inexact_values
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import SweepSummary
from locust_llm.settings.run_options import Settings
from locust_llm.settings.sweep_option import PREFILL
from locust_llm.slo.metric_definitions import DEFINITIONS
from locust_llm.text.format import clean_line, format_count
from locust_llm.trends.soak_readings import READINGS, SoakReading, read_readings

from . import aiperf_export, junit, sweep_csv
from .fluidity_and_qoe import load_reading_pace
from .other_load import measure_other_load
from .render import text_report as tables
from .render.html_report import render_report_page
from .report_kinds import Experiment, read_experiment
from .rewrite_old_notes import renew_notes, renew_server_notes
from .sections.benchmark_validity import check_validity
from .sections.energy import measure_run_energy
from .sections.prefix_cache import find_cached_share, measure_prefix_cache
from .sections.section import ReportMaterial
from .sections.section_registry import REPORT_SECTIONS
from .sections.speculation import measure_speculation
from .spans_file import SpansRefused as SpansRefused
from .spans_file import find_span_rows, join_spans_file

if TYPE_CHECKING:
    import pandas as pd

HTML_FILE: Final = "report.html"
TIMELINE_FILE: Final = "timeline.svg"
SUMMARY_FILE: Final = "summary.md"
FACTS: Final = (
    "conditions", "client", "figure_errors", "evidence", "counts", "gate", "delivery", "breakdowns", "cancelled",
    "reading", "failures",
    "slos", "slo_status", "good", "steady", "interference", "examination", "speculation",
    "waterfall",
    "prefix_cache", "sweep", "validity", "energy", "unread", "outages",
)  # fmt: skip
"""The fields of the summary in run.json, beside the run and the sections' findings."""
INTERFERENCE: Final = "the interference of prefills with decodes"
OWN_FOLDER: Final = Path(__file__).parent

T = TypeVar("T")


@dataclass(frozen=True)
class Results:
    """A run as DataFrames. ``columns.make_data_frames`` describes their content."""

    requests: "pd.DataFrame"
    gaps: "pd.DataFrame"
    run: Run
    broken_lines: int
    folder: Path

    @cached_property
    def waterfall(self) -> "pd.DataFrame":
        """The parts of each request's time, its ``id`` first, with its index in ``requests``. An
        attempt that was tried again is in the part ``retries`` of the last one."""
        columns, _ = read_columns(self.folder / RECORDS, self.run.settings.reader)
        records = RecordFile(self.folder / RECORDS)
        spans = find_span_rows(self.folder, records, len(columns.requests))
        frame = make_parts_table(columns, spans, self.run).to_frame()
        ids = self.requests.loc[self.requests["outcome"] != RETRIED, "id"]
        # a run that goes on has more records now
        frame = frame.iloc[: len(ids)].set_index(ids.index)
        frame.insert(0, "id", ids)
        return frame


def write_reports(folder: Path | str, run: Run) -> Summary:
    """Make every file of a run's folder from its profile_export.jsonl and the facts of the run.

    Raises OSError where the records cannot be read. ``Summary.unmade`` names files that cannot be
    made.
    """
    folder = Path(folder)
    return _write(folder, run, *read_columns(folder / RECORDS, run.settings.reader))[0]


def remake_reports(
    folder: Path | str,
    *,
    stages: bool = False,
    spans: Path | None = None,
    blames: Sequence[str] = (),
) -> tuple[Summary, Run]:
    """Make the files again, from run.json and the records.

    Of a damaged run.json the readable fields are used (``Run.unread`` has the rest). Without one
    the records alone must do. The old file stays as run.json.damaged. ``stages``: also make stages
    that are up to date. ``spans``: join a file of the server's spans first. ``blames``: further
    breakdowns, such as ``ttft{model=a} p95``. Raises OSError as ``write_reports`` does, and
    SpansRefused.
    """
    folder = Path(folder)
    columns, unread = read_columns(folder / RECORDS)
    run, damage = _run(folder, columns.requests)
    if damage and (folder / RUN).exists():
        with suppress(OSError):
            os.replace(folder / RUN, folder / f"{RUN}.damaged")
    recorded = int(columns.requests.has("phase", "profiling").sum())
    run = find_gone_records(folder, run, recorded)
    run = renew_notes(run, RecordFile(folder / RECORDS), _history(folder, []))
    if spans is not None:
        run = replaced(run, spans=join_spans_file(folder, spans, run.trace))
    return _write(folder, run, columns, unread, stages=stages, blames=blames)


def read(folder: Path | str) -> Results:
    """The records of a run's folder as DataFrames. Nothing is written."""
    folder = Path(folder)
    file = RecordFile(folder / RECORDS)
    requests, gaps = make_data_frames(file, load_reading_pace(folder))
    run, _ = _run(folder, requests)
    profiled = requests.has("phase", "profiling") & ~requests.has("outcome", RETRIED)
    run = find_gone_records(folder, run, int(profiled.sum()))
    return Results(requests.to_frame(), gaps, run, file.unread.count, folder)


def draw_timeline(
    folder: Path | str,
    start: float | None = None,
    end: float | None = None,
    rows: int = MAX_ROWS,
    title: str = "",
) -> str:
    """A timeline of the run as SVG: around its longest stall, or between two moments in seconds
    after its start. Nothing is written.

    Raises ValueError of one sentence where there is nothing to draw.
    """
    folder = Path(folder)
    if not 1 <= rows <= drawing.MAX_ROWS:
        raise ValueError(f"--requests takes 1 to {drawing.MAX_ROWS}, got {rows}")
    if not (folder / RECORDS).is_file():
        raise ValueError(f"{folder} is not a run folder: it has no {RECORDS}")
    columns, _ = read_columns(folder / RECORDS)
    if not len(columns.requests):
        raise ValueError(f"{folder} is an empty run: its {RECORDS} has no record")
    run, _ = _run(folder, columns.requests)
    span = (
        None if start is None and end is None else resolve_span(columns.requests, run, start, end)
    )
    shown = find_scene(columns, run, RecordFile(folder / RECORDS).since, span, rows)
    if shown is None or not shown.records:
        raise ValueError(f"nothing to draw in {folder}: no request of the profiling phase was sent")
    return drawing.draw_timeline_svg(shown, run, title)


def _write(
    folder: Path,
    run: Run,
    columns: RequestColumns,
    unread: UnreadLines,
    *,
    stages: bool = False,
    blames: Sequence[str] = (),
) -> tuple[Summary, Run]:
    """Make the tables first, then everything else, each file by itself."""
    unmade: list[str] = []
    history = _history(folder, unmade)
    if run.stage is not None:
        run = renew_server_notes(run, history)
    before = len(unmade)
    try:
        summary, levels = _summary(folder, run, columns, unread, unmade, stages, blames)
    except Exception as error:  # unexpected facts must not hide the records
        run = replaced(
            _unknown(folder, columns.requests),
            unread=(f"run.json cannot be used ({describe_failure(error)})",),
        )
        del unmade[before:]
        with suppress(OSError):  # the old one knows more
            os.replace(folder / RUN, folder / f"{RUN}.damaged")
        summary, levels = _summary(folder, run, columns, unread, unmade, stages, blames)
    records = RecordFile(folder / RECORDS, sound=not unread.count)
    by_metrics = find_cached_share(history, run)
    summary = replaced(
        summary, conditions=replaced(summary.conditions, cached_share_by_metrics=by_metrics)
    )
    reuse = _made(
        "the shares of the prefix cache",
        unmade,
        lambda: measure_prefix_cache(records, by_metrics, run),
    )
    inexact = find_inexact_values(columns.requests, run, summary.figure_errors)
    summary = replaced(
        summary,
        speculation=tuple(measure_speculation(history, run, columns.requests)),
        prefix_cache=reuse,
        sections=_find_sections(
            ReportMaterial(
                run,
                columns,
                records,
                history,
                summary.answers,
                inexact,
                summary.disruptions,
                summary.soak,
                summary.soak_readings,
            ),
            unmade,
        ),
    )
    power = _made("the energy per token", unmade, lambda: measure_run_energy(summary, run, history))
    summary = replaced(
        summary,
        waterfall=add_server_histograms(summary.waterfall, history, run),
        energy=power,
        other_load=_made(
            "the load of others",
            unmade,
            lambda: (
                None  # the requests without a record would count as of others
                if run.gone_records
                else measure_other_load(history, columns, levels, run)
            ),
        ),
    )
    _make_files(folder, run, columns, levels, history, summary, unmade, records)
    return replaced(summary, unmade=tuple(dict.fromkeys(unmade))), run


def _make_files(
    folder: Path,
    run: Run,
    columns: RequestColumns,
    levels: Occupancy,
    history: EngineHistory,
    summary: Summary,
    unmade: list[str],
    records: RecordFile,
) -> None:
    """Make each file by itself. ``unmade`` gets a line for each that cannot be made."""

    def make(name: str, content: Callable[[], bytes | None]) -> None:
        """None: there is no such file, and an old one is removed."""
        try:
            if (data := content()) is None:
                (folder / name).unlink(missing_ok=True)
            else:
                replace_file(folder / name, data)
        except Exception as error:
            unmade.append(f"{name} could not be made: {describe_failure(error)}")

    def table() -> bytes:
        return tables.render_markdown(replaced(summary, unmade=tuple(unmade)), run, folder).encode()

    def html() -> bytes:
        known = replaced(summary, unmade=tuple(unmade))
        return render_report_page(
            known, run, columns, levels, shown, unmade, history, records, parts
        ).encode()

    def frame_parts() -> RequestTable | None:
        if summary.waterfall is None:
            return None
        return _made(
            "the parts of single requests",
            unframed,
            lambda: make_parts_table(
                columns, find_span_rows(folder, records, len(columns.requests)), run
            ),
        )

    unframed: list[str] = []
    beside = ThreadPoolExecutor(1)
    framed = beside.submit(frame_parts)
    beside.shutdown(wait=False)
    make(RUN, lambda: _facts(run, summary))
    make(SUMMARY_FILE, table)
    make("profile_export_aiperf.json", lambda: aiperf_export.export_summary_json(summary, run))
    make("profile_export_aiperf.csv", lambda: aiperf_export.export_summary_csv(summary).encode())
    if (sweep := summary.sweep) is not None:
        make("sweep.csv", lambda: sweep_csv.export_sweep_csv(sweep).encode())
    if (compared := summary.paired) is not None:
        make(
            "ab.json", lambda: msgspec.json.format(msgspec.json.encode(compared), indent=2) + b"\n"
        )
    make("junit.xml", lambda: junit.export_junit_xml(summary, run) if summary.slos else None)
    shown: TimelineScene | None = None
    try:
        shown = find_scene(columns, run, records.since)
    except Exception as error:
        unmade.append(f"the timeline could not be drawn: {describe_failure(error)}")
    make(
        TIMELINE_FILE,
        lambda: (
            drawing.draw_timeline_svg(shown, run).encode()
            if shown is not None and shown.records
            else None
        ),
    )
    parts = framed.result()
    unmade += unframed
    before = len(unmade)
    make(HTML_FILE, html)
    if len(unmade) > before:  # its own notes name what it could not show
        known = [*unmade]
        make(HTML_FILE, html)
        unmade[:] = known
    if unmade:
        make(SUMMARY_FILE, table)


def _history(folder: Path, unmade: list[str]) -> EngineHistory:
    try:
        return read_history(folder)
    except OSError as error:
        unmade.append(f"the server's metrics could not be read: {describe_failure(error)}")
        return EngineHistory()


def _read_soak(folder: Path, unmade: list[str]) -> list[SoakReading]:
    try:
        return read_readings(folder)
    except OSError as error:
        unmade.append(f"{READINGS} could not be read: {describe_failure(error)}")
        return []


def _read_references(folder: Path, unmade: list[str]) -> list[ReferenceAnswer]:
    try:
        answers, unread = read_reference_answers(folder)
    except OSError as error:
        unmade.append(f"{REFERENCE_ANSWERS} could not be read: {describe_failure(error)}")
        return []
    if unread:
        unmade.append(f"{format_count(unread, 'line')} of {REFERENCE_ANSWERS} could not be read")
    return answers


def _find_sections(material: ReportMaterial, unmade: list[str]) -> dict[str, Any]:
    """The sections' findings, by name."""
    return {
        section.name: _made(section.subject, unmade, partial(section.find, material))
        for section in REPORT_SECTIONS
    }


def _summary(
    folder: Path,
    run: Run,
    columns: RequestColumns,
    unread: UnreadLines,
    unmade: list[str],
    stages: bool,
    blames: Sequence[str] = (),
) -> tuple[Summary, Occupancy]:
    staged = (
        run.stages
        or (run.settings.sweep and run.stage is None and not run.settings.sweeps(PREFILL))
    ) and not run.settings.compares
    history = _history(folder, [])
    with ThreadPoolExecutor(1) as beside:
        occupied = beside.submit(compute_occupancy, columns.requests, run.limits)
        outages = find_run_outages(columns, run, list_metric_readings(history))
    levels = occupied.result()
    sweep: SweepSummary | None = None
    if staged:
        stages_read, missing = _read_stages(folder, run, stages)
        for stage, summary in () if run.settings.repeats > 1 else stages_read:
            outages = merge_outages(outages, list_stage_outages(run, stage, summary.outages))
        sweep = summarise_sweep(run, stages_read, missing, outages)
    records = RecordFile(folder / RECORDS, sound=not unread.count)
    standstills = list_standstills(outages, run)
    experiment: Experiment | None = None
    readable = True
    try:
        experiment = read_experiment(records)
    except Exception as error:
        readable = False
        unmade.append(f"{INTERFERENCE} could not be computed: {describe_failure(error)}")
    alone = experiment is None and not run.settings.compares

    def explain() -> tuple[PrefillInterference | None, LatencyAttribution | None]:
        others = RecordFile(folder / RECORDS, sound=not unread.count)
        disturbed = parts = None
        if alone and readable and (sweep is None or sweep.repeats):
            disturbed = _made(
                INTERFERENCE,
                unexplained,
                lambda: measure_interference(
                    columns,
                    levels,
                    others.evenly(choose_sampled_share(columns), needed=GAP_FIELDS),
                    standstills,
                ),
            )
        if alone and not (staged and sweep is not None and not sweep.repeats) and not run.imported:
            parts = _made(
                "the parts of the requests' time",
                unexplained,
                lambda: attribute_latencies(
                    columns,
                    find_span_rows(folder, others, len(columns.requests)),
                    run,
                    others.since,
                    blames,
                    standstills,
                ),
            )
        return disturbed, parts

    unexplained: list[str] = []
    with ThreadPoolExecutor(1) as beside:
        explained = beside.submit(explain)
        summary = summarise_run(
            columns,
            run,
            unread.count,
            records,
            sweep,
            levels,
            None,
            experiment,
            unread.reasons,
            outages,
            _read_references(folder, unmade) if run.settings.check_answers else (),
            measure_cancelled_work(history, columns, run),
            _read_soak(folder, unmade) if run.settings.soak else (),
        )
    interference, parts = explained.result()
    unmade += unexplained
    summary = replaced(summary, interference=interference, waterfall=parts)
    by_rules = _made(
        "the check against published rules", unmade, lambda: check_validity(summary, run)
    )
    return replaced(summary, validity=by_rules), levels


def summarise_folder(folder: Path) -> tuple[Summary, Run]:
    """The summary of a run from its records. Its own files stay as they are. Raises OSError."""
    columns, unread = read_columns(folder / RECORDS)
    run, _ = _run(folder, columns.requests)
    summary, _ = _summary(folder, run, columns, unread, [], False)
    return replaced(summary, energy=measure_run_energy(summary, run, read_history(folder))), run


def _made(what: str, unmade: list[str], make: Callable[[], T]) -> T | None:
    """The result, or None with a line in ``unmade`` where it fails: no part of a report may hide
    the rest."""
    try:
        return make()
    except Exception as error:
        unmade.append(f"{what} could not be computed: {describe_failure(error)}")
    return None


def _facts(run: Run, summary: Summary) -> bytes:
    plus_minus = {row.tag: row.plus_minus for row in summary.rows if row.plus_minus}
    results = {name: getattr(summary, name) for name in FACTS} | summary.sections
    return encode_run_json(run, plus_minus=plus_minus, **results, definitions=DEFINITIONS)


def _read_stages(
    folder: Path, run: Run, again: bool
) -> tuple[list[tuple[Run, Summary]], list[str]]:
    """(the stages, a sentence for each that cannot be read)."""
    stages_read = list[tuple[Run, Summary]]()
    missing = list[str]()
    losses = list[tuple[str, Stage, tuple[str, ...]]]()
    for stage in run.stages:
        name = f"stage {stage.number} ({find_sweep_axis(run)} {stage.value:g})"
        try:
            stages_read.append(made := _stage(folder / "stages" / str(stage.number), again))
        except FileNotFoundError:
            missing.append(f"{name} is left out: its run.json is missing.")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            missing.append(f"{name} is left out: its run.json cannot be read ({why}).")
        except Exception as error:
            missing.append(f"{name} is left out: {describe_failure(error)}.")
        else:
            losses.append((name, stage, list_missing_parts(made[1], made[0])))
    measured = any(summary.conditions.requests for _, summary in stages_read)
    for name, stage, lost in losses:
        short = measured and is_too_short(run, stage)  # there was no time for any request
        missing += [f"{name}: {why}." for why in lost if not (short and why == NOTHING_RECORDED)]
    return stages_read, missing


def _stage(folder: Path, again: bool) -> tuple[Run, Summary]:
    """The facts of a stage and its summary. Its files are made if they are out of date. Raises
    OSError, and ValueError for a folder that is no stage."""
    run = read_run(folder)
    if run.stage is None:
        raise ValueError("it is not of a stage")
    columns, unread = read_columns(folder / RECORDS)
    if again or not _up_to_date(folder):
        summary, run = _write(folder, run, columns, unread)
        return run, summary
    return run, _summary(folder, run, columns, unread, [], False)[0]


def _up_to_date(folder: Path) -> bool:
    """Whether the page, which is made last, is no older than its sources."""
    try:
        made = (folder / HTML_FILE).stat().st_mtime_ns
        sources = (folder / RECORDS, folder / RUN, *list_record_parts(folder))
        return all(path.stat().st_mtime_ns <= made for path in sources)
    except OSError:
        return False


def _run(folder: Path, requests: RequestTable) -> tuple[Run, bool]:
    """(the run of run.json, or what is known without it; whether a part of it could not be
    read)."""
    try:
        return read_run(folder), False
    except FileNotFoundError:
        why = "run.json is missing"
    except OSError as error:
        why = f"run.json cannot be read ({error.strerror or error})"
    except ValueError as error:
        try:
            return decode_readable_run(folder, _unknown(folder, requests)), True
        except (OSError, ValueError):
            why = f"run.json cannot be read ({error})"
    return replaced(
        _unknown(folder, requests),
        unread=(f"{why}: the settings, server and limits of this run are unknown",),
    ), True


def _unknown(folder: Path, requests: RequestTable) -> Run:
    """A run of which only the records are known."""
    began = max(0.0, requests.earliest("asked_at")) if len(requests) else 0.0
    models = requests.texts("model").count_rows()
    name = folder.resolve().name.encode("utf-8", "replace").decode()
    return Run(
        name=name, settings=Settings(), started_at=began, profiling_at=began, model=" ".join(models)
    )


def describe_failure(error: Exception) -> str:
    """The failure in one line. An unexpected error has its place in this program."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    where = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parent == OWN_FOLDER
    ]
    place = f" ({Path(where[-1].filename).name}:{where[-1].lineno})" if where else ""
    return f"{type(error).__name__}: {clean_line(str(error))[:200]}{place}"

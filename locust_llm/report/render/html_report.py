"""HTML report: report.html, the document of a run with its charts, in one file that needs no
network.

templates/report.html is its form. Every text is escaped, as model names and error messages come
from outside. The page's own policy names its script and style by hash, so nothing else can run.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from importlib.util import cache_from_source
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup

from locust_llm.records.breakdown_labels import AFTER_FIRST, TO_FIRST, name_latency_part
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.report.chart_data.charts_by_prefill_limit import plot_ramp_by_limit
from locust_llm.report.chart_data.charts_over_time import (
    find_time_axis,
    plot_backlog,
    plot_latencies,
    plot_rates_over_time,
)
from locust_llm.report.chart_data.distribution_charts import plot_distributions
from locust_llm.report.chart_data.plot_data import Limits, Plot, PlotMark, PlotSeries
from locust_llm.report.chart_data.server_charts import plot_server_metrics
from locust_llm.report.chart_data.timeline import Timeline, TimelineScene, make_timeline
from locust_llm.report.chart_data.timeline_svg import make_timeline_fragment
from locust_llm.report.compare.forest_plot import describe_forest, draw_forest
from locust_llm.report.document_blocks import (
    Block,
    Charts,
    Heading,
    TableBlock,
    TextBlock,
)
from locust_llm.report.gate_occupancy import Occupancy
from locust_llm.report.load_records import RequestColumns
from locust_llm.report.open_loop_delivery import describe_overload
from locust_llm.report.report_document import (
    BY_LIMIT,
    DIFFERENCES,
    DISTRIBUTIONS,
    LATENCY,
    OVER_TIME,
    POOLED_LATENCY,
    SERVER,
    STAGES,
    TIMELINE,
    build_report_document,
    make_report_title,
)
from locust_llm.report.request_table import RequestTable
from locust_llm.report.sections.ab_comparison import PairedComparison, list_paired_differences
from locust_llm.report.sections.headline import make_headline
from locust_llm.report.sections.latency_breakdown import find_reported_parts
from locust_llm.report.sections.latency_breakdown_display import (
    BARS,
    HEADING,
    BarDrawing,
    draw_breakdown_bars,
)
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.section import ReportMaterial
from locust_llm.report.sections.section_registry import REPORT_SECTIONS
from locust_llm.report.sections.sweep.sweep_chart import plot_stages
from locust_llm.slo.load_generator_health import ProcessEvidence
from locust_llm.slo.metric_definitions import BY_WORD, POOLED
from locust_llm.slo.rules import Rule, SloResult
from locust_llm.text.format import clean_line, format_brief, format_duration

from .inline_assets import CHART_SCRIPTS, embed_json, make_policy, read_static
from .request_sample import RequestSample, describe_sample, make_request_sample
from .term_definitions import Definition, list_definitions, make_definition_id, name_terms
from .tiles import (
    RESULT_CLASSES,
    describe_run_facts,
    list_tile_figures,
    make_badges,
    make_tiles,
)
from .verdict_text import make_rule_bullets, make_verdict

SCRIPTS: Final = (
    "theme.js",
    *CHART_SCRIPTS,
    "timeline.js",
    "part_labels.js",
    "requests.js",
    "request_plots.js",
    "requests_panel.js",
    "report_tools.js",
    "term_tips.js",
    "page.js",
)
STYLES: Final = ("uPlot.min.css", "plots.css", "page.css", "report.css")
BY_WHAT: Final = "By group"
REQUESTS: Final = "Requests"
"""Headings of what the page computes of its requests."""
DEFINED: Final = "Definitions"
FLAT: Final = "Constant in all readings: {}."
Drawing = Plot | Timeline | BarDrawing


class PageSection(NamedTuple):
    """A heading with the blocks or charts under it."""

    heading: str
    blocks: Sequence[Block] = ()
    charts: Sequence[tuple[Drawing, Markup | None]] = ()
    """Each chart with its drawing; None where draw_chart.js draws it."""
    folded: bool = False
    column: bool = False
    """Its charts have one time axis, and stand under each other."""
    details: Sequence[Block] = ()
    """Tables under what says the same, folded."""
    more: Sequence[tuple[Drawing, Markup | None]] = ()
    """Further charts of the column, folded."""
    made: str = ""
    """What the page's script makes in it: ``groups`` or ``requests``."""

    @property
    def id(self) -> str:
        """Its place in the address of the page: ``s-by-input-length``."""
        return "s-" + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def defines(self) -> bool:
        """Its rows are definitions, beside which the page's terms point to them."""
        return self.heading == DEFINED

    @staticmethod
    def name_definition(term: str) -> str:
        """The id of a definition."""
        return make_definition_id(term)

    @property
    def follows(self) -> bool:
        """What a reader chooses changes it."""
        keyed = (isinstance(drawing, Plot) and drawing.key for drawing, _ in self.charts)
        return bool(self.made) or any(keyed)

    @property
    def title(self) -> str:
        """The heading without brackets, for the list of contents."""
        return self.heading.partition(" (")[0]


class ReportFacts(msgspec.Struct, frozen=True):
    """What the page's script saves as JSON, and shows beside another report."""

    name: str
    about: str
    """Model, server, begin, duration."""
    verdict: str
    started_at: float
    duration_s: float | None
    rules: tuple[SloResult, ...]
    terms: dict[str, str]
    """The id of the definition of each term (term_definitions.py)."""


def render_report_page(
    summary: Summary,
    run: Run,
    columns: RequestColumns,
    levels: Occupancy,
    shown: TimelineScene | None,
    unmade: list[str] | None = None,
    history: EngineHistory | None = None,
    records: Iterable[Record] = (),
    parts: RequestTable | None = None,
) -> str:
    """The whole page. ``shown`` is in its timeline. ``history`` has the server's metrics.
    ``records`` are the records of the columns, ``parts`` those of their times. Charts that fail are left out, and ``unmade`` gets a
    line."""
    made = _charts(summary, run, columns, levels, shown, history)
    made[BARS] = lambda: (
        draw_breakdown_bars(summary.waterfall) if summary.waterfall is not None else ()
    )
    material = ReportMaterial(
        run, columns, records, history or EngineHistory(), soak_readings=summary.soak_readings
    )
    for section in REPORT_SECTIONS:
        if (finding := summary.sections.get(section.name)) is not None:
            made[section.chart_heading] = partial(section.draw, finding, material)

    def charted(heading: str) -> Iterator[PageSection]:
        try:
            charts = (
                [(drawing, _drawn(drawing)) for drawing in made[heading]()]
                if heading in made
                else []
            )
        except Exception as error:
            if unmade is None:
                raise
            unmade.append(
                f"the plots of {heading} could not be drawn: {type(error).__name__}: {error}"
            )
            return
        if charts:
            named = POOLED_LATENCY if heading == LATENCY and not run.settings.generates else heading
            yield PageSection(named, charts=charts, column=heading in TIMED)

    def sample_requests() -> RequestSample | None:
        if summary.examination is not None:  # the load of a probe is artificial
            return None
        seconds = summary.conditions.duration_s
        return make_request_sample(
            columns,
            run,
            records,
            seconds,
            parts=parts,
            part_names=_name_parts(summary),
            stage_rates=find_stage_rates(summary),
        )

    with ThreadPoolExecutor(1) as beside:
        sampled = beside.submit(sample_requests)
        first, *sections = _sections(build_report_document(summary, run), charted)
    sample = sampled.result()
    terms = list_definitions(summary, run)
    definitions = TableBlock(("Term", "Meaning"), terms, numbers=False)
    sections += [*_health(summary.evidence), PageSection(DEFINED, [definitions], folded=True)]
    headline = f"{make_headline(summary, run)}."
    arranged = arrange_sections(sections, sample is not None, swept=summary.swept)
    return _written(summary, run, columns, headline, first.blocks, arranged, sample, terms)


def find_stage_rates(summary: Summary) -> dict[int, tuple[float | None, ...]]:
    """STAGE_RATES of each stage, by its number."""
    levels = () if summary.sweep is None else summary.sweep.levels
    return {
        level.number: (
            level.duration_s,
            level.requests_per_s,
            level.output_tokens_per_s,
            level.input_tokens_per_s,
        )
        for level in levels
    }


def _name_parts(summary: Summary) -> dict[str, str]:
    """The name of each part of a request's time."""
    if summary.waterfall is None:
        return {}
    reported = find_reported_parts(summary.waterfall)
    return {name: name_latency_part(name, reported) for name in (*TO_FIRST, *AFTER_FIRST)}


# -- the order of the page -------------------------------------------------------------------------

TIMED: Final = (LATENCY, OVER_TIME, SERVER)
FOLDED: Final = ("Rules", "Metrics", "Latencies with")
"""How the headings begin of what the top of the page shows already, or that few readers need."""
GROUPED: Final = "By "
"""How the headings of tables begin that *By group* replaces."""


def arrange_sections(
    sections: Sequence[PageSection], has_requests: bool, *, swept: bool
) -> list[PageSection]:
    """The sections in the order of the page: what happened over time, where the time went, by what,
    how it is distributed, single requests; then what is folded away."""
    if not swept:
        sections = _join_time_charts(sections)
    sections = _join_latency_parts(sections)
    if has_requests:
        sections = [one for one in sections if not one.heading.startswith(GROUPED)]
    sections = [
        one._replace(folded=True) if one.heading.startswith(FOLDED) else one for one in sections
    ]
    shown = [one for one in sections if not one.folded]
    folded = [one for one in sections if one.folded]
    if has_requests:
        groups = PageSection(BY_WHAT, made="groups")
        after = (LATENCY, OVER_TIME, POOLED_LATENCY, "Failures", HEADING)
        places = [i for i, one in enumerate(shown) if one.heading in after]
        shown.insert(places[-1] + 1 if places else 0, groups)
        notes = next((i for i, one in enumerate(shown) if one.heading == "Notes"), len(shown))
        shown.insert(notes, PageSection(REQUESTS, made="requests"))
    return [*shown, *folded]


def _join_time_charts(sections: Sequence[PageSection]) -> list[PageSection]:
    """All charts over time in one column, those of the server folded under them."""
    timed = [one for one in sections if one.column]
    if not timed:
        return [*sections]
    own = [one for one in timed if one.heading != SERVER]
    of_server = [one for one in timed if one.heading == SERVER]
    server = list(chain.from_iterable(one.charts for one in of_server))
    charts = list(chain.from_iterable(one.charts for one in own))
    flat = [chart for chart in server if is_flat(chart[0])]
    moving = [chart for chart in server if not is_flat(chart[0])]
    blocks = [TextBlock(FLAT.format(", ".join(describe_flat(chart[0]) for chart in flat)))]
    joined = PageSection(
        (own or timed)[0].heading,
        blocks if flat else (),
        charts,
        column=True,
        more=moving,
    )
    rest = [one for one in sections if not one.column]
    place = next(i for i, one in enumerate(sections) if one.column)
    return [*rest[:place], joined, *rest[place:]]


def is_flat(drawing: Drawing) -> bool:
    """Whether each of its lines has one value."""
    if not isinstance(drawing, Plot):
        return False
    return all(len(_list_values(series)) == 1 for series in drawing.series)


def _list_values(series: PlotSeries) -> set[float]:
    """The values of a line, each once."""
    return {value for value in series.y if value is not None}


def describe_flat(drawing: Drawing) -> str:
    """``preemptions per second 0``; of several lines all of their values."""
    assert isinstance(drawing, Plot)
    values = set[float]().union(*map(_list_values, drawing.series))
    unit = "%" if drawing.y.unit == "%" else ""
    each = " or ".join(format_brief(value, unit) for value in sorted(values))
    return f"{drawing.title[:1].lower()}{drawing.title[1:]} {each}"


def is_table_of_means(block: Block) -> bool:
    """It, and what explains it, is about the server's histograms."""
    return isinstance(block, TableBlock) and block.head[0].startswith("Mean")


def _join_latency_parts(sections: Sequence[PageSection]) -> list[PageSection]:
    """Bars before sentences, and tables folded under them."""
    bars = next((one.charts for one in sections if one.heading == BARS), ())
    joined = list[PageSection]()
    for one in sections:
        if one.heading == HEADING and bars:
            after = (i for i, block in enumerate(one.blocks) if is_table_of_means(block))
            end = next(after, len(one.blocks))
            texts = [block for block in one.blocks[:end] if isinstance(block, TextBlock)]
            tables = [block for block in one.blocks if block not in texts]
            joined.append(one._replace(blocks=texts, charts=bars, details=tables))
        elif one.heading != BARS:
            joined.append(one)
    return joined


def _charts(
    summary: Summary,
    run: Run,
    columns: RequestColumns,
    levels: Occupancy,
    shown: TimelineScene | None,
    history: EngineHistory | None,
) -> dict[str, Callable[[], Iterable[Drawing]]]:
    """The charts by their heading."""
    rules = run.settings.rules
    limits = collect_slo_limits(summary, rules.by_text)
    sweep = summary.sweep
    probe = summary.examination
    charts: dict[str, Callable[[], Iterable[Drawing]]] = {
        TIMELINE: lambda: [make_timeline(shown)] if shown else []
    }
    paired = summary.paired
    if paired is not None:
        charts[DIFFERENCES] = lambda: _draw_differences(paired)
    if probe is not None:  # its load is artificial: no charts over time, no distributions
        return charts | {probe.chart_heading: probe.charts}
    if sweep is not None:
        charts[STAGES] = lambda: plot_stages(sweep, limits, rules.readable)
    if not summary.swept:  # its stages have different loads
        charts[DISTRIBUTIONS] = lambda: plot_distributions(columns, run.settings.open_loop, limits)
    backlog = describe_overload(summary.delivery) is not None
    charts[LATENCY] = lambda: (
        *(plot_backlog(columns.requests, run) if backlog else ()),
        *plot_latencies(columns.requests, run, limits),
    )
    if not summary.swept:
        charts[BY_LIMIT] = lambda: plot_ramp_by_limit(summary.breakdowns)
    charts[OVER_TIME] = lambda: plot_rates_over_time(columns.requests, levels, run)
    if history is not None:
        charts[SERVER] = lambda: plot_server_metrics(history, find_time_axis(columns.requests, run))
    return charts


def _draw_differences(paired: PairedComparison) -> Iterator[BarDrawing]:
    """What the run is about: how far the arms are apart, and how sure that is."""
    if differences := list_paired_differences(paired):
        yield BarDrawing(
            "Candidate against base"
            if not paired.isolated
            else "With the others, compared with alone",
            "Difference of each metric in % of the base, with its 95% interval. The scale shows "
            "ratios.",
            describe_forest(differences),
            draw_forest(differences),
        )


def _sections(
    blocks: Iterator[Block | Charts], charted: Callable[[str], Iterator[PageSection]]
) -> Iterator[PageSection]:
    """The first section has no heading: what comes before all others, without the title."""
    heading: Heading | None = Heading("")
    under: list[Block] = []
    for block in islice(blocks, 1, None):
        if not isinstance(block, Heading | Charts):
            under.append(block)
            continue
        if heading is not None:
            yield PageSection(heading.text, under, folded=heading.folded)
        heading = block if isinstance(block, Heading) else None
        under = []
        if isinstance(block, Charts):
            yield from charted(block.heading)
    if heading is not None:
        yield PageSection(heading.text, under, folded=heading.folded)


def _written(
    summary: Summary,
    run: Run,
    columns: RequestColumns,
    headline: str,
    first: Sequence[Block],
    sections: Sequence[PageSection],
    sample: RequestSample | None,
    terms: Sequence[Definition],
) -> str:
    charts = chain.from_iterable((*section.charts, *section.more) for section in sections)
    described = [plot for plot, drawn in charts if drawn is None]
    script = read_static(SCRIPTS)
    style = read_static(STYLES)
    template = _templates().get_template("report.html")
    verdict = make_verdict(summary, run)
    loud = [block for block in first if isinstance(block, TextBlock)]
    facts = " \N{MIDDLE DOT} ".join(describe_run_facts(summary, run))
    about_run = ReportFacts(
        run.name,
        facts,
        f"{verdict.word} {verdict.text}".strip(),
        run.started_at,
        summary.conditions.duration_s,
        summary.slos,
        name_terms(terms),
    )
    return template.render(
        name=run.name,
        title=make_report_title(summary, run),
        verdict=verdict,
        headline=headline if verdict.word or verdict.text != headline else "",
        about=facts,
        badges=list(make_badges(summary, run)),
        first=[*loud, *_loud_of_folded(sections)],
        bullets=list(make_rule_bullets(summary.slos, run)),
        tiles=list(make_tiles(summary, run, columns.requests)),
        sampled="" if sample is None else describe_sample(sample),
        sections=sections,
        results=RESULT_CLASSES,
        plots=Markup(embed_json(described)),
        requests=Markup(embed_json(sample)),
        figures=Markup(embed_json(list_tile_figures(summary, run))),
        about_run=Markup(embed_json(about_run)),
        script=Markup(script),
        style=Markup(style),
        policy=Markup(make_policy(script, style)),
    )


def _loud_of_folded(sections: Sequence[PageSection]) -> Iterator[TextBlock]:
    """What nobody may overlook stands on top, not in a section that is folded."""
    for section in sections:
        for block in section.blocks:
            if section.heading == "Metrics" and isinstance(block, TextBlock) and block.loud:
                yield block


def _drawn(plot: Drawing) -> Markup | None:
    if isinstance(plot, BarDrawing):
        return plot.drawn
    return Markup(make_timeline_fragment(plot, plot.label)) if isinstance(plot, Timeline) else None


class TemplateCode(FileSystemBytecodeCache):
    """The code of the templates, as compiling them takes a tenth of a small report."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):  # it may not be written here: it is compiled each time
            super().dump_bytecode(bucket)


@cache
def _templates() -> Environment:
    # beside Python's own code of this file
    code = TemplateCode(str(Path(cache_from_source(__file__)).parent))
    return Environment(
        loader=PackageLoader("locust_llm.report"), autoescape=True, finalize=_clean,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        bytecode_cache=code,
    )  # fmt: skip


def _clean(value: Any) -> Any:
    """A template's text without control or direction characters, before it is escaped."""
    return clean_line(value) if type(value) is str else value


def collect_slo_limits(summary: Summary, rules: Mapping[str, Rule]) -> Limits:
    """The limits of the judged rules and of their conditions in ms, by the column they are about
    (pooled gaps: ``icl``). ``rules`` has the rules by canonical form."""
    marks: dict[str, list[PlotMark]] = {}
    for result in summary.slos:
        if (rule := rules.get(result.rule)) is None:
            continue
        for limited in rule.given or (() if rule.where or rule.base else (rule,)):
            measure = BY_WORD[limited.metric]
            if measure.metric is not None and measure.metric.unit == "ms":
                column = "icl" if measure.tag == POOLED else measure.metric.column
                mark = PlotMark(str(limited), y=limited.limit * 1e3, hue="slo")
                if mark not in marks.setdefault(column, []):
                    marks[column].append(mark)
    return {column: tuple(marks) for column, marks in marks.items()}


def _health(evidence: Sequence[ProcessEvidence]) -> Iterator[PageSection]:
    """What each process of the load generator measured of itself."""
    rows = list[tuple[str, str, str]]()
    for process in evidence:
        rows += ((process.worker, what, text) for what, text in _measurements(process))
    if rows:
        table = TableBlock(("Process", "Measurement", "Observed"), tuple(rows), numbers=False)
        yield PageSection("Client health", [table], folded=True)


def _measurements(process: ProcessEvidence) -> Iterator[tuple[str, str]]:
    """(name, value) of what is known."""
    known: list[tuple[str, float | None, Callable[[float], str]]] = [
        ("merged chunks", process.merged_share, _format_share),
        ("send after admission p99", process.send_lag_p99_ms, _format_ms),
        ("wait for a free slot p99", process.permit_lag_p99_ms, _format_ms),
        ("read lag p99", process.read_lag_p99_ms, _format_ms),
        ("event loop lag p99", process.loop_lag_p99_ms, _format_ms),
        ("TTFT error of reference streams p99", process.ttft_off_ms, _format_ms),
        ("gap error of reference streams p99", process.gap_off_ms, _format_ms),
        ("CPU (of a core)", process.cpu_share, _format_share),
        ("wait for a core (of the time)", process.cpu_wait_share, _format_share),
        ("server under test (cores)", process.server_cores, _format_cores),
    ]
    for name, used in process.other_programs.items():
        known.append((f"other program {name} (cores)", used, _format_cores))
    for name, value, format_value in known:
        if value is not None:
            yield name, format_value(value)


def _format_ms(ms: float) -> str:
    return format_duration(ms / 1e3)


def _format_share(share: float) -> str:
    return format_brief(100 * share, "%", 3)


def _format_cores(cores: float) -> str:
    return format_brief(cores, digits=3)

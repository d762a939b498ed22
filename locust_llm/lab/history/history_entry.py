"""History entry: keeps the facts of one run's folder, and its key metrics.

The key metrics have the names of rules.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from locust_llm.files.json_file import decode_json_file
from locust_llm.lab.history import workload_key as conditions
from locust_llm.lab.history.workload_key import SentLengths
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.read_foreign_results import (
    UnknownFormat,
    list_figures_files,
    read_figures,
)
from locust_llm.records.buffering import describe_gathering, find_gathered_metrics
from locust_llm.records.journal import is_locked
from locust_llm.records.machine import Commit
from locust_llm.records.run_facts import RECORDS, RUN, Unix
from locust_llm.report.open_loop_delivery import (
    Delivery,
    describe_backlog,
    describe_overload,
    describe_undelivered,
)
from locust_llm.settings.run_labels import parse_labels
from locust_llm.slo.metric_definitions import MIN_CUT_SHARE
from locust_llm.text.format import add_noun, format_brief, format_count, format_duration


class KeyFigure(NamedTuple):
    """Describes one metric of a load. Its value is None if the result lacks it."""

    name: str
    label: str
    of: Callable[[Figures], float | None]
    rises: bool = False
    tag: str = ""
    """run.json has the measurement error under this tag. Empty: the metric has none."""
    percentile: float = 0.0
    unit: str = "s"
    """``s`` is a time, ``share`` is shown in %, ``/s`` as it is."""

    def format_value(self, value: float | None, digits: int = 4) -> str:
        """Formats a value, such as ``412.3 ms``, ``12.4/s`` or ``0.5%``."""
        if self.unit == "s":
            return format_duration(value, digits)
        if self.unit == "share":
            return format_brief(None if value is None else value * 100, "%", digits)
        return format_brief(value, "/s", digits)


def _time(
    word: str, label: str, tag: str, percentile: float, of: Callable[[Figures], Distribution]
) -> KeyFigure:
    return KeyFigure(
        f"{word}_p{percentile:g}",
        f"{label} p{percentile:g}",
        lambda load: of(load).percentiles.get(percentile),
        tag=tag,
        percentile=percentile,
    )


def _error_rate(load: Figures) -> float | None:
    ended = None if load.requests is None else load.requests + load.failed
    return load.failed / ended if ended else None


KEY_FIGURES: Final = (
    _time("ttft", "TTFT", "time_to_first_token", 50.0, lambda load: load.ttft),
    _time("ttft", "TTFT", "time_to_first_token", 95.0, lambda load: load.ttft),
    _time("ttft", "TTFT", "time_to_first_token", 99.0, lambda load: load.ttft),
    _time("itl", "ITL", "inter_token_latency", 50.0, lambda load: load.tpot),
    _time("itl", "ITL", "inter_token_latency", 99.0, lambda load: load.tpot),
    _time("icl", "ICL", "inter_chunk_latency", 99.0, lambda load: load.itl),
    _time("request_latency", "Latency", "request_latency", 99.0, lambda load: load.latency),
    KeyFigure(
        "requests_per_s", "Requests/s", lambda load: load.requests_per_s, rises=True, unit="/s"
    ),
    KeyFigure(
        "output_tokens_per_s",
        "Output tokens/s",
        lambda load: load.output_tokens_per_s,
        rises=True,
        unit="/s",
    ),
    KeyFigure("goodput", "Goodput", lambda load: load.goodput_per_s, rises=True, unit="/s"),
    KeyFigure("error_rate", "Failures", _error_rate, unit="share"),
)
"""ITL is a mean per request (TPOT elsewhere). ICL is each gap between two chunks."""
BY_NAME: Final = {figure.name: figure for figure in KEY_FIGURES}
OTHER_NAMES: Final = {
    "tpot_p50": "itl_p50", "tpot_p99": "itl_p99", "latency_p99": "request_latency_p99",
    "failures": "error_rate",
    "request_throughput": "requests_per_s", "output_token_throughput": "output_tokens_per_s",
}  # fmt: skip


def key_figure_by_name(word: str) -> KeyFigure:
    """Finds a metric by its name, or by the name that other tools use. Raises ValueError."""
    word = word.strip().lower().replace(" ", "_").replace("-", "_")
    if (figure := BY_NAME.get(OTHER_NAMES.get(word, word))) is None:
        raise ValueError(f"the history has no metric {word[:40]!r}: it has {', '.join(BY_NAME)}")
    return figure


# -- entry -----------------------------------------------------------------------------------------

INVALID: Final = "INVALID"
DID_NOT_END: Final = "did not end"
NOT_ENDED: Final = f"it {DID_NOT_END}"
STILL_RUNNING: Final = "still running"
SEE_REPORT: Final = "its report has the metrics of each"
MAX_TEXT: Final = 300
MAX_FIGURE: Final = 1e12
"""No run has a metric beyond this value, in seconds or per second."""


class UnreadableRun(ValueError):
    """The folder gives no information. The message is one sentence."""


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Empty and None mean unknown."""

    folder: str
    """The path of the run, relative to the folder of runs."""
    started: float
    """The start of the run, in Unix seconds. A result without a start has the time of its file."""
    tool: str = ""
    model: str = ""
    host: str = ""
    server: str = ""
    machine: str = ""
    """The machine and the version of the load generator."""
    workload: str = ""
    """Only runs with equal hashes are compared."""
    conditions: str = ""
    """The workload in words."""
    labels: dict[str, str] = {}
    commit: str = ""
    branch: str = ""
    dirty: bool | None = None
    simulated: bool = False
    slo: str = ""
    """PASS, FAIL or INCONCLUSIVE. Empty: no rules."""
    client: str = ""
    """The client verdict: OK, DEGRADED or INVALID."""
    ended: str = ""
    """How the run ended, if not as requested; also undelivered load, overload and lost records."""
    left_out: str = ""
    """Why comparisons skip the run's metrics."""
    note: str = ""
    """The parts of the folder that could not be read."""
    figures: dict[str, float] = {}
    """The key metrics by name, in seconds, per second, or as shares of 1."""
    plus_minus: dict[str, float] = {}
    """The measurement error in seconds, by metric name."""

    def value_of(self, key: str) -> str | None:
        """Returns the value of a label. Every run has the labels ``branch``, ``commit``, ``model``,
        ``host`` and ``tool``."""
        own = {
            "branch": self.branch,
            "commit": self.commit,
            "model": self.model,
            "host": self.host,
            "tool": self.tool,
        }
        return self.labels.get(key, own.get(key) or None)


class _Broken(msgspec.Struct):
    rule: str
    stage: int = 0


class _Run(msgspec.Struct):
    started_at: Unix
    settings: dict[str, Any] = {}
    stopping_at: float | None = None
    stopped_early: str = ""
    notes: list[str] = []
    broken_rules: list[_Broken] = []
    stages: list[Any] = []
    limit_blocks: list[Any] = []
    simulated: bool = False
    imported: str = ""
    model: str = ""
    server: str = ""
    proxy: str = ""
    machine: str = ""
    versions: dict[str, str] = {}
    commit: Commit | None = None


class _Client(msgspec.Struct):
    level: str = ""


class _Conditions(SentLengths, frozen=True):
    succeeded: int = 0
    cut: int = 0


class _Outage(msgspec.Struct):
    seconds: float = 0.0
    in_flight: int = 0


class _Counts(msgspec.Struct):
    records_lost: int = 0
    broken_lines: int = 0


class _Facts(msgspec.Struct):
    run: _Run
    client: _Client | None = None
    slo_status: str | None = None
    conditions: _Conditions | None = None
    counts: _Counts | None = None
    delivery: dict[str, Any] | None = None
    outages: list[_Outage] = []
    plus_minus: dict[str, dict[str, tuple[float | None, float | None]]] | None = None


def read_entry(folder: Path, name: str) -> HistoryEntry:
    """Reads a folder that has run.json, the metrics of a load, or both. Raises UnreadableRun and
    OSError."""
    load, why_no_load = _load(folder)
    running = is_locked(folder / RECORDS)
    if not (folder / RUN).exists():
        if load is None:
            raise UnreadableRun(why_no_load)
        return _entry_of_load(folder, name, load, "")
    try:
        facts = decode_json_file(folder / RUN, _Facts)
    except (OSError, ValueError) as error:
        why = f"{RUN} cannot be read ({getattr(error, 'strerror', None) or error})"[:MAX_TEXT]
        if load is None:
            raise UnreadableRun(why) from None
        return _entry_of_load(folder, name, load, why)
    return _entry_of_run(name, facts, load, "" if running else why_no_load, running=running)


def _load(folder: Path) -> tuple[Figures | None, str]:
    """Returns the metrics of the folder's load, or the reason for their absence."""
    try:
        loads = read_figures(folder)
    except (OSError, UnknownFormat) as error:
        return None, f"no metrics: {getattr(error, 'strerror', None) or error}"[:MAX_TEXT]
    if len(loads) != 1:
        return None, f"no metrics: its file has {len(loads)} loads"
    load = loads[0]
    texts = {"tool": load.tool, "model": load.model, "version": load.version}
    return replace(load, **{name: _utf8(text) for name, text in texts.items()}), ""


def _utf8(text: str) -> str:
    """Replaces half characters, which JSON can name and files cannot hold."""
    return text.encode("utf-8", "replace").decode()


def _entry_of_load(folder: Path, name: str, load: Figures, note: str) -> HistoryEntry:
    workload = conditions.key_of_figures(load)
    paths = (folder / file for file in list_figures_files())
    file = next((path for path in paths if path.is_file()), folder)
    started = load.started_at if load.started_at is not None else file.stat().st_mtime
    return HistoryEntry(
        folder=name, started=started, tool=load.tool, model=load.model, machine=load.version,
        workload=workload.hash,
        conditions=workload.words, client=load.client,
        left_out="the client verdict is INVALID" if load.client == INVALID else "",
        note=note, figures=_figures(load),
    )  # fmt: skip


def _measure_sent(known: SentLengths | None, load: Figures | None) -> SentLengths | None:
    """The lengths that were sent. Those of run.json are of the prompts with a requested length
    alone; of a mix, all prompts count."""
    if known is None or known.input_tokens is None or load is None or load.input_tokens.avg is None:
        return known
    return SentLengths(known.asked_input_tokens, load.input_tokens.avg, known.asked_output_tokens)


def _entry_of_run(
    name: str, facts: _Facts, load: Figures | None, why_no_load: str, *, running: bool
) -> HistoryEntry:
    run = facts.run
    client = facts.client.level if facts.client is not None else ""
    requested = run.settings.get("model")
    model = run.model or (requested if isinstance(requested, str) else "")
    tool = "locust-llm"
    made_by = f"{run.machine}, locust-llm {run.versions.get('locust-llm', '?')}"
    workload = conditions.key_of_settings(
        run.settings, model, run.simulated, bool(run.proxy), _measure_sent(facts.conditions, load)
    )
    if run.imported:  # its settings come from its result, without lengths
        tool = next(iter(run.versions), run.imported)
        made_by = run.imported
        known_of = replace(
            load or Figures(tool=tool), tool=tool, model=model, asked_output_tokens=None
        )
        workload = conditions.key_of_figures(known_of)
    commit = run.commit or Commit("")
    note = why_no_load
    try:
        known = parse_labels(run.settings.get("label") or ())
    except (TypeError, ValueError, AttributeError) as error:
        known = {}
        note = f"{note}{'; ' if note else ''}labels: {error}"[:MAX_TEXT]
    beside = (
        *_describe_shortfalls(facts),
        _explain_cut(facts.conditions),
        _describe_outages(facts.outages),
        _describe_gathered(run),
    )
    note = "; ".join(filter(None, (note, *beside)))[:MAX_TEXT]
    if several := _several_loads(run):
        load = None
        note = "; ".join(filter(None, (note, f"{several}: {SEE_REPORT}")))[:MAX_TEXT]
    left_out = ""
    if running:
        left_out = f"it is {STILL_RUNNING}"
    elif run.stopping_at is None:
        left_out = NOT_ENDED
    elif client == INVALID:
        left_out = "the client verdict is INVALID"
    return HistoryEntry(
        folder=name, started=run.started_at, tool=tool[:MAX_TEXT], model=model[:MAX_TEXT],
        host=_join_hosts(run.settings)[:MAX_TEXT],
        server=run.server[:MAX_TEXT],
        machine=made_by[:MAX_TEXT], workload=workload.hash,
        conditions=workload.words[:MAX_TEXT], labels=known, commit=commit.hash[:MAX_TEXT],
        branch=commit.branch[:MAX_TEXT],
        dirty=commit.dirty, simulated=run.simulated, slo=(facts.slo_status or "")[:MAX_TEXT],
        client=client[:MAX_TEXT],
        ended=STILL_RUNNING if running else _describe_end(facts), left_out=left_out, note=note, figures={} if load is None else _figures(load, find_gathered_metrics(run.notes)),
        plus_minus={} if several else _plus_minus(facts),
    )  # fmt: skip


def _join_hosts(settings: Mapping[str, Any]) -> str:
    hosts = settings.get("hosts") or [settings.get("host")]
    return " ".join(str(host) for host in hosts if host) if isinstance(hosts, list) else ""


def _describe_end(facts: _Facts) -> str:
    """Describes an early end, such as ``stopped after 6.9 of 60 s``. Empty: the run ended as
    requested."""
    run = facts.run
    conditions = facts.conditions
    words = [shortfall.partition(":")[0] for shortfall in _describe_shortfalls(facts)]
    if run.stopping_at is None:
        words.append(DID_NOT_END)
    words += [f"ended by {broken.rule}" for broken in run.broken_rules if not broken.stage]
    if run.stopped_early:
        words.append(f"stopped {run.stopped_early}")
    if conditions is not None and _explain_cut(conditions):
        words.append(f"{add_noun(f'{conditions.cut:,}', 'request')} cut")
    return "; ".join(words)[:MAX_TEXT]


def _describe_shortfalls(facts: _Facts) -> Iterator[str]:
    """Describes, each after its word of the console, records that are lost and a schedule that
    was not sent or not kept up with."""
    counts = facts.counts or _Counts()
    if counts.records_lost:
        lost = format_count(counts.records_lost, "request")
        has = "has" if counts.records_lost == 1 else "have"
        yield f"INCOMPLETE: {lost} {has} no record, so counts and rates may be too low"
    elif counts.broken_lines:
        lines = format_count(counts.broken_lines, "line")
        yield f"INCOMPLETE: {lines} of {RECORDS} could not be read"
    delivery = _read_delivery(facts)
    if overload := describe_overload(delivery):
        yield f"OVERLOADED: {overload}"
    elif less := describe_undelivered(delivery):
        yield f"NOT DELIVERED: {less}"
    elif not facts.outages and (backlog := describe_backlog(delivery)):
        yield f"BACKLOG: {backlog}"


def _read_delivery(facts: _Facts) -> Delivery | None:
    """None: it had no schedule, or another version wrote it."""
    try:
        return None if facts.delivery is None else msgspec.convert(facts.delivery, Delivery)
    except msgspec.ValidationError:
        return None


def _explain_cut(conditions: _Conditions | None) -> str:
    """Explains that few requests were answered, so latencies describe survivors only. Empty: few
    were cut."""
    if conditions is None or not conditions.cut:
        return ""
    if not conditions.succeeded:
        return f"no request was answered, {conditions.cut:,} were cut"
    ended = conditions.succeeded + conditions.cut
    if conditions.cut < MIN_CUT_SHARE * ended:
        return ""
    return f"its latencies are of the answered requests, {conditions.cut:,} of {ended:,} were cut"


def _describe_outages(outages: Sequence[_Outage]) -> str:
    """Names the time without any answer, in which a server stood still, say. Empty: there is none."""
    silent_s = sum(outage.seconds for outage in outages)
    if not silent_s > 0:
        return ""
    what = (
        "no token came"
        if all(outage.in_flight for outage in outages)
        else "no request was answered"
    )
    return f"{what} for {format_brief(silent_s, ' s', 3)}, which its rates count"


def _describe_gathered(run: _Run) -> str:
    """Explains that the entry lacks metrics that do not describe the model. Empty: it does not."""
    gathered = find_gathered_metrics(run.notes)
    if not gathered:
        return ""
    labels = [figure.label for figure in KEY_FIGURES if _word_of(figure) in gathered]
    named = ", ".join(dict.fromkeys(label.rpartition(" ")[0] for label in labels))
    return f"{describe_gathering(run.notes)}, so it has no {named}"


def _word_of(figure: KeyFigure) -> str:
    """Returns the name of its metric in rules, such as ``ttft``."""
    return figure.name.removesuffix(f"_p{figure.percentile:g}")


def _several_loads(run: _Run) -> str:
    """Names the loads that a run measured one after the other. Metrics of all of them together
    describe no single load."""
    settings = run.settings
    if any(settings.get(name) for name in ("candidate", "candidate_set", "aa", "isolate")):
        return "an A/B test"
    if run.limit_blocks:
        return "several prefill limits"
    if settings.get("sweep") and len(run.stages) > 1:
        return format_count(len(run.stages), "stage")
    return ""


def _figures(load: Figures, gathered: Set[str] = frozenset()) -> dict[str, float]:
    """Returns the key metrics that have a plausible value. Those in ``gathered`` do not describe the
    model."""
    described = [figure for figure in KEY_FIGURES if _word_of(figure) not in gathered]
    values = {figure.name: figure.of(load) for figure in described}
    return {
        name: value
        for name, value in values.items()
        if value is not None and abs(value) < MAX_FIGURE
    }


def _plus_minus(facts: _Facts) -> dict[str, float]:
    """Returns the measurement errors in seconds. run.json has them in ms."""
    errors = {}
    for figure in KEY_FIGURES:
        pair = ((facts.plus_minus or {}).get(figure.tag) or {}).get(str(figure.percentile))
        if pair is not None and None not in pair:
            errors[figure.name] = max(end for end in pair if end is not None) / 1e3
    return errors

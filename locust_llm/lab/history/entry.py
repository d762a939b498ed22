"""History entry: what the history knows of one run, out of its folder, and its key metrics.

The key metrics are few, and have the names that rules give them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from locust_llm.files.json_file import decode_json_file
from locust_llm.lab.history import workload_key as conditions
from locust_llm.lab.history.workload_key import SentLengths
from locust_llm.lab.interop.load_metrics import Distribution, Figures
from locust_llm.lab.interop.registry import UnknownFormat, list_figures_files, read_figures
from locust_llm.records.machine import Commit
from locust_llm.records.run import RUN, Unix
from locust_llm.settings.labels import parse_labels
from locust_llm.slo.metrics import MIN_CUT_SHARE
from locust_llm.text.format import format_brief, format_count


class KeyFigure(NamedTuple):
    """A figure of a load, as a number; None where its result does not say."""

    name: str
    label: str
    of: Callable[[Figures], float | None]
    rises: bool = False
    """More is better."""
    tag: str = ""
    """Of its measure in run.json, where the plus-minus is; empty: it has none."""
    percentile: float = 0.0
    unit: str = "s"
    """Seconds, shown as ms; ``share``, shown in %; ``/s``."""

    def said(self, value: float | None, digits: int = 4) -> str:
        """``412.3 ms``, ``12.4/s``, ``0.5%``."""
        if self.unit == "s":
            return format_brief(None if value is None else value * 1e3, " ms", digits)
        if self.unit == "share":
            return format_brief(None if value is None else value * 100, "%", digits)
        return format_brief(value, "/s", digits)


def _time(
    word: str, label: str, tag: str, percentile: float, of: Callable[[Figures], Distribution]
) -> KeyFigure:
    name, title = f"{word}_p{percentile:g}", f"{label} p{percentile:g}"
    return KeyFigure(
        name,
        title,
        lambda load: of(load).percentiles.get(percentile),
        tag=tag,
        percentile=percentile,
    )


def _error_rate(load: Figures) -> float | None:
    ended = None if load.requests is None else load.requests + load.failed
    return load.failed / ended if ended else None


KEY_FIGURES: Final = (
    *(
        _time("ttft", "TTFT", "time_to_first_token", p, lambda load: load.ttft)
        for p in (50.0, 95.0, 99.0)
    ),
    *(_time("itl", "ITL", "inter_token_latency", p, lambda load: load.tpot) for p in (50.0, 99.0)),
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
"""ITL is of each request (TPOT elsewhere), ICL each gap between two chunks."""
BY_NAME: Final = {figure.name: figure for figure in KEY_FIGURES}
OTHER_NAMES: Final = {
    "tpot_p50": "itl_p50", "tpot_p99": "itl_p99", "latency_p99": "request_latency_p99",
    "failures": "error_rate",
    "request_throughput": "requests_per_s", "output_token_throughput": "output_tokens_per_s",
}  # fmt: skip


def key_figure_by_name(word: str) -> KeyFigure:
    """Also by the words of other tools. Raises ValueError of one sentence."""
    word = word.strip().lower().replace(" ", "_").replace("-", "_")
    if (figure := BY_NAME.get(OTHER_NAMES.get(word, word))) is None:
        raise ValueError(
            f"no figure of the history is called {word[:40]!r}: there are {', '.join(BY_NAME)}"
        )
    return figure


# -- entry -----------------------------------------------------------------------------------------
# What the history knows of one run, out of its folder.

INVALID: Final = "INVALID"
DID_NOT_END: Final = "did not end"
NOT_ENDED: Final = f"it {DID_NOT_END}"
SEE_REPORT: Final = "its report has the figures of each"
MAX_TEXT: Final = 300
MAX_FIGURE: Final = 1e12
"""Seconds, or a second: no run has one beyond it."""


class UnreadableRun(ValueError):
    """Nothing is known of a folder. One sentence."""


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Empty and None: unknown."""

    folder: str
    """Within the folder of runs."""
    started: float
    """Unix seconds; of a result that does not say it, when its file was written."""
    tool: str = ""
    model: str = ""
    host: str = ""
    server: str = ""
    machine: str = ""
    """Of the load generator, and its version."""
    workload: str = ""
    """Hash: figures of runs are compared where it is the same."""
    conditions: str = ""
    """The workload in words."""
    labels: dict[str, str] = {}
    commit: str = ""
    branch: str = ""
    dirty: bool | None = None
    simulated: bool = False
    slo: str = ""
    """PASS, FAIL, INCONCLUSIVE."""
    client: str = ""
    """OK, DEGRADED, INVALID."""
    ended: str = ""
    """How it ended, or what was cut of it, where it did not come to its end as asked."""
    left_out: str = ""
    """Why its figures are in no comparison."""
    note: str = ""
    """What of its folder could not be read."""
    figures: dict[str, float] = {}
    """By the names of key_metrics.py, in seconds, 1/s and shares of 1."""
    plus_minus: dict[str, float] = {}
    """How far true times may lie from the reported ones, either way, by the same names; seconds."""

    def value_of(self, key: str) -> str | None:
        """Of a label; ``branch``, ``commit``, ``model``, ``host`` and ``tool`` are labels of every
        run."""
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
    broken_rules: list[_Broken] = []
    stages: list[Any] = []
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


class _Facts(msgspec.Struct):
    run: _Run
    client: _Client | None = None
    slo_status: str | None = None
    conditions: _Conditions | None = None
    plus_minus: dict[str, dict[str, tuple[float | None, float | None]]] | None = None


def read_entry(folder: Path, name: str) -> HistoryEntry:
    """Of a folder with run.json, with the figures of a load, or both. Raises UnreadableRun and
    OSError."""
    load, why_no_load = _load(folder)
    if not (folder / RUN).exists():
        if load is None:
            raise UnreadableRun(why_no_load)
        return _of_load(folder, name, load, "")
    try:
        facts = decode_json_file(folder / RUN, _Facts)
    except (OSError, ValueError) as error:
        why = f"{RUN} cannot be read ({getattr(error, 'strerror', None) or error})"[:MAX_TEXT]
        if load is None:
            raise UnreadableRun(why) from None
        return _of_load(folder, name, load, why)
    return _of_run(name, facts, load, why_no_load)


def _load(folder: Path) -> tuple[Figures | None, str]:
    """(its figures, or why there are none)."""
    try:
        loads = read_figures(folder)
    except (OSError, UnknownFormat) as error:
        return None, f"no figures: {getattr(error, 'strerror', None) or error}"[:MAX_TEXT]
    loads = [
        replace(load, tool=_utf8(load.tool), model=_utf8(load.model), version=_utf8(load.version))
        for load in loads
    ]
    return (
        (loads[0], "")
        if len(loads) == 1
        else (None, f"no figures: its file holds {len(loads)} loads")
    )


def _utf8(text: str) -> str:
    """JSON can name half a character, which no file takes."""
    return text.encode("utf-8", "replace").decode()


def _of_load(folder: Path, name: str, load: Figures, note: str) -> HistoryEntry:
    workload = conditions.key_of_figures(load)
    file = next(
        (folder / name for name in list_figures_files() if (folder / name).is_file()), folder
    )
    started = load.started_at if load.started_at is not None else file.stat().st_mtime
    return HistoryEntry(
        folder=name, started=started, tool=load.tool, model=load.model, machine=load.version,
        workload=workload.hash,
        conditions=workload.words, client=load.client,
        left_out="the client verdict is INVALID" * (load.client == INVALID),
        note=note, figures=_figures(load),
    )  # fmt: skip


def _of_run(name: str, facts: _Facts, load: Figures | None, why_no_load: str) -> HistoryEntry:
    run = facts.run
    client = facts.client.level if facts.client is not None else ""
    hosts = run.settings.get("hosts") or [run.settings.get("host")]
    asked = run.settings.get("model")
    model = run.model or (asked if isinstance(asked, str) else "")
    tool = "locust-llm"
    made_by = f"{run.machine}, locust-llm {run.versions.get('locust-llm', '?')}"
    workload = conditions.key_of_settings(
        run.settings, model, run.simulated, bool(run.proxy), facts.conditions
    )
    if run.imported:  # its settings are no more than its result says, the lengths none at all
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
    note = "; ".join(filter(None, (note, _explain_cut(facts.conditions))))[:MAX_TEXT]
    if several := _several_loads(run):
        load = None
        note = "; ".join(filter(None, (note, f"{several}: {SEE_REPORT}")))[:MAX_TEXT]
    left_out = NOT_ENDED * (run.stopping_at is None) or "the client verdict is INVALID" * (
        client == INVALID
    )
    return HistoryEntry(
        folder=name, started=run.started_at, tool=tool[:MAX_TEXT], model=model[:MAX_TEXT],
        host=" ".join(str(host) for host in hosts if host)[:MAX_TEXT] if isinstance(hosts,
            list) else "",
        server=run.server[:MAX_TEXT],
        machine=made_by[:MAX_TEXT], workload=workload.hash,
        conditions=workload.words[:MAX_TEXT], labels=known, commit=commit.hash[:MAX_TEXT],
        branch=commit.branch[:MAX_TEXT],
        dirty=commit.dirty, simulated=run.simulated, slo=(facts.slo_status or "")[:MAX_TEXT],
        client=client[:MAX_TEXT],
        ended=_describe_end(facts), left_out=left_out, note=note, figures={} if load is None else _figures(load),
        plus_minus={} if several else _plus_minus(facts),
    )  # fmt: skip


def _describe_end(facts: _Facts) -> str:
    """``stopped after 6.9 of 60 s``; empty where it came to its end as asked."""
    run, conditions = facts.run, facts.conditions
    words = []
    if run.stopping_at is None:
        words.append(DID_NOT_END)
    words += [f"ended by {broken.rule}" for broken in run.broken_rules if not broken.stage]
    if run.stopped_early:
        words.append(f"stopped {run.stopped_early}")
    if conditions is not None and _explain_cut(conditions):
        words.append(f"{conditions.cut:,} requests cut")
    return "; ".join(words)[:MAX_TEXT]


def _explain_cut(conditions: _Conditions | None) -> str:
    """That its latencies are those of few survivors; empty where few requests were cut."""
    if conditions is None or not conditions.cut:
        return ""
    ended = conditions.succeeded + conditions.cut
    if conditions.cut < MIN_CUT_SHARE * ended:
        return ""
    return f"its latencies are of the answered requests, {conditions.cut:,} of {ended:,} were cut"


def _several_loads(run: _Run) -> str:
    """What a run measured one by one, in words: figures of all of it together are those of no
    server and no load."""
    asked = run.settings
    if (
        asked.get("candidate")
        or asked.get("candidate_set")
        or asked.get("aa")
        or asked.get("isolate")
    ):
        return "two arms"
    return (
        format_count(len(run.stages), "stage") if asked.get("sweep") and len(run.stages) > 1 else ""
    )


def _figures(load: Figures) -> dict[str, float]:
    """Returns the figures that are numbers."""
    values = {figure.name: figure.of(load) for figure in KEY_FIGURES}
    return {
        name: value
        for name, value in values.items()
        if value is not None and abs(value) < MAX_FIGURE
    }


def _plus_minus(facts: _Facts) -> dict[str, float]:
    """run.json has them in ms."""
    errors = {}
    for figure in KEY_FIGURES:
        pair = ((facts.plus_minus or {}).get(figure.tag) or {}).get(str(figure.percentile))
        if pair is not None and None not in pair:
            errors[figure.name] = max(end for end in pair if end is not None) / 1e3
    return errors

"""Page data: the present or last run as data for the pages, without Flask."""

import time
from collections.abc import Iterator
from typing import Any, Final

from locust.env import Environment

import gevent

from locust_llm.controller.controller import Controller
from locust_llm.controller.live_stats import PARTS_S
from locust_llm.controller.progress_line import format_phase_position
from locust_llm.records.breakdown_labels import LATE, NAMES, USER, name_latency_part
from locust_llm.records.phase_plan import BETWEEN, PROFILING, WARMUP
from locust_llm.records.record import Record
from locust_llm.records.report_result import MetricValue, ReportResult
from locust_llm.report.charts import server_plot_list
from locust_llm.slo.metric_definitions import TTFT
from locust_llm.text.format import format_brief, format_count
from locust_llm.wire.greenlets import spawn_critical

from .live import (
    LATENCY,
    PERCENTILES,
    POOLED_ROWS,
    TABLE_ROWS,
    LatencyRow,
    LiveStatistics,
    order_latency_rows,
)
from .past_runs import Archive

INTERVAL_S: Final = 1.0
"""The time between two points of the live figures."""
LOOKS: Final = 5
"""How often the state of the run is checked between two points."""
DRAWN: Final = {"ttft": 1e3, "itl": 1e3, "output_tokens_per_s": 1.0, "requests_per_s": 1.0}
"""The measures with a chart on the live page, and the factor from a rule's unit to the chart's."""
DRAWN_WHOLE: Final = {
    "request_latency": 1e3, "output_tokens_per_s": 1.0, "requests_per_s": 1.0,
}  # fmt: skip
"""The measures for answers in one piece, for embeddings and rerank too."""
RATES: Final = {"tokens_per_s": "output_token_throughput", "requests_per_s": "request_throughput"}
"""The report's tags by their names here."""
LEAST_PART_S: Final = 1e-5
"""A shorter part is not shown."""
NONE, STARTING, ON, ENDING, OVER = "none", "starting", "on", "ending", "over"

Json = dict[str, Any]


class RunView:
    """The view of a process, for all its runs."""

    def __init__(self, environment: Environment, archive: Archive) -> None:
        self.environment = environment
        self.archive = archive
        self.control: Controller | None = None
        """The controller of the present run, until its report is made."""
        self.live: LiveStatistics | None = None
        self.runs = 0
        self.starting = False
        self.refusal = ""
        self.target: int | None = None
        """The limit of the gate, or the end of its ramp."""
        self._name = ""
        self._server: Json = {}
        """What is known of the run's server."""
        self._limits: list[tuple[str, float, str]] = []
        """The rules' limits for the charts: measure, limit, text."""
        self._phase = ""
        """The phase of the run, as a mark over time."""
        self._last_s = 0.0
        """Seconds from the start of the run to its last activity."""
        self._ended: ReportResult | None = None
        """The result of the last run. None: its report could not be made."""
        self._status: tuple[float, Json] = (0.0, {})
        self._replicas: list[str] = []
        """The replicas in the charts of the server's metrics."""

    # -- the run -----------------------------------------------------------------------------------

    def begins(self, control: Controller) -> None:
        asked = control.settings
        live = LiveStatistics(
            control.live_stats,
            time.time(),
            generates=asked.generates,
            streams=asked.streaming,
        )
        self.control, self.live, self._ended = control, live, None
        self.refusal, self._name = "", control.folder.name
        self._phase = ""
        self._last_s = 0.0
        self._replicas = []
        self._status = (0.0, {})  # drops that of the last run
        self.target = control.settings.prefill_concurrency
        live.gated = self.target is not None
        self.runs += 1
        self.archive.add(control.folder)
        spawn_critical(control.fail, 0.0, self._look, control, live)

    def on_record(self, record: Record) -> None:
        """Count an ended request of the present run."""
        if self.control is not None and self.live is not None:
            self.live.add(record)

    def ends(self) -> None:
        """The report of the run is made, or could not be."""
        control, self.control = self.control, None
        self._status = (0.0, {})
        if control is not None:
            self._ended = control.store.result

    def change_limit(self, limit: int | None, ramp_s: float | None = None) -> str:
        """Change the gate of the present run. Returns a sentence. Raises ValueError of one
        sentence."""
        if self.control is None or self.live is None:
            raise ValueError("no run is active: start one first")
        done = self.control.change_limit(limit, ramp_s)
        self.live.gated = self.live.gated or limit is not None
        self.target = limit
        self.live.mark("no gate" if limit is None else f"gate {limit}")
        self.settled()
        return done

    def settled(self) -> None:
        """A change is made: no page shows an earlier refusal any more."""
        self.refusal, self._status = "", (0.0, {})

    def _look(self, control: Controller, live: LiveStatistics) -> None:
        while self.control is control:
            for _ in range(LOOKS):
                gevent.sleep(INTERVAL_S / LOOKS)
                if self._goes_on:
                    self._last_s = live.seconds
            self._phase = _phase(control) or self._phase
            if self._goes_on:
                server: tuple[tuple[float | None, ...] | None, ...] = ()
                if (poller := control.store.poller) is not None:
                    self._replicas = server_plot_list.list_line_names(
                        poller.history, self._replicas
                    )
                    server = server_plot_list.read_current_values(poller.history, self._replicas)
                live.tick(self._users, control.limit, self._phase, server)

    @property
    def _goes_on(self) -> bool:
        """Requests are sent, or some are still running."""
        control = self.control
        return control is not None and (not control.draining or control.live_stats.inside > 0)

    @property
    def _users(self) -> int:
        runner = self.environment.runner
        return 0 if runner is None else int(runner.user_count)

    # -- status ------------------------------------------------------------------------------------

    def status(self) -> Json:
        """The state without the history. It is made at most twice a second for any number of
        pages."""
        made, status = self._status
        if time.monotonic() - made > INTERVAL_S / 2:
            status = self._make_status()
            self._status = time.monotonic(), status
        return status

    def _make_status(self) -> Json:
        control, live = self.control, self.live
        state, text = self._state()
        status: Json = {
            "run": self.runs,
            "name": self._name,
            "state": state,
            "where": text,
            "refusal": self.refusal,
        }
        if live is None:
            return status
        if control is not None:
            self._limits = list(_limits(control))
            live.gated = live.gated or control.limit is not None
            live.has_waits = live.has_waits or control.settings.open_loop or live.gated
            survey = control.survey
            self._server = {
                "model": survey.models,
                "server": control.settings.host,
                "simulated": survey.simulated,
            }
        warms_up = control is not None and control.plan.phase == WARMUP
        counts = live.stats.count_phase(WARMUP if warms_up else PROFILING)
        seconds = live.seconds
        if not self._goes_on:
            seconds = max(self._last_s, live.points[-1].at if live.points else 0.0)
        status |= {
            **self._server,
            "limits": self._limits,
            "seconds": seconds,
            "step": live.step,
            "marks": live.marks,
            "classes": live.classes,
            "generates": live.generates,
            "streams": live.streams,
            "warms_up": warms_up,
            "ok": counts.ok,
            "failed": counts.failed,
            "ended_by_us": counts.ended_by_us,
            "failures": live.failures(),
            "server_charts": {
                "names": self._replicas,
                "charts": [(chart.title, chart.unit) for chart in server_plot_list.CHARTS],
            },
        }
        status |= self._so_far(live) if self._ended is None else _final(self._ended, live)
        if control is not None:
            status |= {
                "users": self._users,
                "limit": control.limit,
                "target": self.target,
                "used": live.stats.used,
                "waiting": live.stats.waiting,
                "decoding": live.stats.decoding,
            }
        return status

    def _state(self) -> tuple[str, str]:
        """(name, words) of the state."""
        control = self.control
        if self.starting:
            return STARTING, "checking the server"
        if control is None:
            return (OVER, "ended") if self.live is not None else (NONE, "no run yet")
        if not control.draining:
            return ON, format_phase_position(control)
        inside = control.live_stats.inside
        return (
            ENDING,
            f"{format_count(inside, 'request')} still running" if inside else "making the report",
        )

    def _so_far(self, live: LiveStatistics) -> Json:
        rules = [] if self.control is None else list(_rule_states(self.control))
        return {
            "table": live.table(),
            "client": live.stats.client(),
            "rules": rules,
            "slo": None,
            "parts": _parts(live, self.control),
        } | ({"tokens_per_s": live.tokens_per_s} if live.generates else {})

    def rows(self) -> Iterator[dict[str, str]]:
        """The rows of the tab in Locust's page, which can show a table only. A refusal is there
        too, as Locust closes its form."""
        status = self.status()
        if status["refusal"]:
            yield {"figure": status["refusal"]}
        if self.live is None:
            return
        for row in status["table"]:
            cells = {"figure": row.label, "count": f"{row.whole_count:,}"}
            for name, values in (("recent", row.recent_ms), ("whole", row.whole_ms)):
                for percentile, value in zip(PERCENTILES, values or (), strict=False):
                    cells[f"{name}{percentile}"] = format_brief(value, digits=3)
            yield cells


def _phase(control: Controller) -> str:
    """The phase as a mark over time. Empty between two stages."""
    if control.draining:
        return "stop"
    if control.plan.phase == BETWEEN:
        return ""
    stages = control.stages
    block = control.limit_block
    if block is not None and block.round:
        return f"round {block.round}"
    if stages is None or control.plan.phase == WARMUP or not stages.number:
        return control.plan.phase
    return f"{stages.asked.axis} {stages.value:g}"


def _parts(live: LiveStatistics, control: Controller | None) -> Json:
    """(part, name, ms) of the parts in the last seconds that took some time. Single records do not
    show whether a user was free."""
    asked = None if control is None else control.settings
    may_lack_users = asked is not None and asked.open_loop and asked.users is not None
    names = {LATE: f"{NAMES[USER]}, or {NAMES[LATE]}"} if may_lack_users else {}
    count, means_s = live.stats.parts.recent()
    shown = {name: s for name, s in means_s.items() if s >= LEAST_PART_S}
    known = {name for name, s in means_s.items() if s > 0}
    parts = [
        (name, names.get(name) or name_latency_part(name, known), round(s * 1e3, 2))
        for name, s in shown.items()
    ]
    return {"count": count, "seconds": PARTS_S, "parts": parts}


def _rule_states(control: Controller) -> Iterator[tuple[str, str, str]]:
    """(rule, its state so far, the observed value)."""
    states = control.abort.states()
    for rule in control.settings.rules.by_text:
        yield rule, *states.get(rule, ("checked at the end", ""))


def _limits(control: Controller) -> Iterator[tuple[str, float, str]]:
    """(measure, limit in the chart's unit, text) of the rules for the present load."""
    stages = control.stages
    asked = control.settings
    drawn = DRAWN if asked.generates and asked.streaming else DRAWN_WHOLE
    for rule in control.settings.rules.readable:
        if rule.metric not in drawn or rule.base:
            continue
        if stages is None or not stages.number or rule.at(stages.value, stages.asked.axis):
            yield rule.metric, rule.limit * drawn[rule.metric], str(rule)


def _final(result: ReportResult, live: LiveStatistics) -> Json:
    rules = []
    for rule in result.rules:
        rules.append(
            (rule.rule, rule.status, "; ".join(filter(None, (rule.observed, rule.reason))))
        )
    status = {"client": result.client, "rules": rules, "slo": result.slo_status}
    if result.swept:
        return {**status, "table": [], "found": result.findings}
    whole = LATENCY in result.figures and not (live.streams and TTFT.tag in result.figures)
    shown = POOLED_ROWS if whole else TABLE_ROWS
    rows = order_latency_rows(shown, waits=live.has_waits, gated=live.gated)
    table = [
        _exact(label, result.figures.get(tag, MetricValue())) for tag, label in rows.items()
    ] + live.by_name()
    rates = {
        name: tag for name, tag in RATES.items() if shown is TABLE_ROWS or tag in result.figures
    }
    return {
        **status,
        "table": table,
        **{name: result.figures.get(tag, MetricValue()).avg for name, tag in rates.items()},
    }


def _exact(label: str, figure: MetricValue) -> LatencyRow:
    """Read the exact percentiles from the report."""
    known = [
        figure.percentiles[p]
        for percentile in PERCENTILES
        if (p := float(percentile)) in figure.percentiles
    ]
    return LatencyRow(
        label, 0, None, figure.count or 0, known if len(known) == len(PERCENTILES) else None
    )

"""Live page data: the present or last run as data for the pages, without Flask.

live_page_tallies.py counts the numbers of the live page.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from locust.env import Environment

import gevent

from locust_llm.controller.answer_tally import LivePageRow
from locust_llm.controller.progress_line import format_phase_position
from locust_llm.controller.run_controller import Controller
from locust_llm.controller.run_progress import PARTS_S, LoadClock
from locust_llm.controller.stage_runner import StageRunner
from locust_llm.records.breakdown_labels import LATE, NAMES, PROXY, USER, name_latency_part
from locust_llm.records.chart_mark_names import (
    MAX_CHANGE_MARKS,
    name_disruption,
    name_gate_change,
    name_rate_change,
    name_stage_start,
    name_users_change,
)
from locust_llm.records.phase_plan import BETWEEN, PROFILING, WARMUP
from locust_llm.records.record import Record
from locust_llm.records.report_result import MetricValue, ReportResult
from locust_llm.records.run_facts import Stage
from locust_llm.report.chart_data import server_chart_list
from locust_llm.slo.load_generator_health import OK as CLIENT_OK
from locust_llm.slo.metric_definitions import TTFT
from locust_llm.slo.rules import Rule
from locust_llm.text.format import format_brief, format_count
from locust_llm.wire.critical_greenlets import spawn_critical

from .alerts import (
    BAD,
    RUN_ENDS,
    Alert,
    describe_client,
    describe_hole,
    describe_leak_alert,
    describe_lost_worker,
    describe_silent_worker,
    order_alerts,
)
from .live_ghost_tokens import LiveGhostTokens
from .live_growth import LiveGrowth
from .live_page_tallies import (
    LATENCY,
    PERCENTILES,
    POOLED_ROWS,
    TABLE_ROWS,
    LatencyRow,
    LivePageTallies,
    StageRow,
    order_latency_rows,
)
from .locust_form import LIMIT_FIELD, RATE_FIELD
from .past_runs import Archive
from .rule_cards import RuleBoard, make_final_card

INTERVAL_S: Final = 1.0
"""The time between two points of the live figures."""
LOOKS: Final = 5
"""How often the state of the run is checked between two points."""
DRAWN: Final = {
    "ttft": 1e3, "ttft_from_due": 1e3, "itl": 1e3, "output_tokens_per_s": 1.0, "requests_per_s": 1.0,
}  # fmt: skip
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
        self.live: LivePageTallies | None = None
        self.runs = 0
        self.starting = False
        self.refusal = ""
        self.target: int | None = None
        """The limit of the gate, or the end of its ramp."""
        self._ramps = False
        """The limit follows the ramp of the run: nobody has changed it."""
        self._limit: int | None = None
        """The limit at the last look."""
        self._changed_rate: float | None = None
        """The request rate of the last change in the run. None: nobody changed it."""
        self._name = ""
        self._server: Json = {}
        """What is known of the run's server."""
        self._limits: list[tuple[str, float, str]] = []
        """The rules' limits for the charts: measure, limit, text."""
        self._board = RuleBoard((), time.monotonic)
        """The rules of the run, or of its stage."""
        self._board_stage = 0
        self._rules: dict[str, Rule] = {}
        """The rules of the run by their text."""
        self._marked_losses = 0
        self._marked_disruptions = 0
        """The lost workers that have their mark."""
        self._stages: list[Json] = []
        """The table of the stages."""
        self._answers: list[LivePageRow] = []
        """What the checks of answers have found. Empty: answers are not checked."""
        self._growth = LiveGrowth()
        self._growth_rows: list[LivePageRow] = []
        self._ghost_rows: list[LivePageRow] = []
        self._ghosts: LiveGhostTokens | None = None
        """None: cancellations are not checked."""
        self._has_leak_mark = False
        self._marked_levels: set[str] = set()
        """The levels of the client verdict that have their mark."""
        self._client: tuple[str, float] | None = None
        """The level of the client verdict below OK, and since when."""
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
        live = LivePageTallies(
            control.run_progress,
            time.time(),
            clock=LoadClock(time.time, lambda: self.control is control and self._goes_on),
            generates=asked.generates,
            streams=asked.streaming,
        )
        self.control, self.live, self._ended = control, live, None
        self.refusal, self._name = "", control.folder.name
        self._phase = ""
        self._last_s = 0.0
        self._client = None
        self._marked_levels = set()
        self._stages, self._answers = [], []
        self._growth = LiveGrowth()
        self._growth_rows, self._ghost_rows = [], []
        self._ghosts = LiveGhostTokens() if asked.check_cancellations else None
        self._has_leak_mark = False
        self._marked_losses = 0
        self._marked_disruptions = 0
        self._rules = {str(rule): rule for rule in asked.rules.readable}
        self._begin_board(control)
        self._replicas = []
        self._status = (0.0, {})  # drops that of the last run
        self.target = control.settings.prefill_concurrency
        self._changed_rate = None
        self._ramps = 1 < (self.target or 0) <= MAX_CHANGE_MARKS and not asked.staged
        self._limit = None
        live.gated = self.target is not None
        live.has_waits = live.gated or asked.open_loop
        self.runs += 1
        self.archive.add(control.folder)
        spawn_critical(control.fail, 0.0, self._look, control, live)

    def on_record(self, record: Record) -> None:
        """Count an ended request of the present run."""
        if self.control is not None and self.live is not None:
            self.live.add(record)
            self._board.add(record)
            if self._ghosts is not None:
                self._ghosts.add(record)

    def ends(self) -> None:
        """The report of the run is made, or could not be."""
        self.keep_changed_load()
        control, self.control = self.control, None
        self._status = (0.0, {})
        if control is not None:
            self._ended = control.store.result

    def keep_changed_load(self) -> None:
        """The form of the next run has the limit and the rate of the last change, as it has the
        users. During the run the options keep those of the start: a form that still shows them
        changes nothing."""
        if self.control is None:
            return
        options, asked = self.environment.parsed_options, self.control.settings
        if self.target != asked.prefill_concurrency:
            setattr(options, LIMIT_FIELD, self.target)
        if self._changed_rate is not None:
            setattr(options, RATE_FIELD, self._changed_rate)

    def change_limit(self, limit: int | None, ramp_s: float | None = None) -> str:
        """Change the gate of the present run. Returns a sentence. Raises ValueError of one
        sentence."""
        if self.control is None or self.live is None:
            raise ValueError("no run is active: start a run first")
        before = self.control.limit
        done = self.control.by_hand.change_limit(limit, ramp_s)
        self.live.gated = self.live.gated or limit is not None
        self.live.has_waits = self.live.has_waits or self.live.gated
        self.target = limit
        self._ramps = False
        from_, to = ("none" if value is None else str(value) for value in (before, limit))
        over = "" if ramp_s is None else f" over {ramp_s:g} s"
        self.live.mark(
            name_gate_change(limit, over_s=ramp_s or 0.0),
            "gate",
            f"the prefill limit went from {from_} to {to}{over}",
        )
        self.settled()
        return done

    def change_users(self, users: int) -> bool:
        """Change the users of the present run. False: their number follows from the load. Raises
        ValueError of one sentence."""
        assert self.control is not None
        before = self._users
        if not self.control.by_hand.change_users(users):
            return False
        if self.live is not None:
            self.live.mark(
                name_users_change(users), "users", f"the users went from {before} to {users}"
            )
        return True

    def change_rate(self, per_s: float) -> str:
        """Change the request rate of the present run. Returns a sentence. Raises ValueError of one
        sentence."""
        if self.control is None or self.live is None:
            raise ValueError("no run is active: start a run first")
        before = self.control.by_hand.rate
        done = self.control.by_hand.change_rate(per_s)
        self._changed_rate = per_s
        self.live.mark(
            name_rate_change(per_s), "rate", f"the request rate went from {before:g} to {per_s:g}/s"
        )
        self.settled()
        return done

    def settled(self) -> None:
        """A change is made: no page shows an earlier refusal any more."""
        self.refusal, self._status = "", (0.0, {})

    def _look(self, control: Controller, live: LivePageTallies) -> None:
        while self.control is control:
            for _ in range(LOOKS):
                gevent.sleep(INTERVAL_S / LOOKS)
                if self._goes_on:
                    self._last_s = live.seconds
            self._phase = _phase(control) or self._phase
            if self._goes_on:
                server: tuple[tuple[float | None, ...] | None, ...] = ()
                if (poller := control.store.poller) is not None:
                    self._replicas = server_chart_list.list_line_names(
                        poller.history, self._replicas
                    )
                    server = server_chart_list.read_current_values(poller.history, self._replicas)
                self._mark_ramp(control, live)
                live.tick(self._users, control.limit, self._phase, server)
                self._watch(control, live)

    def _mark_ramp(self, control: Controller, live: LivePageTallies) -> None:
        """A mark for each step of the run's own ramp, as in the report."""
        before, self._limit = self._limit, control.limit
        if self._ramps and None not in (before, self._limit) and before != self._limit:
            live.mark(
                name_gate_change(self._limit),
                "gate",
                f"the prefill limit went from {before} to {self._limit}",
            )

    def _watch(self, control: Controller, live: LivePageTallies) -> None:
        """Look for what goes wrong."""
        now, stats = live.seconds, live.stats
        live.silence.look(now, stats.used + stats.decoding, stats.silent_s())
        for loss in control.losses.lost_workers[self._marked_losses :]:
            self._marked_losses += 1
            live.mark_at(loss.at - live.started_at, f"worker {loss.number} lost", "trouble")
        for disruption in control.store.disruptions[self._marked_disruptions :]:
            self._marked_disruptions += 1
            name = name_disruption(self._marked_disruptions)
            at = disruption.began_at - live.started_at
            live.mark_at(at, name, "disruption", f"{name} began")
        if self._ghosts is not None and control.store.poller is not None:
            self._ghosts.look(time.time(), control.store.poller.history)
        tally = control.store.answer_tally
        if tally is not None and tally.first_leak_s is not None and not self._has_leak_mark:
            self._has_leak_mark = True
            live.mark_at(tally.first_leak_s, "leak", "trouble")
        self._watch_client(live, now)
        stage = 0 if control.stages is None else control.stages.number
        if stage != self._board_stage:
            self._begin_board(control)
        self._look_at_rules(control, now)
        for card in self._board.newly_failing():
            live.mark_at(card.since or now, f"{card.name}: beyond the limit", "trouble")

    def _look_at_rules(self, control: Controller, now: float) -> None:
        self._board.look(now, control.abort.progress(), control.find_left())

    def _watch_client(self, live: LivePageTallies, now: float) -> None:
        verdict = live.stats.client()
        level = CLIENT_OK if verdict is None else verdict.level
        before = self._client
        if level == CLIENT_OK:
            self._client = None
        elif before is None or before[0] != level:
            self._client = level, now if before is None else before[1]
            if level not in self._marked_levels:
                self._marked_levels.add(level)
                live.mark_at(now, f"measurement {level}", "trouble")

    def _begin_board(self, control: Controller) -> None:
        stages = control.stages
        self._board_stage = 0 if stages is None else stages.number
        live_streams = self.live is not None and self.live.streams
        stats = control.run_progress if live_streams else None
        clock = LoadClock(time.monotonic, lambda: self._goes_on and not _pauses(control))
        where = " in this stage" if self._board_stage else ""
        self._board = RuleBoard(
            _present_rules(control),
            clock,
            stats,
            where,
            has_waits=lambda: self.live is not None and self.live.has_waits,
        )

    def _alerts(self) -> list[Alert]:
        """What goes wrong, the worst first."""
        control, live = self.control, self.live
        if live is None:
            return []
        if control is None:
            if self._ended is None and not self.starting:
                return [
                    Alert(
                        RUN_ENDS, BAD, "The report could not be created: see the log for the reason"
                    )
                ]
            return []
        now = live.seconds
        found = [live.failures_watch.alert(now), live.silence.alert(now)]
        if control.failure:
            found.append(Alert(RUN_ENDS, BAD, f"The run ends: {control.failure}"))
        tally = control.store.answer_tally
        if tally is not None and tally.first_leak_s is not None:
            isolation = tally.isolation
            found.append(
                describe_leak_alert(
                    isolation.all_leaks, tally.first_leak_s, has_evidence=bool(isolation.leaks)
                )
            )
        processes = control.processes()
        losses = control.losses.lost_workers
        of = len(processes) + len(losses)
        for process in processes if of > 1 else ():
            found.append(describe_silent_worker(process, of, now))
        found += [describe_lost_worker(loss, live.started_at) for loss in losses]
        since = None if self._client is None else self._client[1]
        found.append(describe_client(live.stats.client(), since))
        found += self._board.alerts(live.marks)
        if live.holes:
            found.append(describe_hole(*live.holes[-1]))
        return order_alerts(filter(None, found))

    @property
    def _goes_on(self) -> bool:
        return self.control is not None and self.control.store.load_goes_on

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
            "alerts": self._alerts(),
        }
        if live is None:
            return status
        if control is not None:
            self._limits = list(_limits(control))
            live.gated = live.gated or control.limit is not None
            live.has_waits = live.has_waits or live.gated
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
            "failures": live.failure_rows(),
            "holes": live.holes,
            "names": live.names(whole=state == OVER),
            "measure": "ttft_from_due" if live.has_waits else "ttft",
            "server_charts": {
                "names": self._replicas,
                "charts": [(chart.title, chart.unit) for chart in server_chart_list.CHARTS],
            },
        }
        status |= (
            self._so_far(live) if self._ended is None else _final(self._ended, live, self._rules)
        )
        if control is not None:
            self._stages = _stage_table(control, live)
            if control.store.answer_tally is not None:
                self._answers = control.store.answer_tally.list_rows()
            if control.soak is not None:
                self._growth_rows = self._growth.list_rows(control.soak.readings)
            if self._ghosts is not None:
                self._ghost_rows = list(self._ghosts.list_rows(control.store.started_at))
        status["stages"] = self._stages
        status["answers"] = self._answers
        status["growth"] = self._growth_rows
        status["ghosts"] = self._ghost_rows
        if control is not None:
            status |= {
                "users": self._users,
                "limit": control.limit,
                "target": self.target,
                "used": live.stats.used,
                "waiting": live.stats.waiting,
                "decoding": live.stats.decoding,
                "steers": {
                    "limit": not control.by_hand.sets_limits,
                    "users": not control.by_hand.users_follow_load,
                    "rate": control.by_hand.rate,
                },
                "processes": [
                    (process.number, process.users, process.cpu_share, round(process.silent_s, 1))
                    for process in control.processes()
                ],
                "progress": _progress(control),
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
        inside = control.run_progress.inside
        return (
            ENDING,
            f"{format_count(inside, 'request')} still running" if inside else "making the report",
        )

    def _so_far(self, live: LivePageTallies) -> Json:
        # the cards are of the moment of the charts' last point
        if self.control is not None and not live.points:
            self._look_at_rules(self.control, live.seconds)
        return {
            "table": live.table_of_point(),
            "client": live.stats.client(),
            "rules": self._board.cards(),
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
        for row in (*status["answers"], *status["growth"], *status["ghosts"]):
            yield {"figure": f"{row.label}: {row.value}"}


def _pauses(control: Controller) -> bool:
    """Whether a stage is over and the next one has not begun."""
    return control.plan.phase == BETWEEN and control.run_progress.inside == 0


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
    return name_stage_start(stages.asked.axis, stages.value)


def _parts(live: LivePageTallies, control: Controller | None) -> Json:
    """(part, name, ms) of the parts in the last seconds that took some time, and of a minute
    before. Single records do not show whether a user was free."""
    asked = None if control is None else control.settings
    may_lack_users = asked is not None and asked.open_loop and asked.users is not None
    names = {LATE: f"{NAMES[USER]}, or {NAMES[LATE]}"} if may_lack_users else {}
    survey = None if control is None else control.survey
    proxy = {PROXY} if survey is not None and (survey.proxy or survey.gateway) else set()
    count, means_s = live.stats.parts.recent()
    count_before, means_before_s = live.parts_before()
    return {
        "count": count,
        "seconds": PARTS_S,
        "parts": _list_parts(means_s, names, proxy),
        "before": _list_parts(means_before_s, names, proxy) if count_before else [],
    }


def _list_parts(
    means_s: Mapping[str, float], names: Mapping[str, str], proxy: set[str]
) -> list[tuple[str, str, float]]:
    """``proxy`` has PROXY where one is in front of the server."""
    shown = {name: s for name, s in means_s.items() if s >= LEAST_PART_S}
    known = {name for name, s in means_s.items() if s > 0} | proxy
    return [
        (name, names.get(name) or name_latency_part(name, known), round(s * 1e3, 2))
        for name, s in shown.items()
    ]


def _present_rules(control: Controller) -> Iterator[Rule]:
    """The rules for the present load."""
    stages = control.stages
    for rule in control.settings.rules.readable:
        if stages is None or not stages.number or rule.at(stages.value, stages.asked.axis):
            yield rule


def _progress(control: Controller) -> Json:
    """How far the run is. ``segments``: (name, planned seconds; None: not known, seconds so far)
    of what is over and what is to come; ``share``: of a phase that ends with a number of
    requests."""
    settings, phase, elapsed_s = control.settings, control.plan.phase, control.phase_s
    warmup_s, measured_s = settings.warmup_duration, settings.longest_s
    if control.stages is not None:
        measured_s = settings.run_time_s
    if control.draining:
        grace = ("grace", settings.stop_timeout_s, elapsed_s)
        return {"segments": [grace], "share": None, "phase": "grace"}
    segments = []
    if settings.warms_up:
        done_s = elapsed_s if phase == WARMUP else warmup_s or 0.0
        segments.append(("warmup", warmup_s, done_s))
    measured_so_far_s = 0.0 if phase == WARMUP else elapsed_s
    segments.append(("measured", measured_s, measured_so_far_s))
    planned = settings.warmup_request_count if phase == WARMUP else settings.request_count
    share = None
    if planned and control.stages is None:
        counts = control.run_progress.count_phase(WARMUP if phase == WARMUP else PROFILING)
        share = min(1.0, sum(counts) / planned)
    return {"segments": segments, "share": share, "phase": phase}


def _stage_table(control: Controller, live: LivePageTallies) -> list[Json]:
    """The stages of a sweep, the present one last. An ended stage has the figures of its report
    where that is made."""
    stages = control.stages
    if stages is None or control.settings.compares:
        return []
    ended = {stage.number: stage for stage in stages.finished}
    return [
        _stage_row(row, ended.get(row.number), stages.results.get(row.number), stages)
        for row in live.stage_rows()
    ]


def _stage_row(
    row: StageRow, ended: Stage | None, result: ReportResult | None, stages: StageRunner
) -> Json:
    seconds = row.seconds
    value = stages.value
    if ended is not None:
        value = ended.value
        if ended.measured_at is not None:
            seconds = ended.ended_at - ended.measured_at
    per_s = 1 / seconds if seconds > 0 else 0.0
    shown: Json = {
        "number": row.number,
        "axis": stages.asked.axis,
        "value": value,
        "running": ended is None,
        "ok": row.ok,
        "failed": row.failed,
        "requests_per_s": row.ok * per_s,
        "tokens_per_s": row.tokens * per_s,
        "ttft_ms": row.ttft_ms,
        "itl_ms": row.itl_ms,
        "latency_ms": row.latency_ms,
        "counts": row.counts,
        "slo": "",
    }
    if result is not None:
        shown["slo"] = result.slo_status or ""
        for name, tag in RATES.items():
            if tag in result.figures:
                shown[name] = result.figures[tag].avg
    return shown


def _limits(control: Controller) -> Iterator[tuple[str, float, str]]:
    """(measure, limit in the chart's unit, text) of the rules for the present load."""
    asked = control.settings
    drawn = DRAWN if asked.generates and asked.streaming else DRAWN_WHOLE
    for rule in _present_rules(control):
        if rule.metric in drawn and not rule.base:
            yield rule.metric, rule.limit * drawn[rule.metric], str(rule)


def _final(result: ReportResult, live: LivePageTallies, rules: Mapping[str, Rule]) -> Json:
    cards = [
        make_final_card(rules.get(one.rule), one.rule, one.status, one.observed, one.reason)
        for one in result.rules
    ]
    status = {
        "client": result.client,
        "rules": cards,
        "slo": result.slo_status,
        "headline": result.headline,
    }
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
        label,
        0,
        None,
        figure.count or 0,
        known if len(known) == len(PERCENTILES) else None,
        inexact=figure.inexact,
    )

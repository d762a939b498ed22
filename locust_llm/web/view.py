"""View: how the run that is on, or was the last, looks to whoever opens a page; as plain data, without Flask."""

import time
from collections.abc import Iterator
from typing import Any, Final

from locust.env import Environment

import gevent

from locust_llm.core.phases import BETWEEN, WARMUP
from locust_llm.core.record import Record
from locust_llm.run.control.control import Control
from locust_llm.run.control.progress import where
from locust_llm.slo import grammar as slo

from .archive import Archive, Ended, ended
from .live import QUANTILES, SHOWN, Latencies, Live

EVERY_S: Final = 1.0
"""How often the live figures look."""
RATES: Final = {"tokens_per_s": "output_token_throughput", "requests_per_s": "request_throughput"}
"""Of the report, by the names they have here."""
NONE, STARTING, ON, ENDING, OVER = "none", "starting", "on", "ending", "over"

Json = dict[str, Any]


class View:
    """One a process, for all its runs."""

    def __init__(self, environment: Environment, archive: Archive) -> None:
        self.environment = environment
        self.archive = archive
        self.control: Control | None = None
        """Of the run that is on, until its report is there."""
        self.live: Live | None = None
        self.runs = 0
        """How many there have been."""
        self.starting = False
        """The server is being asked."""
        self.refusal = ""
        """Why the last one could not start."""
        self.target: int | None = None
        """Where the limit of the gate goes, or is."""
        self._name = ""
        self._phase, self._since = "", 0.0
        """Of the run, and when it began (monotonic seconds)."""
        self._ended: tuple[Ended, list[Latencies], Json] | None = None
        """What the last run came to: its facts, its table, its throughput."""
        self._status: tuple[float, Json] = (0.0, {})

    # -- the run ---------------------------------------------------------------------------------------------------------

    def begins(self, control: Control) -> None:
        live = Live(control.pulse, time.time())
        self.control, self.live, self._ended = control, live, None
        self.refusal, self._name, self._phase = "", control.folder.name, ""
        self._status = (0.0, {})  # of before the run
        self.target = control.settings.prefill_concurrency
        self.runs += 1
        self.archive.add(control.folder)
        gevent.spawn(self._look, control, live)

    def on_record(self, record: Record) -> None:
        """A request of the run that is on is over."""
        if self.control is not None and self.live is not None:
            self.live.add(record)

    def ends(self) -> None:
        """Its reports are there, as far as they could be made."""
        control, self.control = self.control, None
        self._status = (0.0, {})
        if control is None:
            return
        try:
            facts, figures = ended(control.folder)
        except (OSError, ValueError):
            return
        rows = [_exact(label, figures.get(tag, {})) for tag, label in SHOWN.items()]
        self._ended = facts, rows, {name: figures.get(tag, {}).get("avg") for name, tag in RATES.items()}

    def change_limit(self, limit: int | None, ramp_s: float | None = None) -> str:
        """The gate of the run that is on; what was done. Raises ValueError of one sentence."""
        if self.control is None or self.live is None:
            raise ValueError("there is no run whose gate could be turned: start one first")
        done = self.control.change_limit(limit, ramp_s)
        self.target, self.refusal = limit, ""
        self.live.mark("no gate" if limit is None else f"gate {limit}")
        self._status = (0.0, {})
        return done

    def _look(self, control: Control, live: Live) -> None:
        while self.control is control:
            gevent.sleep(EVERY_S)
            phase = _phase(control) or self._phase
            if phase != self._phase:
                self._phase, self._since = phase, time.monotonic()
            if not control.draining or control.pulse.inside:
                live.tick(self._users, control.limit, phase)

    @property
    def _users(self) -> int:
        runner = self.environment.runner
        return 0 if runner is None else int(runner.user_count)

    # -- what is to be seen ----------------------------------------------------------------------------------------------

    def status(self) -> Json:
        """How it stands, but for its history. Made at most twice a second, however many look."""
        made, status = self._status
        if time.monotonic() - made > EVERY_S / 2:
            status = self._make_status()
            self._status = time.monotonic(), status
        return status

    def _make_status(self) -> Json:
        control, live = self.control, self.live
        state, text = self._state()
        status: Json = {"run": self.runs, "name": self._name, "state": state, "where": text, "refusal": self.refusal}
        if live is None:
            return status
        status |= {
            "seconds": live.seconds if control is not None else live.points[-1].at if live.points else 0.0,
            "step": live.step,
            "marks": live.marks,
            "classes": live.classes,
            "done": live.pulse.done,
            "failed": live.pulse.failed,
            "failures": live.failures(),
        }
        status |= self._so_far(live) if self._ended is None else _at_last(*self._ended)
        if control is not None:
            status |= {
                "model": control.survey.model,
                "server": control.settings.host,
                "simulated": control.survey.simulated,
                "users": self._users,
                "limit": control.limit,
                "target": self.target,
                "used": live.pulse.used,
                "waiting": live.pulse.waiting,
                "decoding": live.pulse.decoding,
            }
        return status

    def _state(self) -> tuple[str, str]:
        """(its name, in words)."""
        control = self.control
        if self.starting:
            return STARTING, "asking the server"
        if control is None:
            return (OVER, "ended") if self.live is not None else (NONE, "no run yet")
        if not control.draining:
            return ON, where(control, time.monotonic() - self._since)
        inside = control.pulse.inside
        return ENDING, f"{inside} requests are still on" if inside else "the report is being made"

    def _so_far(self, live: Live) -> Json:
        rules = [] if self.control is None else list(_standing(self.control))
        return {
            "table": live.table(),
            "client": live.pulse.client(),
            "rules": rules,
            "slo": None,
            "tokens_per_s": round(live.pulse.tokens_per_s(), 1),
        }

    def rows(self) -> Iterator[dict[str, str]]:
        """Of the tab in Locust's page: one table, in which what is no latency is a line of text."""
        status = self.status()
        yield {"figure": status["refusal"] or ": ".join(filter(None, (status["name"], status["where"])))}
        if self.live is None:
            return
        for row in status["table"]:
            cells = {"figure": row.label, "count": f"{row.whole_count:,}"}
            for name, values in (("recent", row.recent_ms), ("whole", row.whole_ms)):
                for quantile, value in zip(QUANTILES, values or (), strict=False):
                    cells[f"{name}{quantile * 100:g}"] = f"{value:,.1f}"
            yield cells
        if self.control is not None:
            limit = status["limit"]
            gate = "no gate" if limit is None else f"gate {status['used']} of {limit}, {status['waiting']} waiting"
            yield {"figure": f"{status['tokens_per_s']:,.0f} tokens/s; {gate}; {status['decoding']} decoding"}
        if (client := status["client"]) is not None:
            yield {"figure": f"client verdict: {client.level}"}
        for rule, state, said in status["rules"]:
            yield {"figure": f"{rule}: {state}{f' ({said})' if said else ''}"}


def _phase(control: Control) -> str:
    """As a mark over time; empty between two stages."""
    if control.draining:
        return "stop"
    if control.plan.phase == BETWEEN:
        return ""
    stages = control.stages
    if stages is None or control.plan.phase == WARMUP or not stages.number:
        return control.plan.phase
    return f"{stages.asked.axis} {stages.value:g}"


def _standing(control: Control) -> Iterator[tuple[str, str, str]]:
    """(rule, how it stands so far, by what)."""
    s, states = control.settings, control.abort.states()
    for text in slo.texts(s.slo, s.slo_preset):
        rule = str(slo.ready(text, s.goodput))
        yield rule, *states.get(rule, ("told at the end", ""))


def _at_last(facts: Ended, rows: list[Latencies], rates: Json) -> Json:
    rules = []
    for rule in facts.slos:
        observed = "" if rule.observed is None else f"{rule.observed:.4g} {rule.unit}".strip()
        rules.append((rule.rule, rule.status, "; ".join(filter(None, (observed, rule.reason)))))
    said = {"client": facts.client, "rules": rules, "slo": facts.slo_status}
    if (sweep := facts.sweep) is None:
        return {**said, "table": rows, **rates}
    # its stages were sent different loads: of all of them together no latency means anything
    found = [sweep.ended and f"{sweep.ended}.".capitalize(), *(knee.text for knee in sweep.knees), *sweep.findings]
    return {**said, "table": [], "found": list(filter(None, found))}


def _exact(label: str, figure: Json) -> Latencies:
    """From the report."""
    values = [figure.get(f"p{quantile * 100:g}") for quantile in QUANTILES]
    known = [float(value) for value in values if isinstance(value, (int, float))]
    return Latencies(label, 0, None, int(figure.get("count") or 0), known if len(known) == len(values) else None)

"""Random runs: makes runs of known truth, and checks the statements of their reports against it.

``random_run(seed)`` makes the records that a load test of a made server would leave: a gate, a
schedule or users, processes, failures, busy event loops, a warmup; the server may report its times
for single requests, in histograms, or not at all; a proxy may send whole answers. ``reported(made,
folder)`` builds the report as the product does. A check looks at all texts of a report and yields what is wrong with them; a new
one is a function with ``@check``. It may look for two statements that contradict each other, or for
one that contradicts the records or the server's counters, which it must work out by itself.
"""

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import unescape
from itertools import chain, pairwise, takewhile
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import numpy as np

from locust_llm.records.buffering import BufferingByArm
from locust_llm.records.outcomes import CANCELLED, CUT, OK, RETRIED
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import (
    BUFFERED,
    RECORDS,
    TOGETHER_UNEXPLAINED,
    LimitChange,
    OpenLoopSchedule,
    Run,
)
from locust_llm.records.server_metrics_history import SERVER_METRICS
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.records.server_times import METRICS, TIMINGS, ServerTimes
from locust_llm.records.spans.span_times import FILE as SPANS_FILE
from locust_llm.records.spans.span_times import SpanLine
from locust_llm.report import console_summary, write_report_files
from locust_llm.report.render import text_report
from locust_llm.report.sections.latency_breakdown import name_breakdown
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.summary_rows import Row
from locust_llm.settings.run_options import Settings

UNIX: Final = 1_700_000_000.0
WARMUP_S: Final = 5.0
REFUSED: Final = {
    "outcome": RETRIED, "status": 429, "error": "HTTP 429", "chunk_us": (), "merged": (),
    "first_output": None,
    "output_tokens": None, "input_tokens": None, "tokens_from": "", "finish_reason": None,
}  # fmt: skip
FAILED: Final = (
    ("unavailable", 503),
    ("reset", None),
    ("timeout", None),
    ("http_status", 500),
    ("truncated", 200),
)
RULES: Final = (
    "ttft p95 < 250ms", "ttft p50 < 100ms", "ttft_from_due p90 < 1s", "itl p95 < 12ms",
    "request_latency p95 < 2s",
    "error_rate < 2%", "output_tokens_per_s > 100", "warn: ttft p50 < 30ms",
)  # fmt: skip


@dataclass
class Made:
    """Holds a run and its truth."""

    seed: int
    run: Run
    records: list[Record] = field(default_factory=list)
    samples: list[EngineSample] = field(default_factory=list)
    spans: list[SpanLine] = field(default_factory=list)
    queue_s: dict[str, float] = field(default_factory=dict)
    prefill_s: dict[str, float] = field(default_factory=dict)
    gate_s: dict[str, float] = field(default_factory=dict)
    """Requests wait these times for a slot of the gate, and for nothing else."""
    told: int = 0
    """The server reported its times for this many answered requests of the profiling phase."""
    histograms: bool = False
    proxied: bool = False
    """A proxy sends each answer when it is complete."""
    decode_s: dict[str, float] = field(default_factory=dict)
    decode_told: bool = False
    """The server reports the decode of single requests, if it reports their times."""
    decode_counted: bool = False
    """It has a histogram of the decode, if it has histograms."""
    dead_at: float = float("inf")
    """The server died this many seconds after the start."""

    @property
    def profiling(self) -> list[Record]:
        return [
            record
            for record in self.records
            if record.phase == "profiling" and record.outcome != RETRIED
        ]

    @property
    def answered(self) -> list[Record]:
        return [record for record in self.profiling if record.outcome == OK]

    @property
    def gated(self) -> bool:
        return any(change.limit is not None for change in self.run.limits)


@dataclass(frozen=True)
class Report:
    """Holds all texts of a report."""

    made: Made
    run: Run
    summary: Summary
    console: str
    """The console of a run has this text, without the line breaks of the wrapping."""
    tables: str
    """The console has this text with --verbose."""
    markdown: str
    page: str
    """report.html has this text."""

    @property
    def texts(self) -> dict[str, str]:
        return {
            "console": self.console, "--verbose": self.tables, "summary.md": self.markdown,
            "report.html": self.page,
        }  # fmt: skip

    def table(self, head: str) -> list[list[str]]:
        """Returns the cells of the table in summary.md whose head begins with this word."""
        lines = self.markdown.splitlines()
        start = next(
            (i for i, line in enumerate(lines) if re.match(rf"\| {re.escape(head)}\s*\|", line)),
            None,
        )
        if start is None:
            return []
        found = list[list[str]]()
        for row in takewhile(lambda row: row.startswith("|"), lines[start + 2 :]):
            found.append(
                [
                    unescape(cell).replace("\\", "").strip()
                    for cell in re.split(r"(?<!\\)\|", row)[1:-1]
                ]
            )
        return found

    def row(self, tag: str) -> Row | None:
        return next((row for row in self.summary.rows if row.tag == tag), None)


# -- making ----------------------------------------------------------------------------------------


def random_run(seed: int) -> Made:
    random = Random(seed)
    open_loop = random.random() < 0.5
    gated = random.random() < 0.5
    users = random.randint(1, 12)
    rate = random.choice((2.0, 6.0, 15.0))
    seconds = random.choice((12.0, 30.0))
    slots = random.choice((1, 2, 16))
    a_s = random.uniform(0.001, 0.02)
    b_s = random.choice((1e-6, 2e-5, 1e-4))
    warmup_s = WARMUP_S if random.random() < 0.3 else 0.0
    limits = _limits(random) if gated else ()
    settings: dict[str, Any] = {
        "host": "http://server:8000", "model": "m", "run_time_s": seconds,
        "slo": tuple(random.sample(RULES, random.randint(0, 4))),
    } | ({"request_rate": rate} if open_loop else {"users": users})  # fmt: skip
    if gated:
        settings["prefill_concurrency"] = limits[-1].limit
    if warmup_s:
        settings["warmup_duration"] = warmup_s
    began = UNIX + warmup_s
    stops = UNIX + warmup_s + seconds
    workers = tuple(f"w{i}" for i in range(random.choice((1, 1, 2, 3))))
    made = Made(seed, Run(
        name=f"random-{seed}", settings=Settings(**settings), started_at=UNIX, profiling_at=began,
        stopping_at=stops,
        workers=workers, limits=limits, model="m", simulated=False,
    ))  # fmt: skip
    server = _Server(random, slots, a_s, b_s)
    failing = random.choice((0.0, 0.0, 0.05, 1.0 if seed % 40 == 7 else 0.3))
    busy = random.random() < 0.3
    uncounted, merging, retrying, whole = (random.random() < 0.15 for _ in range(4))
    due_at, free = _arrivals(random, open_loop, rate, users, warmup_s + seconds)
    held: list[float] = []
    last_admitted = 0.0
    made.dead_at = dead_at = _death(seed, warmup_s, seconds)
    proxy = _put_proxy(made)
    number = 0
    while due_at or free:
        due = heapq.heappop(due_at) if open_loop else heapq.heappop(free)
        if due >= warmup_s + seconds:
            break
        number += 1
        worker = workers[number % len(workers)]
        asked = due + (random.choice((0.0, 0.0, 0.15)) if busy and not gated else 0.0)
        admitted, limit = asked, None
        if gated:
            # first come, first served
            admitted, limit = _admission(max(asked, last_admitted), held, limits)
            last_admitted = admitted
        lag = random.choice((0.0, 0.08)) if busy and not gated else 0.0
        sent = admitted + lag + random.uniform(0, 0.0005)
        id_ = f"r-{seed}-{number}"
        tokens = random.choice((20, 300, 4000))
        outcome, status = random.choice(FAILED) if random.random() < failing else (OK, 200)
        if sent >= dead_at:
            outcome, status = "refused", None
        queue_s, prefill_s = server.prefill(sent, tokens)
        first = sent + queue_s + prefill_s + server.way_s
        fields: dict[str, Any] = {
            "id": id_, "worker": worker, "name": random.choice(("chat", "chat", "rag")),
            "model": "m",
            "phase": "warmup" if due < warmup_s else "profiling", "clock_offset_s": UNIX,
            "due_at": due, "asked_at": asked,
            "admitted_at": admitted + lag, "sent_at": sent, "written_us": 50, "status": status,
            "limit": limit,
            "rtt_us": round(server.way_s * 1e6), "input_tokens": tokens,
            "asked_input_tokens": tokens,
            "tokens_from": "usage", "reads": 1,
        }  # fmt: skip
        if outcome == OK:
            answer, last_us = _answer(
                random, first - sent, merging=merging, uncounted=uncounted, whole=whole
            )
            closed = sent + last_us / 1e6
            made.decode_s[id_] = closed - first if answer["chunk_us"] else 0.0
            first = _gather_chunks(made, answer, first, closed)
            fields |= answer
        else:
            closed = sent + (0.001 if sent >= dead_at else random.uniform(0.001, 2.0))
            fields |= {"message": f"it {outcome}", "input_tokens": None, "tokens_from": ""}
        if sent < dead_at < closed:  # it dies in the middle
            outcome, closed = "closed", dead_at
            fields |= _answer_until(closed - sent, fields)
            fields["status"] = 200 if fields["chunk_us"] else None
        if closed > warmup_s + seconds + 3.0:  # the grace period
            outcome = CUT
            closed = warmup_s + seconds + 3.0
            fields |= _answer_until(closed - sent, fields)
            closed = max(closed, sent)
        if random.random() < 0.01 and outcome == OK and closed < dead_at:
            outcome = CANCELLED
        fields |= {"outcome": outcome, "closed_at": closed}
        freed = min(closed, first) if fields.get("chunk_us") else closed
        heapq.heappush(held, freed)
        fields["freed_at"] = freed
        made.queue_s[id_], made.prefill_s[id_] = queue_s, prefill_s
        made.gate_s[id_] = admitted - asked if gated else 0.0
        fields["error"] = fields.pop("message", "")
        if len(fields.get("chunk_us", ())) < 2:
            fields.pop("merged", None)
        if retrying and not gated and random.random() < 0.1:
            made.records.append(Record(**fields | REFUSED | {"closed_at": sent + 0.001}))
            fields |= {"id": f"{id_}.2", "attempt": 2}
            made.decode_s.setdefault(id_, 0.0)
            for truth in (made.queue_s, made.prefill_s, made.gate_s, made.decode_s):
                truth[f"{id_}.2"] = truth[id_]
        made.records.append(Record(**fields))
        if not open_loop:
            heapq.heappush(free, closed + (1e-4 if outcome == OK else 0.1))
    _report_times(random, made)
    made.run = msgspec.structs.replace(made.run, proxy=proxy)
    _read_metrics(random, made, warmup_s + seconds)
    sent = [record for record in made.records if record.phase == "profiling"]
    offer = (
        OpenLoopSchedule(due=len(sent), never_started=0, duration_s=seconds, most_users=users)
        if open_loop
        else None
    )
    ended = max((record.closed_at for record in made.records), default=0.0) + UNIX
    made.run = msgspec.structs.replace(made.run, offer=offer, ended_at=max(ended, stops))
    made.records.sort(key=lambda record: record.closed_at)
    made.run = msgspec.structs.replace(made.run, notes=_note_buffer(made))
    return made


def _put_proxy(made: Made) -> str:
    """Puts a proxy that sends whole answers before the server of some runs. Returns its name, where
    it is known. It draws from its own random numbers."""
    random = Random(f"proxy of {made.seed}")
    made.proxied = random.random() < 0.2
    made.decode_told = made.proxied and random.random() < 0.6
    made.decode_counted = made.proxied and random.random() < 0.6
    return "nginx/1.24.0" if made.proxied and random.random() < 0.5 else ""


def _gather_chunks(made: Made, answer: dict[str, Any], first: float, last: float) -> float:
    """Has all chunks arrive with the last one, where there is a proxy. Returns when the first one
    arrives."""
    count, us = len(answer["chunk_us"]), max(answer["chunk_us"], default=0)
    if not (made.proxied and count):
        return first
    merged = tuple((index, us - 100) for index in range(count))
    answer |= {"chunk_us": (us,) * count, "merged": merged, "read_lag_us": 10}
    return last


def _note_buffer(made: Made) -> tuple[str, ...]:
    """Returns what the end of the run says of gathered chunks, with or without a free core."""
    buffering = BufferingByArm(made.run.settings)
    for record in made.records:
        buffering.add(record)
    shortage = Random(f"cores of {made.seed}").choice((None, "", "The cores were busy"))
    return tuple(buffering.remarks(shortage))


def _answer(
    random: Random, ttft_s: float, *, merging: bool, uncounted: bool, whole: bool
) -> tuple[dict[str, Any], int]:
    """Returns (fields of the record of a whole answer, µs from its send to its last chunk)."""
    count = random.choice((1, 5, 40))
    gaps = [random.uniform(0.004, 0.015) for _ in range(count - 1)]
    us = [round(ttft_s * 1e6)]
    for gap in gaps:
        us.append(us[-1] + round(gap * 1e6))
    fields: dict[str, Any] = {
        "chunk_us": tuple(us), "first_output": 0, "output_tokens": count, "finish_reason": "stop",
    }  # fmt: skip
    if merging and count > 1 and random.random() < 0.2:  # the first two in one read
        fields |= {"chunk_us": (us[1], *us[1:]), "merged": ((0, us[0]), (1, us[0]))}
    if uncounted and random.random() < 0.5:
        fields |= {"tokens_from": "chunks", "input_tokens": None}
    if whole and random.random() < 0.3:
        fields |= {"chunk_us": (), "merged": (), "first_output": None, "streamed": False}
    return fields, us[-1]


def _answer_until(seconds: float, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of an answer until a time after its send, before it is whole."""
    seen = tuple(us for us in fields.get("chunk_us", ()) if us / 1e6 <= seconds)
    return {
        "chunk_us": seen,
        "first_output": 0 if seen else None,
        "output_tokens": None,
        "tokens_from": "",
    }


def _death(seed: int, warmup_s: float, seconds: float) -> float:
    """Returns when the server dies in a few of the runs. It draws from its own random numbers."""
    random = Random(f"death of {seed}")
    return warmup_s + random.uniform(0.3, 0.8) * seconds if random.random() < 0.15 else float("inf")


def _limits(random: Random) -> tuple[LimitChange, ...]:
    most = random.choice((1, 2, 4, 50))
    if most > 1 and random.random() < 0.3:
        return tuple(LimitChange(UNIX + 2.0 * i, i + 1) for i in range(min(most, 4)))
    return (LimitChange(UNIX, most),)


def _arrivals(
    random: Random, open_loop: bool, rate: float, users: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Returns due times of an open loop, or when the users of a closed one are free at first."""
    if not open_loop:
        return [], [0.001 * i for i in range(users)]
    at = 0.0
    due = list[float]()
    while at < seconds:
        at += random.expovariate(rate)
        due.append(at)
    return due, []


def _admission(asked: float, held: list[float], limits: Sequence[LimitChange]) -> tuple[float, int]:
    """Returns (when, at which limit). ``held`` has the times at which given slots are free
    again."""
    at = asked
    while True:
        limit = next(change.limit for change in reversed(limits) if change.at <= UNIX + at + 1e-9)
        assert limit is not None
        while held and held[0] <= at:
            heapq.heappop(held)
        if len(held) < limit:
            return at, limit
        raised = [change.at - UNIX for change in limits if change.at > UNIX + at + 1e-9]
        at = min(held[0], *raised) if raised else held[0]


class _Server:
    """Prefills up to ``slots`` prompts at a time in the order of their arrival."""

    def __init__(self, random: Random, slots: int, a_s: float, b_s: float) -> None:
        self._free = [0.0] * slots
        self._a_s, self._b_s = a_s, b_s
        self.way_s = random.choice((0.0001, 0.02))

    def prefill(self, sent: float, tokens: int) -> tuple[float, float]:
        """Returns (queue, prefill)."""
        arrived = sent + self.way_s / 2
        begin = max(arrived, heapq.heappop(self._free))
        prefill_s = self._a_s + self._b_s * tokens
        heapq.heappush(self._free, begin + prefill_s)
        return begin - arrived, prefill_s


def _report_times(random: Random, made: Made) -> None:
    """Reports times of all requests, of some, or of none, and of both times or of one."""
    how = random.choice(("none", "none", "spans", "metrics", "timings", "some"))
    if how == "none":
        return
    for i, record in enumerate(made.records):
        if record.outcome != OK or (how == "some" and random.random() < 0.5):
            continue
        queue = round(made.queue_s[record.id] * 1e6)
        prefill = round(made.prefill_s[record.id] * 1e6)
        decode = round(made.decode_s[record.id] * 1e6) if made.decode_told else None
        made.told += record.phase == "profiling"
        if how in ("spans", "some"):
            made.spans.append(
                SpanLine(
                    id=record.id, source="spans", queue_us=queue, prefill_us=prefill,
                    decode_us=decode,
                )
            )  # fmt: skip
            continue
        times = (
            ServerTimes(source=TIMINGS, prefill_us=prefill, decode_us=decode)
            if how == "timings"
            else ServerTimes(source=METRICS, queue_us=queue, prefill_us=prefill, decode_us=decode)
        )
        made.records[i] = msgspec.structs.replace(record, server=times)


def _read_metrics(random: Random, made: Made, seconds: float) -> None:
    """Reads metrics each second, with counters of all requests that ended by then."""
    how = random.choice(("none", "all", "all", "no prefill"))
    if how == "none":
        return
    made.histograms = how == "all"
    ended = sorted(
        (record for record in made.records if record.outcome == OK),
        key=lambda record: record.closed_at,
    )
    others = 50 if random.random() < 0.15 else 0
    place, sums = 0, {"queue": 3.0, "prefill": 5.0, "ttft": 9.0, "count": 10.0, "decode": 7.0}
    last = max((record.closed_at for record in made.records), default=0.0)
    at = -0.5
    while True:
        while place < len(ended) and ended[place].closed_at <= at:
            record = ended[place]
            place = place + 1
            sums["queue"] += made.queue_s[record.id]
            sums["prefill"] += made.prefill_s[record.id]
            sums["ttft"] += made.queue_s[record.id] + made.prefill_s[record.id]
            sums["decode"] += made.decode_s[record.id]
            sums["count"] += 1
        if at > seconds / 2 and others:
            sums = {"queue": sums["queue"] + 50 * 0.3, "prefill": sums["prefill"] + 50 * 0.1,
                    "ttft": sums["ttft"] + 50 * 0.4, "count": sums["count"] + 50,
                    "decode": sums["decode"] + 50 * 0.2}  # fmt: skip
            others = 0
        more = (
            {"prefill_s": sums["prefill"], "prefill_count": sums["count"]} if how == "all" else {}
        )
        if made.decode_counted:
            more |= {"decode_s": sums["decode"], "decode_count": sums["count"]}
        made.samples.append(EngineSample(
            at=UNIX + at, engine="vLLM", running=1.0, waiting=0.0, kv_used=0.1, preemptions=0.0,
            queue_s=sums["queue"],
            queue_count=sums["count"], ttft_s=sums["ttft"], ttft_count=sums["count"], **more,
        ))  # fmt: skip
        if at > max(seconds, last):
            return
        at += 1.0


def reported(made: Made, folder: Path) -> Report:
    """Builds the report as a run does."""
    folder.mkdir(parents=True, exist_ok=True)
    encode = msgspec.json.encode
    (folder / RECORDS).write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in made.records)
    )
    (folder / SERVER_METRICS).write_bytes(
        b"".join(encode(sample) + b"\n" for sample in made.samples)
    )
    if made.spans:
        (folder / SPANS_FILE).write_bytes(b"".join(encode(one) + b"\n" for one in made.spans))
    summary = write_report_files.write_reports(folder, made.run)
    verbose = text_report.render_console(summary, made.run, folder)
    on_console = " ".join(console_summary.format_ending(summary, made.run, folder).split())
    page = (folder / "report.html").read_text()
    page = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", page, flags=re.S)
    page = unescape(re.sub(r"<[^>]+>", " ", page))
    return Report(
        made, made.run, summary, on_console, verbose, (folder / "summary.md").read_text(), page
    )


# -- checks ----------------------------------------------------------------------------------------

Check = Callable[[Report], Iterator[str]]
CHECKS: Final[list[Check]] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def complaints(report: Report) -> list[str]:
    wrong: list[str] = []
    for check in CHECKS:
        wrong += [f"{check.__name__}: {what}" for what in check(report)]
    return wrong


def ms_of(written: str) -> float:
    """Parses texts such as ``1.2 s`` and ``810 ms``."""
    number, unit = written.replace(",", "").split()
    return float(number) * (1e3 if unit == "s" else 1.0)


def near(written: float, true: float) -> bool:
    """Compares to three digits, or to 0.01."""
    return abs(written - true) <= 0.0051 * abs(true) + 0.0051


DURATION: Final = r"[\d.,]+ m?s"


@check
def counts_are_those_of_the_records(report: Report) -> Iterator[str]:
    made = report.made
    failed = sum(record.outcome not in (OK, CUT, CANCELLED) for record in made.profiling)
    true = {"succeeded": len(made.answered), "failed": failed,
            "cut": sum(r.outcome == CUT for r in made.profiling)}  # fmt: skip
    for name, pattern in (
        ("succeeded", r"(\d+) succeeded"),
        ("failed", r"succeeded, (\d+) failed"),
        ("cut", r"(\d+) cut,"),
    ):
        for where in ("--verbose", "summary.md"):
            for number in re.findall(pattern, report.texts[where]):
                if int(number) != true[name]:
                    yield f"{where}: {number} {name}, by the records {true[name]}"
    for number in re.findall(r"From (\d+) answered request", report.console):
        if int(number) != true["succeeded"]:
            yield f"console: {number} answered, by the records {true['succeeded']}"
    for number, of in re.findall(r"(\d+) of (\d+) requests failed", report.console):
        if (int(number), int(of)) != (failed, failed + true["succeeded"]):
            yield (
                f"headline: {number} of {of} failed, by the records {failed} of "
                f"{failed + true['succeeded']}"
            )


@check
def headline_figures_are_those_of_the_records(report: Report) -> Iterator[str]:
    """Checks headlines, also with rules. Percentiles of more than the answered requests carry a
    note in brackets."""
    found = re.finditer(
        rf"p(\d+) of (TTFT from due|TTFT|request latency) is ({DURATION}(?: for \w+(?:, {DURATION} "
        rf"for \w+)*)?)",
        report.console,
    )
    for one in found:
        for figure, _, name in re.findall(rf"({DURATION})( for (\w+))?", one[3]):
            those = [record for record in report.made.answered if name in ("", record.name)]
            true_ms = float(np.percentile(values_s(those, one[2]), int(one[1]))) * 1e3
            if not near(ms_of(figure), true_ms):
                yield f"p{one[1]} of {one[2]} {name} is {figure}, by the records {true_ms:.2f} ms"


def values_s(records: Sequence[Record], name: str) -> list[float]:
    values = {
        "TTFT": [record.ttft_s for record in records],
        "TTFT from due": [record.ttft_from_due_s for record in records],
        "request latency": [record.latency_s for record in records],
    }
    return [value for value in values[name] if value is not None]


@check
def what_users_waited_comes_first_where_requests_were_held(report: Report) -> Iterator[str]:
    """Checks headlines without rules."""
    due, sent = (
        re.search(rf"p\d+ of {name} is ", report.console) for name in ("TTFT from due", "TTFT")
    )
    held = report.made.gated or report.run.settings.open_loop
    if due is not None and not held and not report.run.settings.slo:
        yield "TTFT from due in the headline, and nothing held a request"
    if not held or report.run.settings.slo or not report.made.answered:
        return
    if due is None or (sent is not None and sent.start() < due.start()):
        yield "TTFT from due does not come first, though requests were held"


@check
def nothing_answered_when_the_report_has_that(report: Report) -> Iterator[str]:
    """Checks the first such time, which counts from the first send of the run, warmup included. No
    chunk lies in it, and a dead server is named as soon as several requests found it dead."""
    made = report.made
    chunks: list[float] = []
    for record in made.profiling:
        if record.sent_at:
            chunks += [record.sent_at + us / 1e6 for us in record.chunk_us]
    found = re.search(
        r"no request was answered from ([\d.]+) (?:s on|to ([\d.]+) s)", report.console
    )
    if found is not None:
        begin, end = (float(text or "inf") for text in found.groups())
        if within := [at for at in chunks if begin + 0.06 < at < end - 0.06]:
            yield (
                f"chunks came {within[0]:.2f} s after the start, where nothing "
                f"answered by the report"
            )
    refused = [record for record in made.profiling if record.outcome == "refused"]
    lasts_s = max((record.closed_at for record in made.profiling), default=0.0) - made.dead_at
    if made.answered and len(refused) >= 3 and lasts_s > 1.5 and " s on" not in report.console:
        yield (
            f"the server died {made.dead_at:.1f} s after the start, and the console "
            f"has nothing of it"
        )


@check
def parts_of_the_console_add_up(report: Report) -> Iterator[str]:
    """Checks that the rows of names have all requests, if there are few names. A console without
    space for them has none."""
    of_names = [breakdown for breakdown in report.summary.breakdowns if breakdown.of_names]
    groups = chain.from_iterable(breakdown.groups for breakdown in of_names)
    names = {group.label: group for group in groups}
    if names and sum(group.succeeded for group in names.values()) != len(report.made.answered):
        yield "the names together have other requests than the run"
    for label, group in names.items() if " name ok failed " in report.console else ():
        if f" {label} {group.succeeded} {group.failed} " not in report.console:
            yield f"the console has no row of {label}"


@check
def tables_agree_with_the_records(report: Report) -> Iterator[str]:
    """Checks TTFT, request latency, and the sum of output tokens."""
    answered = report.made.answered
    for tag, values in (
        ("time_to_first_token", [record.ttft_s for record in answered]),
        ("request_latency", [record.latency_s for record in answered]),
    ):
        row = report.row(tag)
        known = [value * 1e3 for value in values if value is not None]
        if row is None or not known:
            continue
        if row.count != len(known):
            yield f"{tag}: count {row.count}, by the records {len(known)}"
        for percentile, value in row.percentiles.items():
            if not near(value, float(np.percentile(known, percentile))):
                yield (
                    f"{tag} p{percentile:g} {value}, by the records "
                    f"{np.percentile(known, percentile)}"
                )


QUEUE_PART: Final = (
    rf"({DURATION}|%) the server's queue|\| the server's queue|the server's queue {DURATION}"
)


@check
def no_part_exists_that_the_run_did_not_have(report: Report) -> Iterator[str]:
    """Checks for parts of a gate without a gate, for an unreported queue, and for waits at a gate
    that the event loop caused."""
    made = report.made
    for where, said in report.texts.items():
        if not made.gated and re.search(
            r"(\bms|%|\||\bs) waiting for a prefill slot|^waiting for a prefill slot ", said, re.M
        ):
            yield f"{where}: a part is the gate's in a run without one"
        if made.told < 0.9 * len(made.answered) and re.search(QUEUE_PART, said):
            yield (
                f"{where}: the server's queue has a part, and the server reported {made.told} of "
                f"{len(made.answered)}"
            )
        if re.search(r"\(estimated\)|all estimated|others' work|its own prefill", said):
            yield f"{where}: an estimate"


@check
def shares_add_up(report: Report) -> Iterator[str]:
    for shares in re.findall(r"p\d+: ((?:\d+% [^,.;]+(?:, )?)+)\.", report.console):
        whole = sum(int(share) for share in re.findall(r"(\d+)% ", shares))
        if not 75 <= whole <= 103:
            yield f"the shares add up to {whole}%: {shares}"


@check
def parts_are_those_of_the_records(report: Report) -> Iterator[str]:
    """Checks the column of all requests, for the parts from due to the first token."""
    found, made = report.summary.waterfall, report.made
    if found is None:
        return
    streamed = [record for record in made.answered if record.chunk_us]
    totals = [
        (record.sent_at or 0) + record.chunk_us[0] / 1e6 - record.due_at for record in streamed
    ]
    retried = any(record.attempt > 1 for record in made.records)
    for one in found.breakdowns:
        if one.metric != "ttft_from_due" or one.where:
            continue
        all_ms = {part.name: part.all_ms for part in one.parts}
        mean_ms = {part.name: part.slow_ms for part in one.parts}
        slow = sorted(totals)[-one.slow :]
        if slow and not near(sum(mean_ms.values()), float(np.mean(slow)) * 1e3):
            yield (
                f"the parts of slow requests add up to {sum(mean_ms.values())} ms, by the "
                f"records {np.mean(slow) * 1e3}"
            )
        gate_ms = float(np.mean([made.gate_s[record.id] for record in streamed])) * 1e3
        if (
            not retried
            and len(made.run.workers) == 1
            and abs(all_ms.get("gate", 0.0) - gate_ms) > 0.01 + 0.001 * gate_ms
        ):
            yield f"the gate's mean is {all_ms.get('gate', 0.0)} ms, and was {gate_ms}"
        for name, true_s in (("queue", made.queue_s), ("prefill", made.prefill_s)):
            if name in all_ms and made.told == len(made.answered):
                true_ms = float(np.mean([true_s[record.id] for record in streamed])) * 1e3
                if abs(all_ms[name] - true_ms) > 0.01 + 0.001 * true_ms:
                    yield f"the mean {name} is {all_ms[name]} ms, and was {true_ms}"


DECODE_PART: Final = "decode before the first chunk"
WITH_DECODE: Final = "(with decode)"


@check
def decode_before_the_first_chunk_is_nobody_elses_time(report: Report) -> Iterator[str]:
    """Behind a proxy that sends whole answers the decode is neither the server's queue nor its
    front end, nor outside its measurement. Without such a proxy there is none of it."""
    made, found = report.made, report.summary.waterfall
    if not made.proxied:
        for where, said in report.texts.items():
            if DECODE_PART in said or WITH_DECODE in said:
                yield f"{where}: decode before a first chunk that came as it was made"
    if not made.proxied or found is None:
        return
    streamed = [record for record in made.answered if record.chunk_us]
    decode_ms = float(np.mean([made.decode_s[record.id] for record in streamed])) * 1e3
    told = made.told == len(made.answered) and made.decode_told
    for one in found.breakdowns[:1]:
        all_ms = {part.name: part.all_ms for part in one.parts}
        if one.metric not in ("ttft_from_due", "ttft") or one.where or not told or found.impossible:
            continue
        if abs(all_ms.get("held", 0.0) - decode_ms) > 0.01 + 0.001 * decode_ms:
            yield f"the decode before the first chunk is {all_ms}, and was {decode_ms} ms"
        if "with_decode" in all_ms:
            yield f"a part has a decode of unknown length, which the server reported: {all_ms}"
        whole_ms = sum(part.slow_ms for part in one.parts)
        held_ms = sum(part.slow_ms for part in one.parts if part.name == "held")
        summed_up = f"{name_breakdown(one)}: " in report.console
        if summed_up and held_ms > 0.06 * whole_ms and DECODE_PART not in report.console:
            yield f"the console lacks the decode, {held_ms} of {whole_ms} ms"
    way_ms = max(((record.rtt_us or 0) / 1e3 for record in streamed), default=0.0)
    for where, said in report.texts.items():
        for outside in re.findall(rf"({DURATION}) outside the server's measurement", said):
            if made.decode_counted and ms_of(outside) > 1.1 * way_ms + 1.0:
                yield f"{where}: {outside} are outside of the server's measurement, of {way_ms} ms"


@check
def gathered_chunks_have_one_cause(report: Report) -> Iterator[str]:
    """The note at the end, the first line and the verdict of the page agree on it."""
    notes = report.run.notes
    causes = {
        "uffered on the way": any(note.startswith(BUFFERED) for note in notes),
        "buffer or too little CPU gathered": any(
            note.startswith(TOGETHER_UNEXPLAINED) for note in notes
        ),
    }
    judged = report.summary.slo_status in ("PASS", "FAIL") or not report.made.answered
    for words, is_cause in causes.items():
        for where in ("console", "report.html"):
            if words in report.texts[where] and not is_cause:
                yield f"{where}: {words}, and no note has it"
        if is_cause and not judged and words not in report.console:
            yield f"the console lacks {words}"


@check
def queue_or_prefill_has_one_answer_and_it_is_the_servers(report: Report) -> Iterator[str]:
    """Checks it against the difference of the server's counters. It must not stand beside parts of
    single requests."""
    answers = {
        where: re.findall(r"Queue or prefill\? (\w+), (\d+)% on.*?of ([\d.,]+ m?s) to a first token "
            r"([\d.,]+ m?s) are queue, "
                          r"([\d.,]+ m?s) prefill.*?means of (\d+)(?: of \d+)? request",
                          " ".join(said.split()))
        for where, said in report.texts.items()
    }  # fmt: skip
    each = set(chain.from_iterable(answers.values()))
    if len(each) > 1:
        yield f"several answers: {each}"
    if any(len(found) > 1 for found in answers.values()):
        yield f"an answer twice: {answers}"
    all_parts = chain.from_iterable(breakdown.parts for breakdown in _breakdowns(report))
    parts = {part.name for part in all_parts}
    if each and parts & {"queue", "prefill"}:
        yield f"an answer by histograms beside parts by single requests: {each}, {parts}"
    samples = report.made.samples
    if not each or len(samples) < 2:
        return
    began = report.run.profiling_at
    ended = report.run.ended_at or 0.0
    base = [sample for sample in samples if sample.at < began][-1:] or samples[:1]
    last = next((sample for sample in samples if sample.at > ended), samples[-1])
    for name, share, ttft, queue, prefill, count in each:
        grown = (last.queue_count or 0) - (base[0].queue_count or 0)
        if int(count) != grown:
            yield f"means of {count}, by the counters {grown}"
        true = {
            what: ((getattr(last, f"{what}_s") or 0) - (getattr(base[0], f"{what}_s") or 0))
            / max(grown, 1)
            * 1e3
            for what in ("ttft", "queue", "prefill")
        }
        for what, written in (("ttft", ttft), ("queue", queue), ("prefill", prefill)):
            if not near(ms_of(written), true[what]):
                yield f"{what} {written}, by the counters {true[what]:.3f} ms"
        sizes = {
            "Queue": true["queue"],
            "Prefill": true["prefill"],
            "Neither": true["ttft"] - true["queue"] - true["prefill"],
        }
        if (
            sizes[name] < max(sizes.values()) * 0.999
            or abs(int(share) - 100 * sizes[name] / true["ttft"]) > 0.51
        ):
            yield f"{name}, {share}%: by the counters {sizes}"


@check
def what_could_split_the_servers_time_is_not_there(report: Report) -> Iterator[str]:
    for where, said in report.texts.items():
        plain = " ".join(said.split())
        if "would split it" in plain and "Queue or prefill?" in plain:
            yield f"{where}: the server's time is split, and is not"
        if "A metrics page or tracing" in plain and report.made.samples:
            yield f"{where}: asks for a metrics page that was read"
        if (
            "would split it" in plain
            and report.made.answered
            and report.made.told == len(report.made.answered)
        ):
            yield f"{where}: asks for tracing, and every request was traced"


def _breakdowns(report: Report) -> Sequence[Any]:
    found = report.summary.waterfall
    return () if found is None else found.breakdowns


@check
def rules_have_one_result(report: Report) -> Iterator[str]:
    """Checks the first line, the table, and the counts."""
    status = report.summary.slo_status
    first = re.match(r"(?:INCOMPLETE: .*?\. )?SLO (\w+):", report.console)
    if (first[1] if first else None) != status:
        yield f"the console begins with {first[1] if first else None}, and the run is {status}"
    if status is None:
        return
    deciding = [result.status for result in report.summary.slos if result.decides]
    expected = "PASS"
    if "FAIL" in deciding:
        expected = "FAIL"
    elif "INCONCLUSIVE" in deciding:
        expected = "INCONCLUSIVE"
    if status != expected:
        yield f"{status}, of rules {deciding}"
    said = report.console
    if "all " in said and re.search(r"all \d+ rules hold", said) and "FAIL" in deciding:
        yield "all rules hold, and one failed"
    for result in report.summary.slos:
        if (
            result.status == "FAIL"
            and result.decides
            and re.search(r"within [\d.,]+ m?s; all", said)
        ):
            yield f"{result.rule} failed, and the headline has it within"


@check
def the_gates_use_goes_with_its_waits(report: Report) -> Iterator[str]:
    """Checks conditions and breakdown: without waits at the gate, it has no part."""
    for where in ("--verbose", "summary.md"):
        nobody = "no request waited for a prefill slot" in report.texts[where]
        all_parts = chain.from_iterable(breakdown.parts for breakdown in _breakdowns(report))
        parts = [part for part in all_parts if part.name == "gate" and part.slow_ms > 0.5]
        if nobody and parts:
            yield f"{where}: no request waited for a prefill slot, and it has {parts[0].slow_ms} ms"


@check
def kind_of_loop_is_that_of_the_settings(report: Report) -> Iterator[str]:
    open_loop = report.run.settings.open_loop
    for where in ("--verbose", "summary.md"):
        wrong = "Closed loop:" if open_loop else "Open loop:"
        if wrong in report.texts[where]:
            yield f"{where}: {wrong}"


def number_of(cell: str) -> float | None:
    """Parses texts such as ``607``, ``97*``, ``0.61s``, ``95.6ms`` and ``12,346``. None: it is not
    a number."""
    found = re.match(r"(-?[\d,]*\.?\d+)", cell)
    return float(found[1].replace(",", "")) if found else None


@check
def rows_are_in_order(report: Report) -> Iterator[str]:
    """Checks the order of min, p50, p90, p95, p99, max, and the mean between the ends."""
    for row in report.summary.rows:
        values = [row.min, *(value for _, value in sorted(row.percentiles.items())), row.max]
        known = [value for value in values if value is not None]
        if any(after < before - 1e-9 for before, after in pairwise(known)):
            yield f"{row.tag}: {known}"
        if (
            row.avg is not None
            and len(known) > 1
            and not known[0] - 1e-6 <= row.avg <= known[-1] + 1e-6
        ):
            yield f"{row.tag}: a mean of {row.avg}, of values from {known[0]} to {known[-1]}"


@check
def observed_values_go_with_their_results(report: Report) -> Iterator[str]:
    """Checks the table of rules: values are within the limits of passed rules, beyond the limits of
    failed rules, and in their intervals."""
    for cells in report.table("SLO"):
        rule, result, observed, interval = cells[:4]
        limit = re.search(r"(<|>)=? ?([\d.]+) ?(\S*)$", rule.partition(" given ")[0])
        value = number_of(observed)
        if (
            limit is None
            or value is None
            or "to" in observed
            or observed.startswith("\N{GREATER-THAN OR EQUAL TO}")
        ):
            continue
        # shorter than a second
        most = float(limit[2]) * (1000 if limit[3] == "s" and observed.endswith("ms") else 1)
        within = value < most if limit[1] == "<" else value > most
        if not observed.endswith(limit[3]):
            yield f"{rule}: observed {observed}, in another unit"
        elif (result == "PASS" and not within) or (result == "FAIL" and within):
            yield f"{rule}: {result}, observed {observed}"
        ends = re.match(r"([\d.,]+)\S* to ([\d.,]+)", interval)
        if ends and not number_of(ends[1]) <= value <= number_of(ends[2]):  # type: ignore[operator]
            yield f"{rule}: observed {observed}, outside of {interval}"


@check
def console_and_tables_have_the_same_figures(report: Report) -> Iterator[str]:
    """Compares to the digits of the coarser one."""
    tables = {cells[0]: cells[1:] for cells in report.table("Metric")}
    names = {"TTFT (ms)": "Time to First Token (ms)", "ITL (ms)": "Inter Token Latency (ms)"}
    label = (
        r"TTFT from Due \(ms\)|TTFT \(ms\)|ITL \(ms\)|Longest Stall \(ms\)|Request Latency \(ms\)"
    )
    cell = r"(?: +[\d.,]+\*?)"
    for name, cells in re.findall(rf"({label})((?:{cell}){{3}})", report.console):
        full = tables.get(names.get(name, name))
        if full is None:
            yield f"{name} is on the console alone"
            continue
        for here, there in zip(cells.split(), full[:3], strict=True):
            ours = number_of(here)
            theirs = number_of(there)
            decimals = min(len(text.rstrip("*").partition(".")[2]) for text in (here, there))
            if (
                ours is not None
                and theirs is not None
                and abs(ours - theirs) > 0.51 * 10.0**-decimals
            ):
                yield f"{name}: {here} on the console, {there} in summary.md"


@check
def failures_add_up(report: Report) -> Iterator[str]:
    failed = sum(record.outcome not in (OK, CUT, CANCELLED) for record in report.made.profiling)
    listed = sum(int(cells[3]) for cells in report.table("Outcome"))
    if report.made.answered and listed != failed:
        yield f"{listed} in the table of failures, by the records {failed}"


@check
def names_add_up(report: Report) -> Iterator[str]:
    """Checks that the rows by name have all requests."""
    rows = report.table("Name") or report.table("name")
    if rows and all(number_of(cells[1]) is not None for cells in rows):
        ok = sum(int(number_of(cells[1]) or 0) for cells in rows)
        if ok != len(report.made.answered):
            yield f"{ok} answered by name, by the records {len(report.made.answered)}"


@check
def rates_are_counts_over_time(report: Report) -> Iterator[str]:
    seconds = report.summary.conditions.duration_s
    tokens = sum(record.output_tokens or 0 for record in report.made.answered)
    row = report.row("output_token_throughput")
    if seconds and row is not None and row.avg is not None and not near(row.avg, tokens / seconds):
        yield f"{row.avg} output tokens/s, by the records {tokens / seconds}"
    for written in re.findall(r"From \d+ answered requests? in ([\d.,]+) s", report.console):
        if seconds and not near(float(written.replace(",", "")), seconds):
            yield f"{written} s on the console, and the duration is {seconds}"


@check
def verdict_on_the_load_generator_is_one(report: Report) -> Iterator[str]:
    level = None if report.summary.client is None else report.summary.client.level
    for where, said in report.texts.items():
        for one in re.findall(
            r"(?:client verdict|load-generator health|load generator health):? "
            r"(OK|DEGRADED|INVALID)",
            said,
        ):
            if one != level:
                yield f"{where}: {one}, and it is {level}"
        for one in re.findall(r"CLIENT (OK|DEGRADED|INVALID):", said):
            if one != level:
                yield f"{where}: CLIENT {one}, and it is {level}"


@check
def what_was_offered_and_delivered_is_one(report: Report) -> Iterator[str]:
    delivered = re.search(r"delivered\s*\| ([\d.]+)%", report.markdown)
    if delivered and float(delivered[1]) > 99.9 and "Not delivered" in report.console:
        yield f"not delivered, and delivered {delivered[1]}%"
    completed = re.search(r"completed\s*\| ([\d.]+)%", report.markdown)
    if completed and float(completed[1]) > 99.9 and "Overloaded" in report.console:
        yield f"overloaded, and completed {completed[1]}%"


@check
def notes_about_tokens_go_with_the_records(report: Report) -> Iterator[str]:
    counted = sum(record.tokens_from == "usage" for record in report.made.answered)
    every = "counted by the server (usage) for every answered request" in report.markdown
    if report.made.answered and every != (counted == len(report.made.answered)):
        yield (
            f"tokens of every request counted: {every}, by the records {counted} of "
            f"{len(report.made.answered)}"
        )


@check
def one_interval_holds_its_percentile(report: Report) -> Iterator[str]:
    """Checks the console's interval, which has chance and measurement together, without a separate
    clock error."""
    found = re.search(
        r"(TTFT from due|TTFT) p(\d+) ([\d.,]+) to ([\d.,]+) ms \(95% interval\), client verdict "
        r"(\w+)",
        report.console,
    )
    if found is not None:
        low, high = (float(end.replace(",", "")) for end in found.groups()[2:4])
        true_ms = (
            float(np.percentile(values_s(report.made.answered, found[1]), int(found[2]))) * 1e3
        )
        step = 10.0 ** -len(found[3].partition(".")[2])
        if not low - step <= true_ms <= high + step:
            yield (
                f"p{found[2]} of {found[1]} lies in {low} to {high} ms, by the records it is "
                f"{true_ms:.2f}"
            )
        if found[5] != "OK":
            yield f"an interval although the client verdict is {found[5]}"
    for word in ("measured to", "worth"):
        if re.search(rf"\b{word}\b", report.console):
            yield f"{word!r} on the console"

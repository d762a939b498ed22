"""Folders: which of some run folders is the probe, which have loads, and what was seen in them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from statistics import median_low
from typing import Final, NamedTuple

import msgspec

from locust_llm.files.json_file import decode_json_file
from locust_llm.lab.probe.diagnosis import Diagnosis
from locust_llm.lab.probe.findings import examine_probe
from locust_llm.lab.probe.requests import ProbeResult, read_probe_results
from locust_llm.lab.twin.model import Origin
from locust_llm.records.jsonl import RecordFile
from locust_llm.records.record import CANCELLED, CUT, GAPS, OK, Record
from locust_llm.records.run import RECORDS, RUN, Run
from locust_llm.settings.sweep import CONCURRENCY, PREFILL, RATE, parse_sweep
from locust_llm.slo.client_verdict import OK as CLIENT_OK
from locust_llm.slo.client_verdict import ClientVerdict
from locust_llm.text.format import format_count

from .observations import IdleEpisode, ObservedStage, collect_episodes, observe_requests

LEAST_REQUESTS: Final = 8
LEAST_A_USER: Final = 2
"""Answered requests of a load that are enough."""
LEAST_SHARE: Final = 0.7
"""Requests in flight, on average, as a share of the users: with fewer they pause between two
requests."""
MAX_CACHED_SHARE: Final = 0.1
"""Prompt tokens that were in the server's cache: a twin computes every prompt."""
MAX_FAILED_SHARE: Final = 0.5
"""Of the requests of all loads, above which there is nothing to fit."""
MAX_CUT_SHARE: Final = 0.05
"""Of the requests of a load, that were cut or cancelled, above which it is said."""


class MeasuredServer(NamedTuple):
    """What was seen of one server."""

    said: Diagnosis
    episodes: list[IdleEpisode]
    stages: list[ObservedStage]
    origin: Origin


class LoadRecords(NamedTuple):
    """Records of one load: a stage of a sweep, or a whole run."""

    name: str
    users: int
    rate: float
    records: list[Record]


class Loads(NamedTuple):
    """Of one folder, with the number of its requests that were sent and that failed, those of loads
    left out too."""

    stages: list[ObservedStage]
    notes: list[str]
    sent: int
    failed: int


class _Facts(msgspec.Struct):
    run: Run
    client: ClientVerdict | None = None


class Folder:
    """A run of a probe, or of loads. Raises ValueError of one sentence."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / RECORDS).is_file():
            raise ValueError(f"{path} holds no run: it has no {RECORDS}")
        try:
            facts = decode_json_file(path / RUN, _Facts)
        except OSError as error:
            raise ValueError(f"{path}: {RUN} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(
                f"{path}: {RUN} cannot be read, so its server is not known: {error} (locust-llm "
                f"report {path} mends it)"
            ) from None
        self.run, self.client = facts.run, facts.client
        self.results: list[ProbeResult] = read_probe_results(RecordFile(path / RECORDS))

    @property
    def is_probe(self) -> bool:
        return bool(self.results)

    def diagnosis(self) -> Diagnosis:
        return examine_probe(
            self.results, None if self.client is None else self.client.level
        ).diagnosis


def read_measured_server(paths: Sequence[Path]) -> MeasuredServer:
    """Of one probe, and of one sweep or several runs of one load each. Raises ValueError of one
    sentence."""
    folders = [Folder(path) for path in paths]
    probes = [one for one in folders if one.is_probe]
    others = [one for one in folders if not one.is_probe]
    given = ", ".join(str(one.path) for one in folders)
    if not probes:
        raise ValueError(
            f"none of these is a probe: {given}. Make one: locust-llm probe --host URL"
        )
    if len(probes) > 1:
        raise ValueError(
            f"a twin is of one probe, and here are {len(probes)}: "
            f"{', '.join(str(p.path) for p in probes)}"
        )
    if not others:
        raise ValueError(
            f"{given} is a probe, and there is no sweep beside it. Make one: locust-llm run "
            f"--headless --sweep "
            "concurrency=1..64 --host URL"
        )
    _same_server(folders)
    found = [read_folder_loads(one) for one in others]
    sent = sum(one.sent for one in found)
    failed = sum(one.failed for one in found)
    if failed > MAX_FAILED_SHARE * sent:
        raise ValueError(
            f"{failed:,} of {sent:,} requests of the sweep failed: how fast the server is cannot "
            f"be told from the rest. Its "
            f"report says why they failed: {others[0].path}"
        )
    stages = [s for one in found for s in one.stages]
    notes = [n for one in found for n in one.notes]
    if not stages:
        raise ValueError(
            f"no load of {', '.join(str(one.path) for one in others)} can be used: "
            f"{'; '.join(notes)}"
        )
    probe = probes[0]
    origin = msgspec.structs.replace(_origin(probe, others), notes=tuple(notes))
    return MeasuredServer(probe.diagnosis(), collect_episodes(probe.results), stages, origin)


def _same_server(folders: Sequence[Folder]) -> None:
    first = folders[0].run
    for other in (one.run for one in folders[1:]):
        for what, here, there in (
            ("hosts", first.settings.host, other.settings.host),
            ("models", first.model, other.model),
            ("servers", first.server, other.server),
            ("endpoints", first.settings.endpoint, other.settings.endpoint),
        ):
            if here != there:
                raise ValueError(
                    f"these runs are of different {what}: {first.name} of "
                    f"{here or 'an unknown one'}, {other.name} of "
                    f"{there or 'an unknown one'}. A twin is of one server"
                )


def _origin(probe: Folder, others: Sequence[Folder]) -> Origin:
    run = probe.run
    made = ", ".join(
        f"{name} {run.versions[name]}" for name in ("locust-llm", "python") if name in run.versions
    )
    return Origin(
        host=run.settings.host, model=run.model, server=run.server, slots=_slots(run),
        common_prefix_tokens=_common_prefix(probe.results), made_with=made,
        folders=tuple(str(one.path) for one in (probe, *others)),
    )  # fmt: skip


def _slots(run: Run) -> int | None:
    """See Origin."""
    told = run.server_flags.get("total_slots", "")
    return (
        int(told)
        if run.server.startswith("llama.cpp") and told.isdecimal() and 0 < int(told) < 1 << 20
        else None
    )


def _common_prefix(results: Sequence[ProbeResult]) -> int:
    """Tokens that a cache had of prompts that were new: those that all begin with."""
    return int(median_low([one.cached_tokens for one in results if one.cached_tokens] or [0]))


# -- loads of a folder -----------------------------------------------------------------------------


def read_folder_loads(folder: Folder) -> Loads:
    """Raises ValueError of one sentence where its load is none that a twin can have."""
    settings = folder.run.settings
    axis = (settings.sweep or "").partition("=")[0].strip()
    for wrong, why in (
        (settings.compares, "it compares two servers"),
        (settings.prefill_concurrency or axis == PREFILL,
            "a gate held its requests back (--prefill-concurrency)"),
        (settings.hosts, "it has several replicas"),
        (settings.model_mix, "it asks for several models"),
        (not settings.streaming or not settings.generates, "its answers were not streamed"),
        (settings.request_rate_series or settings.fixed_schedule or settings.user_centric_rate or
         settings.request_rate_ramp_duration, "its rate changes"),
    ):  # fmt: skip
        if wrong:
            raise ValueError(f"a twin cannot be fitted to {folder.path}: {why}")
    stages = list[ObservedStage]()
    notes = list[str]()
    sent = 0
    failed = 0
    parts = list(_parts(folder))
    for part in parts:
        stage, said = stage_of_part(part)
        sent += len(part.records)
        failed += sum(_failed(record) for record in part.records)
        if (client := _client(folder, part)) is not None and client.level != CLIENT_OK:
            stage = None
            said = [
                f"{part.name} left out: the client verdict is {client.level} "
                f"({'; '.join(client.reasons)})"
            ]
        stages += [stage] if stage is not None else []
        notes += said
    if not sent:
        notes.append(f"{folder.path} has no requests")
    _refuse_cached(folder.path, chain.from_iterable(part.records for part in parts))
    return Loads(stages, notes, sent, failed)


def _parts(folder: Folder) -> Iterator[LoadRecords]:
    settings = folder.run.settings
    records = list(RecordFile(folder.path / RECORDS))
    if not settings.sweep and not folder.run.stages:
        users = 0 if settings.open_loop else settings.users or 1
        name = (
            f"{folder.run.name}, "
            f"{format_count(users, 'user') if users else f'{settings.request_rate or 0:g} requests/s'},"
        )
        profiled = [record for record in records if record.phase == "profiling"]
        yield LoadRecords(name, users, settings.request_rate or 0.0, profiled)
        return
    axis = (settings.sweep or "").partition("=")[0].strip()
    for number, value in _values(folder.run):
        users = 0 if settings.open_loop else settings.users or 1
        if axis == CONCURRENCY:
            users = int(value)
        rate = value if axis == RATE else settings.request_rate or 0.0
        name = format_count(users, "user") if users else f"{rate:g} requests/s"
        if here := [one for one in records if one.stage == number]:
            yield LoadRecords(name, users, 0.0 if users else rate, here)


def _values(run: Run) -> Iterator[tuple[int, float]]:
    """(number, value) of its stages; of one that was killed those that it was asked for."""
    if run.stages:
        yield from ((stage.number, stage.value) for stage in run.stages)
    elif run.settings.sweep:
        yield from enumerate(parse_sweep(run.settings.sweep).values, start=1)


def _client(folder: Folder, part: LoadRecords) -> ClientVerdict | None:
    """Of a stage its own, where it has one."""
    if part.records and (number := part.records[0].stage):
        try:
            return decode_json_file(folder.path / "stages" / str(number) / RUN, _Facts).client
        except (OSError, ValueError):
            return None
    return folder.client


def _failed(record: Record) -> bool:
    return record.outcome not in (OK, CUT, CANCELLED)


def stage_of_part(part: LoadRecords) -> tuple[ObservedStage | None, list[str]]:
    """The load, or None; and what is to be said of it."""
    sent = sorted(
        (one for one in part.records if one.sent_at is not None), key=attrgetter("sent_unix_s")
    )
    if part.users:
        sent = _with_all_users(sent)
    requests = [
        request
        for one in sent
        if GAPS not in one.lacks and (request := observe_requests(one)) is not None
    ]
    least = max(LEAST_REQUESTS, LEAST_A_USER * part.users)
    if len(requests) < least:
        return None, [
            f"{part.name} left out: {len(requests):,} answered requests, and {least:,} are needed"
        ]
    if part.users and (inside := _in_flight(sent)) < LEAST_SHARE * part.users:
        return None, [
            f"{part.name} left out: {inside:.1f} requests were in flight on average, so users "
            f"paused between two"
        ]
    failed = sum(map(_failed, sent))
    cut = sum(one.outcome in (CUT, CANCELLED) for one in sent)
    notes = (
        [f"{part.name}: {cut:,} of {len(sent):,} answers were cut"]
        if cut > MAX_CUT_SHARE * len(sent)
        else []
    )
    return ObservedStage(part.users, part.rate, tuple(requests), failed), notes


def _with_all_users(sent: Sequence[Record]) -> list[Record]:
    """From the moment that each user had begun: the requests that were open then, and all after it.
    A warmup, or users that come one by one, are another load."""
    first = dict[tuple[str, int], float]()
    for one in sent:
        first.setdefault((one.worker, one.user), one.sent_unix_s)
    begin = max(first.values(), default=0.0)
    return [one for one in sent if one.closed_unix_s >= begin]


def _in_flight(sent: Sequence[Record]) -> float:
    """The mean number, from the first send to the last."""
    begin = sent[0].sent_unix_s
    end = sent[-1].sent_unix_s
    inside = sum(max(0.0, min(end, one.closed_unix_s) - one.sent_unix_s) for one in sent)
    return inside / max(end - begin, 1e-9)


def _refuse_cached(path: Path, records: Iterable[Record]) -> None:
    cached = tokens = 0
    for one in records:
        cached += one.cached_tokens or 0
        tokens += one.input_tokens or 0
    if cached > MAX_CACHED_SHARE * tokens:
        raise ValueError(
            f"a twin cannot be fitted to {path}: {cached / tokens:.0%} of its prompt tokens were "
            f"in the server's cache, and "
            "a twin computes every prompt. Sweep with prompts that are new"
        )

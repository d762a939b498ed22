"""Measured folders: finds the probe and the loads among run folders, and reads their
measurements."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from statistics import median_low
from typing import Final, NamedTuple

import msgspec

from locust_llm.files.json_file import decode_json_file
from locust_llm.lab.probe.episode_requests import ProbeResult, read_probe_results
from locust_llm.lab.probe.probe_findings import examine_probe
from locust_llm.lab.probe.scheduler_diagnosis import Diagnosis
from locust_llm.lab.twin.twin_model import Origin
from locust_llm.records.outcomes import CANCELLED, CUT, OK
from locust_llm.records.profile_export_jsonl import RecordFile
from locust_llm.records.record import Record
from locust_llm.records.run_facts import RECORDS, RUN, Run
from locust_llm.records.ttft_itl_latency import GAPS
from locust_llm.report.load_records import collect_columns
from locust_llm.report.outages import (
    Outage,
    describe_outages,
    find_run_outages,
    select_outages_between,
)
from locust_llm.settings.sweep_option import CONCURRENCY, PREFILL, RATE, parse_sweep
from locust_llm.slo.load_generator_health import OK as CLIENT_OK
from locust_llm.slo.load_generator_health import ClientVerdict
from locust_llm.text.format import format_count

from .server_observations import IdleEpisode, ObservedStage, collect_episodes, observe_requests

LEAST_REQUESTS: Final = 8
LEAST_A_USER: Final = 2
"""A load needs this many answered requests per user, and at least LEAST_REQUESTS."""
LEAST_SHARE: Final = 0.7
"""The requests in flight are on average at least this share of the users. With fewer, users pause
between two requests."""
MAX_CACHED_SHARE: Final = 0.1
"""At most this share of the prompt tokens may be in the server's cache, as a twin computes every
prompt."""
MAX_FAILED_SHARE: Final = 0.5
"""A fit is refused if more than this share of all requests failed."""
MAX_CUT_SHARE: Final = 0.05
"""A note reports a load with more than this share of cut or cancelled requests."""


class MeasuredServer(NamedTuple):
    """Holds the measurements of one server."""

    said: Diagnosis
    episodes: list[IdleEpisode]
    stages: list[ObservedStage]
    origin: Origin


class LoadRecords(NamedTuple):
    """Holds the records of one load: a stage of a sweep, or a whole run."""

    name: str
    users: int
    rate: float
    records: list[Record]


class Loads(NamedTuple):
    """Holds the loads of one folder, and the number of sent and failed requests, including loads
    left out."""

    stages: list[ObservedStage]
    notes: list[str]
    sent: int
    failed: int


class _Facts(msgspec.Struct):
    run: Run
    client: ClientVerdict | None = None


class Folder:
    """Is a run of a probe or of loads. Raises ValueError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / RECORDS).is_file():
            raise ValueError(f"{path} is not a run folder: it has no {RECORDS}")
        try:
            facts = decode_json_file(path / RUN, _Facts)
        except OSError as error:
            raise ValueError(f"{path}: {RUN} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(
                f"{path}: {RUN} cannot be read, so its server is not known: {error} (locust-llm "
                f"report {path} repairs it)"
            ) from None
        self.run = facts.run
        self.client = facts.client
        self.results: list[ProbeResult] = read_probe_results(RecordFile(path / RECORDS))

    @property
    def is_probe(self) -> bool:
        return bool(self.results)

    def diagnosis(self) -> Diagnosis:
        return examine_probe(
            self.results, None if self.client is None else self.client.level
        ).diagnosis


def read_measured_server(paths: Sequence[Path]) -> MeasuredServer:
    """Reads one probe, and one sweep or several runs of one load each. Raises ValueError."""
    folders = [Folder(path) for path in paths]
    probes = [folder for folder in folders if folder.is_probe]
    others = [folder for folder in folders if not folder.is_probe]
    given = ", ".join(str(folder.path) for folder in folders)
    if not probes:
        raise ValueError(f"none of these is a probe: {given}. Run one: locust-llm probe --host URL")
    if len(probes) > 1:
        raise ValueError(
            f"a twin is fitted to one probe, but these are {len(probes)}: "
            f"{', '.join(str(probe.path) for probe in probes)}"
        )
    if not others:
        raise ValueError(
            f"{given} is a probe, but there is no sweep. Run one: locust-llm run --headless "
            "--sweep concurrency=1..64 --host URL"
        )
    _require_same_server(folders)
    found = [read_folder_loads(folder) for folder in others]
    sent = sum(loads.sent for loads in found)
    failed = sum(loads.failed for loads in found)
    if failed > MAX_FAILED_SHARE * sent:
        raise ValueError(
            f"{failed:,} of {sent:,} requests of the sweep failed: the rest does not show the "
            f"server's speed. The "
            f"report explains the failures: {others[0].path}"
        )
    stages = list(chain.from_iterable(loads.stages for loads in found))
    notes = list(chain.from_iterable(loads.notes for loads in found))
    if not stages:
        raise ValueError(
            f"no load of {', '.join(str(folder.path) for folder in others)} can be used: "
            f"{'; '.join(notes)}"
        )
    probe = probes[0]
    origin = msgspec.structs.replace(_origin(probe, others), notes=tuple(notes))
    return MeasuredServer(probe.diagnosis(), collect_episodes(probe.results), stages, origin)


def _require_same_server(folders: Sequence[Folder]) -> None:
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
                    f"{there or 'an unknown one'}. A twin models one server"
                )


def _origin(probe: Folder, others: Sequence[Folder]) -> Origin:
    run = probe.run
    made = ", ".join(
        f"{name} {run.versions[name]}" for name in ("locust-llm", "python") if name in run.versions
    )
    return Origin(
        host=run.settings.host, model=run.model, server=run.server, slots=_read_slots(run),
        common_prefix_tokens=_estimate_common_prefix(probe.results), made_with=made,
        folders=tuple(str(one.path) for one in (probe, *others)),
    )  # fmt: skip


def _read_slots(run: Run) -> int | None:
    """Returns the slots for Origin."""
    reported = run.server_flags.get("total_slots", "")
    if not run.server.startswith("llama.cpp") or not reported.isdecimal():
        return None
    return int(reported) if 0 < int(reported) < 1 << 20 else None


def _estimate_common_prefix(results: Sequence[ProbeResult]) -> int:
    """Returns the cached tokens of new prompts, which are the common beginning of all prompts."""
    cached = [result.cached_tokens for result in results if result.cached_tokens]
    return int(median_low(cached or [0]))


# -- loads of a folder -----------------------------------------------------------------------------


def read_folder_loads(folder: Folder) -> Loads:
    """Reads the loads of a folder. Raises ValueError for a load that a twin cannot have."""
    settings = folder.run.settings
    axis = (settings.sweep or "").partition("=")[0].strip()
    for wrong, why in (
        (settings.compares, "it compares two servers"),
        (settings.prefill_concurrency or axis == PREFILL,
            "a prefill limit held its requests back (--prefill-concurrency)"),
        (settings.hosts, "it has several replicas"),
        (settings.model_mix, "it asks for several models"),
        (not settings.streaming or not settings.generates, "its responses were not streamed"),
        (settings.request_rate_series or settings.fixed_schedule or settings.user_centric_rate or
         settings.request_rate_ramp_duration, "its rate changes"),
    ):  # fmt: skip
        if wrong:
            raise ValueError(f"a twin cannot be fitted to {folder.path}: {why}")
    stages = list[ObservedStage]()
    notes = list[str]()
    sent = 0
    failed = 0
    parts = list(_read_parts(folder))
    outages = _find_outages(folder.run, parts)
    for part in parts:
        stage, remarks = stage_of_part(part)
        sent += len(part.records)
        failed += sum(_failed(record) for record in part.records)
        if during := _select_outages(part, outages, folder.run):
            stage = None
            remarks = [
                f"{part.name} left out: {describe_outages(during)}, which is no speed of the "
                "server. Measure this load again"
            ]
        if (client := _read_client_verdict(folder, part)) is not None and client.level != CLIENT_OK:
            stage = None
            remarks = [
                f"{part.name} left out: the client verdict is {client.level} "
                f"({'; '.join(client.reasons)})"
            ]
        stages += [stage] if stage is not None else []
        notes += remarks
    if not sent:
        notes.append(f"{folder.path} has no requests")
    _refuse_cached(folder.path, chain.from_iterable(part.records for part in parts))
    return Loads(stages, notes, sent, failed)


def _read_parts(folder: Folder) -> Iterator[LoadRecords]:
    settings = folder.run.settings
    records = list(RecordFile(folder.path / RECORDS))
    if not settings.sweep and not folder.run.stages:
        users = 0 if settings.open_loop else settings.users or 1
        load = format_count(users, "user")
        if not users:
            load = f"{settings.request_rate or 0:g} requests/s"
        name = f"{folder.run.name}, {load},"
        profiled = [record for record in records if record.phase == "profiling"]
        yield LoadRecords(name, users, settings.request_rate or 0.0, profiled)
        return
    axis = (settings.sweep or "").partition("=")[0].strip()
    for number, value in _list_stage_values(folder.run):
        users = 0 if settings.open_loop else settings.users or 1
        if axis == CONCURRENCY:
            users = int(value)
        rate = value if axis == RATE else settings.request_rate or 0.0
        name = format_count(users, "user") if users else f"{rate:g} requests/s"
        if here := [record for record in records if record.stage == number]:
            yield LoadRecords(name, users, 0.0 if users else rate, here)


def _list_stage_values(run: Run) -> Iterator[tuple[int, float]]:
    """Yields (number, value) of the stages. A killed run has the requested values."""
    if run.stages:
        yield from ((stage.number, stage.value) for stage in run.stages)
    elif run.settings.sweep:
        yield from enumerate(parse_sweep(run.settings.sweep).values, start=1)


def _find_outages(run: Run, parts: Sequence[LoadRecords]) -> tuple[Outage, ...]:
    """Finds the outages that ended. No answer of a later one is fitted."""
    records = list(chain.from_iterable(part.records for part in parts))
    found = find_run_outages(collect_columns(records), run) if records else ()
    return tuple(outage for outage in found if outage.ended_s is not None)


def _select_outages(part: LoadRecords, outages: Sequence[Outage], run: Run) -> tuple[Outage, ...]:
    """Selects the outages while requests of a load were open."""
    if not part.records:
        return ()
    began = min(record.asked_unix_s for record in part.records)
    ended = max(record.closed_unix_s for record in part.records)
    return select_outages_between(outages, run, began, ended)


def _read_client_verdict(folder: Folder, part: LoadRecords) -> ClientVerdict | None:
    """Returns a stage's own client verdict, if it has one."""
    if part.records and (number := part.records[0].stage):
        try:
            return decode_json_file(folder.path / "stages" / str(number) / RUN, _Facts).client
        except (OSError, ValueError):
            return None
    return folder.client


def _failed(record: Record) -> bool:
    return record.outcome not in (OK, CUT, CANCELLED)


def stage_of_part(part: LoadRecords) -> tuple[ObservedStage | None, list[str]]:
    """Returns the load, or None, and notes on it."""
    sent = sorted(
        (record for record in part.records if record.sent_at is not None),
        key=attrgetter("sent_unix_s"),
    )
    if part.users:
        sent = _with_all_users(sent)
    requests = [
        request
        for record in sent
        if GAPS not in record.lacks and (request := observe_requests(record)) is not None
    ]
    least = max(LEAST_REQUESTS, LEAST_A_USER * part.users)
    if len(requests) < least:
        return None, [
            f"{part.name} left out: {len(requests):,} answered requests, and {least:,} are needed"
        ]
    if part.users and (inside := _in_flight(sent)) < LEAST_SHARE * part.users:
        return None, [
            f"{part.name} left out: {inside:.1f} requests were in flight on average, so users "
            f"paused between requests"
        ]
    failed = sum(map(_failed, sent))
    cut = sum(record.outcome in (CUT, CANCELLED) for record in sent)
    notes = (
        [f"{part.name}: {cut:,} of {len(sent):,} responses were unfinished"]
        if cut > MAX_CUT_SHARE * len(sent)
        else []
    )
    return ObservedStage(part.users, part.rate, tuple(requests), failed), notes


def _with_all_users(sent: Sequence[Record]) -> list[Record]:
    """Selects the requests that were open when every user had begun, and all later ones. A warmup,
    or users that start one by one, are another load."""
    first = dict[tuple[str, int], float]()
    for record in sent:
        first.setdefault((record.worker, record.user), record.sent_unix_s)
    begin = max(first.values(), default=0.0)
    return [record for record in sent if record.closed_unix_s >= begin]


def _in_flight(sent: Sequence[Record]) -> float:
    """Returns the mean number from the first send to the last."""
    begin = sent[0].sent_unix_s
    end = sent[-1].sent_unix_s
    inside = sum(max(0.0, min(end, record.closed_unix_s) - record.sent_unix_s) for record in sent)
    return inside / max(end - begin, 1e-9)


def _refuse_cached(path: Path, records: Iterable[Record]) -> None:
    cached = tokens = 0
    for record in records:
        cached += record.cached_tokens or 0
        tokens += record.input_tokens or 0
    if cached > MAX_CACHED_SHARE * tokens:
        raise ValueError(
            f"a twin cannot be fitted to {path}: {cached / tokens:.0%} of its prompt tokens were "
            f"in the server's cache, and "
            "a twin computes every prompt. Use prompts that do not repeat"
        )

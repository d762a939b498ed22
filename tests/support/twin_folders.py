"""Twin folders: writes run folders of a probe and of a sweep in virtual time, like the load
generator."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from locust_llm.lab.probe.episode_requests import ProbeResult
from locust_llm.lab.twin.server_observations import ObservedRequest, ObservedStage
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import RECORDS, Run, write_run
from locust_llm.records.run_facts import Stage as RunStage

from .records import UNIX, a_run, answered

BETWEEN_S = 5.0


def write(folder: Path, run: Run, records: Iterable[Record], **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_run(folder, replace(run, name=folder.name), **more)
    (folder / RECORDS).write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in records)
    )
    return folder


def record(one: ObservedRequest, number: int, at: float, **more: Any) -> Record:
    """Makes a record. ``at`` is the run's second at which its clock is 0."""
    chunk_ms = [(moment - one.sent_at) * 1000 for moment in one.token_at]
    known = {
        "id": str(number),
        "input_tokens": one.prompt_tokens,
        "output_tokens": one.output_tokens,
        **more,
    }
    return answered(*chunk_ms, sent_at=at + one.sent_at, **known)


def swept_folder(folder: Path, stages: Sequence[ObservedStage], **more: Any) -> Path:
    """Writes a sweep of users, one stage after the other."""
    users = ",".join(str(stage.users) for stage in stages)
    run = a_run(sweep=f"concurrency={users}", **more)
    records = list[Record]()
    done = list[RunStage]()
    at = 0.0
    for number, stage in enumerate(stages, start=1):
        here = list(_of_stage(stage, number, at))
        end = max(one.closed_at for one in here)
        done.append(
            RunStage(number=number, value=stage.users, began_at=UNIX + at, ended_at=UNIX + end)
        )
        records += here
        at = end + BETWEEN_S
    return write(folder, replace(run, stages=tuple(done), model="m", server="simulated 1"), records)


def _of_stage(stage: ObservedStage, number: int, at: float) -> Iterator[Record]:
    """Assigns requests to users in turn: the first free user sends the next one."""
    free = [0.0] * stage.users
    for i, one in enumerate(stage.requests):
        user = min(range(stage.users), key=lambda user: free[user])
        free[user] = one.token_at[-1]
        yield record(one, 10_000 * number + i, at, stage=number, user=user)


def probed_folder(folder: Path, results: Sequence[ProbeResult], **more: Any) -> Path:
    run = replace(a_run(**more), model="m", server="simulated 1")
    return write(folder, run, (_of_probe(one, i) for i, one in enumerate(results)))


def _of_probe(one: ProbeResult, number: int) -> Record:
    return answered(
        *((moment - one.sent_at) * 1000 for moment in one.chunk_at), sent_at=one.sent_at,
        id=str(number), name=one.role,
        session=f"probe/{one.episode}/{one.round}/{one.kind}/3", outcome=one.outcome,
        input_tokens=one.input_tokens,
        output_tokens=one.output_tokens, asked_input_tokens=one.asked_tokens,
        asked_output_tokens=one.asked_output_tokens,
    )  # fmt: skip

"""Storage: the folder of a run with its run.json and server metrics, and files that are written
whole or not at all. jsonl.py has the records."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from locust_llm.files.regular_file import open_regular, read_regular
from locust_llm.settings.settings import Settings

from .run import Run
from .server_metrics import EngineHistory, EngineSample

RECORDS: Final = "profile_export.jsonl"
RUN: Final = "run.json"
SERVER_METRICS: Final = "server_metrics.jsonl"
"""The file has a line for each reading of the server's metrics."""
MAX_SAMPLE_BYTES: Final = 2**14
"""A line of the server's metrics has at most so many bytes."""
MAX_JSON_BYTES: Final = 2**26
"""run.json, and other JSON beside it, has at most so many bytes."""

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


def read_history(folder: Path) -> EngineHistory:
    """The server's metrics over the run, for a stage over its run. Empty where there are none.
    Raises OSError."""
    history = EngineHistory()
    path = next(
        (
            path
            for path in (folder / SERVER_METRICS, folder.parent.parent / SERVER_METRICS)
            if path.exists()
        ),
        None,
    )
    if path is None or (path.parent != folder and folder.parent.name != "stages"):
        return history
    decode = msgspec.json.Decoder(EngineSample).decode
    with open_regular(path) as file:
        while line := file.readline(MAX_SAMPLE_BYTES):
            try:
                history.add(decode(line))
            except (ValueError, RecursionError):
                history.unread += line.endswith(b"\n")  # the last one may be half written
    return history


def write_run(folder: Path | str, run: Run, **more: Any) -> None:
    """Write run.json. It is also written before the load, in case nothing comes after it."""
    replace_file(Path(folder) / RUN, encode_run_json(run, **more))


def encode_run_json(run: Run, **more: Any) -> bytes:
    """The run under ``run``, and the fields ``more``."""
    return msgspec.json.format(msgspec.json.encode({"run": run, **more}), indent=2) + b"\n"


def read_run(folder: Path) -> Run:
    """The run in run.json. Raises OSError, or ValueError if it holds no run."""
    return decode_json_file(folder / RUN, _RunFile).run


def decode_readable_run(folder: Path, unknown: Run) -> Run:
    """The readable fields of a damaged run.json. The others have the values of ``unknown``, and
    ``unread`` names them. Raises OSError and ValueError."""
    known = {
        name: getattr(unknown, name)
        for name in ("name", "settings", "started_at", "profiling_at", "model")
    }
    run, unread = decode_readable_fields(decode_json_file(folder / RUN, _RunAlone).run, Run, known)
    return msgspec.structs.replace(
        run, unread=(*run.unread, *(f"{name} of run.json {why}" for name, why in unread))
    )


def decode_json_file(path: Path, kind: type[T]) -> T:
    """Read a JSON file of a run folder. Raises OSError and ValueError."""
    try:
        return msgspec.json.decode(read_regular(path, MAX_JSON_BYTES), type=kind)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: a reader sees the old file or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        with draft.open("xb") as file:  # never into a pipe or a link of that name
            file.write(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


class _RunFile(msgspec.Struct):
    run: Run


class _RunAlone(msgspec.Struct):
    run: msgspec.Raw


def make_run_folder(settings: Settings, model: str | None) -> Path:
    """Make a folder for one run, without records. Raises OSError."""
    if settings.report_dir:
        base = Path(settings.report_dir)
    else:
        name = "".join(
            c if c.isalnum() or c in "._-" else "_" for c in (model or "model").rpartition("/")[2]
        )
        base = Path("reports") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    folder, number = base, 1
    while (folder / RECORDS).exists():
        number += 1
        folder = Path(f"{base if base.name.strip('.') else base.resolve()}-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# -- JSON that is damaged, or of another version ---------------------------------------------------


def decode_readable_fields(
    data: bytes, kind: type[S], instead: Mapping[str, Any]
) -> tuple[S, list[tuple[str, str]]]:
    """(the struct, (path, reason) of each unreadable field). An unreadable field has the value of
    ``instead``, else its default.

    Raises ValueError where the data is no JSON object, or lacks a field without a default.
    """
    try:
        fields_read = msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if not isinstance(fields_read, dict):
        raise ValueError("it is no JSON object")
    unread: list[tuple[str, str]] = []
    return _struct(fields_read, kind, "", instead, unread), unread


def _struct(
    fields_read: Mapping[str, Any],
    kind: type[S],
    path: str,
    instead: Mapping[str, Any],
    unread: list[tuple[str, str]],
) -> S:
    known: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        name, inner = f"{path}{field.encode_name}", field.type
        if field.encode_name not in fields_read:
            if field.required and field.name not in instead:
                raise ValueError(f"{name} is missing")
            if field.required:
                unread.append((name, "is missing"))
        else:
            value = fields_read[field.encode_name]
            try:
                known[field.name] = msgspec.convert(value, inner, strict=True)
                continue
            except (ValueError, OverflowError, RecursionError) as error:
                if (
                    isinstance(value, dict)
                    and isinstance(inner, type)
                    and issubclass(inner, msgspec.Struct)
                ):
                    known[field.name] = _struct(value, inner, f"{name}.", {}, unread)
                    continue
                if field.required and field.name not in instead:
                    raise ValueError(f"{name} cannot be read ({error})") from None
                unread.append((name, f"cannot be read ({error})"))
        if field.name in instead:
            known[field.name] = instead[field.name]
    return kind(**known)

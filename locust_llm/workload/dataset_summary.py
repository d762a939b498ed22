"""Dataset summary: what a dataset holds, from a check before any load."""

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from . import answer_schema, images_and_audio
from .conversation import list_turn_parents
from .dataset import Dataset
from .dataset_formats import DatasetError, Turn

CHECK_BYTES: Final = 32 << 20
CHECK_ROWS: Final = 100_000
"""The rows that ``check_dataset`` reads, if the bytes are not used up before."""
MAX_SESSIONS_PER_S: Final = 500.0
"""The mean rate of a trace is at most this. No recorded service had so many requests, and a wrong
unit makes a thousand times as many."""
EPOCH_S: Final = 1e9, 4e9
"""Unix seconds from 2001 to 2096. Taken as milliseconds they are weeks after the begin of a
trace."""
IN_MILLISECONDS: Final = ("mooncake_trace", "single_turn", "multi_turn", "agentic_mooncake")
CHECK_SCHEMAS: Final = 1_000
"""The turns whose schemas are checked, a millisecond each if all differ."""


class DatasetSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``check_dataset``. Means are over the turns with a known length; None: there is
    none."""

    path: str
    kind: str
    whole: bool
    """The check covers the whole file, else its first part."""
    rows: int
    sessions: int
    turns: int
    synthetic: int
    """Turns without a text, which get synthetic prompts."""
    images: int
    sounds: int
    """Turns with their own images, and with their own audio."""
    timed: int
    """Sessions that have a time."""
    span_s: float | None
    """The seconds from the earliest of these times to the latest."""
    longest: int | None
    """The tokens of the longest context with its answer, as far as lengths are known."""
    longest_row: int | None
    input_tokens: float | None
    output_tokens: float | None
    tenants: tuple[str, ...]
    """The tenants that its rows name."""
    about: str
    """The assumptions where a format has two meanings."""
    left_out: int
    broken: int
    first_broken: tuple[str, ...]
    first_s: float | None = None
    """The earliest of the times."""

    def __str__(self) -> str:
        parts = [f"{self.rows:,} rows", f"{self.sessions:,} sessions", f"{self.turns:,} turns"]
        parts += (
            [f"{self.input_tokens:,.0f} input tokens per turn"]
            if self.input_tokens is not None
            else []
        )
        parts += (
            [f"{self.output_tokens:,.0f} output tokens per turn"]
            if self.output_tokens is not None
            else []
        )
        parts += [f"{self.images:,} with images"] if self.images else []
        parts += [f"{self.sounds:,} with audio"] if self.sounds else []
        parts += [f"over {self.span_s:,.0f} s"] if self.span_s is not None else []
        parts += [self.about] if self.about else []
        parts += [f"{self.left_out:,} rows left out"] if self.left_out else []
        parts += [f"{self.broken:,} rows broken"] if self.broken else []
        part = "" if self.whole else " in its first part"
        return f"{self.path}: {self.kind}{part}, {', '.join(parts)}"


def explain_too_fast_trace(dataset: DatasetSummary) -> str:
    """Why the times of a trace are hardly right, with what to do. Empty: they may be. Equal times
    are a burst, in whichever unit."""
    between = dataset.timed - 1
    span_s = dataset.span_s
    first_ms = 1000 * (dataset.first_s or 0.0)
    if span_s and dataset.kind in IN_MILLISECONDS and EPOCH_S[0] <= first_ms <= EPOCH_S[1]:
        return (
            f"{dataset.path}: its times begin at {first_ms:,.0f}, which are seconds since 1970, "
            f"and {dataset.kind} has "
            "milliseconds: give --replay-speedup 0.001; --replay-speedup 1 replays them as they are"
        )
    if not span_s or between < 2 or between / span_s <= MAX_SESSIONS_PER_S:
        return ""
    unit = "milliseconds" if dataset.kind in IN_MILLISECONDS else "seconds"
    slower = (
        "if they are seconds, give --replay-speedup 0.001" if dataset.kind in IN_MILLISECONDS
        else "a --replay-speedup below 1 replays them slower"
    )  # fmt: skip
    return (
        f"{dataset.path}: {dataset.timed:,} sessions begin within {span_s:.3g} s, "
        f"{between / span_s:,.0f} per second, because "
        f"{dataset.kind} has its times in {unit}: {slower}; --replay-speedup 1 replays them as "
        f"they are"
    )


def _longest(turns: Sequence[Turn]) -> int:
    """The tokens of a session's longest context with its answer, by the known lengths."""
    grown: list[int] = []
    for turn, after in zip(turns, list_turn_parents(turns), strict=True):
        before = 0 if turn.whole or not after else grown[after[0]]
        grown.append(before + (turn.input_tokens or 0) + (turn.output_tokens or 0))
    return max(grown)


def _check_schema(path: str, turn: Turn) -> None:
    try:
        answer_schema.check_response_schema(turn.body)
    except answer_schema.SchemaError as wrong:
        raise DatasetError(f"{path}, line {turn.row}, {wrong.field}: {wrong}") from None


_latest: dict[tuple[object, ...], DatasetSummary] = {}
"""The last summary by its arguments, as a run checks again at its begin."""


def check_dataset(
    path: str,
    *,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
    timed: bool = False,
    skip_broken: bool = False,
) -> DatasetSummary:
    """Check a file before any load. Raises DatasetError.

    It reads up to CHECK_BYTES and CHECK_ROWS. A file with sessions is indexed as a whole.
    """
    key = _key(path, kind, columns, timed, skip_broken)
    if key in _latest:
        return _latest[key]
    summary = _look(path, kind, columns, timed, skip_broken)
    _keep(key, summary)
    return summary


def remember_dataset_check(
    summary: DatasetSummary,
    kind: str | None,
    columns: Mapping[str, str] | None,
    timed: bool,
    skip_broken: bool,
) -> None:
    """Remember what another process has found. ``check_dataset`` with these arguments uses it,
    unless the file changes."""
    _keep(_key(summary.path, kind, columns, timed, skip_broken), summary)


def _keep(key: tuple[object, ...], summary: DatasetSummary) -> None:
    _latest.clear()
    _latest[key] = summary


def _key(
    path: str, kind: str | None, columns: Mapping[str, str] | None, timed: bool, skip_broken: bool
) -> tuple[object, ...]:
    try:
        file = os.stat(path)
    except OSError:
        return (path,)  # the look reports it
    asked = kind, tuple((columns or {}).items()), timed, skip_broken
    return path, file.st_ino, file.st_size, file.st_mtime_ns, *asked


def _look(
    path: str, kind: str | None, columns: Mapping[str, str] | None, timed: bool, skip_broken: bool
) -> DatasetSummary:
    dataset = Dataset(path, kind=kind, columns=columns, timed=timed, skip_broken=skip_broken)
    sessions = turns = synthetic = timed_sessions = looked_at = images = sounds = 0
    longest = 0, 0
    first_at = float("inf")
    last_at = float("-inf")
    counts = {"input_tokens": [0, 0], "output_tokens": [0, 0]}
    whole = True
    tenants = dict[str, None]()
    for item in dataset:
        sessions = sessions + 1
        turns = turns + len(item.turns)
        tenants[item.tenant] = None
        longest = max(longest, (_longest(item.turns), -item.row))
        if (at_s := item.turns[0].at_s) is not None:
            timed_sessions += 1
            first_at = min(first_at, at_s)
            last_at = max(last_at, at_s)
        for turn in item.turns:
            looked_at += bool(turn.body)
            if turn.body and looked_at <= CHECK_SCHEMAS:
                _check_schema(path, turn)
            synthetic += turn.messages is None
            kinds = {images_and_audio.COLUMNS[column] for column, _ in turn.media}
            images = images + (images_and_audio.IMAGE in kinds)
            sounds = sounds + (images_and_audio.AUDIO in kinds)
            for name, total in counts.items():
                tokens = getattr(turn, name)
                if tokens is not None:
                    total[0] += tokens
                    total[1] += 1
        if dataset.read_bytes > CHECK_BYTES or dataset.rows >= CHECK_ROWS:
            whole = False
            break
    means = {name: total / count if count else None for name, (total, count) in counts.items()}
    return DatasetSummary(
        path=path,
        kind=dataset.kind,
        whole=whole,
        rows=dataset.rows,
        sessions=sessions,
        turns=turns,
        synthetic=synthetic,
        images=images,
        sounds=sounds,
        timed=timed_sessions,
        span_s=last_at - first_at if timed_sessions else None,
        first_s=first_at if timed_sessions else None,
        longest=longest[0] or None,
        longest_row=-longest[1] or None,
        tenants=tuple(filter(None, tenants)),
        about="; ".join(
            f"{about} ({count:,} sessions)" for about, count in dataset.about.items() if about
        ),
        left_out=dataset.left_out,
        broken=dataset.broken,
        first_broken=tuple(dataset.first_broken),
        **means,
    )

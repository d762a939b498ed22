"""AIPerf DAG: conversations of a file that begin others; AIPerf's dag_jsonl
(docs/benchmark-modes/dag.md).

A fork goes on with the conversation it comes from; a spawn begins with nothing, and a turn that
joins it waits for its end.
"""

from itertools import chain
from typing import Any, Final

import msgspec

from locust_llm.workload.dataset_formats import RowError, Turn, parse_request_row

MAX_TURNS: Final = 100_000
"""The turns of a session. A conversation that is spawned twice is sent twice, so few rows may be
very many turns."""
MAX_DEPTH: Final = 100


class _Spawn(msgspec.Struct):
    children: list[str]
    join_at: int | None = None


class _Fork(msgspec.Struct):
    child: str
    background: bool = False


class _Turn(msgspec.Struct):
    messages: list[dict[str, Any]]
    forks: list[str | _Fork] = []
    spawns: list[str | _Spawn] = []


class _Conversation(msgspec.Struct):
    session_id: str
    turns: list[dict[str, Any]]
    pre_session_spawns: list[str] = []

    def read(self, line: int) -> list[_Turn]:
        try:
            return [msgspec.convert(turn, _Turn) for turn in self.turns]
        except msgspec.ValidationError as wrong:
            raise RowError(f"turns: {wrong}", field="turns", line=line) from None


def _conversation(fields: dict[str, Any], line: int | None = None) -> _Conversation:
    try:
        return msgspec.convert(fields, _Conversation)
    except msgspec.ValidationError as wrong:
        raise RowError(str(wrong), field="turns", line=line) from None


def _children(turn: _Turn) -> list[str]:
    children = [fork if isinstance(fork, str) else fork.child for fork in turn.forks]
    for spawn in turn.spawns:
        children += [spawn] if isinstance(spawn, str) else spawn.children
    return children


def read_dag_names(fields: dict[str, Any]) -> list[str]:
    """The conversation and the ones that it begins. Raises RowError."""
    row = _conversation(fields)
    of_turns = chain.from_iterable(map(_children, row.read(0)))
    return [row.session_id, *row.pre_session_spawns, *of_turns]


def read_dag_turns(rows: list[tuple[dict[str, Any], int]]) -> tuple[str, list[Turn]]:
    """(name, turns) of the connected conversations. Raises RowError."""
    session = _Session()
    begun = set[str]()
    for fields, line in rows:
        row = _conversation(fields, line)
        if row.session_id in session.rows:
            raise RowError(
                f"the session_id {row.session_id!r} occurs twice", field="session_id", line=line
            )
        if not row.turns:
            raise RowError("turns must be a list with at least one turn", field="turns", line=line)
        session.rows[row.session_id] = row, line
        begun.update(row.pre_session_spawns, *(_children(turn) for turn in row.read(line)))
    roots = [name for name in session.rows if name not in begun]
    if not roots:
        first = next(iter(session.rows))
        raise RowError(
            f"conversations start each other in a circle: {first!r} has no root",
            field="session_id",
            line=rows[0][1],
        )
    for root in roots:
        session.add(root, (), rows[0][1], whole=False, above=())
    return roots[0], session.turns


class _Session:
    def __init__(self) -> None:
        self.rows: dict[str, tuple[_Conversation, int]] = {}
        self.turns: list[Turn] = []

    def add(
        self, name: str, after: tuple[int, ...], by: int, *, whole: bool, above: tuple[str, ...]
    ) -> tuple[int, ...]:
        """Add this conversation, which ``by`` (a line) begins after these turns. Returns its last
        turns, with the ones of its forks."""
        if name not in self.rows:
            raise RowError(
                f"starts {name!r}, but no row has this session_id", field="turns", line=by
            )
        if name in above or len(above) > MAX_DEPTH:
            way = " starts ".join([*above[-5:], name])
            raise RowError(
                f"conversations start each other in a circle: {way}", field="turns", line=by
            )
        row, line = self.rows[name]
        ends = list[int]()
        joins: dict[int, list[int]] = {}
        below = (*above, name)
        for child in row.pre_session_spawns:
            self.add(child, after, line, whole=True, above=below)
        for number, (turn, fields) in enumerate(zip(row.read(line), row.turns, strict=True)):
            try:
                made = parse_request_row(fields, "messages", line, whole=False)
            except RowError as wrong:
                raise RowError(f"turns[{number}]: {wrong}", field="turns", line=line) from None
            at = len(self.turns)
            if at >= MAX_TURNS:
                raise RowError(
                    f"a session of more than {MAX_TURNS:,} turns", field="turns", line=line
                )
            waits = (*after, *joins.pop(number, ()))
            linear = waits == ((at - 1,) if at else ())
            whole_now = whole and number == 0
            self.turns.append(
                msgspec.structs.replace(made, after=None if linear else waits, whole=whole_now)
            )
            after = (at,)
            for fork in turn.forks:
                ends += self.add(
                    fork if isinstance(fork, str) else fork.child,
                    after,
                    line,
                    whole=False,
                    above=below,
                )
            for spawn in turn.spawns:
                spawned = _Spawn([spawn]) if isinstance(spawn, str) else spawn
                join = number + 1 if spawned.join_at is None else spawned.join_at
                if spawned.join_at is not None and not number < join < len(row.turns):
                    raise RowError(
                        f"turns[{number}]: join_at {join} is not a later turn",
                        field="turns",
                        line=line,
                    )
                for child in spawned.children:
                    joins.setdefault(join, []).extend(
                        self.add(child, after, line, whole=True, above=below)
                    )
        return (*after, *ends)

"""Session trees: which turn of a session waits for which others, by the names in a file or by the
times of a recording."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

After = tuple[int, ...] | None
"""Numbers of turns, each below the own one. None: the turn before. It is the same as
``Turn.after``."""
MAX_DEPTH: Final = 100
"""The greatest depth of spans within others."""


class TreeError(ValueError):
    """The turns are no tree. ``number`` is the wrong one, from 0."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(what)
        self.number = number


def read_turn_id(value: Any, number: int, where: str) -> str | None:
    """The ``id`` of a turn."""
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise TreeError(f"{where} must be text", number)


def read_awaited_ids(value: Any, number: int, where: str) -> list[str] | None:
    """The ``after`` of a turn: an id, or a list of ids."""
    if value is None:
        return None
    names = [
        read_turn_id(name, number, where)
        for name in (value if isinstance(value, list) else [value])
    ]
    if None in names:
        raise TreeError(f"{where} must be an id or a list of ids", number)
    return [name for name in names if name is not None]


def link_turns(
    names: Sequence[str | None],
    afters: Sequence[list[str] | None],
    times: Sequence[float | None],
    label: Callable[[int], str],
) -> list[tuple[int, After]]:
    """(place in the file, what it waits for) of each turn, in an order in which none waits for a
    later one.

    ``afters``: the names that each waits for; None: the turn before it in the file. Where all turns
    have times, their order is by time, else as in the file. ``label``: what a message calls a turn.
    Raises TreeError.
    """
    numbers: dict[str, int] = {}
    for number, name in enumerate(names):
        if name is not None and numbers.setdefault(name, number) != number:
            raise TreeError(f"{label(number)}: the id {name!r} occurs twice", number)
    parents: list[list[int]] = []
    for number, after in enumerate(afters):
        if after is None:
            parents.append([number - 1] if number else [])
            continue
        for name in after:
            if name not in numbers:
                raise TreeError(
                    f"{label(number)} waits for {name!r}, but no turn has this id", number
                )
        parents.append(list(dict.fromkeys(numbers[name] for name in after)))
        for parent in parents[-1]:
            own, before = times[number], times[parent]
            if own is not None and before is not None and own < before:
                late = f"at {own:g} s, before {label(parent)}, which it waits for, at {before:g} s"
                raise TreeError(f"{label(number)} begins {late}", number)
    return _sorted(parents, times if None not in times else [0.0] * len(times), label)


def _sorted(
    parents: list[list[int]], times: Sequence[float | None], label: Callable[[int], str]
) -> list[tuple[int, After]]:
    children: list[list[int]] = [[] for _ in parents]
    for number, before in enumerate(parents):
        for parent in before:
            children[parent].append(number)
    waits = [len(before) for before in parents]
    ready = [(times[number], number) for number, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    new: dict[int, int] = {}
    order: list[tuple[int, After]] = []
    while ready:
        _, number = heapq.heappop(ready)
        after = tuple(new[parent] for parent in parents[number])
        new[number] = at = len(order)
        order.append((number, leave_out_usual_parent(at, after)))
        for child in children[number]:
            waits[child] -= 1
            if not waits[child]:
                heapq.heappush(ready, (times[child], child))
    if len(order) < len(parents):
        raise _cycle(parents, new, label)
    return order


def leave_out_usual_parent(number: int, after: tuple[int, ...]) -> After:
    """What a turn goes on from. None: it is the turn before it, as for a turn that names none."""
    usual = (number - 1,) if number else ()
    return None if after == usual else after


def _cycle(parents: list[list[int]], done: Iterable[int], label: Callable[[int], str]) -> TreeError:
    """The error for remaining turns that wait for each other: going on from one leads around."""
    left = set(range(len(parents))).difference(done)
    way = list[int]()
    number = min(left)
    while number not in way:
        way.append(number)
        number = next(parent for parent in parents[number] if parent in left)
    circle = [*way[way.index(number) :], number]
    shown = circle if len(circle) < 7 else [*circle[:5], circle[-1]]
    return TreeError(f"turns wait for each other: {' after '.join(map(label, shown))}", min(circle))


# -- by times --------------------------------------------------------------------------------------


class RecordedSpan(NamedTuple):
    """A piece of a recording, in seconds: a request, a tool, or an agent with pieces of its own."""

    start: float
    end: float
    request: Any = None
    inner: "Sequence[RecordedSpan]" = ()
    tool: bool = False


class PlacedRequest(NamedTuple):
    """A request and what it waits for."""

    request: Any
    start: float
    after: tuple[int, ...]
    """The numbers of requests in the list."""
    wait_s: float
    """The seconds from their last end, or from the start of the session."""
    tool: bool
    """A tool ran in this time."""


def order_spans_by_time(spans: Sequence[RecordedSpan]) -> list[PlacedRequest]:
    """Requests in the order of their starts.

    A request waits for the requests of its agent that had ended when it began, without others that
    came before these. An agent is one piece for the agent around it: its first requests wait for
    what it waits for, and what comes after it waits for its last ones. Overlapping pieces never
    wait for each other. Raises TreeError if agents are nested too deeply.
    """
    nodes: list[_Node] = []
    _place(spans, [], [], nodes, 0)
    # stable: parents were placed first
    order = sorted(range(len(nodes)), key=lambda number: nodes[number].span.start)
    new = {number: at for at, number in enumerate(order)}
    first = nodes[order[0]].span.start if order else 0.0
    placed = []
    for span, parents, tools in (nodes[number] for number in order):
        since = max((nodes[parent].span.end for parent in parents), default=first)
        tool = any(start < span.start and end > since for start, end in tools)
        after = tuple(sorted((new[parent] for parent in parents), reverse=True))
        placed.append(
            PlacedRequest(span.request, span.start, after, max(0.0, span.start - since), tool)
        )
    return placed


class _Node(NamedTuple):
    span: RecordedSpan
    parents: list[int]
    tools: list[tuple[float, float]]


def _place(
    spans: Sequence[RecordedSpan],
    before: list[int],
    tools: list[tuple[float, float]],
    nodes: list[_Node],
    depth: int,
) -> list[int]:
    """Put all requests in ``spans`` into ``nodes``. Returns the last ones of them. ``before`` is
    what the first ones wait for."""
    if depth > MAX_DEPTH:
        raise TreeError(f"spans are nested more than {MAX_DEPTH} deep", 0)
    tools = [*tools, *((span.start, span.end) for span in spans if span.tool)]
    running: list[tuple[float, int, float, list[int]]] = []
    last: list[tuple[float, int, list[int]]] = []
    """(end, number, last requests) of the last ended pieces: no other ended piece began after their
    end."""

    def end_until(time_s: float) -> None:
        nonlocal last
        while running and running[0][0] <= time_s:
            end, number, start, tails = heapq.heappop(running)
            last = [ended for ended in last if ended[0] > start or ended[1] > number]
            last.append((end, number, tails))

    def last_requests() -> list[int]:
        found: dict[int, None] = {}
        for _, _, tails in last:
            found.update(dict.fromkeys(tails))
        return list(found) or before

    for number, span in enumerate(
        sorted((span for span in spans if not span.tool), key=lambda span: span.start)
    ):
        end_until(span.start)
        parents = last_requests()
        if span.request is None:
            tails = _place(span.inner, parents, tools, nodes, depth + 1)
            if not span.inner or tails is parents:
                continue  # nothing was asked in it
        else:
            tails = [len(nodes)]
            nodes.append(_Node(span, parents, tools))
        heapq.heappush(running, (span.end, number, span.start, tails))
    end_until(float("inf"))
    return last_requests()

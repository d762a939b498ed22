"""Session start point: a session of a file with its long waits cut, or from its middle on."""

from typing import Any

from msgspec.structs import replace

from locust_llm.text.numbers import read_number
from locust_llm.workload.conversation import list_turn_parents
from locust_llm.workload.dataset_formats import DatasetSession, Turn
from locust_llm.workload.session_trees import leave_out_usual_parent


def parse_start_shares(text: str) -> tuple[float, float]:
    """``0.25..0.75``, or one number for both. Raises ValueError."""
    low, dots, high = text.partition("..")
    least = read_number(float, low)
    most = read_number(float, high) if dots else least
    if not 0 <= least <= most < 1:
        raise ValueError("must be shares from 0 to below 1, the lower one first")
    return least, most


def cap_session_waits(item: DatasetSession, cap_s: float) -> DatasetSession:
    """The session in which no turn waits longer than ``cap_s`` for a user or a tool. The times of a
    trace move with it. Where a turn's wait is not recorded, the time since the last start of the
    turns before it counts."""
    turns: list[Turn] = []
    earlier: list[float] = []
    """How much earlier each turn is than in the trace, in seconds."""
    for turn, after in zip(item.turns, list_turn_parents(item.turns), strict=True):
        before = [at_s for parent in after if (at_s := item.turns[parent].at_s) is not None]
        wait_s = turn.delay_s
        if wait_s is None and turn.at_s is not None and before:
            wait_s = turn.at_s - max(before)
        cut_s = max(0.0, (wait_s or 0.0) - cap_s) if turns else 0.0
        # of several before it the one that moved least: it may not begin before that one's end
        earlier.append(min((earlier[parent] for parent in after), default=0.0) + cut_s)
        turns.append(replace(
            turn,
            delay_s=turn.delay_s if turn.delay_s is None else min(turn.delay_s, cap_s),
            at_s=turn.at_s if turn.at_s is None else turn.at_s - earlier[-1],
        ))  # fmt: skip
    return replace(item, turns=tuple(turns))


def start_session_at(item: DatasetSession, share: float) -> DatasetSession:
    """The session's turns after this share of them. Earlier turns are not sent. Where a turn goes
    on from one, the file's texts and answers begin its prompt, or their lengths begin a synthetic
    one."""
    first = int(share * len(item.turns))
    if not first:
        return item
    before = list_turn_parents(item.turns)
    start_s = item.turns[first].at_s
    kept_turns: list[Turn] = []
    for number in range(first, len(item.turns)):
        turn = item.turns[number]
        after = tuple(parent - first for parent in before[number] if parent >= first)
        if not turn.whole and before[number] and before[number][0] < first:
            turn = _with_history(item, before, number)
        delay_s = turn.delay_s
        if not after:
            delay_s = (
                max(0.0, turn.at_s - start_s)
                if turn.at_s is not None and start_s is not None
                else 0.0
            )
        kept_turns.append(
            replace(turn, after=leave_out_usual_parent(number - first, after), delay_s=delay_s)
        )
    return replace(item, turns=tuple(kept_turns))


def _with_history(item: DatasetSession, before: list[tuple[int, ...]], number: int) -> Turn:
    """This turn as the whole of the conversation that it goes on with."""
    way = [number]
    while not item.turns[way[-1]].whole and before[way[-1]]:
        way.append(before[way[-1]][0])
    turns = [item.turns[at] for at in reversed(way)]
    turn = turns[-1]
    if turn.messages is None and all(turn.messages is None for turn in turns):
        lengths = [turn.input_tokens for turn in turns]
        known = None if None in lengths else sum(length or 0 for length in lengths)
        answers = sum(turn.output_tokens or 0 for turn in turns[:-1])
        return replace(
            turn, whole=True, input_tokens=None if known is None else known + answers, hash_ids=()
        )
    messages: list[dict[str, Any]] = []
    for earlier_turn in turns[:-1]:
        messages += earlier_turn.messages or []
        answer = (
            earlier_turn.recorded
            if earlier_turn.recorded is not None
            else {"role": "assistant", "content": earlier_turn.reference}
        )
        if answer.get("content") or answer.get("tool_calls"):
            messages.append(answer)
    return replace(
        turn, whole=True, messages=_joined([*messages, *(turn.messages or [])]), input_tokens=None
    )


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join a user's texts without an answer between them to one, as few chat templates accept two
    in a row."""
    made: list[dict[str, Any]] = []
    for message in messages:
        last = made[-1] if made else {}
        texts = last.get("content"), message.get("content")
        if last.get("role") == message.get("role") == "user" and all(
            isinstance(text, str) for text in texts
        ):
            made[-1] = {**last, "content": "\n\n".join(map(str, texts))}
        else:
            made.append(message)
    return made

"""Changed streams: what was sent against what came. Pure.

The facts of an answer are read from its raw bytes. The facts of an answer through the gateway are
compared with the facts of a direct answer to the same script; every difference is a change of a
kind in KINDS. Ids of requests differ between the two, so they are named alike first.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from statistics import median
from typing import Any, Final, NamedTuple

from locust_llm.records.outcomes import OK

from .gateway_client import Exchange
from .gateway_result import StreamChange
from .raw_answer import FIRST_WORD, WORD, RawAnswer, SentWord, StreamEvent, find_words, split_events

KINDS: Final = {
    "failed": "answers that failed",
    "status": "another HTTP status",
    "content_type": "another content type",
    "compressed": "compression added",
    "unpacked": "compression removed",
    "merged": "chunks merged into one event",
    "split": "chunks split over several events",
    "held": "chunks held back (buffering)",
    "lost": "chunks lost",
    "doubled": "chunks doubled",
    "reordered": "chunks in another order",
    "channel": "content, reasoning or tool arguments in another field",
    "text": "text changed",
    "tool_call": "tool call changed",
    "comments_lost": "keep-alive comments dropped",
    "comments_added": "keep-alive comments added",
    "usage_missing": "usage missing",
    "usage_changed": "usage changed",
    "usage_added": "usage added that the server did not send",
    "id": "id of the answer changed",
    "several_ids": "several ids in one answer",
    "model": "model name changed",
    "finish": "finish reason changed",
    "done_missing": "last event missing",
    "done_added": "last event added",
    "event_ids": "ids of events dropped",
    "event_types": "types of events changed",
    "fields_lost": "fields dropped",
    "fields_added": "fields added",
}
"""The kinds of changes, in words."""
HELD_SHARE: Final = 0.1
"""Chunks are held back where the median gap is shorter than this share of the gap between their
writes."""
MIN_GAPS: Final = 4
MOSTLY: Final = 0.8
"""Chunks are held back by the gateway where so large a share of the answers has it. A busy machine
does it now and then."""
EXAMPLE_CHARS: Final = 160
MOST_FIELDS: Final = 5
ID: Final = "ID"
TEXTS: Final = ("content", "reasoning", "tool")


class AnswerFacts(NamedTuple):
    """What one answer says, without its times and its own id."""

    outcome: str
    status: int | None
    content_type: str
    coding: str
    words: tuple[int, ...]
    """The numbers of the words in the order of their arrival."""
    most_in_event: int
    """So many words that were written apart came in one event."""
    broken: int
    """So many words came in pieces."""
    held: bool
    channels: tuple[tuple[int, str], ...]
    """The field of each word."""
    rest: str
    """The text without its words."""
    tool: tuple[str, ...]
    """Id and name of the tool call, and whether its arguments are JSON."""
    comments: int
    usage: tuple[tuple[str, int], ...]
    ids: tuple[str, ...]
    models: tuple[str, ...]
    finish: tuple[str, ...]
    done: bool
    event_ids: bool
    event_types: tuple[str, ...]
    fields: frozenset[str]
    """The paths of all fields of its JSON."""


class ReadText(NamedTuple):
    """A text of an answer, and its words."""

    event: int
    """The number of its event."""
    words: tuple[SentWord, ...]
    channel: str
    text: str


def read_facts(exchange: Exchange) -> AnswerFacts:
    """Reads the facts of an answer, streamed or whole."""
    answer = exchange.parse()
    events = split_events(answer.pieces) if answer.is_event_stream else []
    values = [
        (event.at_ns, value) for event in events if (value := _parse_json(event.data)) is not None
    ]
    if not answer.is_event_stream and (whole := _parse_json(answer.body)) is not None:
        values = [(answer.pieces[-1][0], whole)]
    texts = list[ReadText]()
    for number, (at_ns, value) in enumerate(values):
        for channel, text in _read_texts(exchange.kind, value):
            found = tuple(find_words([(at_ns, text.encode())]))
            texts.append(ReadText(number, found, channel, text))
    return _make_facts(exchange, answer, events, [value for _, value in values], texts)


def _make_facts(
    exchange: Exchange,
    answer: RawAnswer,
    events: Sequence[StreamEvent],
    values: Sequence[Mapping[str, Any]],
    texts: Sequence[ReadText],
) -> AnswerFacts:
    own_id = exchange.script.id
    words = list(chain.from_iterable(one.words for one in texts))
    channels = list[tuple[int, str]]()
    joined = dict.fromkeys(TEXTS, "")
    for one in texts:
        channels += [(word.number, one.channel) for word in one.words]
        joined[one.channel] += one.text
    whole_text = "".join(joined.values())
    return AnswerFacts(
        outcome=exchange.outcome,
        status=answer.status,
        content_type=answer.header("content-type").partition(";")[0].strip().lower(),
        coding=answer.coding if answer.coding != "identity" else "",
        words=tuple(word.number for word in words),
        most_in_event=_count_most_in_event(texts) if events else 0,
        broken=len(find_words([(0, whole_text.encode())])) - len(words),
        held=_is_held(words) if events else False,
        channels=tuple(channels),
        rest=_drop_words(whole_text),
        tool=_read_tool_call(exchange.kind, values, joined["tool"], own_id),
        comments=sum(event.comment is not None for event in events),
        usage=_read_usage(values),
        ids=_list_once(_name_id(text, own_id) for text in _find_ids(exchange.kind, values)),
        models=_list_once(_find_named(values, "model")),
        finish=_list_once(_find_finish(exchange.kind, values)),
        done=_has_last_event(exchange.kind, events) if events else answer.complete,
        event_ids=any(event.id for event in events),
        event_types=_list_once(event.type for event in events if event.type),
        fields=frozenset(chain.from_iterable(map(_list_paths, values))),
    )


def _parse_json(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# -- the parts of each API -------------------------------------------------------------------------


def _read_texts(kind: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(channel, text) of the deltas in an event, or of a whole answer."""
    match kind:
        case "chat" | "completions":
            for choice in _objects(value.get("choices")):
                yield from _read_choice(choice)
        case "responses":
            yield from _read_responses_texts(value)
        case "messages":
            delta = value.get("delta") or {}
            blocks = [delta] if isinstance(delta, dict) else []
            for block in [*blocks, *_objects(value.get("content"))]:
                yield from _read_block(block)


def _read_choice(choice: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    delta = choice.get("delta") or choice.get("message") or choice
    if not isinstance(delta, dict):
        return
    for name, channel in (
        ("reasoning_content", "reasoning"),
        ("reasoning", "reasoning"),
        ("content", "content"),
        ("text", "content"),
    ):
        if isinstance(text := delta.get(name), str) and text:
            yield channel, text
            if name == "reasoning_content":
                delta = {**delta, "reasoning": None}  # some gateways write both
    for call in _objects(delta.get("tool_calls")):
        function = call.get("function")
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str) and arguments:
            yield "tool", arguments


def _read_responses_texts(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kind = str(value.get("type", ""))
    if kind.endswith(".delta") and isinstance(value.get("delta"), str):
        channel = "content"
        if "reasoning" in kind:
            channel = "reasoning"
        elif "arguments" in kind:
            channel = "tool"
        yield channel, value["delta"]
    if value.get("object") != "response":
        return
    for item in _objects(value.get("output")):
        channel = "reasoning" if item.get("type") == "reasoning" else "content"
        if isinstance(item.get("arguments"), str):
            yield "tool", item["arguments"]
        for part in _objects(item.get("content")):
            yield channel, str(part.get("text", ""))


def _read_block(block: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, channel in (
        ("thinking", "reasoning"),
        ("text", "content"),
        ("partial_json", "tool"),
    ):
        if isinstance(text := block.get(name), str) and text:
            yield channel, text
    if block.get("type") == "tool_use" and block.get("input"):
        yield "tool", json.dumps(block["input"])


def _read_tool_call(
    kind: str, values: Sequence[Mapping[str, Any]], arguments: str, own_id: str
) -> tuple[str, ...]:
    """Empty: there is no call."""
    if not arguments:
        return ()
    calls = list[tuple[str, str]]()
    for value in values:
        for call in _find_calls(kind, value):
            function = call.get("function") or call
            call_id = call.get("call_id") or call.get("id") or ""
            if function.get("name"):
                calls.append((_name_id(str(call_id), own_id), str(function["name"])))
    state = "arguments are JSON" if _parse_json(arguments.encode()) is not None else "broken JSON"
    first = calls[0] if calls else ("", "")
    return (*first, state)


def _find_calls(kind: str, value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    match kind:
        case "chat":
            for choice in _objects(value.get("choices")):
                delta = choice.get("delta") or choice.get("message") or {}
                yield from _objects(delta.get("tool_calls"))
        case "responses":
            yield from _objects([value.get("item")])
            yield from _objects(value.get("output"))
        case "messages":
            yield from _objects([value.get("content_block")])
            yield from _objects(value.get("content"))


def _read_usage(values: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, int], ...]:
    """The last number of each of its main fields."""
    found = dict[str, int]()
    for value in values:
        for holder in _list_holders(value):
            for name, count in _object(holder.get("usage")).items():
                if isinstance(count, int) and name.endswith("_tokens"):
                    found[name] = count
    return tuple(sorted(found.items()))


def _find_ids(kind: str, values: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for value in values:
        holder = value
        if kind == "responses":
            holder = value.get("response") or value
        elif kind == "messages":
            holder = value.get("message") or value
        if isinstance(text := holder.get("id"), str):
            yield text


def _find_named(values: Sequence[Mapping[str, Any]], name: str) -> Iterator[str]:
    for value in values:
        for holder in _list_holders(value):
            if isinstance(text := holder.get(name), str):
                yield text


def _list_holders(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """An event, and the answer that some events hold."""
    return [value, _object(value.get("response")), _object(value.get("message"))]


def _find_finish(kind: str, values: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for value in values:
        if kind == "messages":
            delta = value.get("delta")
            holders = [value, delta if isinstance(delta, dict) else {}]
            yield from (str(one["stop_reason"]) for one in holders if one.get("stop_reason"))
        elif kind == "responses":
            response = value.get("response") or value
            if response.get("status") not in (None, "in_progress"):
                yield str(response["status"])
        else:
            for choice in _objects(value.get("choices")):
                if choice.get("finish_reason"):
                    yield str(choice["finish_reason"])


def _has_last_event(kind: str, events: Sequence[StreamEvent]) -> bool:
    last = {"responses": b"response.", "messages": b"message_stop"}.get(kind)
    if last is None:
        return any(event.data == b"[DONE]" for event in events)
    ends = ("response.completed", "response.incomplete", "response.failed", "message_stop")
    return any(event.type in ends or (_parse_json(event.data) or {}).get("type") in ends
        for event in events)  # fmt: skip


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(values: Any) -> list[dict[str, Any]]:
    if values is None or isinstance(values, (str, dict)):
        return []
    return [value for value in values if isinstance(value, dict)]


# -- words and names -------------------------------------------------------------------------------


def _count_most_in_event(texts: Sequence[ReadText]) -> int:
    """The most words of different writes in one event."""
    by_event = dict[int, set[int]]()
    for one in texts:
        by_event.setdefault(one.event, set()).update(word.sent_ns for word in one.words)
    return max(map(len, by_event.values()), default=0)


def _is_held(words: Sequence[SentWord]) -> bool:
    """Words that were written apart came together, again and again."""
    ordered = sorted(words)
    sent = [after.sent_ns - before.sent_ns for before, after in pairwise(ordered)]
    came = [after.at_ns - before.at_ns for before, after in pairwise(ordered)]
    apart = [(gap, arrived) for gap, arrived in zip(sent, came, strict=True) if gap > 0]
    if len(apart) < MIN_GAPS:
        return False
    return median(arrived for _, arrived in apart) < HELD_SHARE * median(gap for gap, _ in apart)


def _drop_words(text: str) -> str:
    return FIRST_WORD.sub(b"", WORD.sub(b"", text.encode())).decode()


def _name_id(text: str, own_id: str) -> str:
    return text.replace(own_id, ID) if own_id else text


def _list_once(texts: Iterator[str]) -> tuple[str, ...]:
    """Each once, in order."""
    return tuple(dict.fromkeys(texts))


def _list_paths(value: Any, before: str = "") -> Iterator[str]:
    """``choices[].delta.content`` and so on, of fields that are not null."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if inner is not None:
                yield f"{before}{name}"
                yield from _list_paths(inner, f"{before}{name}.")
    elif isinstance(value, list):
        for inner in value:
            yield from _list_paths(inner, f"{before.removesuffix('.')}[].")


# -- what changed ----------------------------------------------------------------------------------


def compare_facts(direct: AnswerFacts, through: AnswerFacts) -> Iterator[tuple[str, str]]:
    """(kind, example) of each change. An answer that failed has no other one."""
    if direct.outcome == OK and through.outcome != OK:
        shown = f"HTTP {through.status}, " if through.status not in (None, 200) else ""
        yield "failed", f"{shown}{through.outcome}"
    if direct.status != through.status:
        yield "status", f"{direct.status} became {through.status}"
        return
    if direct.outcome != OK or (through.outcome != OK and not through.words):
        return
    yield from _compare_transport(direct, through)
    yield from _compare_words(direct, through)
    yield from _compare_facts_of_text(direct, through)
    yield from _compare_names(direct, through)


def _compare_transport(direct: AnswerFacts, through: AnswerFacts) -> Iterator[tuple[str, str]]:
    if direct.content_type != through.content_type:
        yield "content_type", f"{direct.content_type} became {through.content_type or 'none'}"
    if through.coding and not direct.coding:
        yield "compressed", through.coding
    if direct.coding and not through.coding:
        yield "unpacked", f"{direct.coding} was removed"
    if through.comments < direct.comments:
        yield "comments_lost", f"{through.comments} of {direct.comments} came"
    if through.comments > direct.comments:
        yield "comments_added", f"{through.comments - direct.comments} more"


def _compare_words(direct: AnswerFacts, through: AnswerFacts) -> Iterator[tuple[str, str]]:
    expected = set(direct.words)
    came = set(through.words)
    lost = sorted(expected - came)
    doubled = sorted({number for number in came if through.words.count(number) > 1})
    if through.most_in_event > max(1, direct.most_in_event):
        yield "merged", f"{through.most_in_event} chunks in one event"
    if through.broken > direct.broken:
        yield "split", f"{through.broken} of {len(expected)} chunks came in pieces"
    elif lost:
        yield "lost", f"{len(lost)} of {len(expected)}, such as number {lost[0]}"
    if doubled and len(direct.words) == len(expected):
        yield "doubled", f"number {doubled[0]}"
    firsts = list(dict.fromkeys(through.words))
    if firsts != sorted(firsts):
        place = next(number for number, (a, b) in enumerate(pairwise(firsts)) if a > b)
        yield "reordered", f"number {firsts[place + 1]} behind {firsts[place]}"
    if through.held and not direct.held:
        yield "held", "several chunks came at once, again and again"


def _compare_facts_of_text(direct: AnswerFacts, through: AnswerFacts) -> Iterator[tuple[str, str]]:
    expected = dict(direct.channels)
    moved = [
        (number, channel)
        for number, channel in through.channels
        if expected.get(number, channel) != channel
    ]
    if moved:
        number, channel = moved[0]
        yield "channel", f"{expected[number]} came as {channel}"
    same_words = not through.broken and sorted(direct.words) == sorted(through.words)
    if same_words and direct.rest != through.rest:
        yield "text", f"{direct.rest[:40]!r} became {through.rest[:40]!r}"
    if direct.tool != through.tool:
        yield "tool_call", f"{', '.join(direct.tool)} became {', '.join(through.tool) or 'none'}"
    if direct.usage and not through.usage:
        yield "usage_missing", "no usage came"
    elif through.usage and not direct.usage:
        yield "usage_added", _tell_usage(through.usage)
    elif direct.usage != through.usage:
        yield "usage_changed", f"{_tell_usage(direct.usage)} became {_tell_usage(through.usage)}"


def _tell_usage(usage: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count}" for name, count in usage)


def _compare_names(direct: AnswerFacts, through: AnswerFacts) -> Iterator[tuple[str, str]]:
    if len(through.ids) > 1 and len(direct.ids) <= 1:
        yield "several_ids", ", ".join(through.ids[:3])
    elif direct.ids != through.ids:
        yield "id", f"{', '.join(direct.ids) or 'none'} became {', '.join(through.ids) or 'none'}"
    if direct.models != through.models:
        yield "model", f"{', '.join(direct.models)} became {', '.join(through.models) or 'none'}"
    if direct.finish != through.finish:
        yield "finish", f"{', '.join(direct.finish)} became {', '.join(through.finish) or 'none'}"
    if direct.done and not through.done:
        yield "done_missing", "the stream ends without it"
    if through.done and not direct.done:
        yield "done_added", "the server did not send it"
    if direct.event_ids and not through.event_ids:
        yield "event_ids", "no event has its id"
    if direct.event_types != through.event_types:
        differ = sorted(set(direct.event_types) ^ set(through.event_types))
        yield "event_types", ", ".join(differ[:MOST_FIELDS]) or "another order"
    if lost := sorted(direct.fields - through.fields):
        yield "fields_lost", _tell_fields(lost)
    if added := sorted(through.fields - direct.fields):
        yield "fields_added", _tell_fields(added)


def _tell_fields(paths: Sequence[str]) -> str:
    """The outermost of them."""
    outer = list[str]()
    for path in paths:  # sorted, so that the outer one comes first
        if not outer or not path.startswith((f"{outer[-1]}.", f"{outer[-1]}[")):
            outer.append(path)
    more = f" and {len(outer) - MOST_FIELDS} more" if len(outer) > MOST_FIELDS else ""
    return ", ".join(outer[:MOST_FIELDS]) + more


def count_lost_chunks(direct: AnswerFacts, through: AnswerFacts) -> int:
    """The words that did not come, of an answer that ended well. A word that came in pieces is not
    lost."""
    if through.outcome != OK or through.broken > direct.broken:
        return 0
    return len({*direct.words} - {*through.words})


# -- over all answers ------------------------------------------------------------------------------


class GatewayAnswer(NamedTuple):
    """One answer through the gateway, or a second direct one, against a direct one."""

    trial: str
    """The API and the feature: ``chat, tools``."""
    changes: tuple[tuple[str, str], ...]
    outcome: str
    lost_chunks: int = 0


def summarise_changes(compared: Sequence[GatewayAnswer]) -> tuple[StreamChange, ...]:
    """The kinds that were seen, in the order of KINDS. ``of`` counts the answers of those trials in
    which the kind was seen."""
    summary = list[StreamChange]()
    for kind, what in KINDS.items():
        seen = list[tuple[GatewayAnswer, str]]()
        for one in compared:
            seen += [(one, example) for name, example in one.changes if name == kind]
        if kind == "held":
            seen = _drop_rare(seen, compared)
        if not seen:
            continue
        trials = list(dict.fromkeys(one.trial for one, _ in seen))
        noticed = next((one.outcome for one, _ in seen if one.outcome != OK), "")
        shown = f"{trials[0]}: {seen[0][1]}"
        kinds = "kind" if len(trials) == 2 else "kinds"
        others = f" (also {len(trials) - 1} other {kinds} of answers)" if len(trials) > 1 else ""
        summary.append(
            StreamChange(
                kind=kind,
                what=what,
                seen=len(seen),
                of=sum(one.trial in trials for one in compared),
                example=shown[:EXAMPLE_CHARS] + others,
                noticed=noticed,
            )
        )
    return tuple(summary)


def _drop_rare(
    seen: Sequence[tuple[GatewayAnswer, str]], compared: Sequence[GatewayAnswer]
) -> list[tuple[GatewayAnswer, str]]:
    """What nearly all answers of a trial have."""
    counts = Counter(one.trial for one, _ in seen)
    of = Counter(one.trial for one in compared)
    return [(one, example) for one, example in seen if counts[one.trial] >= MOSTLY * of[one.trial]]

"""Replayed integrity: the faults of a replayed answer that need no other request, by the checks of
the run itself.

``reproduction_script.py`` writes this text and the files that it imports into the script of such a
fault, so nothing here needs more than Python's standard library and those files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from locust_llm.answers.answer_integrity import ModelNames, find_answer_faults
from locust_llm.answers.received_answer import AnswerRequested, EventReader, ReceivedAnswer

from .replay_program import FindFault, ReplayedAnswer, ReplayedRequest, list_texts

LENGTH_FIELDS = "max_completion_tokens", "max_tokens", "max_output_tokens"
OF_TOOLS = "arguments", "partial_json", "input"
OF_REASONING = "reasoning", "thinking", "summary"


def make_fault_finder(name: str) -> FindFault:
    """Returns the function that finds this fault in an answer. The server's names of its models are
    kept over all tries."""
    models = ModelNames()

    def find_fault(
        request: ReplayedRequest, answer: ReplayedAnswer, others: Sequence[ReplayedRequest]
    ) -> str:
        if answer.status != 200:
            return ""
        body = request.body
        length = next((body[field] for field in LENGTH_FIELDS if body.get(field)), None)
        asked = AnswerRequested(model=str(body.get("model") or ""), max_tokens=length)
        received = read_received(answer.list_events())
        return name if name in find_answer_faults(received, asked, models) else ""

    return find_fault


def read_received(data: Sequence[bytes]) -> ReceivedAnswer:
    """What came of one answer, from the data of its events."""
    reader = EventReader()
    texts: dict[str, str] = {}
    chunks: list[str] = []
    counted: list[int] = []
    counts: dict[str, int] = {}
    finish: str | None = None
    choices = 1
    for one in data:
        reader.add(one)
        event = read_object(one)
        found = [(name, text) for name, text in list_texts(event) if text]
        for name, text in found:
            texts[name] = texts.get(name, "") + text
        counts.update(read_counts(event))
        if any(classify(name) == "text" for name, _ in found):
            chunks.append("".join([text for name, text in found if classify(name) == "text"]))
            counted += [counts["output"]] if read_counts(event).get("output") else []
        finish = find_event_finish_reason(event) or finish
        for choice in event.get("choices") or ():
            choices = max(choices, 1 + int(choice.get("index") or 0))
    by_kind: dict[str, list[str]] = {"text": [], "reasoning": [], "tool": []}
    others: dict[str, str] = {}
    for name, text in texts.items():
        choice = name.split()[1] if name.startswith("choice ") else "0"
        if choice in ("0", "None"):
            by_kind[classify(name)].append(text)
        else:
            others[choice] = others.get(choice, "") + text
    return ReceivedAnswer(
        text="".join(by_kind["text"]),
        reasoning="".join(by_kind["reasoning"]),
        tool_arguments=tuple(by_kind["tool"]),
        finish_reason=finish,
        choices=choices,
        other_texts=tuple(others.values()),
        prompt_tokens=counts.get("prompt"),
        completion_tokens=counts.get("output"),
        reasoning_tokens=counts.get("reasoning"),
        total_tokens=counts.get("total"),
        chunk_texts=tuple(chunks) if len(data) > 1 else (),
        tokens_so_far=tuple(counted) if len(data) > 1 else (),
        events=reader,
    )


def classify(name: str) -> str:
    """Whether a text of ``list_texts`` is text, reasoning or the arguments of a tool."""
    if any(word in name for word in OF_TOOLS):
        return "tool"
    return "reasoning" if any(word in name for word in OF_REASONING) else "text"


def read_object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_counts(event: dict[str, Any]) -> dict[str, int]:
    """The counts of an event that are no zeros."""
    inner = event.get("response") or event.get("message") or event
    usage = event.get("usage") or (inner.get("usage") if isinstance(inner, dict) else None) or {}
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    counts = {
        "prompt": usage.get("prompt_tokens") or usage.get("input_tokens"),
        "output": usage.get("completion_tokens") or usage.get("output_tokens"),
        "reasoning": details.get("reasoning_tokens"),
        "total": usage.get("total_tokens"),
    }
    return {name: count for name, count in counts.items() if isinstance(count, int) and count}


def find_event_finish_reason(event: dict[str, Any]) -> str | None:
    for choice in event.get("choices") or ():
        if not choice.get("index") and choice.get("finish_reason"):
            return str(choice["finish_reason"])
    delta = event.get("delta")
    if isinstance(delta, dict) and delta.get("stop_reason"):
        return str(delta["stop_reason"])
    inner = event.get("response") or event
    if isinstance(inner, dict) and inner.get("status") in ("completed", "incomplete"):
        return "stop" if inner["status"] == "completed" else "incomplete"
    return event.get("stop_reason")

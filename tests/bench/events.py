"""Events: makes the events of an answer in each protocol, like vLLM 0.32: before the first token,
for each token, after the last one."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WORD = " word"


def text(events: Iterable[dict[str, Any]]) -> str:
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n"
        for event in events
    )


def responses(tokens: int) -> tuple[str, str, str]:
    item, part = (
        {"id": "msg_0123456789abcdef", "type": "message", "role": "assistant"},
        {"type": "output_text", "annotations": []},
    )
    where: dict[str, Any] = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    answer = {
        "id": "resp_0123456789abcdef",
        "object": "response",
        "created_at": 1700000000,
        "model": "truth",
    }
    whole = WORD * tokens
    done = {**item, "status": "completed", "content": [{**part, "text": whole}]}
    usage = {"input_tokens": 20, "output_tokens": tokens, "total_tokens": 20 + tokens}
    begin = [
        {"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}},
        {
            "type": "response.in_progress",
            "response": {**answer, "status": "in_progress", "output": []},
        },
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
    ]
    each = {
        "type": "response.output_text.delta",
        **where,
        "delta": WORD,
        "logprobs": [],
        "sequence_number": 100,
    }
    end = [
        {"type": "response.output_text.done", **where, "text": whole},
        {"type": "response.content_part.done", **where, "part": {**part, "text": whole}},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {
            "type": "response.completed",
            "response": {**answer, "status": "completed", "output": [done], "usage": usage},
        },
    ]
    return text(begin), text([each]), text(end)


def messages(tokens: int) -> tuple[str, str, str]:
    message = {
        "id": "msg_0123456789abcdef",
        "type": "message",
        "role": "assistant",
        "model": "truth",
        "content": [],
    }
    begin = [
        {
            "type": "message_start",
            "message": {**message, "usage": {"input_tokens": 20, "output_tokens": 0}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    each = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": WORD},
    }
    end = [
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens"},
            "usage": {"output_tokens": tokens},
        },
        {"type": "message_stop"},
    ]
    return text(begin), text([each]), text(end)


OTHERS = {"responses": responses, "messages": messages}


def options(protocol: str, tokens: int, folder: Path) -> list[str]:
    """Returns the truth server's options for a protocol other than chat. Its files are in
    ``folder``."""
    words = []
    for flag, events in zip(
        "bef", OTHERS[protocol](tokens) if protocol in OTHERS else (), strict=False
    ):
        (folder / flag).write_text(events)
        words += [f"-{flag}", str(folder / flag)]
    return words

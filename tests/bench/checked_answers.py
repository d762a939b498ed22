"""Checked answers: what ``--check-answers`` costs: ``make bench-answers``. Prints tables, asserts
nothing.

First the CPU of each part, for each chunk of one word. Then whole runs with and without the option,
in turn, since machines drift.
"""

import argparse
import json
import random
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench import GAP_MS, TOKENS, TTFT_MS, Row, machine, measure
from load import load
from support.records import answered
from tabulate import tabulate
from truth import build, server

from locust_llm.answers.session_markers import MarkerKey, load_marker_words
from locust_llm.client.reader.native_reader import plain_events
from locust_llm.client.response_chunks import Response
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.worker.answer_inspection import AnswerInspector, InspectedRequest
from locust_llm.worker.request_to_send import OutgoingTurn
from locust_llm.workload.local_tokenizer import load_corpus

WORDS = 5_000
READS = 60
"""So many reads are decoded at once."""
ROUNDS = 20
CHECKED = "--check-answers"


def measure_cpu_us(work: Callable[[], object], count: int) -> float:
    """The best of several rounds, in µs for each of ``count`` parts."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        best_s = min(best_s, time.process_time() - began)
    return best_s / count * 1e6


def make_events(words: list[str]) -> list[tuple[int, str, bytes]]:
    named = {"id": "chatcmpl-123", "object": "chat.completion.chunk", "model": "meta/llama-8b"}
    events = []
    for number, word in enumerate(words):
        choice = {"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}
        data = json.dumps({**named, "choices": [choice]}).encode()
        events.append((number, "message", data))
    return events


def decode(events: list[tuple[int, str, bytes]], *, checked: bool) -> Completion:
    answer = Completion(PROTOCOLS["chat"], checked=checked)
    for event in events:
        answer.add(event)
    return answer


def make_reads(events: list[tuple[int, str, bytes]]) -> list[bytes]:
    """A response as a reader gets it, an event with each read."""
    end = {"id": "chatcmpl-123", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    datas = [*(data for _, _, data in events), json.dumps(end).encode(), b"[DONE]"]
    frames = [b"data: %b\n\n" % data for data in datas]
    chunks = [b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    return [head + b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"]


def decode_response(reads: list[bytes], *, checked: bool) -> Completion:
    """From the bytes to the end of the answer, by the shortcut of the native reader if there is
    one."""
    response = Response(0, checked=checked)
    response.plain_events = plain_events
    for at in range(0, len(reads), READS):
        part = reads[at : at + READS]
        stamps = array("q", range(at, at + len(part))).tobytes()
        response.append_reads(stamps, stamps, part)
        response.decode_pending()
    response.finish()
    return response.answer


def show_parts() -> None:
    words = load_corpus()[0].split()[:WORDS]
    events = make_events(words)
    key = MarkerKey(b"0123456789abcdef")
    prose = " ".join(words)
    listed = " ".join(random.Random(1).choices(load_marker_words()[0], k=WORDS))
    answer = decode(events, checked=True)
    inspector = AnswerInspector(key)
    asked = InspectedRequest("a", OutgoingTurn([], 1, 1), [b"{}"], 1)
    record = answered(1, 2)
    plain_us = measure_cpu_us(lambda: decode(events, checked=False), WORDS)
    checked_us = measure_cpu_us(lambda: decode(events, checked=True), WORDS)
    reads = make_reads(events)
    bytes_us = measure_cpu_us(lambda: decode_response(reads, checked=False), WORDS)

    def decode_and_check() -> None:
        inspector.inspect(record, asked, decode_response(reads, checked=True))

    rows = [
        ("from the bytes to the record, without the option", bytes_us),
        ("the same with the option", measure_cpu_us(decode_and_check, WORDS)),
        ("search of prose", measure_cpu_us(lambda: key.find(prose), WORDS)),
        (
            "search of nothing but words of the list",
            measure_cpu_us(lambda: key.find(listed), WORDS),
        ),
        ("ids, models and logprobs of an event", checked_us - plain_us),
        (
            "all at the end of an answer",
            measure_cpu_us(lambda: inspector.inspect(record, asked, answer), WORDS),
        ),
    ]
    table = [[name, f"{cost_us:.2f}"] for name, cost_us in rows]
    print(tabulate(table, headers=["part", "CPU µs a chunk"], disable_numparse=True))
    made_us = measure_cpu_us(lambda: [key.make() for _ in range(1_000)], 1_000)
    print(f"a marker costs {made_us:.1f} µs\n")


def show_runs(users: list[int], seconds: int, pairs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        if program is None:
            print("no C compiler (cc): whole runs are not measured")
            return
        with server(program, Path(name), ttft_ms=TTFT_MS, gap_ms=GAP_MS, tokens=TOKENS) as sent:
            idle_s = load(sent.port, Path(name) / "idle", ["-u", "1", "-t", "5s"]).cpu_s
        table = []
        for streams in users:
            rows: dict[str, list[Row]] = {"": [], CHECKED: []}
            for option in ("", CHECKED) * pairs:
                more = [option] if option else []
                rows[option].append(measure(program, streams, seconds, False, idle_s, more=more))
            table += [describe(option, made) for option, made in rows.items()]
    headers = ["streams", "option", "CPU µs a chunk", "TTFT p99 ms: reported", "true", "verdict"]
    print(tabulate(table, headers=headers, disable_numparse=True))


def describe(option: str, rows: list[Row]) -> list[str]:
    said, true = (np.concatenate([row.ttft[which] for row in rows]) for which in (0, 1))
    return [
        f"{rows[0].streams}",
        option or "without",
        ", ".join([f"{row.cpu_us:.1f}" for row in rows]),
        f"{np.percentile(said, 99):.2f}",
        f"{np.percentile(true, 99):.2f}",
        ", ".join(sorted({str(row.verdict) for row in rows})),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", default="200,800", help="streams of each run")
    parser.add_argument("--seconds", type=int, default=15, help="how long each run sends")
    parser.add_argument("--pairs", type=int, default=3, help="runs with and without")
    options = parser.parse_args()
    print(machine())
    show_parts()
    users = [int(count) for count in options.users.split(",") if count]
    if users:
        show_runs(users, options.seconds, options.pairs)


if __name__ == "__main__":
    main()

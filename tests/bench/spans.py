"""Spans: measures their cost: CPU of the run's process and the receiver's, at so many requests per
second (make bench-spans)."""

import http.client
import os
import tempfile
import time
from pathlib import Path
from typing import Final

import gevent
from support.exports import as_json, as_protobuf, span

from locust_llm.files.buffered_file import BufferedFile
from locust_llm.records.spans.trace_ids import make_trace_id
from locust_llm.server.spans.otlp_http import JSON, PROTOBUF
from locust_llm.server.spans.span_receiver import SpanReceiver

RUN: Final = "4bf92f3577b34da6"
TIMES: Final = {
    "queue": 0.25,
    "prefill": 0.125,
    "decode": 1.5,
    "inference": 1.625,
    "ttft": 0.3755,
    "e2e": 1.9,
}
MORE: Final = {"gen_ai.request.top_p": 1.0, "gen_ai.request.max_tokens": 60, "gen_ai.request.n": 1}
BATCH: Final = 500
"""An export has this many spans."""
SECONDS: Final = 8


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def send(port: int, bodies: list[bytes], kind: str, rate: int) -> None:
    """Sends spans from a process of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    began = time.monotonic()
    for number, body in enumerate(bodies, 1):
        connection.request("POST", "/v1/traces", body, {"Content-Type": kind})
        connection.getresponse().read()
        time.sleep(max(0.0, began + number * BATCH / rate - time.monotonic()))


def measure(rate: int, kind: str) -> str:
    ids = [f"local-{number % 50}-{number}" for number in range(rate * SECONDS)]
    made = as_protobuf if kind == PROTOBUF else as_json
    bodies = []
    for begin in range(0, len(ids), BATCH):
        batch = ids[begin : begin + BATCH]
        bodies.append(made(*(span(make_trace_id(RUN, id_), **TIMES, **MORE) for id_ in batch)))
    receiver = SpanReceiver("127.0.0.1:0", RUN)
    port = receiver.port
    receiver.start(gevent.spawn, Path(tempfile.mkdtemp()), BufferedFile)
    gevent.sleep(1.0)
    assert receiver._process is not None
    theirs = cpu_s(receiver._process.pid)
    own = time.process_time()
    began = time.monotonic()
    sent = 0
    if os.fork() == 0:
        send(port, bodies, kind, rate)
        os._exit(0)
    while receiver.counts.received < len(ids):
        # their records come as they end
        over = min(len(ids), int((time.monotonic() - began) * rate))
        for one in ids[sent:over]:
            receiver.request(one, ok=True)
        sent = over
        gevent.sleep(0.1)
    took = time.monotonic() - began
    own = time.process_time() - own
    theirs = cpu_s(receiver._process.pid) - theirs
    for one in ids[sent:]:
        receiver.request(one, ok=True)
    notes = [*receiver.finish(time.monotonic)]
    return (
        f"{kind}, {rate:,} a second for {took:.1f} s: the run {own / took:.1%} of a core, the "
        f"receiver {theirs / took:.1%}; "
        f"{receiver.counts.joined:,} of {len(ids):,} joined {' '.join(notes)}"
    )


if __name__ == "__main__":
    for kind in (PROTOBUF, JSON):
        for rate in (2_000, 10_000):
            print(measure(rate, kind), flush=True)

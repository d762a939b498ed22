"""Gate: measures the gate's occupancy at the server, and the time from a first chunk to the next
request.

    python tests/bench/gate.py [seconds]

Three slots, twelve users, so somebody always waits; every request decodes for a while after its
prefill, as real ones do. A slot is in use at the server from the arrival of a request to the send
of its first token. The server is a Python program too and hears of an arrival late; counted from
the client's send, only what the client takes is lost.
"""

import statistics
import sys
from itertools import pairwise

import gevent
from support.scripted import Row, Scripted, stream

from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.gate.gate import Gate
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record

SLOTS = 3
USERS = 12


def occupancy(spans: list[tuple[float, float]]) -> float:
    """Returns the share of slots in use, from full use until the last request comes."""
    begin = sorted(start for start, _ in spans)[SLOTS - 1]
    end = max(start for start, _ in spans)
    return sum(max(0, min(stop, end) - max(start, begin)) for start, stop in spans) / (
        SLOTS * (end - begin)
    )


def handovers(records: list[Record], rows: dict[str, list[Row]]) -> list[tuple[float, ...]]:
    """Returns the ms of each handover: the server begins to send the first chunk, it arrives, the
    slot is free, the next request is sent, it arrives. First in, first out, so slots and requests
    have the same order."""
    times = []
    freed = sorted(records, key=lambda record: record.freed_at or 0)
    later = sorted(records, key=lambda record: record.sent_at or 0)[SLOTS:]
    for first, after in zip(freed, later, strict=False):
        moments = [
            rows[first.id][0].chunks[0][0] / 1e9, (first.sent_at or 0) + (first.ttft_s or 0),
            first.freed_at or 0,
            after.sent_at or 0, rows[after.id][0].arrived / 1e9,
        ]  # fmt: skip
        times.append(tuple((b - a) * 1000 for a, b in pairwise(moments)))
    return times


def run(server: Scripted, prefill_ms: float, seconds: float) -> None:
    prefix = f"bench{prefill_ms:g}-"
    gate = Gate(SLOTS)
    records: list[Record] = []
    steps = stream(10, first_ms=prefill_ms, each_ms=prefill_ms / 10)
    requests = [
        server.request(f"{prefix}{n}", steps)
        for n in range(int(SLOTS * seconds * 1000 / prefill_ms))
    ]

    def user(_: int) -> None:
        line = UserConnection()
        while requests:
            records.append(exchange_request(line, gate, requests.pop(), 0.0))
        line.close()

    gevent.joinall([gevent.spawn(user, number) for number in range(USERS)], raise_error=True)
    assert {record.outcome for record in records} == {OK}
    rows = server.rows(prefix, len(records))
    times = handovers(records, rows)
    parts = [statistics.median(part) for part in zip(*times, strict=True)]
    here = sorted(sum(time[1:3]) for time in times)
    first_sends = {record.id: rows[record.id][0].chunks[0][0] / 1e9 for record in records}
    at_server = occupancy(
        [(rows[name][0].arrived / 1e9, first) for name, first in first_sends.items()]
    )
    from_send = occupancy([(record.sent_at or 0, first_sends[record.id]) for record in records])
    print(
        f"prefill {prefill_ms:g} ms: {len(rows)} requests, occupancy of {SLOTS} slots at the "
        f"server {at_server:.2%}, from "
        f"the send {from_send:.2%}; first chunk to next send p50 {here[len(here) // 2]:.2f}, "
        f"p99 {here[len(here) * 99 // 100]:.2f} ms; "
        "p50 of the ways: to us {:.3f}, slot {:.3f}, send {:.3f}, to the server {:.3f} ms".format(
            *parts
        ),
        flush=True,
    )


if __name__ == "__main__":
    scripted = Scripted()
    for prefill in (10, 100):
        run(scripted, prefill, float(sys.argv[1]) if len(sys.argv) > 1 else 5)
    scripted.close()

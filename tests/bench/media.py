"""Media: measures whether large requests are sent on time: ``python tests/bench/media.py``. Prints,
asserts nothing.

4 MB of pictures a request, 20 requests a second at even times, beside the same load of text alone.
The server reads and answers, and does nothing else: one that decodes the JSON would need the cores
that are measured.
"""

import argparse
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from random import Random

import numpy as np

from locust_llm.records.profile_export_jsonl import parse_record_line
from locust_llm.records.record import Record
from locust_llm.workload.generated_images_and_audio import begin_png

RATE = 20
SIDE = 1160
PICTURES = [
    "--image-width-mean",
    str(SIDE),
    "--image-height-mean",
    str(SIDE),
    "--image-batch-size",
    "2",
]
BODY = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)


def serve(listener: socket.socket) -> None:
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


def answer(connection: socket.socket) -> None:
    """Reads each request of a connection to its end."""
    block = bytearray(1 << 18)
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            size = connection.recv_into(block)
            if not size:
                return
            data += block[:size]
        head, _, data = data.partition(b"\r\n\r\n")
        length = next(
            (
                int(line[15:])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            ),
            0,
        )
        left = length - len(data)
        data = data[length:]
        while left > 0:
            left -= connection.recv_into(block, min(left, len(block)))
        connection.sendall(ANSWER)


def late_ms(
    port: int, folder: Path, seconds: int, more: list[str]
) -> tuple[np.ndarray, list[Record]]:
    command = [
        sys.executable, "-m", "locust_llm", "run", "--headless", "--host", f"localhost:{port}",
        "--request-rate", str(RATE),
        "--arrival-pattern", "constant", "-u", "20", "-t", str(seconds), "--no-probe",
        "--no-model-check",
        "--no-server-metrics", "--output-tokens-mean", "2", "--report-dir", str(folder), *more,
    ]  # fmt: skip
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    records = list(
        map(parse_record_line, (folder / "profile_export.jsonl").read_bytes().splitlines())
    )
    return np.array(
        [1e3 * (r.sent_at - r.due_at) for r in records if r.sent_at is not None]
    ), records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    port = listener.getsockname()[1]
    server = multiprocessing.get_context("fork").Process(
        target=serve, args=(listener,), daemon=True
    )
    server.start()
    one = begin_png(SIDE, SIDE, Random(1)).finished(Random(1))
    print(
        f"a picture of {SIDE} x {SIDE}: {one.size / 1e6:.2f} MB, {len(bytes(one.url)) / 1e6:.2f} "
        f"MB in the request"
    )
    print("| requests | MB each | sent late p50 (ms) | p99 (ms) | most (ms) | ok |")
    for number in range(args.times):
        for name, more in (("text", []), ("two pictures", PICTURES)):
            with tempfile.TemporaryDirectory() as folder:
                late, records = late_ms(port, Path(folder) / str(number), args.seconds, more)
            size = np.mean([record.request_bytes for record in records]) / 1e6
            p50, p99 = np.percentile(late, [50, 99])
            ok = sum(record.outcome == "ok" for record in records)
            print(
                f"| {name}, {len(late)} | {size:.2f} | {p50:.2f} | {p99:.2f} | {late.max():.2f} | "
                f"{ok} |",
                flush=True,
            )
    server.terminate()


if __name__ == "__main__":
    main()

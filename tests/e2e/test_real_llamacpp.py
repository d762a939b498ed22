"""The real thing: the locust command against a real llama.cpp server, seen from the wire between
them."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
import requests
from support.one_request import ask

import locust_llm
from locust_llm.check_command import FINE, PROBLEM, check_server
from locust_llm.records.breakdown_labels import TO_FIRST
from locust_llm.records.outcomes import OK
from locust_llm.records.profile_export_jsonl import parse_record_line
from locust_llm.records.server_metrics_parser import read_engine_samples
from locust_llm.settings.run_options import Settings

HERE = Path(__file__).parents[1]
pytestmark = [pytest.mark.real, pytest.mark.full]

REQUEST = re.compile(rb"POST /v1/chat/completions.*?\r\nX-Request-Id: (\S+)", re.S)
CONTENT = re.compile(rb'"content":"[^"]')


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def llamacpp() -> Iterator[int]:
    """The port of a llama.cpp server with four slots and no prompt cache. Installs it the first
    time (250 MB)."""
    port = free_port()
    process = subprocess.Popen(
        [str(HERE / "real" / "start_llamacpp.sh"), str(port), "--slots", "4", "--no-cache-prompt"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 300
        while True:
            assert process.poll() is None, "the server ended while it started"
            assert time.monotonic() < until, "the server was not ready within 300 s"
            try:
                if requests.get(f"http://127.0.0.1:{port}/health", timeout=2).ok:
                    break
            except requests.RequestException:
                time.sleep(0.2)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)


class Wire:
    """A relay that watches: how many requests are past their send and before their first content,
    and who says what."""

    def __init__(self, port: int) -> None:
        self.lock = threading.Lock()
        self.prefilling = self.most = 0
        self.counts: dict[str, tuple[int, int]] = {}
        """By request id: prompt and predicted tokens, as llama.cpp's own timings say."""
        wire = self

        class Relay(BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", port)) as server:
                    state: dict[str, bytes] = {"id": b"", "seen": b""}
                    back = threading.Thread(target=wire.back, args=(server, self.request, state))
                    back.start()
                    wire.forth(self.request, server, state)
                    back.join(10)

        self.server = ThreadingTCPServer(("127.0.0.1", 0), Relay)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def forth(self, client: socket.socket, server: socket.socket, state: dict[str, bytes]) -> None:
        while data := client.recv(65536):
            if found := REQUEST.search(data):
                with self.lock:
                    if "over" in state:
                        return  # too late: the server has closed
                    state["id"], state["seen"] = found[1], b""
                    self.prefilling += 1
                    self.most = max(self.most, self.prefilling)
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)

    def back(self, server: socket.socket, client: socket.socket, state: dict[str, bytes]) -> None:
        while data := server.recv(65536):
            with self.lock:
                before = CONTENT.search(state["seen"])
                state["seen"] += data
                first = (
                    CONTENT.search(state["seen"]) or b"[DONE]" in state["seen"]
                )  # an answer may have no content at all
                if state["id"] and not before and first:
                    # before it is passed on: the client cannot have freed its slot yet
                    self.prefilling -= 1
                if state["id"] and b"[DONE]" in state["seen"]:
                    prompt = int(re.findall(rb'"prompt_n":(\d+)', state["seen"])[-1])
                    cached = int(re.findall(rb'"cache_n":(\d+)', state["seen"])[-1])
                    predicted = int(re.findall(rb'"predicted_n":(\d+)', state["seen"])[-1])
                    self.counts[state["id"].decode()] = prompt + cached, predicted
                    state["id"] = b""
            client.sendall(data)
        with self.lock:
            if state["id"] and not CONTENT.search(state["seen"]):
                # the server closed instead of answering: it never saw this one
                self.prefilling -= 1
            state["over"] = b"yes"
        client.shutdown(socket.SHUT_RDWR)  # llama.cpp closes its connections: pass that on too


def counted(port: int, name: str) -> float:
    """A counter of the server's."""
    page = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
    return float(re.findall(rf"^llamacpp:{name} (\S+)", page, re.M)[0])


def test_chat_against_llamacpp(llamacpp: int, tmp_path: Path) -> None:
    wire = Wire(llamacpp)
    folder, before = tmp_path / "r", counted(llamacpp, "tokens_predicted_seconds_total")
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", str(HERE.parent / "locustfiles" / "chat.py"),
            "--headless",
         "--host", f"127.0.0.1:{wire.server.server_address[1]}/v1", "-u", "6",
         "--prefill-concurrency", "2",
         "--synthetic-input-tokens-mean", "300", "--synthetic-input-tokens-stddev", "30",
         "--output-tokens-mean", "30",
         "--request-count", "24", "-t", "20s", "--random-seed", "1", "--report-dir", str(folder)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    got = [
        parse_record_line(line)
        for line in (folder / "profile_export.jsonl").read_bytes().splitlines()
    ]
    assert len(got) == 24
    assert {record.outcome for record in got} == {"ok"}
    assert {record.id: (record.input_tokens, record.output_tokens) for record in got} == wire.counts
    assert {record.tokens_from for record in got} == {"usage"}
    assert wire.most == 2
    # natural stops make answers shorter than asked, never longer; a chunk is a token here
    assert all(
        len(record.chunk_us) <= record.output_tokens <= record.asked_output_tokens for record in got
    )
    asked = sum(record.asked_input_tokens for record in got)
    assert sum(record.input_tokens for record in got) == pytest.approx(asked, rel=0.05)
    assert "SIMULATED" not in done.stdout
    # its own times are in every record, and the parts of each request add up to what was seen from
    # here
    told = [
        record.server
        for record in got
        if record.server is not None and record.server.source == "timings"
    ]
    assert len(told) == 24
    decode_s = sum(times.decode_us or 0 for times in told) / 1e6
    assert decode_s == pytest.approx(
        counted(llamacpp, "tokens_predicted_seconds_total") - before, rel=0.02
    )
    waterfall = locust_llm.read(folder).waterfall
    assert waterfall[[f"{part}_s" for part in TO_FIRST]].sum(axis=1).to_numpy() == pytest.approx(
        waterfall.total_s
    )
    assert (waterfall.unattributed_s[waterfall.prefill_s > 0] < 1e-6).all()


def test_its_shapes(llamacpp: int) -> None:
    url = f"http://127.0.0.1:{llamacpp}"
    plain = ask(url, kind="completions", ignore_eos=True)
    assert (plain.outcome, plain.output_tokens, len(plain.chunk_us), plain.tokens_from) == (
        OK,
        6,
        6,
        "usage",
    )
    two = ask(url, n=2, ignore_eos=True)  # a usage event for each choice
    assert (two.outcome, two.choices, two.output_tokens) == (OK, 2, 12)
    at_once = ask(url, temperature=0, logit_bias={"2": 100})
    assert (at_once.outcome, at_once.output_tokens, at_once.chunk_us) == (OK, 1, ())
    too_long = ask(url, "word " * 20_000)
    assert (too_long.outcome, too_long.status) == ("http_status", 400)
    assert "exceeds the available context size" in too_long.error


def test_what_check_says_of_it(llamacpp: int) -> None:
    said = {
        one.what: one
        for one in check_server(Settings(host=f"http://127.0.0.1:{llamacpp}"), {}, 20_000)
    }
    assert not [one for one in said.values() if one.level == PROBLEM]
    assert said["streams"].level == said["usage"].level == FINE
    assert said["tokens a chunk"].found == "1.00"


def test_what_it_says_of_itself(llamacpp: int) -> None:
    (sample,) = read_engine_samples(
        [requests.get(f"http://127.0.0.1:{llamacpp}/metrics", timeout=10).text], 0.0
    )
    assert (sample.engine, sample.running, sample.waiting) == ("llama.cpp", 0.0, 0.0)


def test_users_who_ask_again_at_once_meet_no_connection_that_is_being_closed(
    llamacpp: int, tmp_path: Path
) -> None:
    """It closes each after its stream, a moment after it had said to keep it."""
    folder = tmp_path / "r"
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", str(HERE.parent / "locustfiles" / "chat.py"),
            "--headless", "-u", "8",
         "--host", f"127.0.0.1:{llamacpp}", "--request-count", "48",
         "--synthetic-input-tokens-mean", "60", "--no-probe",
         "--output-tokens-mean", "8", "--report-dir", str(folder)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    got = [
        parse_record_line(line)
        for line in (folder / "profile_export.jsonl").read_bytes().splitlines()
    ]
    assert done.returncode == 0, done.stderr
    assert {record.outcome for record in got} == {OK}
    assert sum(record.resent for record in got) <= 8  # a user learns it once

"""Real servers: vLLM, transformers and LiteLLM, started here; their counts, times and errors
against ours.

``make test-real`` runs it. Each is installed at its first start (5 GB in all, below .real-servers);
what cannot be started is skipped, with the reason.
"""

import contextlib
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import msgspec
import pytest
import requests
from support.one_request import ask

from locust_llm.records.outcomes import OK
from locust_llm.records.profile_export_jsonl import parse_record_line
from locust_llm.records.record import Record
from locust_llm.report.sections.latency_breakdown import LatencyAttribution, ServerTime

HERE = Path(__file__).parents[1]
CHAT = HERE.parent / "locustfiles" / "chat.py"
HOME = Path(os.environ.get("REAL_SERVERS_HOME", HERE.parent / ".real-servers"))
WAIT_S = float(os.environ.get("REAL_SERVERS_WAIT", "1200"))
"""For an installation and a start."""
pytestmark = [
    pytest.mark.real,
    pytest.mark.full,
    pytest.mark.skipif(
        "REAL_SERVERS" not in os.environ, reason="installs 5 GB of servers: make test-real"
    ),
]


class Server(NamedTuple):
    url: str
    process: subprocess.Popen[bytes]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def started(script: str, health: str, *words: str, **environment: str) -> Iterator[Server]:
    """Skips where it cannot be installed or started."""
    port = free_port()
    log = Path(os.environ.get("REAL_SERVERS_LOG", os.devnull))
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(HERE / "real" / script), str(port), *words], stdout=out, stderr=out,
            start_new_session=True,
            env=os.environ | environment,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + WAIT_S
        while True:
            if process.poll() is not None:
                pytest.skip(
                    f"{script} ended with status {process.returncode} (REAL_SERVERS_LOG names a "
                    f"file for its words)"
                )
            if time.monotonic() > until:
                pytest.skip(f"{script} was not ready within {WAIT_S:.0f} s")
            with contextlib.suppress(requests.RequestException):
                if requests.get(url + health, timeout=5).ok:
                    break
            time.sleep(0.5)
        yield Server(url, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def vllm() -> Iterator[Server]:
    with started("start_vllm.sh", "/health", "--no-enable-prefix-caching") as server:
        yield server


@pytest.fixture(scope="module")
def transformers() -> Iterator[Server]:
    with started("start_transformers.sh", "/health") as server:
        yield server


class Run(NamedTuple):
    status: int
    records: list[Record]
    out: str
    folder: Path


def run(server: Server, folder: Path, *words: str, key: str = "") -> Run:
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", str(CHAT), "--headless", "--host", server.url,
            "--report-dir", str(folder),
         *words],
        capture_output=True, text=True, timeout=600, check=False,
        env=os.environ | ({"OPENAI_API_KEY": key} if key else {}),
    )  # fmt: skip
    path = folder / "profile_export.jsonl"
    assert path.exists(), done.stderr
    return Run(
        done.returncode,
        [parse_record_line(line) for line in path.read_bytes().splitlines()],
        done.stdout,
        folder,
    )


def page(server: Server) -> dict[str, float]:
    """Every counter of the server's, summed over its labels."""
    found: dict[str, float] = {}
    for line in requests.get(f"{server.url}/metrics", timeout=30).text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.partition("{")[0].partition(" ")[0], "", line.rpartition(" ")[2]
            found[name] = found.get(name, 0.0) + float(value)
    return found


class Compared(NamedTuple):
    """Ours against the server's own, of one run; times in ms."""

    load: str
    ttft: float
    servers_ttft: float
    itl: float
    servers_itl: float
    output_tokens: int
    servers_output_tokens: float
    input_tokens: int
    servers_input_tokens: float
    server_time: ServerTime
    """As the report has it, from the histograms that it read."""
    servers_queue: float
    servers_prefill: float


def compare(server: Server, folder: Path, load: str, *words: str) -> Compared:
    before = page(server)
    done = run(server, folder, "--no-probe", "--model", "tiny", *words)
    assert done.status == 0, done.out
    assert {record.outcome for record in done.records} == {OK}
    after = page(server)

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    def servers(name: str) -> float:
        return 1e3 * grown(f"{name}_sum") / grown(f"{name}_count")

    records = done.records
    return Compared(
        load,
        1e3 * mean(record.ttft_s for record in records if record.ttft_s is not None),
        servers("vllm:time_to_first_token_seconds"),
        1e3 * mean(record.itl_s for record in records if record.itl_s is not None),
        servers("vllm:request_time_per_output_token_seconds"),
        sum(record.output_tokens or 0 for record in records),
        grown("vllm:generation_tokens_total"),
        sum(record.input_tokens or 0 for record in records),
        grown("vllm:prompt_tokens_total"),
        waterfall_of(folder).server,
        servers("vllm:request_queue_time_seconds"),
        servers("vllm:request_prefill_time_seconds"),
    )


def waterfall_of(folder: Path) -> LatencyAttribution:
    return msgspec.convert(
        msgspec.json.decode((folder / "run.json").read_bytes())["waterfall"], LatencyAttribution
    )


LOADS = {
    "1 user, 100 in, 64 out": (
        "-u",
        "1",
        "--request-count",
        "20",
        "--synthetic-input-tokens-mean",
        "100",
    ),
    "4 users, 100 in, 64 out": (
        "-u",
        "4",
        "--request-count",
        "40",
        "--synthetic-input-tokens-mean",
        "100",
    ),
    "4 users, 2,000 in, 64 out": (
        "-u",
        "4",
        "--request-count",
        "12",
        "--synthetic-input-tokens-mean",
        "2000",
    ),
}


@pytest.mark.parametrize("load", LOADS)
def test_vllm_says_the_same_of_itself(vllm: Server, tmp_path: Path, load: str) -> None:
    words = (*LOADS[load], "--output-tokens-mean", "64", "--extra-inputs", "ignore_eos:true")
    run(
        vllm,
        tmp_path / "warm",
        "--no-probe",
        "--model",
        "tiny",
        "-u",
        "2",
        "--request-count",
        "4",
        *words[4:],
    )
    said = compare(vllm, tmp_path / "r", load, *words)
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} CPUs: {said}")
    assert said.output_tokens == said.servers_output_tokens
    assert said.input_tokens == said.servers_input_tokens
    assert abs(said.ttft - said.servers_ttft) <= max(5.0, 0.2 * said.servers_ttft)
    assert said.itl == pytest.approx(said.servers_itl, rel=0.05)
    told = said.server_time
    assert (told.basis, told.count) == ("histograms", int(LOADS[load][3]))
    assert told.queue_ms == pytest.approx(said.servers_queue, abs=0.01)
    assert told.prefill_ms == pytest.approx(said.servers_prefill, abs=0.01)
    assert "Queue or prefill?" in (tmp_path / "r" / "summary.md").read_text()


def test_vllms_own_times_of_each_request_are_those_of_its_histograms(tmp_path: Path) -> None:
    with started(
        "start_vllm.sh", "/health", "--no-enable-prefix-caching", "--enable-per-request-metrics"
    ) as server:
        before = page(server)
        done = run(server, tmp_path / "r", "--no-probe", "--model", "tiny", "-u", "4",
            "--request-count", "30",
                   "--synthetic-input-tokens-mean", "200", "--output-tokens-mean", "8")  # fmt: skip
        after = page(server)
    assert {record.outcome for record in done.records} == {OK}
    found = waterfall_of(tmp_path / "r")
    assert (found.impossible, found.server.basis) == (0, "requests")
    # an answer without text has no first token
    assert found.reported == {"metrics": found.requests}
    assert found.requests >= 27
    own_ms = {mean.name: mean.server_ms for mean in found.own_means[0].means}
    for part in ("queue", "prefill"):
        name = f"vllm:request_{part}_time_seconds"
        grown_s, count = (
            after[f"{name}{end}"] - before.get(f"{name}{end}", 0.0) for end in ("_sum", "_count")
        )
        assert own_ms[part] == pytest.approx(1e3 * grown_s / count, abs=0.01)
        if found.requests == count:
            assert found.means_ms[part] == pytest.approx(1e3 * grown_s / count, abs=0.01)


def test_natural_stops_and_ignore_eos(vllm: Server) -> None:
    natural = [ask(vllm.url, tokens=600, seed=seed, temperature=1) for seed in range(6)]
    forced = [
        ask(vllm.url, tokens=600, seed=seed, temperature=1, ignore_eos=True) for seed in range(2)
    ]
    assert {record.outcome for record in natural + forced} == {OK}
    assert any(
        record.finish_reason == "stop" and (record.output_tokens or 0) < 600 for record in natural
    )
    assert [(record.finish_reason, record.output_tokens) for record in forced] == [
        ("length", 600)
    ] * 2


def test_vllms_shapes(vllm: Server) -> None:
    two = ask(vllm.url, n=2, ignore_eos=True)
    assert (two.outcome, two.choices, two.output_tokens) == (OK, 2, 12)
    plain = ask(vllm.url, kind="completions", ignore_eos=True)
    assert (plain.outcome, plain.output_tokens, plain.tokens_from) == (OK, 6, "usage")
    at_once = ask(vllm.url, temperature=0, logit_bias={"2": 100})
    assert (at_once.outcome, at_once.chunk_us) == (OK, ())
    assert "the model ended at once" in at_once.error
    continuous = ask(
        vllm.url,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        ignore_eos=True,
    )
    assert (continuous.outcome, continuous.output_tokens) == (OK, 6)


@pytest.mark.parametrize(
    ("how", "status", "says"),
    [
        ({"model": "nope"}, 404, "does not exist"),
        ({"text": "word " * 20_000}, 400, "maximum context length"),
        ({"temperature": -1}, 400, "temperature"),
        ({"tokens": 0}, 400, "max_tokens"),
    ],
)
def test_vllms_errors(vllm: Server, how: dict[str, Any], status: int, says: str) -> None:
    record = ask(vllm.url, **how)
    assert (record.outcome, record.status, record.broke_in) == ("http_status", status, "headers")
    assert says in record.error


def in_prefill(records: list[Record]) -> int:
    """The most at a time."""
    moments = [
        moment
        for record in records
        if record.sent_at is not None and record.ttft_s is not None
        for moment in ((record.sent_at, 1), (record.sent_at + record.ttft_s, -1))
    ]
    inside = most = 0
    for _, change in sorted(moments):
        inside += change
        most = max(most, inside)
    return most


def test_the_gate_holds_and_those_admitted_wait_less(vllm: Server, tmp_path: Path) -> None:
    words = ("-u", "6", "--request-count", "18", "--no-probe", "--model", "tiny",
        "--synthetic-input-tokens-mean", "10000",
             "--output-tokens-mean", "16", "--extra-inputs", "ignore_eos:true")  # fmt: skip
    free = run(vllm, tmp_path / "free", *words)
    gated = run(vllm, tmp_path / "gated", *words, "--prefill-concurrency", "1")
    assert {record.outcome for record in free.records + gated.records} == {OK}
    assert in_prefill(free.records) > 3
    assert in_prefill(gated.records) == 1
    ttfts = [
        mean(record.ttft_s for record in some.records if record.ttft_s is not None)
        for some in (free, gated)
    ]
    print(
        f"TTFT of 10,000-token prompts: {ttfts[0]:.2f} s without a gate, {ttfts[1]:.2f} s with one "
        f"slot"
    )
    assert ttfts[1] < 0.6 * ttfts[0]


def engines(pid: int) -> list[int]:
    """The engine processes below one."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            name = (path / "comm").read_text() + (path / "cmdline").read_text()
            if int(fields[3]) == pid and int(path.name) != pid and "EngineCore" in name:
                found.append(int(path.name))
    return found


def test_an_engine_that_is_killed_gives_failures() -> None:
    with started("start_vllm.sh", "/health", VLLM_ENABLE_V1_MULTIPROCESSING="1") as server:
        (engine,) = engines(server.process.pid)
        killer = threading.Timer(3.0, os.kill, (engine, signal.SIGKILL))
        killer.start()
        record = ask(server.url, tokens=12_000, ignore_eos=True)
        killer.join()
        after = ask(server.url)
    assert record.failed
    assert record.outcome in ("stream_error", "closed", "truncated")
    assert (record.broke_in, bool(record.chunk_us), record.tokens_from) == (
        "decode",
        True,
        "chunks",
    )
    assert after.failed


def test_transformers(transformers: Server, tmp_path: Path) -> None:
    # its list of models is of its cache alone, so it is empty
    model = str((HOME / "model" / "tiny").resolve())
    record = ask(transformers.url, "word " * 3000, model=model)
    assert (record.outcome, record.output_tokens, record.tokens_from) == (OK, 6, "usage")
    assert record.headers_at is not None
    assert record.sent_at is not None
    assert record.ttft_s is not None
    # headers and role come long before
    assert record.ttft_s > 2 * (record.headers_at - record.sent_at)
    broken = ask(transformers.url, model=model, temperature=-1)
    assert (broken.outcome, broken.status, broken.broke_in) == ("stream_error", 200, "prefill")
    done = run(
        transformers,
        tmp_path / "r",
        "-u",
        "2",
        "--request-count",
        "8",
        "--output-tokens-mean",
        "20",
        "--no-probe",
    )
    assert {record.outcome for record in done.records} <= {OK, "empty"}
    assert {record.tokens_from for record in done.records if record.outcome == OK} == {"usage"}


def test_litellm(vllm: Server, tmp_path: Path) -> None:
    key = f"sk-{secrets.token_hex(16)}"
    with started(
        "start_litellm.sh", "/health/liveliness", vllm.url, LITELLM_MASTER_KEY=key
    ) as proxy:
        done = run(
            proxy, tmp_path / "r", "-u", "2", "--request-count", "8", "--model", "tiny",
            "--output-tokens-mean", "16",
            "--extra-inputs", "ignore_eos:true", "--no-probe", key=key,
        )  # fmt: skip
        assert {(record.outcome, record.output_tokens) for record in done.records} == {(OK, 16)}
        assert key not in done.out + (done.folder / "run.json").read_text()
        two = ask(proxy.url, key=key, n=2, ignore_eos=True)
        assert (two.outcome, two.choices, two.output_tokens) == (OK, 2, 12)
        dead = ask(proxy.url, key=key, model="dead")
        assert (dead.outcome, dead.status) == ("http_status", 500)
        assert ask(proxy.url, key="").outcome == "http_status"

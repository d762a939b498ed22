"""A run seen from Prometheus: the figures of the page on the master's port, in the middle of the
load and after it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from support.prometheus_text import Read, read, value
from support.runs import Server, free_port


@pytest.mark.full
def test_a_run_seen_from_prometheus(server: Server, tmp_path: Path) -> None:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "locust_llm", "run", "--autostart", "--web-host", "127.0.0.1",
            "--web-port", str(port),
         "--processes", "2", "--host", server.url, "-u", "4", "--request-count", "24",
         "--prefill-concurrency", "2",
         "--output-tokens-mean", "60", "--report-dir", str(tmp_path / "r")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    seen: list[Read] = []
    try:
        until = time.monotonic() + 40
        while time.monotonic() < until and not (tmp_path / "r" / "report.html").exists():
            time.sleep(0.1)
            try:
                seen.append(
                    read(requests.get(f"http://127.0.0.1:{port}/llm/metrics", timeout=5).text)
                )
            except requests.ConnectionError:
                continue
        last = read(requests.get(f"http://127.0.0.1:{port}/llm/metrics", timeout=5).text)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert value(last, "requests_total", phase="profiling", outcome="ok") == 24, out
    assert not {"users", "requests_decoding"} & {name for name, _ in last}
    assert value(last, "output_tokens_total", phase="profiling") == 24 * 60
    assert value(last, "time_to_first_token_seconds_count", phase="profiling") == 24
    decoding = max(found.get(("requests_decoding", frozenset()), 0) for found in seen)
    assert 0 < decoding <= 4
    assert max(found.get(("prefill_gate_limit", frozenset()), 0) for found in seen) == 2

"""The packages that this library is made of: locust, gevent, sseclient-py and requests send the
load, tabulate makes the tables of the report, and pandas gives a run to Python code."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd
import pytest
import tabulate
from support.runs import Server, command, records, server  # noqa: F401

from locust_llm.report.write_report_files import read, remake_reports

REQUESTS: Final = 12
TOKENS: Final = 6
LOCUSTFILE: Final = """
import json, os, sys
from collections import Counter

import locust
import gevent, requests
from gevent.lock import BoundedSemaphore

from locust_llm import LLMUser
from locust_llm.client import sse
from locust_llm.controller import gate_limit
from locust_llm.gate import gate

counts, limits, ramp_greenlets = Counter(), [], []


class CountingClient(sse.SSEClient):
    def events(self):
        for event in super().events():
            counts["events of sseclient"] += 1
            yield event


class CountingSemaphore(BoundedSemaphore):
    def __init__(self, value):
        super().__init__(value)
        counts["semaphores"] += 1

    def acquire(self, *args, **kw):
        taken = super().acquire(*args, **kw)
        counts["permits taken"] += taken
        return taken


def prepare_request(session, request, prepare=requests.Session.prepare_request):
    counts["requests prepared"] += 1
    return prepare(session, request)


def follow_limit_steps(set_limit, steps, follow=gate_limit.follow_limit_steps, **kw):
    ramp_greenlets.append(type(gevent.getcurrent()) is gevent.Greenlet)
    return follow(lambda limit: (limits.append(limit), set_limit(limit)), steps, **kw)


sse.SSEClient, gate.BoundedSemaphore = CountingClient, CountingSemaphore
requests.Session.prepare_request, gate_limit.follow_limit_steps = prepare_request, follow_limit_steps


class Reader(LLMUser):
    @locust.task
    def ask(self):
        self.chat("Hello", max_tokens=6)


@locust.events.init.add_listener
def listen(environment, **kw):
    environment.events.first_token.add_listener(lambda ttft_s, **kw: counts.update({"TTFT events": ttft_s > 0}))
    environment.events.inter_token_latency.add_listener(lambda itl_s, **kw: counts.update({"ITL events": itl_s > 0}))
    environment.events.request.add_listener(lambda **kw: counts.update({"Locust's events": 1}))


@locust.events.quit.add_listener
def write(**kw):
    heavy = [name for name in ("pandas", "tabulate") if name in sys.modules]
    is_locusts = issubclass(LLMUser, locust.HttpUser)
    found = {"counts": counts, "limits": limits, "ramp": ramp_greenlets, "heavy": heavy, "user": is_locusts}
    with open(os.environ["FOUND"], "w") as file:
        json.dump(found, file)
"""
AT_EXIT: Final = """
import atexit, json, os, sys

def write():
    if sys.argv[1:2] == ["report"]:
        names = "locust", "gevent", "pandas", "tabulate"
        with open(os.environ["REPORTED"], "w") as file:
            json.dump([name for name in names if name in sys.modules], file)

atexit.register(write)
"""


class LoadTest(NamedTuple):
    folder: Path
    sent: dict[str, Any]
    """What the load generator has used."""
    reported: list[str]
    """Which packages the report process has imported."""


@pytest.fixture(scope="module")
def load_test(server: Server, tmp_path_factory: pytest.TempPathFactory) -> LoadTest:  # noqa: F811
    here = tmp_path_factory.mktemp("card")
    (here / "locustfile.py").write_text(LOCUSTFILE)
    (here / "sitecustomize.py").write_text(AT_EXIT)
    words = (
        "-u", "4", "--request-count", str(REQUESTS), "--no-probe", "--selftest", "off",
        "--prefill-concurrency", "3", "--prefill-concurrency-ramp-duration", "0.2",
    )  # fmt: skip
    names = {"FOUND": str(here / "found.json"), "REPORTED": str(here / "reported.json")}
    done = subprocess.run(
        command(server, here / "run", *words, locustfile=str(here / "locustfile.py")),
        capture_output=True, text=True,
        timeout=90, check=False, env={**os.environ, **names, "PYTHONPATH": str(here),
            "LOCUST_LLM_READER": "python"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found, reported = (
        json.loads((here / f"{name}.json").read_text()) for name in ("found", "reported")
    )
    return LoadTest(here / "run", found, reported)


@pytest.mark.slow
def test_locust_is_the_host_and_ttft_and_itl_are_events_of_its_environment(
    load_test: LoadTest,
) -> None:
    counts = load_test.sent["counts"]
    assert load_test.sent["user"] is True
    assert [counts[f"{name} events"] for name in ("TTFT", "ITL")] == [REQUESTS, REQUESTS]
    assert counts["Locust's events"] == REQUESTS


@pytest.mark.slow
def test_the_gate_is_a_semaphore_of_gevent_with_a_ramp_greenlet(load_test: LoadTest) -> None:
    sent = load_test.sent
    assert sent["ramp"] == [True]
    assert sent["limits"] == [1, 2, 3]
    assert sent["counts"]["semaphores"] >= 1
    assert sent["counts"]["permits taken"] >= REQUESTS
    assert {record.limit for record in records(load_test.folder)} <= {1, 2, 3}


@pytest.mark.slow
def test_requests_prepares_and_sseclient_reads_each_event(load_test: LoadTest) -> None:
    counts = load_test.sent["counts"]
    # once: of the same requests it prepares the first, for all users that send alike
    assert counts["requests prepared"] == 1
    assert all(len(record.chunk_us) == TOKENS for record in records(load_test.folder))
    # each token, and at least the end of each response
    assert counts["events of sseclient"] >= REQUESTS * (TOKENS + 1)


@pytest.mark.slow
def test_tabulate_is_in_the_report_process_alone(load_test: LoadTest) -> None:
    """pandas is in neither: a report would take twice as long to begin."""
    assert load_test.sent["heavy"] == []
    assert load_test.reported == ["tabulate"]


@pytest.mark.slow
def test_tabulate_makes_the_percentile_tables_and_pandas_has_their_values(
    load_test: LoadTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = list[list[str]]()

    def spied(table: Sequence[Sequence[str]], *args: Any, **kw: Any) -> str:
        rows.extend([cell.strip() for cell in row] for row in table)
        return tabulate.tabulate(table, *args, **kw)

    monkeypatch.setattr("locust_llm.report.render.text_report.tabulate", spied)
    summary, _ = remake_reports(load_test.folder)
    requests = read(load_test.folder).requests
    assert isinstance(requests, pd.DataFrame)
    (ttft,) = (row for row in summary.rows if row.tag == "time_to_first_token")
    assert ttft.percentiles[95.0] == pytest.approx(requests["ttft_s"].quantile(0.95) * 1000)
    assert any(row[0].startswith("Time to First Token") for row in rows)

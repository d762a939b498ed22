"""The metrics poller: a sample of /metrics each second; a server that has none is not asked
again."""

import os
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest
from support.tiny_server import TinyServer, tiny_server

from locust_llm.records.server_metrics_history import BASE, SERVER_METRICS, read_history
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.server import server_metrics_poller as module
from locust_llm.server.server_metrics_poller import MetricsPoller

PAGE = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n"


class Pages(TinyServer):
    """Plain text at some paths."""

    pages: dict[str, Any]

    def answer(self, asked: Any) -> tuple[int, Any]:
        return self.pages.get(asked.path, (404, {}))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("support.tiny_server.TinyServer", Pages)
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    with tiny_server() as made:
        made.pages = {}  # type: ignore[attr-defined]
        yield made


def looks(server: Any, folder: Path, count: int, *urls: str) -> MetricsPoller:
    meter = MetricsPoller(
        server.url, {"X-Key": "k"}, folder, urls, clock=iter(range(1000)).__next__
    )
    meter.start()
    with gevent.Timeout(10):
        while len(server.asked) < count:
            gevent.sleep(0.01)
    gevent.sleep(0.05)
    meter.close()
    return meter


def test_each_look_is_a_line(server: Any, tmp_path: Path) -> None:
    server.pages = {"/metrics": (200, PAGE)}
    meter = looks(server, tmp_path, 4)
    lines = [
        msgspec.json.decode(line, type=EngineSample)
        for line in (tmp_path / SERVER_METRICS).read_bytes().splitlines()
    ]
    assert lines == meter.history.by_name["server"] == read_history(tmp_path).by_name["server"]
    assert len(lines) >= 3
    assert (lines[0].engine, lines[0].running, lines[0].waiting) == ("vLLM", 2.0, 1.0)
    assert {asked.path for asked in server.asked} == {"/metrics"}
    assert {asked.headers["x-key"] for asked in server.asked} == {"k"}
    assert server.asked[0].headers["x-locust-llm-probe"] == "1"


def test_where_the_file_cannot_be_made_the_figures_are_kept_in_memory(
    server: Any, tmp_path: Path
) -> None:
    server.pages = {"/metrics": (200, PAGE)}
    os.mkfifo(tmp_path / SERVER_METRICS)
    notes = list[str]()
    meter = MetricsPoller(
        server.url, {}, tmp_path, clock=iter(range(1000)).__next__, add_note=notes.append
    )
    meter.start()
    with gevent.Timeout(10):
        while len(server.asked) < 4:
            gevent.sleep(0.01)
    meter.close()
    why = "server_metrics.jsonl is a pipe: use a regular file"
    assert notes == [f"WARNING: the server's metrics are not stored: {why}."]
    assert len(meter.history.by_name["server"]) >= 3


def test_the_last_request_is_in_the_last_reading(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute is between two readings; what ended since the first one is read when the run is
    over."""
    monkeypatch.setattr(module, "EVERY_S", 60.0)
    server.pages = {"/metrics": (200, PAGE)}
    meter = MetricsPoller(server.url, {}, tmp_path, clock=iter(range(1000)).__next__)
    meter.start()
    with gevent.Timeout(10):
        while not meter.history.by_name["server"]:
            gevent.sleep(0.01)
    server.pages = {"/metrics": (200, PAGE.replace("running 2", "running 0"))}
    meter.read_last()
    meter.close()
    assert [sample.at for sample in meter.history.by_name["server"]] == [0, 1]


def test_what_the_server_still_runs_may_be_waited_for(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still works for clients who left, and no longer at the third reading."""
    monkeypatch.setattr(module, "EVERY_S", 60.0)
    monkeypatch.setattr(module, "SETTLE_EVERY_S", 0.0)
    pages = [
        PAGE,
        PAGE.replace("waiting 1", "waiting 0"),
        PAGE.replace(" 1", " 0").replace(" 2", " 0"),
    ]
    server.pages = {"/metrics": (200, pages[0])}
    meter = MetricsPoller(server.url, {}, tmp_path, clock=iter(range(1000)).__next__)
    meter.start()
    with gevent.Timeout(10):
        while not meter.history.by_name["server"]:
            gevent.sleep(0.01)
    monkeypatch.setattr(server, "answer", lambda asked: (200, pages.pop(0)))
    meter.read_last(settle_s=10.0)
    meter.close()
    readings = [(sample.running, sample.waiting) for sample in meter.history.by_name["server"]]
    assert readings == [(2, 1), (2, 1), (2, 0), (0, 0)]


def test_of_two_servers_the_notes_name_the_base(server: Any, tmp_path: Path) -> None:
    server.pages = {"/metrics": (200, PAGE)}
    meter = MetricsPoller(server.url, {}, tmp_path, clock=iter(range(1000)).__next__, whose=BASE)
    meter.start()
    with gevent.Timeout(10):
        while not meter.history.by_name["server"]:
            gevent.sleep(0.01)
    meter.close()
    (note, *_) = meter.remarks([(0.0, 1e9)], None)
    assert note.startswith("The base's own metrics (")


def test_tensorrts_other_path(server: Any, tmp_path: Path) -> None:
    server.pages = {"/prometheus/metrics": (200, "trtllm_kv_cache_utilization 0.5\n")}
    looks(server, tmp_path, 4)
    assert server.paths()[:2] == ["/metrics", "/prometheus/metrics"]
    assert set(server.paths()[2:]) == {"/prometheus/metrics"}


@pytest.mark.parametrize("page", [(404, {}), (200, "nothing known 1\n"), (500, PAGE), (307, PAGE)])
def test_a_server_without_figures_is_asked_no_further(
    server: Any, tmp_path: Path, page: Any
) -> None:
    server.pages = {"/metrics": page}
    server.location = server.url + "/elsewhere" if page[0] == 307 else ""
    meter = looks(server, tmp_path, 2)
    assert server.paths() == ["/metrics", "/prometheus/metrics"]
    assert (meter.history.by_name, (tmp_path / SERVER_METRICS).exists()) == ({}, False)


def test_nobody_there(tmp_path: Path) -> None:
    with tiny_server(started=False) as nobody:
        meter = MetricsPoller(nobody.url, {}, tmp_path)
        meter.start()
        gevent.sleep(0.1)
        meter.close()
    assert meter.history.by_name == {}


GPU = 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 50\n'


def test_named_pages_are_read_without_the_key_and_the_own_one_beside_gpus(
    server: Any, tmp_path: Path
) -> None:
    server.pages = {"/metrics": (200, PAGE)}
    with tiny_server() as gpus:
        gpus.pages = {"/metrics": (200, GPU)}  # type: ignore[attr-defined]
        meter = looks(server, tmp_path, 3, gpus.url + "/metrics")
        host = gpus.url.removeprefix("http://")
        assert list(meter.history.by_name) == [f"{host}, GPU 0", "server"]
        assert meter.history.by_name[f"{host}, GPU 0"][0].gpu_use == 0.5
        assert not any("x-key" in asked.headers for asked in gpus.asked)
    assert all("x-key" in asked.headers for asked in server.asked)


def test_each_replica_is_read_with_the_key(server: Any, tmp_path: Path) -> None:
    server.pages = {"/metrics": (200, PAGE)}
    other = server.url.replace("127.0.0.1", "localhost")
    meter = MetricsPoller(server.url, {"X-Key": "k"}, tmp_path, replicas=(server.url, other))
    assert [(page.address, page.path, page.headers) for page in meter._named] == [
        (url, "/metrics", {"X-Key": "k"}) for url in (server.url, other)
    ]
    named = MetricsPoller(
        server.url, {"X-Key": "k"}, tmp_path, [f"{other}/m"], replicas=(server.url,)
    )
    assert [(page.address, page.path, page.headers) for page in named._named] == [(other, "/m", {})]


def test_behind_a_gateway_only_the_replicas_are_read(server: Any, tmp_path: Path) -> None:
    server.pages = {"/metrics": (200, PAGE), "/b": (200, PAGE)}
    meter = looks(server, tmp_path, 6, server.url + "/b", server.url + "/c")
    host = server.url.removeprefix("http://")
    assert set(server.paths()) == {"/b", "/c"}
    assert set(meter.history.by_name) == {f"{host}/b", f"{host}/c"}
    assert [sample.failure for sample in meter.history.by_name[f"{host}/c"]][:2] == ["HTTP 404"] * 2
    said = list(meter.remarks([(0.0, 1e9)], None))
    assert said[-1].startswith("WARNING: ")
    assert said[-1].endswith(
        f"readings of the metrics of {host}/c failed, the first with HTTP 404."
    )

"""The Grafana dashboard: a real Prometheus scrapes a real run, and each panel has series."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
import requests
from support.runs import free_port

from locust_llm.demo_command import start_simulator

DASHBOARD: Final = json.loads(
    (Path(__file__).parents[2] / "deploy/grafana/locust-llm.json").read_text()
)
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES: Final = [
    (f"{panel['title']} {target['refId']}", target["expr"])
    for panel in PANELS
    for target in panel["targets"]
]
NOTES: Final = [(note["name"], note["expr"]) for note in DASHBOARD["annotations"]["list"]]
GRID_COLUMNS: Final = 24
PROMETHEUS: Final = shutil.which("prometheus")


def filled(query: str) -> str:
    """As Grafana does, with everything selected."""
    values = {"$__rate_interval": "5s", "$job": ".*", "$phase": ".*", "$server": ".*"}
    for name, value in values.items():
        query = query.replace(name, value)
    return query


def test_the_dashboard_is_whole() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert "$" not in "".join(filled(query) for _, query in QUERIES)
    variables = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "job", "phase", "server"]
    assert {note["name"] for note in DASHBOARD["annotations"]["list"]} == {
        "Gate",
        "Users",
        "Stages and phases",
    }
    taken = set[tuple[int, int]]()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        rows = range(place["y"], place["y"] + place["h"])
        cells = set(product(columns, rows))
        assert max(columns) < GRID_COLUMNS, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_each_target_is_as_grafana_takes_it() -> None:
    """Of its dashboard schema (kind v1beta1): what every panel and every target must have."""
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["type"] in ("table", "stat", "timeseries", "heatmap")
        assert {"defaults", "overrides"} <= set(panel["fieldConfig"])
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)
    for note in DASHBOARD["annotations"]["list"]:
        assert {"name", "datasource", "enable", "iconColor", "expr"} <= set(note)


OF_PROMETHEUS: Final = {"definition", "step", "titleFormat", "textFormat", "tagKeys"}
"""Keys of the data source's own, of which the schema of the dashboard knows nothing."""
LATER: Final = {".panels[14].options.tooltip.mode"}
"""What Grafana has since 10.3, and the schema of 10.1 has not: how the heatmap shows its tip."""


def list_differences(given: Any, read: Any, path: str = "") -> Iterator[str]:
    """The places at which what was read is not what was given."""
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            if key not in OF_PROMETHEUS:
                yield from list_differences(value, read.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for place, (one, other) in enumerate(zip(given, read, strict=True)):
            yield from list_differences(one, other, f"{path}[{place}]")
    elif given != read:
        yield path


def read_by_grafanas_types(dashboard: dict[str, Any]) -> Any:
    """The dashboard as Grafana's own types have read it: what they do not know is gone."""
    models = pytest.importorskip(
        "grafana_foundation_sdk.models.dashboard", reason="needs the package grafana-foundation-sdk"
    )
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    plugins.register_default_plugins()
    read = models.Dashboard.from_json(dashboard)
    return json.loads(encoder.JSONEncoder().encode(read))


def test_grafanas_own_types_read_all_of_the_dashboard() -> None:
    """The types of the Grafana Foundation SDK are made of Grafana's schemas."""
    assert set(list_differences(DASHBOARD, read_by_grafanas_types(DASHBOARD))) == LATER
    misspelt = json.loads(json.dumps(DASHBOARD))
    defaults = misspelt["panels"][1]["fieldConfig"]["defaults"]
    defaults["untis"] = defaults.pop("unit")
    assert ".panels[1].fieldConfig.defaults.untis" in set(
        list_differences(misspelt, read_by_grafanas_types(misspelt))
    )


@contextmanager
def prometheus(folder: Path, port: int, *scraped: int, server: str = "") -> Iterator[str]:
    assert PROMETHEUS
    host = server.removeprefix("http://")
    of_server = f"- {{ job_name: server, static_configs: [{{ targets: ['{host}'] }}] }}\n"
    targets = ", ".join(f"'127.0.0.1:{one}'" for one in scraped)
    (folder / "prometheus.yml").write_text(
        "global: { scrape_interval: 500ms, scrape_timeout: 500ms }\n"
        "scrape_configs:\n"
        f"- {{ job_name: load, metrics_path: /llm/metrics, static_configs: [{{ targets: "
        f"[{targets}] }}] }}\n" + (of_server if server else "")
    )
    process = subprocess.Popen(
        [PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}"],
        stderr=(folder / "prometheus.log").open("w"),
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/-/ready"), (folder / "prometheus.log").read_text)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.ConnectionError:
        return False


def until(true: Callable[[], object], why: Callable[[], str]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, why()
        time.sleep(0.2)


def series(url: str, query: str, began: float, ended: float) -> list[Any]:
    """Those with a value that is a number."""
    asked = {"query": filled(query), "start": began, "end": ended, "step": 1}
    answer = requests.get(f"{url}/api/v1/query_range", params=asked, timeout=20).json()
    assert answer["status"] == "success", (query, answer)
    return [
        one for one in answer["data"]["result"] if any(value != "NaN" for _, value in one["values"])
    ]


@pytest.mark.slow
@pytest.mark.skipif(
    PROMETHEUS is None, reason="there is no prometheus (Debian: apt-get install prometheus)"
)
def test_each_panel_has_series(tmp_path: Path) -> None:
    port, began = free_port(), time.time()
    with start_simulator() as server, prometheus(tmp_path, free_port(), port, server=server) as url:
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm", "run", "--headless", "--host", server, "-u", "4",
                "-t", "10",
             "--prefill-concurrency", "2", "--output-tokens-mean", "20", "--no-probe",
             "--metrics-port", str(port), "--slo", "ttft p95 < 5s", "--slo", "itl p95 < 1s",
             "--slo", "request_latency p95 < 60s",
             "--report-dir", str(tmp_path / "run")],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        ended = time.time()
        empty = [
            name for name, query in (*QUERIES, *NOTES[2:]) if not series(url, query, began, ended)
        ]
        assert not empty, (empty, done.stdout + done.stderr)
        for _, query in NOTES[:2]:  # nothing changes by hand, but a reading may fall into the start
            found = series(url, query, began, ended)
            assert all(len(one["values"]) <= 10 for one in found)
        quantile = next(
            query for name, query in QUERIES if name == "Time to first token (roughly) A"
        )
        (p50,) = series(url, quantile, began, ended)
        run = json.loads((tmp_path / "run" / "run.json").read_text())
        assert run["run"]["settings"]["metrics_port"] == str(port)
        # behind the load nothing comes any more, and of nothing there is no quantile
        *_, last = (value for _, value in p50["values"] if value != "NaN")
        assert 0 < float(last) < 10

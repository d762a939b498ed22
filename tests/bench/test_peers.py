"""Peers: tests the arithmetic of make peers: reported less true values, and the cost of a token."""

from itertools import chain
from xml.etree import ElementTree

import numpy as np
import pytest
from peer_tools import TOOLS, Load
from peers import START, Measured, compare, loads, row, table
from peers_chart import PANEL, Bar, draw_chart, measure_bar
from truth import Sent

from locust_llm.lab.interop.load_metrics import Distribution, Figures

LOAD = Load(2, 2, 200, 20, 3)


def test_said_less_true() -> None:
    sent = Sent()
    sent.tokens = 7
    sent.times = {
        "a": np.array([1.0, 1.200, 1.220, 1.240]),
        "b": np.array([2.0, 2.300, 2.320, 2.360]),
        "cut": np.array([3.0, 3.900]),
    }
    said = Figures(
        tool="t", requests=2, ttft=Distribution(percentiles={50.0: 0.251, 99.0: 0.301}),
        tpot=Distribution(avg=0.026), output_tokens=Distribution(avg=2.5),
    )  # fmt: skip
    done = Measured("t", LOAD.name)
    compare(said, sent, LOAD, done)
    assert done.ttft_p50 == pytest.approx((251.0, 250.0))  # of 200 and 300
    assert done.ttft_p99 == pytest.approx((301.0, 299.0))
    assert done.gap_mean == pytest.approx((26.0, 25.0))  # of 20, 20, 20 and 40
    assert done.gap_p99[0] is None
    assert done.gap_p99[1] == pytest.approx(39.4)
    assert done.lost == 2  # it counted five


def test_a_line() -> None:
    done = Measured(
        "t", LOAD.name, cpu_s=1.5, tokens=50_000, lost=0, memory_mb=99.6, wall_s=4.4,
        ttft_p50=(201.0, 200.0), ttft_p99=(250.0, 230.0), gap_mean=(20.01, 20.0),
    )  # fmt: skip
    assert row(done, 1.0) == [
        LOAD.name, "t", "30.0", "10.0", "100", "+1.00", "+20.00 (230.0)", "+0.01", "-", "0", "4",
    ]  # fmt: skip
    assert (
        row(Measured("t", LOAD.name, why="status 1: no such file"), None)[2]
        == "failed: status 1: no such file"
    )
    start = Measured("t", START.name, cpu_s=0.5, tokens=128)
    assert "| 20.0 " in table([start, done])


def test_each_load_has_its_requests() -> None:
    assert [(load.name, load.requests) for load in loads("50,800", "1000")] == [
        ("one request", 1),
        ("50 streams, 200 + 20 ms", 250),
        ("800 streams, 200 + 20 ms", 2400),
        ("1,000 streams, 50 + 10 ms", 3000),
    ]


def test_every_tool_has_its_version_pinned() -> None:
    packages = chain.from_iterable(tool.packages for tool in TOOLS.values())
    assert all("==" in package for package in packages)
    assert [name for name, tool in TOOLS.items() if not tool.packages] == ["locust-llm"]


def test_the_length_of_a_bar() -> None:
    # 1 lies in the middle between 0.01 and 100, on a logarithmic scale
    assert measure_bar(0.01, 0.01, 100) == 4
    assert measure_bar(100, 0.01, 100) == PANEL
    assert measure_bar(1, 0.01, 100) == pytest.approx((4 + PANEL) / 2)


def test_the_chart_begins_with_the_smallest_error() -> None:
    drawn = draw_chart([Bar("slow", 250.4, 80), Bar("locust-llm", -0.01, 12)], "Errors")
    texts = [text.strip() for text in ElementTree.fromstring(drawn).itertext()][2:]
    assert [text for text in texts if text] == [
        "Errors", "TTFT p99 too high by (ms, log scale)", "CPU per token, start apart (µs, log scale)",
        "locust-llm", "0.01", "12", "slow", "250", "80",
    ]  # fmt: skip

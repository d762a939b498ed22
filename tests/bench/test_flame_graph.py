"""Flame graph: tests how samples of perf and py-spy become frames."""

from xml.etree import ElementTree

import pytest
from flame_graph import (
    EVENT_LOOP,
    READER,
    REPORT,
    Frame,
    draw_flame_graph,
    join_stacks,
    lay_out,
    name_frame,
    parse_perf,
    parse_py_spy,
)

PERF = """
python 7/7
\t  10 inner
\t  20 [unknown]

python 7/8
\tff recvmsg
\tff __sys_recvmsg

python 7/8
\tff recvmsg
\tff __sys_recvmsg

python 9/9
\t  30 other
"""
PY_SPY = """\
process 7:"python -m locust";thread (7);_run_code (<frozen runpy>:8);run (gevent/hub.py:1);take (/a/_reader.c:5) 3
process 7:"python -m locust";thread (7);run (gevent/hub.py:2) 1
process 7:"python -m locust";process 9:"python report";thread (9): MainThread;main (m/r.py:4) 5
"""


def test_samples_have_their_threads() -> None:
    assert parse_perf(PERF) == {
        (EVENT_LOOP, "inner"): 1,
        (READER, "__sys_recvmsg", "recvmsg"): 2,
        (REPORT, "other"): 1,
    }
    assert parse_py_spy(PY_SPY) == {
        (EVENT_LOOP, "gevent.hub:run", "_reader:take"): 3,
        (EVENT_LOOP, "gevent.hub:run"): 1,
        (REPORT, "m.r:main"): 5,
    }


def test_a_thread_is_as_wide_as_perf_counted() -> None:
    joined = join_stacks(parse_perf(PERF), parse_py_spy(PY_SPY))
    assert joined == {
        (EVENT_LOOP, "gevent.hub:run", "_reader:take"): 0.1875,
        (EVENT_LOOP, "gevent.hub:run"): 0.0625,
        (READER, "__sys_recvmsg", "recvmsg"): 0.5,
        (REPORT, "m.r:main"): 0.25,
    }


def test_thin_frames_are_one() -> None:
    stacks = {("a", "x"): 0.9, ("a", "y"): 0.002, ("a", "z"): 0.002, ("b",): 0.096}
    assert list(lay_out(stacks)) == [
        Frame("a", 0, 0.0, pytest.approx(0.904)),
        Frame("x", 1, 0.0, 0.9),
        Frame("thinner frames", 1, 0.9, 0.004),
        Frame("b", 0, pytest.approx(0.904), 0.096),
    ]


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        ("Hub.run (gevent/hub.py:647)", "gevent.hub:Hub.run"),
        ("ask (/home/me/chat.py:14)", "chat:ask"),
        ("run (/v/site-packages/gevent/libev/corecext.cpython-311-x86_64-linux-gnu.so)",
         "gevent.libev.corecext:run"),
        ("free (libc.so.6)", "libc:free"),
        ("<module> (pandas/__init__.py:3)", "pandas:<module>"),
    ],
)  # fmt: skip
def test_names_have_no_folder_of_the_machine(frame: str, name: str) -> None:
    assert name_frame(frame) == name


def test_the_drawing_says_names_and_shares() -> None:
    svg = draw_flame_graph({("event loop", "m:<lambda>"): 0.25, ("r",): 0.75}, "title", "about")
    titles = [each.text for each in ElementTree.fromstring(svg).iter() if "title" in each.tag]
    assert titles == ["r 75.0%", "event loop 25.0%", "m:<lambda> 25.0%"]

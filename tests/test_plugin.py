"""What is known before the load: whether a run comes to an end without anybody who ends it."""

from support import unpatched_locust  # noqa: F401  before the rest

# isort: split
import logging
from argparse import Namespace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from locust_llm.plugin import (
    Plugin,
    _ends_by_itself,
    _says_no_run_time,
    describe_further_interrupt,
)
from locust_llm.settings.run_options import Settings


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"run_time_s": 60.0}, True), ({"request_count": 30}, True), ({"num_sessions": 5}, True),
        ({"fixed_schedule": True}, True), ({"sweep": "concurrency=1,2"}, True),
        ({"repeats": 3, "request_count": 9}, True),
        ({}, False), ({"request_rate": 4.0}, False),
    ],
)  # fmt: skip
def test_locusts_line_about_ctrl_c_is_for_runs_without_an_end(
    settings: dict[str, Any], ends: bool
) -> None:
    assert _ends_by_itself(Settings(**settings), Namespace()) is ends
    # a probe has a schedule of its own
    assert _ends_by_itself(Settings(**settings), Namespace(decoders=6)) is True


def test_a_further_ctrl_c_is_described_by_what_is_open() -> None:
    """Somebody who follows the sentence must not lose a report."""
    assert "cut the requests" in describe_further_interrupt(requests_open=True)
    line = describe_further_interrupt(requests_open=False)
    assert line == "locust-llm is writing the report; press Ctrl-C again to skip it"


def test_that_line_alone_is_left_out() -> None:
    def shown(text: str) -> bool:
        return _says_no_run_time(
            logging.LogRecord("locust.main", logging.INFO, "", 0, text, None, None)
        )

    assert not shown("No run time limit set, use CTRL+C to interrupt")
    assert shown("Run time limit set to 5 seconds")


@pytest.mark.parametrize("as_json", [False, True])
def test_standard_output_is_locusts_json_alone(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = SimpleNamespace(
        _report="the report", _annotations="::notice::ours\n", _asked=lambda name: as_json
    )
    Plugin._print(cast(Plugin, ended))
    text = "the report\n::notice::ours\n"
    assert capsys.readouterr() == (("", text) if as_json else (text, ""))

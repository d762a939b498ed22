"""What --check-cancellations needs, and what cannot stand beside it."""

from typing import Any

import pytest

from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings

CHECKED: dict[str, Any] = {"check_cancellations": True, "request_cancellation_rate": 10.0}


@pytest.mark.parametrize(
    ("options", "refusals"),
    [
        (CHECKED, []),
        ({**CHECKED, "slo": ("ghost_tokens < 10",)}, []),
        ({"slo": ("ghost_tokens < 10",)}, ["SLO 'ghost_tokens < 10' needs --check-cancellations"]),
        (
            {"check_cancellations": True},
            ["--check-cancellations needs --request-cancellation-rate"],
        ),
        (
            {**CHECKED, "server_metrics": False},
            ["--check-cancellations needs the server's metrics: leave out --no-server-metrics"],
        ),
        (
            {**CHECKED, "streaming": False},
            ["--check-cancellations needs --streaming: an answer in one piece does not show what "
                "came before the cancellation"],
        ),
        (
            {**CHECKED, "check_answers": True},
            ["--check-cancellations needs one load of one server: leave out sweeps, A/B tests and "
                "--check-answers"],
        ),
    ],
)  # fmt: skip
def test_what_it_needs(options: dict[str, Any], refusals: list[str]) -> None:
    settings = Settings(host="http://a", users=2, **options)
    assert list(validate_settings(settings)) == refusals

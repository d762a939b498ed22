"""What --soak needs, and what needs it."""

from typing import Any

import pytest

from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings


@pytest.mark.parametrize(
    ("options", "refusals"),
    [
        ({"soak": True, "slo": ("growing == 0",), "memory_limit": "16GiB"}, []),
        ({"slo": ("growing == 0",)}, ["SLO 'growing == 0' needs --soak"]),
        ({"memory_limit": "16GiB"}, ["--memory-limit needs --soak"]),
        ({"soak_interval": 5.0}, ["--soak-interval needs --soak"]),
        (
            {"soak": True, "memory_limit": "much"},
            ["--memory-limit much: it is no size such as 1234567, 1.5GiB or 120MB"],
        ),
        (
            {"soak": True, "candidate": "http://b"},
            ["--soak needs one load of one server: leave out sweeps and A/B tests"],
        ),
    ],
)
def test_what_it_needs(options: dict[str, Any], refusals: list[str]) -> None:
    settings = Settings(host="http://a", users=2, **options)
    assert [one for one in validate_settings(settings) if "candidate" not in one] == refusals

"""Options of answer checks that need another option are refused without it."""

from typing import Any

import pytest

from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings

NEEDS_FILE = "--mark-replayed needs --input-file: synthetic prompts have markers without it"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"mark_replayed": True, "check_answers": True, "input_file": "a.jsonl"}, []),
        ({"mark_replayed": True, "check_answers": True}, [NEEDS_FILE]),
        (
            {"mark_replayed": True, "input_file": "a.jsonl"},
            ["--mark-replayed needs --check-answers"],
        ),
        ({"mark_replayed": True}, ["--mark-replayed needs --check-answers", NEEDS_FILE]),
        ({"keep_text": True}, ["--keep-text needs --check-answers"]),
        ({"keep_text": True, "check_answers": True}, []),
        ({"reference_file": __file__}, ["--reference-file needs --check-answers"]),
    ],
)
def test_an_option_of_the_checks_is_refused_without_what_it_needs(
    given: dict[str, Any], why: list[str]
) -> None:
    refused = validate_settings(Settings(host="http://a", users=4, **given))
    assert [line for line in refused if "needs" in line] == why

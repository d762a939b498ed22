"""The file of reference prompts is read before the run, which it may prevent."""

from pathlib import Path

import pytest

from locust_llm.settings.run_options import Settings
from locust_llm.settings.settings_validation import validate_settings


def refusals(path: Path) -> list[str]:
    asked = Settings(host="http://a", users=4, check_answers=True, reference_file=str(path))
    return [*validate_settings(asked)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Say one.\n", []),
        ("\n", ["--reference-file {} has no prompt"]),
        ('{"messages": []}', ["--reference-file {}, line 1: messages is empty"]),
    ],
)
def test_prompts_that_cannot_be_asked_are_refused(
    tmp_path: Path, text: str, why: list[str]
) -> None:
    file = tmp_path / "prompts"
    file.write_text(text)
    assert refusals(file) == [line.format(file) for line in why]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "none"
    assert refusals(file) == [f"--reference-file {file}: No such file or directory"]

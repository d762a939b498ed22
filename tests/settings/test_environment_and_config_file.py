"""Environment and config file: the name of an option's variable, and the lines of a variable."""

import pytest

from locust_llm.settings.environment_and_config_file import name_variable, read_variable_lines


def test_a_variable_has_the_name_of_its_flag() -> None:
    assert name_variable("--prefill-concurrency") == "LOCUST_LLM_PREFILL_CONCURRENCY"


def test_each_line_of_a_variable_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCUST_LLM_LABEL", "\n branch=main \r\n\n  \nteam=a b\n")
    assert read_variable_lines("LOCUST_LLM_LABEL") == ["branch=main", "team=a b"]


def test_a_variable_that_is_not_set_has_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCUST_LLM_LABEL", raising=False)
    assert read_variable_lines("LOCUST_LLM_LABEL") == []

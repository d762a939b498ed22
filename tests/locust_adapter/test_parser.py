"""The parser: each declared option is a flag, a variable of the environment and a field of the
form, with default and example."""

import os

import pytest
from support import unpatched_locust
from support.command_line import parse

from locust_llm.controller.schedule import ORDERS
from locust_llm.locust_adapter.command_line_parser import (
    OPTIONS,
    add_options,
    build_settings,
    fill_in_form,
)
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.settings.option_declaration import (
    GROUPS,
    Option,
    declared_options,
    find_out_of_range,
    format_option_default,
    format_option_example,
    format_option_help,
)
from locust_llm.settings.run_options import Settings

BY_FLAG = {option.flag: option for option in OPTIONS}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("LOCUST", "OPENAI"))]:
        monkeypatch.delenv(name)


def test_help_shows_ours_first_in_their_groups() -> None:
    parser = unpatched_locust.get_empty_argument_parser(default_config_files=[])
    unpatched_locust.setup_parser_arguments(parser)
    add_options(parser, before_load=lambda options: None)
    text = parser.format_help()
    titles = [group.title for group in GROUPS.values()][:-1]  # not the probe's
    places = [text.index(f"\n{title}:") for title in [*titles, "Common options"]]
    assert places == sorted(places)
    assert all(f"\n  {flag}" in text[: places[-1]] for flag in BY_FLAG)


def test_an_option_is_described_with_default_and_example() -> None:
    assert [
        option.flag for option in OPTIONS if not option.help or not format_option_example(option)
    ] == []
    assert format_option_help(BY_FLAG["--gap-timeout"]).endswith("(default: 600; example: 30)")
    assert format_option_help(BY_FLAG["--slo"]).endswith(
        "(default: none; example: 'ttft p95 < 500ms')"
    )
    assert format_option_help(BY_FLAG["--streaming"]).endswith(
        "(default: on; example: --no-streaming)"
    )
    assert format_option_help(BY_FLAG["--model"]).endswith(
        "(default: the server's first; example: llama-3.1-8b)"
    )
    assert format_option_default(BY_FLAG["--percentiles"]) == "50,90,95,99"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flag)
def test_an_example_is_taken_alike_from_flag_variable_and_form(
    option: Option, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says something else than the default."""
    words = (
        [format_option_example(option)] if option.kind is bool else [option.flag, option.example]
    )
    given, none = parse(*words), parse()
    value = getattr(given, option.dest)
    assert value != getattr(none, option.dest) or len(option.choices) == 1
    if option.flag != "--slo-file":  # which is read
        assert list(find_out_of_range(build_settings(given), declared_options(Settings))) == []
    if option.in_form and not option.repeated:
        fill_in_form(
            none, {option.dest: str(value).lower() if option.kind is bool else option.example}
        )
        assert getattr(none, option.dest) == value
    if option.kind is not bool and not option.repeated:
        monkeypatch.setenv(option.variable, option.example)
        assert getattr(parse(), option.dest) == value


def test_what_can_be_chosen_is_what_there_is() -> None:
    assert BY_FLAG["--endpoint-type"].choices == tuple(PROTOCOLS)
    assert BY_FLAG["--dataset-sampling-strategy"].choices == tuple(ORDERS)


def test_a_field_says_its_flag_type_and_default() -> None:
    timeout = next(
        option for option in declared_options(Settings) if option.field == "request_timeout_s"
    )
    assert (timeout.flag, timeout.dest, timeout.kind, timeout.default) == (
        "--request-timeout", "request_timeout", float, 3600,
    )  # fmt: skip
    assert timeout.variable == "LOCUST_LLM_REQUEST_TIMEOUT"
    assert BY_FLAG["--header"].variable == "LOCUST_LLM_HEADERS"

"""The form: it asks what matters first and no secret, and its values pass through the checks of the
command line."""

import os
import re
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.command_line import parse
from support.unpatched_locust import get_empty_argument_parser, setup_parser_arguments
from werkzeug.datastructures import MultiDict

from locust_llm.locust_adapter.command_line_parser import (
    OPTIONS,
    add_options,
    build_settings,
    fill_in_form,
)
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import RunRefused
from locust_llm.web.locust_form import (
    FIELDS,
    MAIN_FIELDS,
    NO_CHOICE,
    drop_unasked_spawn_rate,
    fill_options,
    list_changed_flags,
    make_locust_form,
    order_form_fields,
    read_form_settings,
)

STATIC = Path(sys.modules["locust_llm"].__file__ or "").parent / "static"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("LOCUST", "OPENAI"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["locust"])
    monkeypatch.chdir(tmp_path)


def options(*words: str) -> Namespace:
    return parse(*words, headless=False)


def extra(*words: str) -> dict[str, dict[str, Any]]:
    """What Locust offers its form: ``ui_extra_args_dict`` of a fresh parser."""
    parser = get_empty_argument_parser(default_config_files=[])
    setup_parser_arguments(parser)
    locusts = {action.dest for action in parser._actions}
    add_options(parser, before_load=lambda _: None)
    parser.add_argument("--my-own", type=str, default="mine", help="of a locustfile")
    values = vars(parser.parse_args(list(words)))
    return {
        name: {"default_value": values[name], "help_text": action.help, "choices": action.choices}
        for name, action in parser.args_included_in_web_ui.items()
        if name not in locusts
    }


def of(form: dict[str, str], *words: str, workers: int = 0) -> Settings:
    """The settings of a run that this form starts."""
    from locust.runners import MasterRunner

    runner: Any = SimpleNamespace()
    if workers:
        runner = MasterRunner.__new__(MasterRunner)
        runner.greenlet = None
        runner.clients = SimpleNamespace(ready=list(range(workers)))
    return read_form_settings(fill_options(options(*words), form), runner)


# -- what it asks ----------------------------------------------------------------------------------


def test_what_matters_comes_first_and_a_locustfiles_own_last() -> None:
    names = list(order_form_fields(extra(), options()))
    assert tuple(names[: len(MAIN_FIELDS)]) == MAIN_FIELDS
    assert names[-1] == "my_own"
    assert set(names) == set(extra())


def test_what_names_files_or_holds_secrets_is_no_field() -> None:
    names = set(order_form_fields(extra(), options()))
    assert not names & {option.dest for option in OPTIONS if not option.in_form}
    assert not [
        name for name in names if "key" in name or name == "header" or "file" in name.split("_")
    ]


def test_fields_have_their_types_and_choices() -> None:
    found = order_form_fields(extra(), options())
    assert found["prefill_concurrency"]["type"] == "number"
    assert "type" not in found["request_rate"]  # browsers would take whole numbers only
    assert found["arrival_pattern"]["choices"] == [NO_CHOICE, "constant", "poisson", "gamma"]
    assert "chat" in found["slo_preset"]["choices"]
    assert found["streaming"]["default_value"] is True


def test_fields_show_what_was_asked_last() -> None:
    given = options("--prefill-concurrency", "3")
    assert order_form_fields(extra(), given)["prefill_concurrency"]["default_value"] == 3
    fill_in_form(given, {"prefill_concurrency": "5"})
    assert order_form_fields(extra(), given)["prefill_concurrency"]["default_value"] == 5


def test_rules_of_flag_environment_and_file_are_in_one_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("rules").write_text("itl p95 < 50ms  # steady\n")
    monkeypatch.setenv("LOCUST_LLM_SLO", "error_rate < 1%\n")
    given = options("--slo", "ttft p95 < 1s", "--slo-file", "rules")
    shown = order_form_fields(extra(), given)["slo"]["default_value"]
    assert shown == "ttft p95 < 1s; error_rate < 1%; itl p95 < 50ms"
    after = fill_options(given, {"slo": shown})
    assert read_form_settings(after, SimpleNamespace()).slo == tuple(shown.split("; "))
    assert list_changed_flags(given, after) == []
    assert read_form_settings(fill_options(given, {"slo": ""}), SimpleNamespace()).slo == ()


# -- what comes back -------------------------------------------------------------------------------


def test_values_are_those_of_the_command_line() -> None:
    form = {
        "user_count": "20", "model": " m ", "request_rate": "2.5", "prefill_concurrency": "4",
        "streaming": "true",
        "prefill_concurrency_ramp_duration": "30", "synthetic_input_tokens_mean": "8000",
        "run_time": "1h20m",
        "slo": "ttft p95 < 1s\r\n\r\n# nothing\r\nerror_rate < 1%", "arrival_pattern": "constant",
        "probe": "false",
    }  # fmt: skip
    words = (
        "-u", "20", "--model", "m", "--request-rate", "2.5", "--prefill-concurrency", "4",
        "--no-probe",
        "--prefill-concurrency-ramp-duration", "30", "--synthetic-input-tokens-mean", "8000", "-t",
        "1h20m",
        "--slo", "ttft p95 < 1s", "--slo", "error_rate < 1%", "--arrival-pattern", "constant",
    )  # fmt: skip
    assert of(form) == of({}, *words)
    assert of(form).run_time_s == 4800


def test_empty_is_not_set_and_missing_is_as_before() -> None:
    words = (
        "-u",
        "9",
        "--prefill-concurrency",
        "4",
        "--output-tokens-mean",
        "7",
        "-t",
        "9s",
        "--request-count",
        "5",
    )
    found = of(
        {
            "prefill_concurrency": "",
            "output_tokens_mean": " ",
            "run_time": "",
            "slo_preset": NO_CHOICE,
        },
        *words,
    )
    assert (found.prefill_concurrency, found.output_tokens_mean, found.run_time_s) == (
        None,
        128.0,
        None,
    )
    assert (found.users, found.request_count, found.slo_preset) == (9, 5, None)
    assert of({}, *words).run_time_s == 9
    assert of({"model": NO_CHOICE}).model == NO_CHOICE  # a model may be called so


def test_an_earlier_runs_time_is_forgotten() -> None:
    first = fill_options(options(), {"run_time": "20s"})
    assert read_form_settings(first, SimpleNamespace()).run_time_s == 20
    assert (
        read_form_settings(fill_options(first, {"run_time": ""}), SimpleNamespace()).run_time_s
        is None
    )


@pytest.mark.parametrize(
    ("form", "users", "first"),
    [
        ({"user_count": "1"}, 1, 1),
        ({"user_count": "5"}, 5, 5),
        ({"user_count": "1", "request_rate": "3"}, 1, 1),
        ({"user_count": "", "request_rate": "3"}, None, None),  # as many as the arrivals need
        ({"request_rate": "3"}, None, None),
        ({"user_count": ""}, 1, 1),
        ({"user_count": "5", "request_rate": "3"}, 5, 5),
        ({"user_count": "1", "user_centric_rate": "3"}, 1, 1),
        ({"user_count": "7", "sweep": "concurrency=2..8"}, None, 2),
        ({"user_count": "", "sweep": "concurrency=2..8"}, None, 2),
        ({"user_count": "", "sweep": "request-rate=1,2"}, None, None),
        ({"user_count": "8", "warmup_concurrency": "2", "warmup_request_count": "4"}, 8, 2),
        ({}, 1, 1),
    ],
)
def test_users_are_those_of_the_form_unless_the_load_says(
    form: dict[str, str], users: int | None, first: int | None
) -> None:
    found = of(form)
    assert (found.users, found.first_users) == (users, first)
    assert make_locust_form(MultiDict(form), found)["user_count"] == str(first or 1)


def test_the_1_that_locusts_page_cannot_leave_out_is_no_number_of_an_open_loop() -> None:
    def users(**form: str) -> int | None:
        filled = fill_options(options(), {"user_count": "1", **form})
        return read_form_settings(filled, SimpleNamespace(), from_locusts_page=True).users

    assert users() == 1
    assert users(request_rate="3") is None
    assert users(request_rate="3", user_count="2") == 2
    assert users(user_centric_rate="3") == 1


@pytest.mark.parametrize(
    ("words", "form"),
    [
        ((), {}),
        (("--request-rate", "5"), {"request_rate": "5"}),
        (("--sweep", "request-rate=1,2"), {"sweep": "request-rate=1,2"}),
        (("--sweep", "concurrency=2..8"), {"sweep": "concurrency=2..8"}),
    ],
)
def test_an_empty_field_is_an_option_that_was_not_given(
    words: tuple[str, ...], form: dict[str, str]
) -> None:
    """Of every field of the page, as a browser sends it."""
    sends = {
        name: "true" if field["default_value"] is True else ""
        for name, field in order_form_fields(extra(), options()).items()
        if name in FIELDS
    }
    typed = {**sends, "user_count": "", "spawn_rate": "", "run_time": "", **form}
    found, headless = of(typed), build_settings(parse(*words, headless=True))
    assert found == headless
    if found.users:
        asked = make_locust_form(MultiDict(typed), found)
        assert asked["spawn_rate"] == asked["user_count"]  # as before_load has it


def test_workers_that_are_there_are_counted() -> None:
    assert of({"user_count": "8"}, workers=3).processes == 3


WRONG = [
    ({"prefill_concurrency": "three"}, "--prefill-concurrency must be a whole number, got 'three'"),
    ({"request_rate": "-1"}, "--request-rate must be above 0, got -1"),
    ({"output_tokens_mean": "nan"}, "--output-tokens-mean must be a number, got 'nan'"),
    ({"percentiles": "50,p90"},
        "--percentiles must be numbers separated by commas, such as 50,90,95,99, got '50,p90'"),
    ({"user_count": "2", "prefill_concurrency": "3"},
     "--prefill-concurrency 3 is above the 2 users (-u): at most 2 requests can run at the same "
     "time"),
    ({"user_count": "0"}, "-u must be at least 1, got 0"),
    ({"user_count": "2.5"}, "-u must be a whole number, got '2.5'"),
    ({"run_time": "soon"}, "-t must be a time such as 20, 20s, 3m, 2h or 1h20m, got 'soon'"),
    ({"endpoint_type": "embeddings", "slo": "ttft p95 < 1s"},
     "SLO 'ttft p95 < 1s': embeddings generates no tokens and has no ttft: use request_latency"),
    ({"endpoint_type": "rerank", "prefill_concurrency_ramp_duration": "5"},
     "--prefill-concurrency-ramp-duration has nothing to ramp: add --prefill-concurrency"),
    ({"endpoint_type": "messages", "per_chunk_usage": "true"},
     "--per-chunk-usage works with chat and completions only: messages has no such count"),
    ({"extra_inputs": '{"guided_json": {"type": "nope"}}'},
     "--extra-inputs guided_json: is not a valid schema: 'nope' is not valid under any of the given schemas "
         "(at $.type)"),
    ({"tools": "tools.json"}, "--tools works on the command line only"),
    ({"host": "http://[::1"}, "--host 'http://[::1' is not a valid URL: Invalid IPv6 URL"),
    ({"arrival_pattern": "often"}, "--arrival-pattern must be one of constant, poisson, gamma, got "
        "'often'"),
    ({"api_key_file": "/etc/passwd"}, "--api-key-file works on the command line only"),
    ({"header": "X: y"}, "--header works on the command line only"),
    ({"slo_file": "/etc/passwd"}, "--slo-file works on the command line only"),
    ({"report_dir": "/tmp"}, "--report-dir works on the command line only"),
    ({"input_file": ""}, "--input-file works on the command line only"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "line"), WRONG, ids=[next(iter(form)) + str(i) for i, (form, _) in enumerate(WRONG)]
)
def test_a_wrong_value_is_refused_in_the_words_of_the_command_line(
    form: dict[str, str], line: str
) -> None:
    with pytest.raises(RunRefused) as refused:
        of(form)
    assert str(refused.value) == line


@pytest.mark.parametrize("text", ["nonsense", "-7", "200,128:80;4000,512:10"])
def test_a_refusal_of_a_value_begins_with_the_flag_of_its_field(text: str) -> None:
    """The page sets the focus into the field of the first flag."""
    known = options("--host", "http://server")
    refused = dict[str, str]()
    for option in OPTIONS:
        if option.in_form and option.kind is not bool and not option.repeated:
            try:
                read_form_settings(fill_options(known, {option.dest: text}), SimpleNamespace())
            except (RunRefused, ValueError) as no:
                refused[option.flag] = str(no)
    assert {"--seq-dist", "--slo-preset", "--goodput", "--request-rate"} <= set(refused)
    flags = {flag: re.findall(r"(?:^|\s)(--[a-z][a-z-]*)", line) for flag, line in refused.items()}
    assert [flag for flag, named in flags.items() if named[:1] != [flag]] == []


def test_a_locustfiles_own_number_is_one() -> None:
    """Locust would answer anything else with HTTP 500."""
    given = options()
    given.rounds, given.share, given.word, given.really = 3, 0.5, "x", True
    said = fill_options(given, {"rounds": " 4", "share": "0.25", "word": "3", "really": "maybe"})
    # Locust reads the other two
    assert (said.rounds, said.share, said.word, said.really) == (4, 0.25, "x", True)
    assert given.rounds == 3
    for form, line in (
        ({"rounds": "2.5"}, "--rounds must be a whole number, got '2.5'"),
        ({"rounds": ""}, "--rounds must be a whole number, got nothing"),
        ({"share": "nan"}, "--share must be a number, got 'nan'"),
    ):
        with pytest.raises(RunRefused) as refused:
            fill_options(given, form)
        assert str(refused.value) == line


def test_rules_of_a_locustfile_are_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(settings: Settings, options: Namespace) -> list[str]:
        return [f"{settings.users} is odd"] if (settings.users or 0) % 2 else []

    monkeypatch.setattr("locust_llm.locust_adapter.command_line_parser.EXTRA_VALIDATORS", [rule])
    assert of({"user_count": "4"}).users == 4
    with pytest.raises(RunRefused, match="3 is odd"):
        of({"user_count": "3"})


def test_a_wrong_rule_is_refused() -> None:
    with pytest.raises(RunRefused, match="ttft p95 < 500"):
        of({"slo": "error_rate < 1%\nttft p95 < 500"})


def test_a_rule_that_names_a_folder_is_the_command_lines() -> None:
    with pytest.raises(
        RunRefused, match="an SLO that compares with another run works on the command line only"
    ):
        of({"slo": "ttft p95 within 5% of /etc"})
    given = options("--slo", "ttft p95 within 5% of reports/base")
    assert fill_options(given, {"slo": "ttft p95 within 5% of reports/base"}).llm_rules == given.slo


def test_locust_reads_what_is_its_own() -> None:
    form = MultiDict(
        [
            ("user_count", "9"),
            ("spawn_rate", "3"),
            ("host", "localhost:1/v1"),
            ("run_time", "20s"),
            ("profile", "p"),
            ("user_classes", "A"),
            ("user_classes", "B"),
            ("my_own", "x"),
            ("prefill_concurrency", "2"),
            ("streaming", "true"),
            ("slo", ""),
        ]
    )
    rest = make_locust_form(form, Settings(host="http://localhost:1", users=9))
    assert rest.to_dict(flat=False) == {
        "spawn_rate": ["3"], "host": ["http://localhost:1"], "profile": ["p"],
        "user_classes": ["A", "B"],
        "my_own": ["x"], "user_count": ["9"],
    }  # fmt: skip
    assert make_locust_form(MultiDict(), Settings(host="h", users=2))["spawn_rate"] == "2"


def test_a_rate_that_locusts_page_showed_and_nobody_gave_is_none() -> None:
    untouched = MultiDict([("user_count", "9"), ("spawn_rate", "100")])
    assert drop_unasked_spawn_rate(untouched, options()).to_dict() == {"user_count": "9"}
    given = options("-r", "100")
    assert drop_unasked_spawn_rate(untouched, given)["spawn_rate"] == "100"
    changed = MultiDict([("user_count", "9"), ("spawn_rate", "9")])
    assert drop_unasked_spawn_rate(changed, options())["spawn_rate"] == "9"


def test_what_differs_is_told_by_name() -> None:
    before = options(
        "--prefill-concurrency", "2", "--output-tokens-mean", "7", "--slo", "ttft p95 < 1s"
    )
    same = {
        "prefill_concurrency": "2",
        "output_tokens_mean": "7.0",
        "model": "",
        "slo": "ttft p95 < 1s",
        "streaming": "true",
    }
    assert list_changed_flags(before, fill_options(before, same)) == []
    after = fill_options(
        before,
        {"prefill_concurrency": "3", "output_tokens_mean": "8", "slo": "", "streaming": "false"},
    )
    assert sorted(list_changed_flags(before, after)) == [
        "output_tokens_mean",
        "prefill_concurrency",
        "slo",
        "streaming",
    ]

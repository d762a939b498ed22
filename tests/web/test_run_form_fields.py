"""The page of a new run: every option of a form once, in its group, with what it depends on; no
secret."""

import html
import json
import re
import shlex
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.command_line import parse
from support.web_pages import Page
from werkzeug.datastructures import MultiDict

from locust_llm import plugin
from locust_llm.locust_adapter.ab_command import replace_base_by_host
from locust_llm.locust_adapter.command_line_parser import OPTIONS, build_settings, check_options
from locust_llm.locust_adapter.start_locust import LOCUSTFILES
from locust_llm.settings.option_declaration import format_option_example
from locust_llm.settings.run_refusal import RunRefused
from locust_llm.web.command_line_of_form import ARM_FIELDS, FormCommand, add_arms
from locust_llm.web.dataset_choices import Datasets
from locust_llm.web.locust_form import DATASET_FIELD, fill_options, read_requested_load
from locust_llm.web.run_form_fields import (
    DEPENDS,
    FormField,
    FormGroup,
    build_form_groups,
    take_settings,
)
from locust_llm.web.run_goals import GOALS, LOADS, RunGoal


def form(page: Page, **extra: dict[str, Any]) -> dict[str, FormGroup]:
    return {
        group.title: group
        for group in build_form_groups(page.options, extra, Datasets(None, None), "http://h")
    }


def fields(page: Page, **extra: dict[str, Any]) -> dict[str, FormField]:
    return {field.name: field for group in form(page, **extra).values() for field in group.fields}


def test_every_option_of_a_form_is_there_once(pages: Callable[..., Page]) -> None:
    found = [field.name for group in form(pages()).values() for field in group.fields]
    ours = ["scenario", "user_count", "run_time", "spawn_rate", "host", DATASET_FIELD]
    assert sorted(found) == sorted([*ours, *(option.dest for option in OPTIONS if option.in_form)])


def test_groups_are_those_of_the_options(pages: Callable[..., Page]) -> None:
    found = form(pages())
    assert {title: group.section for title, group in found.items()} == {
        "Load": "Load", "Prompts": "Workload", "Prefill limit": "Load", "SLO": "SLO", "Server": "Server",
        "Tenants": "Load", "Report": "Server",
    }  # fmt: skip
    assert [field.name for field in found["Load"].fields[:3]] == [
        "user_count",
        "run_time",
        "spawn_rate",
    ]
    assert [field.name for field in found["Report"].fields] == [
        "selftest",
        "percentiles",
        "backend_header",
        "gpus",
        "gpu_hour",
    ]


def test_each_goal_needs_fields_of_the_form_outside_of_the_report(
    pages: Callable[..., Page],
) -> None:
    """The page moves them, and looks for no other. A switch has a value in each goal, as nothing
    says which one it has else."""
    groups = form(pages())
    reports = {field.name for field in groups.pop("Report").fields}
    names = {field.name for group in groups.values() for field in group.fields}
    loads = {name for load in LOADS.values() for name in load.fields}
    for goal in GOALS:
        assert {*goal.fields, *goal.values, *goal.needed} - names == loads - names == set()
        assert len(set(goal.fields)) == len(goal.fields)
        assert not reports & {*goal.fields, *goal.values}
        assert set(goal.needed) <= set(goal.fields)
    switches = {name for name, field in fields(pages()).items() if field.kind == "switch"}
    assert [switches & set(goal.values) for goal in GOALS] == [
        {"find_max", "fixed_schedule"} for _ in GOALS
    ]


RUNS_OF_GOALS = {
    "look": ({"user_count": "4", "run_time": "30"}, "-u 4 -t 30"),
    "capacity": (
        {"run_time": "60", "slo": "ttft p95 < 1s"},
        "-t 60 --sweep concurrency=1..64 --find-max --slo 'ttft p95 < 1s'",
    ),
    "curve": (
        {"sweep": "input-tokens=500,1000", "user_count": "2"},
        "-u 2 --sweep input-tokens=500,1000",
    ),
    "limit": (
        {"request_rate": "5", "objective": "stall", "run_time": "600"},
        "-t 600 --request-rate 5 --sweep prefill-concurrency=1..8 --objective stall",
    ),
    "compare": (
        {"user_count": "2", "run_time": "10m", "candidate": "h:2",
         "candidate_set": "model=m\nbody.temperature=0", "slo": "ttft p95 within 5% of base"},
        "-u 2 -t 600 --candidate h:2 --candidate-set model=m --candidate-set body.temperature=0 "
        "--slo 'ttft p95 within 5% of base'",
    ),
    "replay": (
        {"dataset": "given", "replay_speedup": "2"},
        "--input-file trace.jsonl --fixed-schedule --replay-speedup 2",
    ),
}  # fmt: skip
"""What is typed besides the values of the goal, and the command after the address."""


@pytest.mark.parametrize("goal", GOALS, ids=[goal.name for goal in GOALS])
def test_the_command_of_each_goal_starts_the_run_that_the_form_asks_for(
    goal: RunGoal, pages: Callable[..., Page], tmp_path: Path
) -> None:
    rows = ({"timestamp": 500 * i, "input_length": 64, "output_length": 4} for i in range(3))
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    page = pages("--host", "http://h:1", "--input-file", "trace.jsonl")
    typed, rest = RUNS_OF_GOALS[goal.name]
    form = {"dataset": "", **goal.values, **typed}
    answer = page.client.post("/llm/command", data=form).get_json()
    assert answer["success"], answer
    begin = (
        "locust-llm run --headless -f chat.py --host http://h:1 "
        if goal.starts_here
        else "locust-llm ab -f chat.py --base http://h:1 "
    )
    assert answer["command"] == begin + rest

    words = shlex.split(answer["command"])
    again = parse(*replace_base_by_host(words[2:]), headless=False)
    asked = fill_options(
        add_arms(page.options, arms := MultiDict(form)),
        {name: text for name, text in arms.items() if name != "dataset"},
    )
    asked.input_file = "trace.jsonl" if goal.name == "replay" else None
    assert build_settings(again) == build_settings(asked)
    assert check_options(again)
    if not goal.starts_here:
        refused = page.start({**goal.values, **typed, "host": "http://h:1"})
        assert refused["message"] in [
            f"--{name.replace('_', '-')} works on the command line only" for name in ARM_FIELDS
        ]
        assert page.asked == []


def test_what_no_run_can_have_is_no_command(pages: Callable[..., Page]) -> None:
    page = pages("--host", "http://h:1")
    for form, why in (
        ({"sweep": "concurrency=1..4", "find_max": "true"}, "--find-max needs an SLO"),
        ({"slo": "ttff p95 < 1s"}, "SLO 'ttff p95 < 1s': unknown metric ttff"),
        ({"slo": "ttft p95 within 5% of base"},
            "an SLO that compares with another run works on the command"),
        ({"candidate_set": "header:X-Key=s3cret"}, "--candidate-set header:... may be a secret"),
        ({"candidate": "http://h:1"}, "the candidate is the same server as the base"),
        ({"api_key_file": "/x"}, "--api-key-file works on the command line only"),
    ):  # fmt: skip
        answer = page.client.post("/llm/command", data=form).get_json()
        assert not answer["success"]
        assert why in answer["message"]
        assert "s3cret" not in answer["message"]
    assert not page.options.candidate
    assert not page.options.candidate_set


def test_the_command_has_the_locustfiles_with_their_classes_options_and_tags() -> None:
    given = parse("--host", "http://h:1", headless=False)
    own = ArgumentParser()
    for flag, how in (
        ("--rounds", {"type": int, "default": 3}),
        ("--loud", {"action": "store_true"}),
        ("--mild", {"action": BooleanOptionalAction, "default": True}),
        ("--quiet", {"action": "store_true"}),
        ("--words", {"action": "append", "default": []}),
    ):
        own.add_argument(flag, **how)
    vars(given).update(
        locustfile="/there/a.py, b.py", user_classes=["Ann", "Bob"], tags=["fast"], master=True,
        rounds=4, loud=True, mild=False, quiet=False, words=["x"],
    )  # fmt: skip
    command = FormCommand(given, Datasets(None, None), own._actions)
    assert command.format() == (
        "locust-llm run --headless -f a.py,b.py Ann Bob --host http://h:1 --rounds=4 --loud "
        "--no-mild --tags fast"
    )
    assert list(command.list_notes()) == [
        "Run the command in the folder of a.py,b.py.",
        "Add --master and --expect-workers, and start the workers as you did for this page.",
        "Set for this program, but not in the command: --words.",
    ]
    given.locustfile, given.master = str(LOCUSTFILES / "run.py"), False
    assert (
        FormCommand(given, Datasets(None, None))
        .format()
        .startswith("locust-llm run --headless Ann Bob --host")
    )


def test_the_command_names_what_it_lacks_and_no_secret(
    pages: Callable[..., Page], tmp_path: Path
) -> None:
    page = pages(
        "--host", "http://h:1", "--header", "X-Key: s3cret", "--api-key-file", "/there/key", "-s", "5",
        "--processes", "2", "--candidate-set", "header:X-Arm=s3cret", "-t", "10m",
    )  # fmt: skip
    answer = page.client.post("/llm/command", data={}).get_json()
    assert answer == {
        "success": True,
        "command": "locust-llm ab -f chat.py --base http://h:1 -t 600 -s 5 --processes 2",
        "notes": [
            "Run the command in the folder of chat.py.",
            "Set for this program, but not in the command: --candidate-set header:NAME=VALUE, "
            "--api-key-file, --header.",
        ],
    }


def test_what_a_field_depends_on_is_a_field(pages: Callable[..., Page]) -> None:
    names = set(fields(pages()))
    assert set(DEPENDS) <= names
    assert {name.removeprefix("!") for needs in DEPENDS.values() for name in needs} <= names


def test_a_field_that_is_at_its_default_is_empty(pages: Callable[..., Page]) -> None:
    rules = ("--slo", "ttft p95 < 1s", "--slo", "itl p95 < 9ms")
    found = fields(pages("-u", "7", "--output-tokens-mean", "128", "--request-rate", "2.5", *rules))
    assert (found["output_tokens_mean"].value, found["output_tokens_mean"].default) == ("", "128")
    assert (found["request_rate"].value, found["user_count"].value) == ("2.5", "7")
    assert (found["slo"].kind, found["slo"].value) == ("rules", "ttft p95 < 1s\nitl p95 < 9ms")
    assert (found["streaming"].kind, found["streaming"].value) == ("switch", "true")
    assert found["arrival_pattern"].choices[0] == ("", "poisson; gamma with --arrival-smoothness")
    assert ("chat", "chat") in found["slo_preset"].choices


# -- the command line is the default of the form ---------------------------------------------------

IN_FORM = [
    option for option in OPTIONS if option.in_form and not option.repeated and option.dest != "slo"
]
LOCUSTS = {
    "-u": ("user_count", "5"), "-t": ("run_time", "90"), "-r": ("spawn_rate", "2.5"),
    "--slo": ("slo", "ttft p95 < 1s"),
}  # fmt: skip


def sent(found: dict[str, FormField]) -> dict[str, str]:
    """As static/new_run.js has it: nothing of a field that is hidden, of a switch then its
    default."""
    on = {
        name
        for name, one in found.items()
        if (one.value == "true" if one.kind == "switch" else one.is_set)
    }
    hidden = set[str]()
    for _ in found:  # until nothing changes
        for name, one in found.items():
            needs = set(one.needs.split())
            unwanted = {need.strip("!") for need in needs if need.startswith("!")}
            wanted = {need for need in needs if not need.startswith("!")}
            matters = not unwanted & (on - hidden) and (not wanted or wanted & (on - hidden))
            (hidden.discard if matters else hidden.add)(name)
    return {
        name: (one.default if one.kind == "switch" else "") if name in hidden else one.value
        for name, one in found.items()
    }


def launched(*words: str, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """As a run that began by itself left them."""
    given = parse("--web-host", "127.0.0.1", *words, headless=False)
    given.autostart = True
    for name in (
        "check_options",
        "survey_servers",
        "refuse_taken_ports",
        "raise_open_files",
        "use_certificates",
        "use_source_options",
    ):
        monkeypatch.setattr(plugin, name, lambda *_, **__: None)
    monkeypatch.setattr(plugin, "check_options", build_settings)
    plugin.before_load(given)
    return given


@pytest.mark.parametrize("started", [False, True], ids=["waits", "autostart"])
@pytest.mark.parametrize("flag", [*LOCUSTS, *(option.flag for option in IN_FORM)])
def test_each_option_of_the_command_line_is_the_default_of_the_form(
    flag: str, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown, and a form that is sent as it came asks for the same settings."""
    option = next((option for option in IN_FORM if option.flag == flag), None)
    words = [flag, LOCUSTS[flag][1]] if option is None else [flag, option.example]
    if option is not None and option.kind is bool:
        words = [format_option_example(option)]
    given = launched(*words, monkeypatch=monkeypatch) if started else parse(*words, headless=False)
    found = {
        field.name: field
        for group in build_form_groups(given, {}, Datasets(given.input_file, None), given.host)
        for field in group.fields
    }
    shown = found[LOCUSTS[flag][0] if option is None else option.dest]
    assert shown.is_set or (option is not None and len(option.choices) == 1)
    if option is None:
        assert shown.value == LOCUSTS[flag][1]
    form = sent(found)
    assert form[shown.name] == shown.value
    assert form["host"] == given.host
    again = fill_options(given, form)
    assert build_settings(again) == build_settings(given)
    assert read_requested_load(again).spawn_rate == read_requested_load(given).spawn_rate


def test_what_the_command_line_set_is_shown_though_what_it_depends_on_is_not(
    pages: Callable[..., Page],
) -> None:
    found = fields(
        pages(
            "--sweep", "request-rate=1..4", "--arrival-pattern", "constant", "--replay-speedup", "2"
        )
    )
    assert (found["arrival_pattern"].value, found["arrival_pattern"].needs) == (
        "constant",
        "request_rate sweep",
    )
    assert (found["replay_speedup"].value, found["replay_speedup"].needs) == ("2", "")
    assert fields(pages())["replay_speedup"].needs == "fixed_schedule"


def test_flags_of_the_locustfile_are_the_last_group_and_a_secret_one_is_no_field(
    pages: Callable[..., Page],
) -> None:
    text = {"default_value": "mine", "help_text": "of a locustfile", "choices": None}
    own = {
        "my_own": text,
        "token": {**text, "default_value": "s3cret", "is_secret": True},
        "twice": {**text, "default_value": True},
    }
    page = pages()
    assert list(form(page, **own))[-1] == "Locustfile"
    found = fields(page, **own)
    assert (found["my_own"].value, "token" in found) == ("mine", False)
    assert (found["twice"].kind, found["twice"].value) == ("switch", "true")


def test_each_field_of_the_page_has_a_label_and_its_text(pages: Callable[..., Page]) -> None:
    text = pages("--model", '"><script>').client.get("/llm/new").text
    ids = re.findall(r'<(?:input|select|textarea)[^>]* id="?([\w-]+)', text)
    assert len(ids) == len(set(ids)) > 50
    assert set(ids) == set(re.findall(r'<label for="?([\w-]+)', text))
    assert set(re.findall(r'aria-describedby="([\w-]+)"', text)) == set(
        re.findall(r'<p class=help id="([\w-]+)"', text)
    )
    assert "<script>" not in html.unescape(re.sub(r'value="[^"]*"', "", text)).replace(
        "<script src", ""
    )


def test_during_a_run_the_form_leads_to_the_live_page(
    pages: Callable[..., Page], tmp_path: Path
) -> None:
    page = pages("--web-base-path", "/deep")
    page.view.control = type("Control", (), {"draining": False})()  # type: ignore[assignment]
    answer = page.client.get("/deep/llm/new")
    assert (answer.status_code, answer.headers["Location"]) == (302, "../llm")


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "place"), [(0, "./llm/new"), (1, "./llm")])
def test_the_address_leads_to_ours_where_the_users_are(
    runs: int, place: str, pages: Callable[..., Page]
) -> None:
    page = pages("--web-base-path", "/deep", first=True)
    page.view.runs = runs
    answer = page.client.get("/deep/")
    assert (answer.status_code, answer.headers["Location"]) == (302, place)
    assert "window.templateArgs" in page.client.get("/deep/?tab=stats").text
    assert "window.templateArgs" in pages().client.get("/").text


def test_locusts_page_has_a_link_back(pages: Callable[..., Page]) -> None:
    page = pages("--web-base-path", "/deep")
    text = page.client.get("/deep/?tab=stats").text
    assert re.findall(
        r'<a href="([^"]*)"[^>]*>([^<]*)</a></body>', re.sub(r"\s*</body>", "</body>", text)
    ) == [("./llm", "LLM live page")]
    assert "LLM live page</a>" not in page.client.get("/deep/llm/new").text


# -- the workload, and the command line ------------------------------------------------------------


@pytest.mark.parametrize("flag", [option.flag for option in IN_FORM])
def test_the_command_line_asks_for_what_the_form_does(flag: str) -> None:
    option = next(option for option in IN_FORM if option.flag == flag)
    words = [flag, option.example]
    if option.kind is bool:
        words = [format_option_example(option)]
    given = parse("--host", "http://h:1", *words, headless=False)
    command = shlex.split(FormCommand(given, Datasets(None, None)).format())
    begin = ["locust-llm", "run", "--headless", "-f", "chat.py", "--host", "http://h:1"]
    assert command[:7] == begin
    again = parse(*command[5:], headless=False)
    assert build_settings(again) == build_settings(given)
    assert len(command) <= 9


def test_the_page_shows_the_command_line(pages: Callable[..., Page]) -> None:
    page = pages("--host", "http://h", "--api-key-file", "/secret/key", "--streaming")
    form = {
        "user_count": "7", "run_time": "1m", "scenario": "rag", "model": "my model",
        "output_tokens_mean": "", "streaming": "false", "slo": "ttft p90 < 1s\nitl p95 < 60ms",
    }  # fmt: skip
    answer = page.client.post("/llm/command", data=form).get_json()
    assert answer == {
        "success": True,
        "command": "locust-llm run --headless -f chat.py --host http://h -u 7 -t 60 --scenario rag "
        "--model 'my model' --no-streaming --slo 'ttft p90 < 1s' --slo 'itl p95 < 60ms'",
        "notes": [
            "Run the command in the folder of chat.py.",
            "Set for this program, but not in the command: --api-key-file.",
        ],
    }
    refused = page.client.post("/llm/command", data={"run_time": "soon"}).get_json()
    assert refused["message"].startswith("-t must be a time")
    assert page.view.refusal == ""


def test_a_workload_fills_in_its_fields_and_leaves_what_somebody_gave(
    pages: Callable[..., Page],
) -> None:
    """rag.toml: a shared prompt of 500 tokens, a mix of lengths and three rules."""
    page = pages("--host", "http://h", "--shared-system-prompt-length", "77")
    text = page.client.get("/llm/new?scenario=rag").text
    assert '<option value="rag" selected>rag: RAG and summaries' in text
    assert (
        "RAG and summaries: prompts of 2,000 or 52,200 tokens, responses of 500. Fills in" in text
    )
    assert 'value="2000,500|300:74.1;52200,500|300:25.9"' in text
    assert html.unescape(text).count("ttft p90 <= 15s") == 1
    assert (page.options.scenario, page.options.seq_dist) == (None, None)
    assert page.client.get("/llm/new?scenario=/etc/x.toml").status_code == 404

    options = fill_options(page.options, {"scenario": "rag"})
    assert (options.shared_system_prompt_length, options.scenario) == (77, "rag")
    settings = build_settings(options)
    assert settings.slo == ("ttft p90 <= 15s", "itl p95 <= 150ms", "request_latency p99 <= 630s")
    assert settings.scenario_changed == ("shared-system-prompt-length",)
    other = fill_options(options, {"scenario": "interactive-chat"})
    assert (other.session_turns_mean, other.shared_system_prompt_length) == (4, 77)
    none = fill_options(other, {"scenario": ""})
    assert build_settings(none) == build_settings(page.options)
    with pytest.raises(RunRefused, match="--output-tokens-mean has no effect because scenario"):
        fill_options(page.options, {"scenario": "rag", "output_tokens_mean": "64"})
    with pytest.raises(RunRefused, match=r"there is no scenario 'mine\.toml' in the list"):
        fill_options(page.options, {"scenario": "mine.toml"})


def test_a_workload_of_the_command_line_can_be_chosen_again(
    pages: Callable[..., Page], tmp_path: Path
) -> None:
    own = tmp_path / "own.toml"
    own.write_text('description = "mine"\noutput-tokens-mean = 9\n')
    page = pages("--host", "http://h", "--scenario", str(own))
    text = page.client.get("/llm/new").text
    assert '<option value="given" selected>own.toml, from the command line</option>' in text
    assert str(tmp_path) not in text
    other = fill_options(page.options, {"scenario": "rag"})
    assert (other.output_tokens_mean, other.scenario) == (None, "rag")
    back = fill_options(other, {"scenario": "given"})
    assert (back.output_tokens_mean, back.scenario) == (9, str(own))


def test_the_form_takes_the_settings_of_a_past_run(pages: Callable[..., Page]) -> None:
    """What is of another kind than the field stays as it is, and so does the seed of the words."""
    page = pages("-u", "7", "--output-tokens-mean", "64", "--random-seed", "5")
    options = page.view.environment.parsed_options
    assert options is not None
    settings = {
        "users": 3, "run_time_s": 20.0, "request_rate": 2.5, "slo": ["ttft p95 < 1s", 4],
        "percentiles": [50.0, 99.0], "output_tokens_mean": "many", "random_seed": 9,
    }  # fmt: skip
    filled = take_settings(options, settings)
    assert (filled.llm_users, filled.llm_run_time, filled.request_rate) == (3, 20.0, 2.5)
    assert (filled.slo, filled.percentiles) == (["ttft p95 < 1s"], "50,99")
    assert (filled.output_tokens_mean, filled.random_seed) == (64, 5)
    assert options.request_rate is None

"""Help: groups with examples that work, versions, and what an unknown command or option was meant
to be."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.command_line import parse
from support.unpatched_locust import get_empty_argument_parser, setup_parser_arguments

from locust_llm.__main__ import main
from locust_llm.commands import COMMANDS, OF_OTHERS, USAGE
from locust_llm.exit_status import ExitStatus
from locust_llm.lab.probe.probe_user import ProbeOptions
from locust_llm.locust_adapter.command_line_help import MAIN_OPTIONS
from locust_llm.locust_adapter.command_line_parser import OPTIONS, add_options
from locust_llm.locust_adapter.option_names_of_other_tools import (
    ACCEPTED_PEER_NAMES,
    OPTION_BY_GUIDELLM_PROFILE,
    OPTION_BY_PEER_NAME,
    PEER_NAMES_BY_OPTION,
    UNSUPPORTED_PEER_OPTIONS,
    unknown_options,
)
from locust_llm.records.machine import format_versions
from locust_llm.settings.option_declaration import GROUPS, declared_options

FLAGS = {option.flag for option in OPTIONS}


def made(program: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """--help of a command."""
    monkeypatch.setattr("sys.argv", [program])
    return str(made_parser().format_help())


def made_parser() -> Any:
    parser = get_empty_argument_parser(default_config_files=[])
    setup_parser_arguments(parser)
    add_options(parser, before_load=lambda options: None)
    return parser


@pytest.mark.parametrize("command", ["run", "ab", "probe"])
def test_help_all_begins_with_the_command_and_has_every_group(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = made(f"locust-llm {command}", monkeypatch)
    assert text.lstrip().startswith(f"Usage: locust-llm {command} ")
    assert (
        text.index("\nServer:")
        < text.index("\nLoad:")
        < text.index("\nPrompts:")
        < text.index("\nTenants:")
        < text.index("\nCommon options:")
    )
    for group in GROUPS.values():
        assert f"$ {group.example}" in text or group.title == "Probe"
    assert "locust -f my_test.py" not in text


def test_help_of_a_run_shows_the_twenty_main_options_by_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["locust-llm run"])
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        made_parser().parse_args(["--help"])
    assert ended.value.code == ExitStatus.OK
    text = capsys.readouterr().out
    shown = re.findall(r"^  (?:-\w [A-Z]+, )?(--[\w-]+)", text, re.MULTILINE)
    assert len(shown) == 20
    assert [shown[0], shown[-1]] == ["--host", "--report-dir"]
    assert shown.index("--prefill-concurrency") < shown.index("--slo")
    assert "--help-all shows every option" in text
    assert "tenant" not in text


@pytest.mark.parametrize("command", MAIN_OPTIONS)
def test_each_main_option_of_a_command_exists(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [f"locust-llm {command}"])
    parser = made_parser()
    flags = [flag for group in MAIN_OPTIONS[command].values() for flag in group]
    of_the_probe = {option.flag for option in declared_options(ProbeOptions)}
    assert len(flags) == len(set(flags)) <= 20
    assert {*flags} - of_the_probe <= {*parser._option_string_actions}


def test_help_all_ends_the_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["locust-llm run"])
    parser = made_parser()
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--help-all"])
    assert ended.value.code == ExitStatus.OK
    assert capsys.readouterr().out == parser.format_help()


def test_help_of_locust_itself_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made("/somewhere/locust", monkeypatch).lstrip().startswith("Usage: locust [options]")


def test_what_other_tools_call_an_option_is_named_here() -> None:
    known = {"-u", "-t", "-s", "--host", "--processes", "--loglevel", *FLAGS, "--no-streaming"}
    assert {shlex.split(here)[0].rstrip(",") for here in PEER_NAMES_BY_OPTION} <= known
    assert set(OPTION_BY_PEER_NAME).isdisjoint(known)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--workers", "30"], "unknown option --workers: use --processes"),
        (["--rps=100"], "unknown option --rps: use --request-rate"),
        (["--ui", "none"], "unknown option --ui: it has no equivalent"),
        (
            ["--concurrency", "1,2"],
            "--concurrency takes one number: for several, use --sweep concurrency=1,2,4",
        ),
        (
            [
                "--ui",
                "none",
                "--isl=5",
                "--workers-max",
                "2",
                "--goodputt",
                "x",
                "--log-level",
                "info",
                "--ui=x",
            ],
            "4 options are unknown: --ui: it has no equivalent; --workers-max: it has no "
            "equivalent; --goodputt: did you mean --goodput?; --log-level: use --loglevel",
        ),
        (
            ["--url", "a:1", "--url=b:1"],
            "more than one address is given: use one server, or the replicas of one, separated by "
            "commas",
        ),
        (["--max-tokens", "7"], "unknown option --max-tokens: use --output-tokens-mean"),
        (
            ["--api-key", "sk-1"],
            "unknown option --api-key: use --api-key-file, or OPENAI_API_KEY in the environment",
        ),
        (
            ["--prefil-concurrency", "3"],
            "unknown option --prefil-concurrency: did you mean --prefill-concurrency?",
        ),
        (["--qqqqqqqq"], "unknown option --qqqqqqqq: --help-all shows every option"),
        (["--request-rat", "5"], "unknown option --request-rat: did you mean --request-rate?"),
        (["--prefil=2"], "unknown option --prefil: did you mean --prefill-concurrency?"),
        (
            ["--host", "a:1", "--host=b:1"],
            "more than one address is given: use one server, or the replicas of one, separated by "
            "commas",
        ),
        (
            ["a:1", "--host", "b:1"],
            "more than one address is given: use one server, or the replicas of one, separated by "
            "commas",
        ),
        (["me:secret@x"], "'ADDRESS' is not a user class: did you mean --host ADDRESS?"),
        (["some/folder"], "'some/folder' is not a user class: did you mean --host some/folder?"),
    ],
)
def test_a_wrong_word_is_refused_with_what_was_meant(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(*words)
    assert (ended.value.code, capsys.readouterr().err) == (
        ExitStatus.REFUSED,
        f"locust-llm: error: {line}\n",
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--profile", "sweep"],
         "--profile sweep is guidellm's: use --sweep concurrency=1..64, or --sweep request-rate=1,2,4,8"),
        (["--profile=Synchronous"], "--profile Synchronous is guidellm's: use -u 1"),
        (["--prof", "poisson"], "unknown option --prof: poisson is guidellm's: use --request-rate 10"),
        (["--rate-type", "sweep"],
         "unknown option --rate-type: for the loads of guidellm's --profile, use --request-rate, -u or --sweep"),
        (["--profile", "--seed", "1"],
         "--profile takes a name here: vllm bench starts a profiler with it, which has no equivalent"),
        (["--tag", "build=7"], "unknown option --tag: use --label"),
        (["--metadata", "build=7"], "unknown option --metadata: use --label"),
        (["--batch", "20"], "unknown option --batch: it has no equivalent"),
        (["--stage", "10s:5"], "unknown option --stage: use --sweep concurrency=1,2,4"),
        (["-H", "Authorization: Bearer secret"], "-H takes the host: a header is --header 'NAME: VALUE' here"),
        (["-HX-Key: secret"], "-H takes the host: a header is --header 'NAME: VALUE' here"),
        (["-u", "localhost:8000"], "-u takes the number of users: the address is --host here"),
    ],
)  # fmt: skip
def test_what_another_tool_means_by_the_same_name_is_refused(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Locust has --profile, --tags and -H too, and argparse completes names: a run of one user
    would begin."""
    with pytest.raises(SystemExit) as ended:
        parse(*words)
    assert (ended.value.code, capsys.readouterr().err) == (
        ExitStatus.REFUSED,
        f"locust-llm: error: {line}\n",
    )


@pytest.mark.parametrize("profile", OPTION_BY_GUIDELLM_PROFILE)
def test_no_load_of_guidellm_becomes_a_name_of_a_group_of_runs(profile: str) -> None:
    assert profile in unknown_options(["--profile", profile], ["--profile"])


def test_a_name_of_a_group_of_runs_and_an_address_stay() -> None:
    words = ["--profile", "nightly", "-Hlocalhost:8000", "-u3", "-u", "4"]
    assert unknown_options(words, ["--profile", "-H", "--host", "-u"]) == ""


def test_what_is_known_is_not_corrected() -> None:
    known = ["--url", "--request-rate", "--request-count"]
    assert (
        unknown_options(["--url", "x", "--request-r", "1", "-u", "3", "--", "--nothing"], known)
        == ""
    )


def test_names_that_mean_the_same_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of AIPerf's."""
    line = (
        "-m llama --url localhost:1 --concurrency 8 --benchmark-duration 60 "
        "--benchmark-grace-period 5 --isl 500 "
        "--isl-stddev 50 --osl 128 --osl-stddev 9 --num-requests 100 --num-warmup-requests 3 "
        "--request-timeout-seconds 20 "
        "--conversation-num 7 --request-rate-mode gamma --vllm-burstiness 0.5 --artifact-dir out "
        "--custom-endpoint /v1/x"
    )
    monkeypatch.setattr("locust_llm.locust_adapter.command_line_parser._checked", True)
    found = parse(*line.split())
    assert (found.model, found.host, found.num_users, found.run_time) == (
        "llama",
        "localhost:1",
        8,
        60,
    )
    assert (found.stop_timeout, found.request_count, found.warmup_request_count) == (5, 100, 3)
    assert (found.synthetic_input_tokens_mean, found.synthetic_input_tokens_stddev) == (500, 50)
    assert (found.output_tokens_mean, found.output_tokens_stddev, found.request_timeout) == (
        128,
        9,
        20,
    )
    assert (found.num_sessions, found.arrival_pattern, found.arrival_smoothness) == (
        7,
        "gamma",
        0.5,
    )
    assert (found.report_dir, found.endpoint) == ("out", "/v1/x")


def test_the_lists_of_names_do_not_overlap() -> None:
    same = {f"--{name}" for names in ACCEPTED_PEER_NAMES.values() for name in names}
    assert same <= set(OPTION_BY_PEER_NAME)
    assert UNSUPPORTED_PEER_OPTIONS.isdisjoint({*OPTION_BY_PEER_NAME, *FLAGS})


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("rnu", "unknown command 'rnu': did you mean run?"),
        ("bench", "unknown command 'bench': use run"),
        ("qqqq", "unknown command 'qqqq'"),
        (
            "--url=http://key@x",
            "the command is missing before --url: did you mean 'locust-llm run --url ...'?",
        ),
    ],
)
def test_an_unknown_command(word: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == ExitStatus.REFUSED
    err = capsys.readouterr().err
    assert err.startswith(f"locust-llm: error: {line}\n")
    assert ("usage:" in err) == (word == "qqqq")  # what was meant is enough


def test_the_list_of_commands_has_each_of_them_once() -> None:
    listed = re.findall(r"^  ([a-z]+)(?: [A-Z. ]+)? {2,}\S", USAGE, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    assert max(map(len, USAGE.splitlines())) <= 100


def test_names_of_other_programs_are_none_of_ours() -> None:
    names = {name for names in OF_OTHERS.values() for name in names}
    assert {here.partition(" ")[0] for here in OF_OTHERS} <= set(COMMANDS)
    assert not names & set(COMMANDS)


def test_the_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitStatus.OK
    assert capsys.readouterr().out == f"{format_versions()}\n"
    assert format_versions().startswith("locust-llm ")
    assert "Locust 2." in format_versions()


@pytest.mark.parametrize(
    ("words", "host", "classes"),
    [
        (["localhost:8701"], "localhost:8701", []),
        (["-u", "3", "localhost", "ChatUser"], "localhost", ["ChatUser"]),
        (
            ["ChatUser", "https://llm.example.com/v1", "-t", "5s"],
            "https://llm.example.com/v1",
            ["ChatUser"],
        ),
        (["10.0.0.7", "--host", "http://10.0.0.7/"], "10.0.0.7", []),
        (["a:1,b:2"], "a:1,b:2", []),
        (["[::1]:8000"], "[::1]:8000", []),
        (["ChatUser", "--host", "a:1"], "a:1", ["ChatUser"]),
    ],
)
def test_an_address_may_stand_alone(words: list[str], host: str, classes: list[str]) -> None:
    parser = get_empty_argument_parser(default_config_files=[])
    setup_parser_arguments(parser)
    add_options(parser, before_load=lambda options: None)
    options = parser.parse_args(["-f", "my/chat.py", *words])
    assert (options.host, options.user_classes) == (host, classes)


def test_a_configuration_file_may_begin_with_a_byte_order_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locust.conf").write_text("\ufeffrequest-count = 3\n", "utf-8")
    parser = get_empty_argument_parser(default_config_files=[str(tmp_path / "locust.conf")])
    setup_parser_arguments(parser)
    add_options(parser, before_load=lambda options: None)
    monkeypatch.setattr("locust_llm.locust_adapter.command_line_parser._checked", True)
    assert parser.parse_args([]).request_count == 3

"""Numbers from outside: each flag, variable and field with what no number can be; taken, or refused
in one line."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import pytest
from support import unpatched_locust  # noqa: F401  before the rest
from support.command_line import parse

from locust_llm.access.headers_and_api_key import read_request_headers
from locust_llm.exit_status import ExitStatus
from locust_llm.files import user_file as given
from locust_llm.locust_adapter.command_line_parser import OPTIONS, check_options
from locust_llm.settings.option_declaration import declared_options
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import RunRefused
from locust_llm.web.locust_form import fill_options
from locust_llm.workload.dataset import Dataset
from locust_llm.workload.dataset_formats import DatasetError, DatasetSession

NASTY: Final = (
    "-1", "0", "nan", "inf", "-inf", "1e309", "1e23", "-1e-300", "1e-300", "", " ", "text", "٣",
    "1_000", "0x10", "1,5",
    "9" * 30, "9" * 5000, "1e999999999", "NaN", "-0", "1.5", "\x00", "²",
)  # fmt: skip
"""What a flag that takes a number is given."""
NUMERIC: Final = tuple(
    (option.flag, option.kind) for option in OPTIONS if option.kind in (int, float)
)
LOCUSTS: Final = ("-u", "-r", "-t", "--stop-timeout", "--processes")
WITH: Final = {
    "--request-rate-ramp-duration": ("--request-rate", "1"),
    "--arrival-smoothness": ("--request-rate", "1", "--arrival-pattern", "gamma"),
    "--prefill-concurrency-ramp-duration": ("--prefill-concurrency", "1"),
    "--gpu-hour": ("--gpus", "1"),
    "--warmup-request-rate": ("--warmup-duration", "1"),
    "--warmup-concurrency": ("--warmup-duration", "1", "-u", "5"),
    "--user-centric-rate": ("-u", "3"),
    "--num-prefix-prompts": ("--prefix-prompt-length", "3"),
    "--prefix-prompt-length": ("--num-prefix-prompts", "3"),
    "--request-cancellation-delay": ("--request-cancellation-rate", "3"),
}
"""What a flag needs beside it, so that its own number is what is looked at."""
TEXTS: Final = (
    "--sweep",
    "--stage-duration",
    "--seq-dist",
    "--goodput",
    "--percentiles",
    "--slo",
    "--extra-inputs",
)
"""Flags with numbers inside of a text."""
SHAPES: Final = {
    "--sweep": (
        "concurrency={}",
        "concurrency=1..{}",
        "request-rate={}",
        "request-rate=1..{}+1",
        "input-tokens=1..9+{}",
    ),
    "--stage-duration": ("{}", "1..{}", "{}..9"),
    "--seq-dist": (
        "{},3:100",
        "9,{}:100",
        "9,9:{}",
        "9|{},9:100",
        "uniform:1..{},9:100",
        "lognormal:{}|3,9:100",
    ),
    "--goodput": ("time_to_first_token:{}",),
    "--percentiles": ("{}", "50,{}"),
    "--slo": ("ttft p95 < {}", "ttft p{} < 1s", "error_rate < {}%", "ttft{{input=1..{}}} p95 < 1s"),
    "--extra-inputs": ("temperature:{}",),
}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("LOCUST", "OPENAI"))]:
        monkeypatch.delenv(name)


def outcome(*words: str) -> Settings | str:
    """The settings, or the one line that refuses them."""
    status: object = ExitStatus.REFUSED
    try:
        return check_options(parse(*words))
    except RunRefused as refused:
        line = str(refused)
    except SystemExit as ended:
        status, line = ended.code, "refused by the parser"
    assert status in (ExitStatus.REFUSED, ExitStatus.BROKEN)  # 2: a flag of Locust's own, by Locust
    return line


def taken_or_refused(*words: str) -> Settings | str:
    found = outcome(*words)
    if isinstance(found, str):
        assert found
        assert "\n" not in found
        assert len(found) < 1100
    return found


def nasty(flag: str) -> list[str]:
    return [
        f"{flag}={text}" if flag.startswith("--") else f"{flag}{text}"
        for text in NASTY
        if "\x00" not in text or flag
    ]


@pytest.mark.parametrize(("flag", "kind"), NUMERIC, ids=[flag for flag, _ in NUMERIC])
def test_a_flag_takes_a_number_it_can_use_or_refuses(
    flag: str, kind: type, capsys: pytest.CaptureFixture[str]
) -> None:
    low, high = bounds(flag)
    for text in NASTY:
        found = taken_or_refused(*WITH.get(flag, ()), f"{flag}={text}")
        if isinstance(found, str):
            err = capsys.readouterr().err
            assert err.count("\n") <= 1, err
            continue
        assert text.strip() == "" or low <= float(text) <= high, (flag, text)


@pytest.mark.parametrize(
    "texts", [NASTY[:1], pytest.param(NASTY, marks=pytest.mark.full)], ids=["one", "all"]
)
@pytest.mark.parametrize("flag", [flag for flag, _ in NUMERIC])
def test_so_does_its_variable(
    flag: str, texts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "LOCUST_LLM_" + flag[2:].upper().replace("-", "_")
    for text in texts:
        if "\x00" not in text:
            monkeypatch.setenv(variable, text)
            taken_or_refused(*WITH.get(flag, ()))


def bounds(flag: str) -> tuple[float, float]:
    return next(
        option.range
        for option in declared_options(Settings)
        if option.flag == flag and option.range
    )


def test_every_number_of_the_settings_has_a_range() -> None:
    ranges = {option.flag: option.range for option in declared_options(Settings) if option.range}
    assert set(ranges) == {flag for flag, _ in NUMERIC} | {
        "-u",
        "-r",
        "-t",
        "--processes",
        "--stop-timeout",
    }
    # what a message between processes can hold
    assert all(most < 2**63 for _, most in ranges.values())


@pytest.mark.parametrize("flag", LOCUSTS)
def test_so_do_numbers_of_locust(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for word in nasty(flag):
        taken_or_refused(word)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "shape"), [(flag, shape) for flag in TEXTS for shape in SHAPES[flag]]
)
def test_so_do_numbers_within_a_text(
    flag: str, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in NASTY:
        taken_or_refused(f"{flag}={shape.format(text)}")


@pytest.mark.parametrize(
    "name", [flag[2:].replace("-", "_") for flag, _ in NUMERIC] + ["user_count", "run_time"]
)
def test_so_do_fields_of_the_form(name: str) -> None:
    options = parse(headless=False)
    for text in NASTY:
        line = ""
        try:
            check_options(fill_options(options, {name: text}))
        except RunRefused as refused:
            line = str(refused)
        assert "\n" not in line
        assert len(line) < 1100


def drawn(seed: int, count: int) -> Iterator[list[str]]:
    """Command lines of several such flags."""
    draw = Random(seed)
    for _ in range(count):
        flags = draw.sample(NUMERIC, draw.randint(1, 6))
        yield [f"{flag}={draw.choice([*NASTY, '1', '2.5', '30', '1e6'])}" for flag, _ in flags]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 20))]
)
def test_so_do_several_together(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    for words in drawn(seed, 100):
        taken_or_refused(*words)


# -- numbers of a dataset --------------------------------------------------------------------------

RAW: Final = (
    "-1", "0", "NaN", "1e309", "1e23", "-1e23", "null", '"text"', '"1_000"', '"٣"', '""', "true",
    "9" * 25, "9" * 5000,
    "1.5", "[]", "{}", "1e-300", "18446744073709551616", "9223372036854775808",
)  # fmt: skip
"""What stands in the place of a number, as JSON."""
ROWS: Final = (
    '{"timestamp": @, "input_length": 9, "output_length": 9, "hash_ids": [1]}',
    '{"timestamp": 1, "input_length": @, "output_length": 9}',
    '{"timestamp": 1, "input_length": 9, "output_length": @}',
    '{"timestamp": 1, "input_length": 600, "output_length": 9, "hash_ids": [@, 2]}',
    '{"session_id": @, "turns": [{"text": "a"}, {"text": "b", "delay": @}]}',
    '{"text": "a", "delay": @, "timestamp": 5}',
    '{"prompt": "a", "output_tokens": @}',
    '{"prompt": "a", "max_tokens": 3, "seed": @, "temperature": @}',
    '{"text": "a", "extra": {"seed": @}}',
)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("raw", RAW)
def test_so_do_rows_of_a_dataset_which_workers_can_be_given(
    row: str, raw: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(row.replace("@", "1") + "\n" + row.replace("@", raw) + "\n")
    try:
        items = list(Dataset(str(path)))
    except DatasetError as error:
        line = str(error)
        items = []
    else:
        line = ""
    if items:
        assert (
            msgspec.msgpack.decode(msgspec.msgpack.encode(items), type=list[DatasetSession])
            == items
        )
        for turn in (turn for item in items for turn in item.turns):
            assert 0 <= (turn.at_s or 0) <= 1e11
            assert 0 <= (turn.delay_s or 0) <= 1e7
            assert 0 < (turn.input_tokens or 1) <= 1e7
            assert 0 < (turn.output_tokens or 1) <= 1e7
    else:
        assert f"{path}, line 2" in line
        assert len(line) < 500


@pytest.mark.parametrize("raw", [raw.strip('"') for raw in RAW if raw[0] not in "[{"])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_so_do_columns_of_a_log(raw: str, column: int, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    cells = ["1", "1", "1"]
    cells[column] = raw
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,9,9\n"
        + ",".join(cells)
        + "\n"
    )
    try:
        items = list(Dataset(str(path)))
    except DatasetError as error:
        assert f"{path}, line 3" in str(error)  # noqa: PT017
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(items), type=list[DatasetSession]) == items
    assert all(
        (turn.input_tokens or 0) <= 1e7 and (turn.at_s or 0) <= 1e11
        for item in items
        for turn in item.turns
    )


# -- what is no file -------------------------------------------------------------------------------

NO_FILES: Final = ("pipe", "/dev/zero", "folder", "missing", "/dev/null", "socket")
TAKES_A_FILE: Final = (
    ("--input-file",), ("--request-rate-series",), ("--api-key-file",), ("--slo-file",),
    ("--tokenizer",),
)  # fmt: skip


@pytest.mark.parametrize("flag", [flag for (flag,) in TAKES_A_FILE])
@pytest.mark.parametrize("name", NO_FILES)
def test_what_is_no_file_is_refused_in_time(
    flag: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(given, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(given.read_small_text, "__defaults__", (0.2, given.MAX_BYTES))
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkdir("folder")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        began = time.monotonic()
        words = (flag, name)
        found = outcome(*words)
        if flag == "--api-key-file":
            try:
                read_request_headers(parse(*words))
            except (OSError, ValueError) as error:
                found = (
                    f"{error.filename}: {error.strerror}"
                    if isinstance(error, OSError)
                    else str(error)
                )
        assert time.monotonic() - began < 5
    if (flag, name) in (("--api-key-file", "/dev/null"), ("--slo-file", "/dev/null")):
        return
    assert isinstance(found, str)
    assert name in found
    assert "\n" not in found


def test_a_key_comes_through_a_pipe_once_and_is_kept(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"sk-1\n")
    os.close(write)
    path = f"/proc/self/fd/{read}"
    assert given.read_small_text(path) == given.read_small_text(path) == "sk-1\n"
    os.close(read)
    given._piped.clear()

"""Access logs: traces with columns by a few lines of each, named columns, and times in all their
spellings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.workload.access_log import (
    LogColumns,
    find_column_byte,
    map_log_columns,
    parse_column_names,
    parse_log_row,
    read_log_session,
    recognise_csv,
)
from locust_llm.workload.dataset_formats import DatasetError, RowError, Turn

LOG = LogColumns(
    columns=parse_column_names("timestamp=ts,input_tokens=in,output_tokens=out"),
    header=("ts", "in", "out"),
)


def at_s(time: str) -> float | None:
    return parse_log_row(LOG, f"{time},1,1".encode(), 1)[1][0].at_s


def test_azure() -> None:
    """AzureLLMInferenceTrace_code.csv of 2023 has seven digits and no zone; 2024 has six and
    one."""
    kind, columns = recognise_csv(b"TIMESTAMP,ContextTokens,GeneratedTokens")
    assert kind == "azure_trace"
    (turn,) = parse_log_row(columns, b"2023-11-16 18:17:03.9799600,4808,10", 2)[1]
    assert turn == Turn(
        whole=True, input_tokens=4808, output_tokens=10, at_s=pytest.approx(1700158623.97996), row=2
    )
    assert parse_log_row(columns, b"1970-01-02 00:00:00.009930+00:00,1,1", 2)[1][
        0
    ].at_s == pytest.approx(86400.00993)


def test_burst_gpt_leaves_out_what_had_failed() -> None:
    kind, columns = recognise_csv(
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    )
    assert kind == "burst_gpt_trace"
    (turn,) = parse_log_row(columns, b"5,ChatGPT,472,18,490,Conversation log", 2)[1]
    assert turn == Turn(whole=True, input_tokens=472, output_tokens=18, at_s=5.0, row=2)
    assert parse_log_row(columns, b"1106,ChatGPT,0,0,0,Conversation log", 3)[1] == []
    assert parse_log_row(columns, b"1107,ChatGPT,9,0,9,Conversation log", 3)[1] == []


def test_columns_that_the_caller_names() -> None:
    columns = parse_column_names(
        "timestamp_ms = when, input_tokens=usage.prompt_tokens,model=model,session_id=key"
    )
    of_json = map_log_columns("access_log", columns, None)
    row = b'{"when": 1500, "usage": {"prompt_tokens": 12}, "model": "m", "key": 3}'
    turn = Turn(whole=True, input_tokens=12, at_s=1.5, body={"model": "m"}, row=1)
    assert parse_log_row(of_json, row, 1) == ("3", [turn])
    assert read_log_session(of_json, row) == "3"
    columns = parse_column_names("prompt=said,output_tokens=n")
    of_tabs = map_log_columns("access_log", columns, b"n\tx\tsaid")
    asked = [{"role": "user", "content": 'say "a, b"'}]
    assert parse_log_row(of_tabs, b'7.0\t\t"say ""a, b"""', 1) == (
        "",
        [Turn(messages=asked, whole=True, output_tokens=7, row=1)],
    )


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("0", 0.0),
        ("12.5", 12.5),
        ("1700000000", 1.7e9),
        ("1700000000.25", 1700000000.25),
        ("1700000000250", 1700000000.25),
        ("1700000000250000", 1700000000.25),
        ("1700000000250000000", 1700000000.25),
        ("2023-11-14T22:13:20.25Z", 1700000000.25),
        ("2023-11-14T23:13:20.25+01:00", 1700000000.25),
        ("2023-11-14 22:13:20", 1700000000.0),
    ],
)
def test_times(time: str, seconds: float) -> None:
    assert at_s(time) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("row", "said", "field"),
    [
        ("1,2", "2 columns, but the header has 3", ""),
        (",2,3", "timestamp is missing", "timestamp"),
        ("-1,2,3", "timestamp is negative", "timestamp"),
        ("1960-01-01,2,3", "timestamp is negative", "timestamp"),
        ("noon,2,3", "timestamp is not a time: 'noon'", "timestamp"),
        ("nan,2,3", "timestamp is not a time", "timestamp"),
        ("1,many,3", "input_tokens is not a whole number of tokens: 'many'", "input_tokens"),
        ("1,2.5,3", "input_tokens is not a whole number of tokens", "input_tokens"),
        ("1,2,-3", "output_tokens is not a whole number of tokens: '-3'", "output_tokens"),
        ("1,2,inf", "output_tokens is not a whole number of tokens", "output_tokens"),
        ('1,2,"3', "broken CSV", ""),
    ],
)
def test_what_is_wrong_with_a_row(row: str, said: str, field: str) -> None:
    with pytest.raises(RowError) as wrong:
        parse_log_row(LOG, row.encode(), 1)
    assert str(wrong.value).startswith(said)
    assert wrong.value.field == field


def test_where_a_value_stands() -> None:
    assert find_column_byte(LOG, b"1,2,x", "output_tokens") == 4
    assert find_column_byte(LOG, b'"1,1",2,x', "output_tokens") == 8
    assert (
        find_column_byte(
            LogColumns(columns={"input_tokens": "usage.n"}), b'{"usage": {"n": 0}}', "input_tokens"
        )
        == 11
    )


@pytest.mark.parametrize(
    "text", ["", "ts", "time=ts", "timestamp=", "timestamp=ts", "input_tokens=a,,"]
)
def test_columns_that_name_nothing(text: str) -> None:
    with pytest.raises(DatasetError, match="columns"):
        parse_column_names(text)


def test_a_header_without_the_columns() -> None:
    with pytest.raises(
        RowError, match="access_log needs the column 'in', but the header is 'ts;out'"
    ):
        map_log_columns("access_log", LOG.columns, b"ts;out")
    with pytest.raises(RowError, match="neither JSON nor a known header"):
        recognise_csv(b"a,b,c")


@given(
    st.binary(max_size=40)
    | st.lists(st.text(max_size=8), min_size=3, max_size=3).map(lambda x: ",".join(x).encode())
)
def test_any_bytes_are_a_row_or_a_row_error(row: bytes) -> None:
    for how in (LOG, LogColumns(columns=LOG.columns)):
        try:
            turns = parse_log_row(how, row, 1)[1]
        except RowError:
            continue
        assert all(turn.input_tokens and turn.at_s is not None and turn.at_s >= 0 for turn in turns)

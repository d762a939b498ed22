"""Dataset: each session exactly once, or drawn; sessions from scattered rows; what is broken is
named; memory bounded."""

import gzip
import json
import tracemalloc
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.workload.dataset import DATASET_KINDS, Dataset
from locust_llm.workload.dataset_formats import DatasetError
from locust_llm.workload.dataset_summary import check_dataset

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.5,10,4\r\n2023-11-16 "
    "18:17:04,20,8\r\n"
)
SESSIONS = [
    {"session_id": "a", "timestamp": 0, "input_length": 10},
    {"timestamp": 500, "input_length": 20},
    {"session_id": "b", "timestamp": 1000, "input_length": 30},
    {"session_id": "a", "delay": 100, "input_length": 40},
    {"session_id": "b", "timestamp": 4000, "input_length": 50},
    {"session_id": "a", "timestamp": 9000, "input_length": 60},
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dataset") / "file"


def written(place: Path, data: bytes | str | list[Any]) -> str:
    if isinstance(data, list):
        data = "\n".join(map(json.dumps, data))
    place.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(place)


def prompts(count: int) -> list[Any]:
    return [{"prompt": str(number)} for number in range(count)]


def texts(dataset: Dataset, at_most: int | None = None) -> list[int]:
    """The prompts, which are numbers; all turns have one message."""
    items = islice(dataset, at_most)
    return [
        int(turn.messages[0]["content"]) for item in items for turn in item.turns if turn.messages
    ]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (AZURE, "azure_trace"),
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log "
            "Type\n5,GPT-4,4,1,5,API log\n",
            "burst_gpt_trace",
        ),
        ('[{"id": "x", "conversations": [{"from": "human", "value": "hi"}]}]', "sharegpt"),
        ([{"conversation": [{"role": "user", "content": "hi"}]}], "sharegpt"),
        ([{"messages": [{"role": "user", "content": "hi"}]}], "openai"),
        ([{"prompt": "hi"}], "openai"),
        ([{"text": "hi"}], "single_turn"),
        ([{"session_id": "a", "turns": [{"text": "hi"}]}], "multi_turn"),
        (SESSIONS, "mooncake_trace"),
    ],
)
def test_the_kind_is_recognised_and_may_be_named(
    place: Path, data: str | list[Any], kind: str
) -> None:
    path = written(place, data)
    found = Dataset(path)
    assert found.kind == kind
    items = list(found)
    assert items == list(Dataset(path, kind=kind)) != []
    assert items == list(Dataset(written(place, gzip.compress(place.read_bytes()))))
    assert items == list(Dataset(path, order="shuffled", seed=1)) or len(items) > 1


def test_rows_of_one_session_are_one_session_wherever_they_stand(place: Path) -> None:
    dataset = Dataset(written(place, SESSIONS))
    lengths = {item.id: [turn.input_tokens for turn in item.turns] for item in dataset}
    assert lengths == {"a": [10, 40, 60], "2": [20], "b": [30, 50]}
    assert dataset.sessions == 3
    assert [item.row for item in dataset] == [1, 2, 3]
    assert [turn.row for turn in next(iter(dataset)).turns] == [1, 4, 6]
    log = "who,n\nx,1\ny,2\nx,0\nx,4\n"
    items = list(Dataset(written(place, log), columns={"session_id": "who", "input_tokens": "n"}))
    assert [[turn.input_tokens for turn in item.turns] for item in items] == [[1, 4], [2]]


@examples(60)
@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 4))
def test_every_session_comes_exactly_once_over_all_shares(
    place: Path, count: int, seed: int, n: int
) -> None:
    path = written(place, prompts(count))
    for order in ("sequential", "shuffled"):
        parts = [texts(Dataset(path, order=order, seed=seed, share=(k, n))) for k in range(n)]  # type: ignore[arg-type]
        assert sorted(number for part in parts for number in part) == list(range(count))
    assert texts(Dataset(path)) == list(range(count))


def test_orders(place: Path) -> None:
    path = written(place, prompts(50))
    once = texts(Dataset(path, order="shuffled", seed=3))
    assert once != list(range(50))
    assert (
        once
        == texts(Dataset(path, order="shuffled", seed=3))
        != texts(Dataset(path, order="shuffled", seed=4))
    )
    twice = texts(Dataset(path, order="shuffled", seed=3, wrap=True), 100)
    assert twice[:50] == once
    assert sorted(twice[50:]) == list(range(50))
    assert twice[50:] != once
    dataset = Dataset(path, wrap=True)
    assert texts(dataset, 120) == [*range(50), *range(50), *range(20)]
    assert dataset.passes == 2
    drawn = texts(Dataset(path, order="random", seed=3), 5000)
    assert drawn == texts(Dataset(path, order="random", seed=3), 5000)
    assert drawn[:100] != texts(Dataset(path, order="random", seed=3, share=(1, 2)), 100)
    seen = Counter(drawn)
    assert len(seen) == 50
    # 100 expected, standard deviation 10
    assert 50 < min(seen.values()) <= max(seen.values()) < 160
    with pytest.raises(DatasetError, match="a file with times cannot be read random"):
        Dataset(path, order="random", timed=True)


def test_the_end_of_a_pass_is_told(place: Path) -> None:
    items = iter(Dataset(written(place, prompts(2))))
    assert [next(items).id, next(items).id] == ["1", "2"]
    with pytest.raises(StopIteration):
        next(items)
    assert list(Dataset(str(place), share=(2, 3))) == []  # fewer sessions than processes


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        ('{"prompt": "a"}\n{"prompt" "b"}', {}, "line 2, column 11: broken JSON: expected ':'"),
        ('{"prompt": "a"}\n{"prompt": 5}', {}, "line 2, column 2: prompt: expected str, got int"),
        (
            '{"prompt": "a"}\n\n{"text": "b"}',
            {},
            "line 3, column 1: a row of openai needs body, messages or prompt",
        ),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}', {}, "line 2, column 13: not UTF-8"),
        ('[{"prompt": "a"},\n {"prompt": 5}]', {}, "line 2, column 3: prompt: expected str"),
        ("[]", {}, "an empty list"),
        (
            '{"instruction": "a"}',
            {},
            "line 1, column 1: not a known format (looked for multi_turn: turns; sharegpt:",
        ),
        ("a,b\n1,2\n", {}, "line 1, column 1: neither JSON nor a known header"),
        (b"\x89PNG\r\n\x1a\n\x00", {}, "line 1, column 1: not UTF-8"),
        (
            AZURE + "2023-11-16 18:17:05,30,many",
            {},
            "line 4, column 24: output_tokens is not a whole number of tokens: 'many'",
        ),
        (
            AZURE + "2023-11-16 18:17:05,30",
            {},
            "line 4, column 1: 2 columns, but the header has 3",
        ),
        (AZURE, {"kind": "openai"}, "line 1, column 1: not JSON, which openai requires"),
        (
            AZURE,
            {"kind": "burst_gpt_trace"},
            "line 1, column 1: burst_gpt_trace needs the column 'Timestamp'",
        ),
        (AZURE, {"kind": "nonsense"}, "--custom-dataset-type must be one of multi_turn,"),
        (AZURE, {"kind": "access_log"}, "access_log needs --dataset-columns"),
        (
            AZURE,
            {"kind": "azure_trace", "columns": {"prompt": "x"}},
            "--dataset-columns works with access_log only",
        ),
        (
            '{"n": 1}',
            {"columns": {"input_tokens": "m"}},
            "nothing to send in 1 rows of access_log (1 without a request)",
        ),
        ('{"id": 1, "conversations": []}', {}, "nothing to send in 1 rows of sharegpt"),
        ('{"conversations": []}', {"order": "random"}, "nothing to send in "),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    place: Path, data: str | bytes, options: dict[str, Any], said: str
) -> None:
    path = written(place, data)
    with pytest.raises(DatasetError) as wrong:
        list(islice(Dataset(path, **options), 10_000))
    assert said in str(wrong.value)
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_broken_rows_are_skipped_and_named_on_request(place: Path, order: Any) -> None:
    rows = ['{"prompt": "0"}', "{", '{"prompt": "2"}', '{"prompt": 3}', *["}"] * 9]
    dataset = Dataset(written(place, "\n".join(rows)), skip_broken=True, order=order)
    for _ in range(2):
        assert sorted(texts(dataset)) == [0, 2]
        assert dataset.broken == 11
    assert len(dataset.first_broken) == 5
    assert (
        any(
            ": line 2, column 2: " in f": {said.partition(', ')[2]}"
            for said in dataset.first_broken
        )
        or order != "sequential"
    )
    for order in ("sequential", "random"):
        with pytest.raises(
            DatasetError,
            match=r"nothing to send in \d+ rows of openai \(2 broken, the first: .*, line [12],",
        ):
            list(Dataset(written(place, "{x\n{"), kind="openai", skip_broken=True, order=order))


def test_a_session_with_a_broken_row_is_left_out_whole(place: Path) -> None:
    rows = [*SESSIONS, {"session_id": "b", "input_length": -1}]
    broken = [*map(json.dumps, rows[:4]), '{"session_id": "a"', *map(json.dumps, rows[4:])]
    dataset = Dataset(written(place, "\n".join(broken)), skip_broken=True)
    assert [item.id for item in dataset] == ["a", "2"]  # whose line 5 was, nobody knows
    assert [said.partition(", ")[2][:7] for said in dataset.first_broken] == ["line 5,", "line 8,"]
    assert [item.id for item in Dataset(written(place, rows), skip_broken=True)] == ["a", "2"]
    with pytest.raises(DatasetError, match="line 7, column 21: input_length: expected int >= 1"):
        list(Dataset(str(place)))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(0, 1), (None, 1)], "line 2: the time is missing"),
        (
            [(1000, 1), (999, 1)],
            "line 2: the times are not in order, 0.999 s comes after 1.000 s of line 1",
        ),
    ],
)
def test_times_must_be_there_and_in_order_if_they_are_a_schedule(
    place: Path, rows: list[Any], said: str
) -> None:
    path = written(place, [{"timestamp": at, "input_length": length} for at, length in rows])
    assert len(list(Dataset(path))) == 2
    with pytest.raises(DatasetError) as wrong:
        list(Dataset(path, timed=True))
    assert said in str(wrong.value)
    assert len(list(Dataset(written(place, SESSIONS), timed=True))) == 3
    wrapped = Dataset(str(place), timed=True, wrap=True)
    assert len(list(islice(wrapped, 7))) == 7  # each pass begins with its own times


def test_check_sums_a_file_up(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check_dataset(written(place, SESSIONS))
    assert (found.kind, found.whole, found.rows, found.sessions, found.turns) == (
        "mooncake_trace",
        True,
        6,
        3,
        6,
    )
    assert (
        found.timed,
        found.span_s,
        found.input_tokens,
        found.output_tokens,
        found.synthetic,
    ) == (
        3,
        1.0,
        35.0,
        None,
        6,
    )
    assert (
        str(found)
        == f"{place}: mooncake_trace, 6 rows, 3 sessions, 6 turns, 35 input tokens per turn, over 1 s"
    )
    found = check_dataset(written(place, AZURE + "2023-11-16 18:17:05,0,0\r\n"), timed=True)
    assert (found.rows, found.left_out, found.span_s, found.input_tokens, found.output_tokens) == (
        3,
        1,
        0.5,
        15.0,
        6.0,
    )
    monkeypatch.setattr("locust_llm.workload.dataset_summary.CHECK_BYTES", 100)
    found = check_dataset(written(place, [*prompts(50), {"text": "broken, but far behind"}]))
    assert not found.whole
    assert (found.rows, found.sessions) == (7, 7)  # 7 rows of 15 bytes are over 100
    with pytest.raises(DatasetError, match="line 2"):
        check_dataset(written(place, [{"prompt": "a"}, {"prompt": 1}]))
    assert check_dataset(str(place), skip_broken=True).broken == 1


SAMPLES = [
    AZURE.encode(),
    json.dumps(SESSIONS).encode(),
    "\n".join(map(json.dumps, SESSIONS)).encode(),
]


@examples(300)
@given(
    st.data(),
    st.sampled_from([None, *DATASET_KINDS]),
    st.sampled_from(["sequential", "shuffled"]),
    st.booleans(),
)
def test_any_bytes_are_a_dataset_or_a_dataset_error(
    place: Path, data: st.DataObject, kind: Any, order: Any, skip: bool
) -> None:
    sample = data.draw(st.sampled_from([b"", *SAMPLES]))
    at = data.draw(st.integers(0, len(sample)))
    gone = data.draw(st.integers(0, 30))
    sample = sample[:at] + data.draw(st.binary(max_size=30)) + sample[at + gone :]
    if data.draw(st.booleans()):
        sample = gzip.compress(sample)[: data.draw(st.integers(0, 400))]
    columns = {"input_tokens": "ContextTokens"} if kind == "access_log" else None
    path = written(place, sample)
    try:
        items = list(Dataset(path, kind=kind, columns=columns, order=order, skip_broken=skip))
    except DatasetError:
        return
    assert items
    assert all(item.turns for item in items)


@examples(200)
@given(st.binary(max_size=60))
@example(b"[[[[")
@example(b'"')
def test_noise(place: Path, noise: bytes) -> None:
    with pytest.raises(DatasetError):
        check_dataset(written(place, noise))


@pytest.mark.full
@pytest.mark.parametrize(
    ("shape", "order", "bound"),
    [
        ("lines", "sequential", 6e6),
        ("lines", "shuffled", 6e6),
        ("table", "sequential", 6e6),
        ("list", "sequential", 7e6),
        ("packed", "sequential", 6e6),
        ("sessions", "sequential", 14e6),
    ],
)
def test_memory_is_bounded_over_50_mb(tmp_path: Path, shape: str, order: Any, bound: float) -> None:
    path = tmp_path / "large"
    if shape == "table":
        pad = "x" * 1250
        rows = [
            f"2023-11-16 18:17:03.{i % 1000:03},{1 + i % 4000},{1 + i % 300},{pad}\n"
            for i in range(40_000)
        ]
        path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens,Notes\n" + "".join(rows))
    else:
        extra = ', "session_id": "%d"' if shape == "sessions" else ""
        rows = [
            f'{{"prompt": "{i} {"word " * 250}"{extra % (i // 3) if extra else ""}}}'
            for i in range(40_000)
        ]
        text = f"[{','.join(rows)}]" if shape == "list" else "\n".join(rows)
        path.write_bytes(gzip.compress(text.encode(), 1) if shape == "packed" else text.encode())
        del text
    count = len(rows)
    del rows
    assert shape == "packed" or path.stat().st_size > 50e6
    tracemalloc.start()
    try:
        turns = sum(len(item.turns) for item in Dataset(str(path), order=order))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert turns == count
    assert peak < bound

"""The look through the dataset of a form: whatever the file is, the page goes on, and too much is
refused."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest
from support.loop_watch import HELD_S, loop_watched

from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import RunRefused
from locust_llm.web import form_dataset_check as dataset_look
from locust_llm.web.form_dataset_check import look_at_dataset
from locust_llm.workload import dataset_summary

ROW = b'{"messages":[{"role":"user","content":"hi there"}]}\n'


def blank_lines() -> Iterator[bytes]:
    yield ROW
    yield from (b"\n" * (1 << 20) for _ in range(60))
    yield ROW


def stretches_of_blank_lines() -> Iterator[bytes]:
    for _ in range(60):
        yield ROW + b"\n" * (1 << 20)


def tiny_rows() -> Iterator[bytes]:
    """With sessions, so that all are indexed."""
    yield b'{"session_id":"a","prompt":"b"}\n'
    yield from (b'{"session_id":""}\n' * 100_000 for _ in range(100))


def one_line() -> Iterator[bytes]:
    yield b'{"prompt":"'
    yield from (b"x" * (1 << 20) for _ in range(100))


def escapes() -> Iterator[bytes]:
    """A row that is right, and takes seconds to decode."""
    yield b'{"prompt":"' + rb"\u0041" * 8_000_000 + b'"}\n'


def deep() -> Iterator[bytes]:
    yield b'{"prompt":' + b"[" * 1_000_000 + b"\n"


def wide() -> Iterator[bytes]:
    yield b",".join(b"c%d" % number for number in range(1_000_000)) + b"\n"
    yield from (b"1," * 1_000_000 + b"\n" for _ in range(20))


def quotes() -> Iterator[bytes]:
    """A cell that never ends, line by line."""
    yield b'timestamp,input_tokens\n"'
    yield from (b"\n" * (1 << 20) for _ in range(60))


def list_of_little() -> Iterator[bytes]:
    yield b"["
    yield from (b"{}," * 1_000_000 for _ in range(100))
    yield b"{}]"


def zeros() -> Iterator[bytes]:
    yield from (bytes(1 << 20) for _ in range(600))


def zstd() -> Iterator[bytes]:
    yield b"\x28\xb5\x2f\xfd" + bytes(1000)


SLOW = (stretches_of_blank_lines, tiny_rows, wide, list_of_little, zeros)
BOMBS = (
    blank_lines,
    one_line,
    escapes,
    deep,
    quotes,
    zstd,
    *(pytest.param(bomb, marks=pytest.mark.slow) for bomb in SLOW),
)


def longest_hold(work: Callable[[], object]) -> tuple[float, BaseException | None]:
    """Seconds of CPU that the loop was held while it worked, and what it raised."""
    with loop_watched() as held:
        done = gevent.spawn(work)
        done.join()
    return max(held), done.exception


@pytest.mark.parametrize("pieces", BOMBS)
def test_no_dataset_holds_the_page(
    pieces: Callable[[], Iterator[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_look, "MAX_CPU_S", 1)
    place = tmp_path / "bomb.jsonl.gz"
    with gzip.open(place, "wb", 1) as file:
        for piece in pieces():
            file.write(piece)
    settings = Settings(host="h", input_file=str(place))
    held, raised = longest_hold(lambda: look_at_dataset(settings, limited=True))
    assert held < 2 * HELD_S
    assert isinstance(raised, RunRefused | ValueError), raised
    assert str(place) in str(raised)


def test_what_it_found_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "rows.jsonl"
    place.write_bytes(ROW * 3)
    settings = Settings(host="h", input_file=str(place))
    look_at_dataset(settings, limited=True)
    monkeypatch.setattr(dataset_summary, "Dataset", None)
    assert dataset_summary.check_dataset(str(place)).rows == 3
    with place.open("ab") as file:
        file.write(ROW)
    monkeypatch.undo()
    assert dataset_summary.check_dataset(str(place)).rows == 4


def test_what_is_wrong_is_reported_in_its_own_words(tmp_path: Path) -> None:
    place = tmp_path / "rows.jsonl"
    place.write_bytes(b"nothing\n")
    with pytest.raises(ValueError, match="line 1, column 1"):
        look_at_dataset(Settings(host="h", input_file=str(place)), limited=True)
    with pytest.raises(ValueError, match="No such file"):
        look_at_dataset(Settings(host="h", input_file=str(tmp_path / "none")), limited=True)


def test_an_upload_has_limits_that_a_file_of_the_operator_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "rows.jsonl.gz"
    with gzip.open(place, "wb", 1) as file:
        file.write(b'{"session_id":"a","prompt":"b"}\n' * 200_001)
    settings = Settings(host="h", input_file=str(place))
    with pytest.raises(ValueError, match="200,001 rows with sessions or in another order"):
        look_at_dataset(settings, limited=True)
    look_at_dataset(settings, limited=False)
    with gzip.open(place, "wb", 1) as file:
        file.write((b'{"prompt":"' + b"x" * (1 << 20) + b'"}\n') * 128)
    with pytest.raises(ValueError, match="unpacks to over 128 MB"):
        look_at_dataset(settings, limited=True)
    look_at_dataset(settings, limited=False)
    rows = tmp_path / "plain.jsonl"
    rows.write_bytes(b'{"prompt":"b"}\n' * 200_001)
    look_at_dataset(Settings(host="h", input_file=str(rows)), limited=True)
    with pytest.raises(ValueError, match="200,001 rows"):
        look_at_dataset(
            Settings(host="h", input_file=str(rows), dataset_sampling_strategy="shuffle"),
            limited=True,
        )

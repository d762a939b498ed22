"""Small files as editors write them: a byte order mark is no part of the text, and another encoding
has its name."""

import codecs
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.files.user_file import read_small_text
from locust_llm.settings.scenario_file import read_scenario
from locust_llm.workload import answer_schema, arrivals


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files") / "one.toml"


@examples(50)
@given(text=st.text().filter(lambda text: not text.startswith("\ufeff")), mark=st.booleans())
def test_a_mark_is_no_part_of_the_text(file: Path, text: str, mark: bool) -> None:
    file.write_bytes(codecs.BOM_UTF8 * mark + text.encode("utf-8", "replace"))
    assert read_small_text(str(file)) == text.encode("utf-8", "replace").decode()


@examples(50)
@given(
    # UTF-16 that begins with a null has the byte order mark of UTF-32
    text=st.text().filter(lambda text: not text.startswith("\x00")),
    encoding=st.sampled_from(["utf-16", "utf-32"]),
)
def test_another_encoding_is_named(file: Path, text: str, encoding: str) -> None:
    file.write_bytes(text.encode(encoding, "replace"))
    with pytest.raises(OSError, match=f"is {encoding.upper()} text: convert it to UTF-8"):
        read_small_text(str(file))


def test_so_is_the_place_of_what_is_no_text(file: Path) -> None:
    file.write_bytes(b"sk-\xff")
    with pytest.raises(OSError, match=r"is not UTF-8 text \(byte 3\)"):
        read_small_text(str(file))


def test_whoever_reads_one_finds_what_stands_behind_the_mark(file: Path) -> None:
    file.write_text("\ufeffrequest-rate = 5\n")
    assert read_scenario(str(file)).values == {"request-rate": 5}
    file.write_text(
        '\ufeff[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]'
    )
    assert [tool["function"]["name"] for tool in answer_schema.read_tools_file(str(file))] == ["f"]
    file.write_text("\ufeff[[0, 5], [1, 5]]")
    assert arrivals.parse_rate_series(read_small_text(str(file))) is not None

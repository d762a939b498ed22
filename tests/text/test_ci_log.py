"""The log of a CI job: whatever is written, in whatever pieces, no line of it is a command, and no
sign is lost."""

import io
import sys
from typing import Final, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from locust_llm.text.ci_log import VARIABLES, GuardedStream, guard_streams, print_ci_commands

PIECES: Final = st.lists(
    st.one_of(
        st.sampled_from(["::", ":", "##", "#", "[", "##[", "##vso[", "##team", "city[", "x"]),
        st.sampled_from([" ", "\t", "\r", "\n", "\r\n", "\xa0"]),
        st.sampled_from(["::error::x", "##[set-output name=a]b",
            "\x1b[0Ksection_start:1:a\r\x1b[0K", "\x1b[31mred\x1b[0m"]),
        st.text(max_size=3),
        st.just("y" * 100),
    ),
    max_size=30,
)  # fmt: skip


def commands_in(text: str) -> list[str]:
    """As the programs of the CI find them: GitHub's reads a line up to CR or LF, and cuts blanks
    off its begin."""
    lines = text.replace("\r", "\n").split("\n")
    return [
        line
        for line in lines
        if line.lstrip().startswith("::") or "##[" in line or "##vso[" in line or "##teamcity[" in line or "\x1b[0K" in line
    ]  # fmt: skip


@given(PIECES)
@example(["##vs", "o["])
@example(["##", "\x1b[0Ksection_start:1:a\r\x1b[0K"])
@example(["  ", ":", ":error::x"])
@example(["y" * 100, "##", "[", "x\r", "::stop"])
def test_no_line_is_a_command(pieces: list[str]) -> None:
    stream = GuardedStream(out := io.StringIO(newline=""))
    for piece in pieces:
        assert stream.write(piece) == len(piece)
    assert commands_in(out.getvalue()) == []
    given = "".join(pieces)
    if "\x1b" not in given:
        assert out.getvalue().replace(" ", "") == given.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\n  ::error::it\n::x\nb ::c ##[d]\n", "a\n  : :error::it\n: :x\nb ::c ## [d]\n"),
        ("[::1]:8000 std::string C## [x]\n", "[::1]:8000 std::string C## [x]\n"),
        (
            "\x1b[0Ksection_start:1:a\r\x1b[0Kx \x1b[1;31mred\x1b[0m\n",
            "[0Ksection_start:1:a\r[0Kx \x1b[1;31mred\x1b[0m\n",
        ),
    ],
)
def test_what_a_text_becomes(text: str, shown: str) -> None:
    stream = GuardedStream(out := io.StringIO(newline=""))
    stream.write(text)
    assert out.getvalue() == shown


def test_commands_of_our_own_are_on_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    guard_streams({})
    assert sys.stdout is out
    guard_streams({"GITHUB_ACTIONS": "true"})
    guard_streams({"GITHUB_ACTIONS": "true"})
    assert cast(object, sys.stdout) is not out
    print("::error::not ours", end="")
    print_ci_commands("::notice::ours\n")
    print("::error::not ours")
    assert out.getvalue() == ": :error::not ours\n::notice::ours\n: :error::not ours\n"


def test_commands_go_where_the_text_goes(capsys: pytest.CaptureFixture[str]) -> None:
    print_ci_commands("::notice::ours\n", sys.stderr)
    assert capsys.readouterr() == ("", "::notice::ours\n")

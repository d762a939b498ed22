"""Scenarios: the packaged files are readable and say where they are from; a file that cannot be is
named with its line."""

import re
from pathlib import Path

import pytest

from locust_llm.settings.scenario_file import (
    ABOUT,
    FOLDER,
    format_scenario_list,
    list_scenario_names,
    read_packaged_scenario,
    read_scenario,
)


@pytest.mark.parametrize("name", list_scenario_names())
def test_a_packaged_one_says_what_it_is_and_where_it_is_from(name: str) -> None:
    found = read_scenario(name)
    assert (found.file, found.text) == (f"{name}.toml", (FOLDER / f"{name}.toml").read_text())
    assert [*found.about] == [*ABOUT]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found.about["date"])
    assert "https://" in found.about["source"]
    assert found.text.startswith("# ")
    assert max(map(len, format_scenario_list().splitlines())) <= 120


def test_the_list_has_one_line_for_each() -> None:
    assert [
        line.split()[0] for line in format_scenario_list().splitlines()
    ] == list_scenario_names()
    assert {
        "interactive-chat",
        "code-generation",
        "deep-research",
        "rag",
        "reasoning",
        "agentic-coding",
    } <= {*list_scenario_names()}
    assert {"1k1k", "8k1k", "1k8k"} <= {*list_scenario_names()}


def test_an_unknown_name_is_refused_with_what_was_meant() -> None:
    with pytest.raises(
        ValueError,
        match=r"no scenario 'interactive-cht': did you mean interactive-chat\? \(locust-llm",
    ):
        read_packaged_scenario("interactive-cht")
    with pytest.raises(ValueError, match="no scenario 'xyz' "):
        read_scenario("xyz")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"description = 'x'\nslo = = 2\n", r"mine.toml is not TOML: .* in line 2$"),
        (b"a = 1\na = 2\n", "mine.toml is not TOML: "),
        (b"a = " + b"[" * 10_000, "mine.toml is not TOML: "),
    ],
)
def test_what_is_no_toml_is_named(
    text: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_bytes(text)
    with pytest.raises(ValueError, match=why):
        read_scenario("mine.toml")


def test_a_key_is_found_in_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '# slo = []\nslo-preset = "chat"\n  slo = [\n  "ttft p95 < 1s",\n]\n"sweep" = '
        '"x"\n[table]\nx = 1\n'
    )
    found = read_scenario(str(file))
    assert found.about == {}
    assert [found.place(key).removeprefix(str(file)) for key in ("slo-preset", "slo", "sweep",
        "table", "none")] == [
        ", line 2, slo-preset", ", line 3, slo", ", line 6, sweep", ", line 7, table", ", none",
    ]  # fmt: skip

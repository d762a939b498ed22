"""Scenario file: a workload as a TOML file, a packaged one by its name or a user's own: its values,
and their places in the file."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from locust_llm.files.regular_file import decode_toml
from locust_llm.files.user_file import read_small_text

FOLDER: Final = Path(__file__).parents[1] / "scenarios"
SCENARIO_FILE: Final = ".toml"
ABOUT: Final = ("description", "source", "date")
"""Keys that are no options."""
MOST_BYTES: Final = 1 << 20
"""The most bytes of a file: TOML that is crafted for it takes seconds a megabyte."""
PUBLISHED: Final = "published"
"""The table of a benchmark's requirements."""


class Scenario(msgspec.Struct, frozen=True):
    """A file as it was read. Its values are not checked."""

    file: str
    text: str
    about: Mapping[str, str]
    values: Mapping[str, Any]
    """The values by key, which is the name of an option without dashes before it."""
    published: Mapping[str, Any] | None = None
    """Its table of published rules. None: it has none."""

    def place(self, key: str) -> str:
        """The place of a key: ``mine.toml, line 3, output-tokens-mean``."""
        match = re.search(rf"^[ \t]*\[*[\"']?{re.escape(key)}(?![\w-])", self.text, re.MULTILINE)
        line = f"line {self.text.count(chr(10), 0, match.start()) + 1}, " if match else ""
        return f"{self.file}, {line}{key}"


def list_scenario_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_packaged_scenario(name: str) -> str:
    """The file of a packaged scenario. Raises ValueError of one sentence."""
    if name not in list_scenario_names():
        near = difflib.get_close_matches(name, list_scenario_names(), n=1)
        raise ValueError(
            f"there is no scenario {name!r}{f': did you mean {near[0]}?' if near else ''} "
            "(locust-llm scenario lists them; the name of your own file must end in .toml)"
        )
    return (FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def read_scenario(wanted: str) -> Scenario:
    """A packaged scenario by its name, or a file that ends in .toml. Raises ValueError of one
    sentence, and OSError."""
    own = wanted.endswith(SCENARIO_FILE)
    file = wanted if own else f"{wanted}.toml"
    text = read_small_text(wanted, most_bytes=MOST_BYTES) if own else read_packaged_scenario(wanted)
    try:
        content = decode_toml(text)
    except ValueError as error:
        why = re.sub(r" \(at line (\d+).*\)$", r" in line \1", str(error))
        raise ValueError(f"{file} is not TOML: {why}") from None
    about: dict[str, str] = {key: str(content.pop(key)) for key in ABOUT if key in content}
    rules = content.pop(PUBLISHED) if isinstance(content.get(PUBLISHED), dict) else None
    return Scenario(file, text, about, content, rules)


def format_scenario_list() -> str:
    """A line for each packaged scenario."""
    widest = max(map(len, list_scenario_names()))
    return "".join(
        f"{name:{widest}}  {read_scenario(name).about['description']}\n"
        for name in list_scenario_names()
    )

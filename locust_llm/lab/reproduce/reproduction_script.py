"""Reproduction script: a file that replays a few requests and needs nothing but Python.

It has the requests, and the text of the files here that send them and search their answers. What
those take from the package is written into it as well.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from locust_llm.answers import answer_integrity, fault_names, received_answer
from locust_llm.answers.fault_names import FOREIGN_MARKER

from . import replay_program, replayed_integrity

STRUCT: Final = re.compile(r"^class (\w+)\(msgspec\.Struct[^)]*\):", re.MULTILINE)
DECODER: Final = re.compile(r"msgspec\.json\.Decoder\(_EventFields\)\.decode")
OWN_IMPORT: Final = re.compile(
    r"^(?:from (?:\.|locust_llm)\S* import (?:\([^)]*\)|[^(\n]*)|import msgspec)\n", re.MULTILINE
)
DOCSTRING: Final = re.compile(r'\A""".*?"""\n', re.DOTALL)
FUTURE: Final = "from __future__ import annotations\n"
FIELDS: Final = '''
class Fields(dict):
    """An object of JSON whose fields are attributes. A missing one is None."""

    __getattr__ = dict.get


def decode_fields(data):
    return json.loads(data, object_hook=Fields)

'''
"""What takes the place of msgspec."""
HEAD: Final = '''\
#!/usr/bin/env python3
"""{title}

    python3 reproduce.py --host {host}

It needs Python 3.10 and no package. It sends {count} at their times, several times, and
prints in how many tries the fault appeared. It ends with 1 if it did, else with 0.
The API key is read from the variable {variable}.
"""

from __future__ import annotations

'''


def write_script(reproduction: dict[str, Any]) -> str:
    """The text of the script. ``reproduction`` is the content of the trace file."""
    count = len(reproduction["requests"])
    parts = [
        HEAD.format(
            title=reproduction["title"].replace("\\", " ").replace('"', "'"),
            host=reproduction["host"] or "http://localhost:8000",
            count="1 request" if count == 1 else f"{count} requests",
            variable=replay_program.KEY_VARIABLE,
        ),
        _read_text(replay_program),
    ]
    finder = "find_leak"
    if reproduction["fault"] != FOREIGN_MARKER:
        finder = f"make_fault_finder({reproduction['fault']!r})"
        parts += [
            "from dataclasses import dataclass\n", FIELDS, _read_text(fault_names),
            _replace_structs(_read_text(received_answer)), _read_text(answer_integrity),
            _read_text(replayed_integrity),
        ]  # fmt: skip
    needed = {
        name: reproduction[name]
        for name in ("title", "host", "path", "headers", "fresh", "requests")
    }
    # JSON within a raw text may hold no quotes of its own kind, nor end with a backslash
    data = json.dumps(needed, indent=1).replace("'", "\\u0027")
    parts.append(
        f"REPRODUCTION = json.loads(r'''\n{data}\n''')\n\nif __name__ == \"__main__\":\n"
        f"    raise SystemExit(run_script(REPRODUCTION, {finder}))\n"
    )
    return "\n".join(parts)


def _read_text(module: Any) -> str:
    """The text of a file without its docstring and its imports from the package."""
    text = DOCSTRING.sub("", Path(module.__file__).read_text("utf-8"))
    return OWN_IMPORT.sub("", text.replace(FUTURE, "")).lstrip("\n")


def _replace_structs(text: str) -> str:
    return DECODER.sub("decode_fields", STRUCT.sub(r"@dataclass\nclass \1:", text))

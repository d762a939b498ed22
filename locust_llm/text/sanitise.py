"""Sanitise: text from a server or a library, made safe to show: bounded, printable, without the
secrets of the run.

``sanitise_text`` is the one entry, before console, log, records, tables and pages.
``defuse_ci_commands`` is for the log of a CI job.
"""

import re
from typing import Final

from .hide_secrets import NO_SECRETS, Secrets, hide_url_secrets

MESSAGE_BYTES: Final = 4096
NAME_BYTES: Final = 200
"""The longest name of a model or a server, in bytes."""

_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # of ECMA-48: a control sequence,
    # a string such as a title,
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{0,256}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"  # and the others
)
_COMMANDS: Final = re.compile(r"(?:^|(?<=[\r\n]))([^\S\r\n]*):(?=:)|##(?=\w{0,20}\[)")
"""Commands in a CI job's log. GitHub takes a line for a command where two colons begin it, behind
blanks, and in the older form wherever ``##[`` stands. Azure and TeamCity have a word before the
bracket."""
_NO_COLOUR: Final = re.compile(r"\x1b(?!\[[0-9;]*m)")
"""An escape that is no colour. GitLab's section marks have such escapes."""
_LINE_ENDS: Final = re.compile(r"\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")


def sanitise_text(
    text: str | bytes,
    secrets: Secrets = NO_SECRETS,
    *,
    most: int = MESSAGE_BYTES,
    lines: bool = False,
) -> str:
    """``text`` as one line of at most ``most`` bytes (UTF-8), without ``secrets`` and without
    characters that a terminal, a page or a file would not take for text. ``lines`` keeps line ends
    and tabs."""
    beginning = text[: 2 * most]
    if isinstance(beginning, bytes):
        beginning = beginning.decode("utf-8", "replace")
    data = hide_url_secrets(secrets.hide(strip_control_characters(beginning, lines=lines))).encode()
    cut = data[:most].decode("utf-8", "ignore")
    return cut if lines else cut.rstrip(" ")


def strip_control_characters(text: str, *, lines: bool = False) -> str:
    """Remove escape sequences, control characters, direction marks and characters without width.
    Half a surrogate pair becomes a replacement character. The length has no bound."""
    if not text.isprintable():
        text = _ESCAPES.sub("", text)
        if lines:
            return "\n".join(
                "".join(map(_character, line)) for line in _LINE_ENDS.sub("\n", text).split("\n")
            )
        text = "".join(" " if sign.isspace() else _character(sign) for sign in text)
    return text if lines else " ".join(text.split())


def defuse_ci_commands(text: str) -> str:
    """Put a blank into each part that a CI would take for a command."""
    # first: what stands around one may be a command without it
    without_escapes = _NO_COLOUR.sub("", text)
    return _COMMANDS.sub(lambda match: f"{match.group()} ", without_escapes)


def _character(sign: str) -> str:
    if sign.isprintable() or sign == "\t":
        return sign
    if "\ud800" <= sign <= "\udfff":
        return "\N{REPLACEMENT CHARACTER}"
    return " " if sign.isspace() else ""

"""The log of a CI job, in which a line may be a command to the CI: none that came from outside may
be one.

A server's error, a model's name or a worker's name may stand on any line of the console: in the
log, in a table, in a traceback of a locustfile. So the streams themselves are guarded, once and for
all that is written. ``say_commands`` alone passes by the guard.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TextIO, cast

from .sanitise import defuse_ci_commands

VARIABLES: Final = ("GITHUB_ACTIONS", "GITLAB_CI", "TF_BUILD", "TEAMCITY_VERSION")
"""Each variable is set by a CI whose log has commands: GitHub, GitLab, Azure, TeamCity."""
MAX_KEPT_CHARS: Final = 64
"""So many characters of an unfinished line are kept, as a command may come in several pieces."""
_LINE_END: Final = re.compile(r"[\r\n]")


class GuardedStream:
    """Writes harmless text to ``raw``. Everything else of the stream is ``raw``'s."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw
        self._line = ""
        """The part of the unfinished line that can still become a command."""

    def write(self, text: str) -> int:
        checked = defuse_ci_commands(self._line + text)
        if not checked.startswith(self._line):  # what is written cannot be changed any more
            checked = defuse_ci_commands(f"{self._line} {text}")
        written = checked[len(self._line) :]
        self._line = _unfinished(checked)
        self.raw.write(written)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def write_commands(self, text: str) -> None:
        """Write commands as they are, on lines of their own."""
        self.raw.write("\n" + text if self._line else text)
        self._line = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def _unfinished(text: str) -> str:
    line = _LINE_END.split(text)[-1]
    if len(line) <= MAX_KEPT_CHARS:
        return line
    return f".{line[-MAX_KEPT_CHARS:]}" if line.strip() else " "


def guard_streams(environ: Mapping[str, str]) -> None:
    """Guard standard output and error where the console is the log of a CI job."""
    if not any(environ.get(name) for name in VARIABLES):
        return
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, GuardedStream):
            setattr(sys, name, cast(TextIO, GuardedStream(stream)))


def print_ci_commands(text: str, out: TextIO | None = None) -> None:
    """Print commands of this program to ``out`` (default: standard output). Where nobody reads the
    output any more, nothing is printed."""
    out = sys.stdout if out is None else out
    stream: object = out
    with suppress(OSError, ValueError):
        if isinstance(stream, GuardedStream):
            stream.write_commands(text)
            stream.raw.flush()
        elif out is not None:
            out.write(text)
            out.flush()

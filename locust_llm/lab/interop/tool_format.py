"""Tool format: how the results of one tool are recognised, read and written.

Each tool has a file beside this one, with a ``FORMAT`` at its end; registry.py has the table of
them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from locust_llm.lab.interop.file_contents import ResultFile
from locust_llm.lab.interop.imported import ImportedRun
from locust_llm.lab.interop.json_fields import Document
from locust_llm.lab.interop.load_metrics import Figures


class FiguresReader(NamedTuple):
    """Reads the figures of a load out of a JSON document."""

    recognise: Callable[[Document], bool]
    read: Callable[[Document, Path], list[Figures]]
    """Takes the document and its file, since some tools write the percentiles into a file beside
    it."""
    file: str = ""
    """The name of the document in the folder of a result; empty: the tool lets its user choose."""


class RequestsReader(NamedTuple):
    """Reads the requests of a result out of a whole file."""

    recognise: Callable[[ResultFile], bool]
    """Raises OSError."""
    read: Callable[[ResultFile], list[ImportedRun]]
    """Raises OSError and UnusableResult."""
    file: str
    """The name of the file in the folder of a result."""
    figures_file: str
    """The file beside it that has the figures."""


class DocumentRequestsReader(NamedTuple):
    """Reads the requests of a result out of a JSON document; a file may hold several of these."""

    recognise: Callable[[object], bool]
    read: Callable[[Any, Path], list[ImportedRun]]
    """Raises UnusableResult."""
    file: str = ""
    """As of RequestsReader; empty: the tool lets its user choose."""
    figures_file: str = ""
    is_list: bool = False
    """A result is a list of requests. Else a list in a file is one of results."""
    importable: bool = True
    """False: ``read`` raises what such a result lacks."""


class ExportOptions(NamedTuple):
    """What the command line asks for beside the format."""

    more: Mapping[str, object]
    """Fields that the run does not know."""
    detailed: bool


class ExportFormat(NamedTuple):
    """Writes a run as a tool writes its results."""

    file: str
    """Its name in the run folder."""
    write: Callable[[Path, Path, ExportOptions], None]
    """Takes the run folder and the file. Raises OSError and NotExported."""


class ToolFormat(NamedTuple):
    """One tool; what it does not have is None or empty."""

    tool: str
    """Its name, as its makers write it."""
    figures: FiguresReader | None = None
    requests: RequestsReader | DocumentRequestsReader | None = None
    exports: Mapping[str, ExportFormat] = {}
    """By the name that ``--format`` takes."""

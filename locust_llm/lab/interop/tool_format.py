"""Tool format: describes how one tool's results are recognised, read and written.

Each tool has a file beside this one that ends with a ``FORMAT``. tool_registry.py lists them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from locust_llm.lab.interop.imported_records import ImportedRun
from locust_llm.lab.interop.json_fields import Document
from locust_llm.lab.interop.load_metrics import Figures
from locust_llm.lab.interop.result_file import ResultFile


class FiguresReader(NamedTuple):
    """Reads the metrics of a load from a JSON document."""

    recognise: Callable[[Document], bool]
    read: Callable[[Document, Path], list[Figures]]
    """The function takes the document and its file, since some tools write the percentiles into a
    file beside it."""
    file: str = ""
    """The document has this name in the folder of a result. Empty: the user chooses the name."""


class RequestsReader(NamedTuple):
    """Reads the requests of a result from a whole file."""

    recognise: Callable[[ResultFile], bool]
    """The function raises OSError."""
    read: Callable[[ResultFile], list[ImportedRun]]
    """The function raises OSError and UnusableResult."""
    file: str
    """The file has this name in the folder of a result."""
    figures_file: str
    """The file with the metrics beside it has this name."""


class DocumentRequestsReader(NamedTuple):
    """Reads the requests of a result from a JSON document. A file may hold several documents."""

    recognise: Callable[[object], bool]
    read: Callable[[Any, Path], list[ImportedRun]]
    """The function raises UnusableResult."""
    file: str = ""
    """The file has this name in the folder of a result. Empty: the user chooses the name."""
    figures_file: str = ""
    is_list: bool = False
    """True: a result is a list of requests. False: a list in a file is a list of results."""
    importable: bool = True
    """False: ``read`` raises the reason why such a result cannot be imported."""


class ExportOptions(NamedTuple):
    """Holds the options of the command line besides the format."""

    more: Mapping[str, object]
    """The run itself lacks these fields."""
    detailed: bool


class ExportFormat(NamedTuple):
    """Writes a run in a tool's format."""

    file: str
    """The file has this name in the run folder."""
    write: Callable[[Path, Path, ExportOptions], None]
    """The function takes the run folder and the file. Raises OSError and NotExported."""
    marks_simulated: bool = True
    """Whether the file has a place for the mark of a simulated run."""


class ToolFormat(NamedTuple):
    """Describes one tool. Unsupported parts are None or empty."""

    tool: str
    """The tool's makers write its name like this."""
    figures: FiguresReader | None = None
    requests: RequestsReader | DocumentRequestsReader | None = None
    exports: Mapping[str, ExportFormat] = {}
    """The keys are the names that ``--format`` takes."""

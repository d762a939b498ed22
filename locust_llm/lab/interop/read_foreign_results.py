"""Read foreign results: finds the tool that wrote a file, and reads the figures or the requests in it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from locust_llm.files.regular_file import open_regular
from locust_llm.lab.interop import read_printed_tables
from locust_llm.lab.interop.imported_records import ImportedRun, UnusableResult
from locust_llm.lab.interop.load_metrics import Figures
from locust_llm.lab.interop.result_file import (
    Documents,
    ResultFile,
    decode_documents,
    read_result_file,
    split_results,
)
from locust_llm.lab.interop.tool_format import (
    DocumentRequestsReader,
    FiguresReader,
    RequestsReader,
)
from locust_llm.records.run_facts import RECORDS, RUN

from .tool_registry import READ, load_formats

MAX_LINE_BYTES: Final = 2**20
"""As much of the first line of a file of requests is read."""
MAX_FILES: Final = 50
"""At most this many files of a folder are tried."""
FIGURES_ELSEWHERE: Final = "locust-llm compare and locust-llm audit can read its summary"


class UnknownFormat(ValueError):
    """No known tool wrote the file, or the file is cut. The message is one sentence."""


def list_figures_files() -> list[str]:
    """Lists the names of files with metrics in the folder of a run or a result."""
    return [reader.file for _, reader in _figures_readers() if reader.file]


def holds_foreign_result(folder: Path) -> bool:
    """Returns whether a folder has the metrics of another tool under their known name, and is no
    run folder of ours, which has such a file too."""
    if not folder.is_dir() or (folder / RUN).exists() or _has_own_records(folder / RECORDS):
        return False
    return any((folder / name).is_file() for name in list_figures_files())


def _has_own_records(path: Path) -> bool:
    """AIPerf's file of requests has the same name. Its lines have no ``record``."""
    with suppress(OSError, ValueError), open_regular(path) as file:
        return "record" in msgspec.json.decode(file.readline(MAX_LINE_BYTES), type=dict)
    return False


def name_importable_tools() -> str:
    """Lists the tools whose requests can be imported, as text."""
    names = []
    for tool in load_formats(READ).values():
        refused = isinstance(tool.requests, DocumentRequestsReader) and not tool.requests.importable
        if tool.requests is not None and not refused:
            names.append(tool.tool)
    return ", ".join(names)


def _figures_readers() -> Iterator[tuple[str, FiguresReader]]:
    for name, tool in load_formats(READ).items():
        if tool.figures is not None:
            yield name, tool.figures


def _requests_readers() -> Iterator[RequestsReader | DocumentRequestsReader]:
    for tool in load_formats(READ).values():
        if tool.requests is not None:
            yield tool.requests


def _file_readers() -> list[RequestsReader]:
    return [reader for reader in _requests_readers() if isinstance(reader, RequestsReader)]


def _document_readers() -> list[DocumentRequestsReader]:
    return [reader for reader in _requests_readers() if isinstance(reader, DocumentRequestsReader)]


# -- figures ---------------------------------------------------------------------------------------


def read_figures(path: Path) -> list[Figures]:
    """Reads the loads of a file or a run folder. Raises OSError and UnknownFormat."""
    path = _find_figures_file(path)
    for reader in _requests_readers():
        if reader.file and reader.file == path.name:
            raise UnknownFormat(
                f"it has requests but no summary: use {reader.figures_file} in the same folder, or "
                "import it first"
            )
    raw = read_result_file(path)
    try:
        documents = decode_documents(raw)
    except ValueError as error:
        loads = read_printed_tables.read_tables(raw.decode("utf-8", "replace"))
        if loads:
            return loads
        raise UnknownFormat(
            f"it is not JSON ({error}), and has no table with a latency or a TTFT that can be read"
        ) from None
    results = documents.found if len(documents.found) > 1 else split_results(documents.found[0])
    if len(results) == 1 and not documents.cut:
        return _read_result_figures(results[0], path)
    loads = []
    for place, result in enumerate(results, 1):
        loads += _read_figures_of_several(result, path, place, documents.cut)
    return loads


def _find_figures_file(path: Path) -> Path:
    """Returns the file itself, or the file with metrics in a folder. Raises UnknownFormat."""
    if not path.is_dir():
        return path
    names = list_figures_files()
    for name in names:
        if (path / name).is_file():
            return path / name
    raise UnknownFormat(
        f"it is a folder without {' and without '.join(names)}: name the file with the metrics"
    )


def _read_figures_of_several(result: object, path: Path, place: int, cut: str) -> list[Figures]:
    """Reads one of several results of a file, and labels its loads with its place. Raises
    UnknownFormat."""
    try:
        loads = _read_result_figures(result, path)
    except UnknownFormat as error:
        raise UnknownFormat(f"result {place}: {error}") from None
    labelled = []
    for load in loads:
        label = f"result {place} {load.label}".rstrip()
        labelled.append(replace(load, label=label, cut=cut))
    return labelled


def _read_result_figures(document: object, path: Path) -> list[Figures]:
    """Reads the loads of one result. Raises UnknownFormat."""
    readers = dict(_figures_readers())
    for reader in readers.values():
        if isinstance(document, dict) and reader.recognise(document):
            loads = reader.read(document, path)
            if loads:
                return loads
    tools = ", ".join(sorted(name.replace("_", " ") for name in readers))
    raise UnknownFormat(f"no known tool wrote it (known: {tools}, and tables as text)")


# -- requests --------------------------------------------------------------------------------------


def read_imported_runs(path: Path) -> list[ImportedRun]:
    """Reads the loads of a file, or of the folder of one result. Raises OSError and
    UnusableResult."""
    if path.is_dir():
        return _read_folder(path)
    file = ResultFile(path)
    for reader in _file_readers():
        if reader.recognise(file):
            return _require_records(reader.read(file))
    documents = Documents([None])
    with suppress(ValueError):
        documents = decode_documents(file.raw)
    is_list = _is_list_of_requests(documents.found[0])
    several = is_list or len(documents.found) > 1
    results = documents.found if several else split_results(documents.found[0])
    loads: list[ImportedRun] = []
    for place, result in enumerate(results, 1):
        try:
            loads += _read_result_requests(result, path)
        except UnusableResult as error:
            if len(results) == 1:
                raise
            raise UnusableResult(f"result {place}: {error}") from None
    if documents.cut and is_list:
        lost = f"{documents.cut}: cut off"
        return [replace(load, unread=(*load.unread, lost)) for load in loads]
    return [replace(load, cut=documents.cut) for load in loads]


def _is_list_of_requests(document: object) -> bool:
    lists = [reader for reader in _document_readers() if reader.is_list]
    return any(reader.recognise(document) for reader in lists)


def _read_result_requests(document: object, path: Path) -> list[ImportedRun]:
    """Reads the requests of one result of this file. Raises UnusableResult."""
    for reader in _document_readers():
        if not reader.recognise(document):
            continue
        try:
            return _require_records(reader.read(document, path))
        except UnusableResult as error:
            if reader.is_list:
                raise
            raise UnusableResult(f"{error}; {FIGURES_ELSEWHERE}") from None
    raise UnusableResult(_explain_missing_requests(path))


def _explain_missing_requests(path: Path) -> str:
    try:
        tool = read_figures(path)[0].title
    except (OSError, UnknownFormat) as error:
        return f"{error}; import takes {name_importable_tools()}"
    return f"it has a summary of {tool}, but no requests; {FIGURES_ELSEWHERE}"


def _require_records(loads: list[ImportedRun]) -> list[ImportedRun]:
    """Returns the loads. Raises UnusableResult for a load without a readable request."""
    for load in loads:
        if not load.records:
            first = f" ({load.unread[0]})" if load.unread else ""
            raise UnusableResult(f"none of its requests can be read{first}")
    return loads


def _read_folder(folder: Path) -> list[ImportedRun]:
    """Reads the one file with requests in a folder. Raises OSError and UnusableResult."""
    names = [reader.file for reader in _requests_readers() if reader.file]
    files = [folder / name for name in names if (folder / name).is_file()]
    if not files:
        files = sorted(folder.glob("*.json"))[:MAX_FILES]
    results: list[list[ImportedRun]] = []
    refusals: list[str] = []
    for file in files:
        try:
            results.append(read_imported_runs(file))
        except UnusableResult as error:
            refusals.append(str(error))
    if len(results) > 1:
        raise UnusableResult(f"it is a folder with {len(results)} results: name the file of one")
    if results:
        return results[0]
    if len(files) == 1:
        raise UnusableResult(refusals[0])
    for refusal in refusals:
        if FIGURES_ELSEWHERE in refusal:
            raise UnusableResult(refusal)
    raise UnusableResult(f"it is a folder without {', '.join(names)}, or a JSON file with requests")

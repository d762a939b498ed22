"""Requests registry: which tool wrote a result, and its requests."""

from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from locust_llm.lab.interop import aiperf, evalscope, guidellm, inference_perf, vllm_bench
from locust_llm.lab.interop import metrics_registry as figures
from locust_llm.lab.interop.file_contents import Documents, contents, decode_documents, results_of
from locust_llm.lab.interop.json_fields import nested_value

from .imported import Imported, Unusable

NAMES: Final = (aiperf.FILE, evalscope.FILE, inference_perf.FILE)
"""Of files in the folder of a result."""
ELSE: Final = "locust-llm compare and locust-llm audit take the figures of such a file"
NOTHING: Final = f"it is a folder without {', '.join(NAMES)}, or a JSON file with requests"
MAX_FILES: Final = 50
"""Of a folder that are looked at."""
KNOWN: Final = "AIPerf, vllm bench, guidellm, inference-perf, evalscope"


def read_imported_runs(path: Path) -> list[Imported]:
    """The loads of a file, or of a folder of one result. Raises OSError, and Unusable of one
    sentence."""
    if path.is_dir():
        return _of_folder(path)
    if evalscope.has_requests(path):
        return _used(evalscope.read_tool_requests(path))
    raw = contents(path)
    if aiperf.has_requests(raw):
        return _used([aiperf.read_tool_requests(raw, path)])
    documents = Documents([None])
    with suppress(ValueError):
        documents = decode_documents(raw)
    results = _results(documents)
    loads = []
    for place, result in enumerate(results, 1):
        try:
            loads += _loads(result, path)
        except Unusable as error:
            if len(results) == 1:
                raise
            raise Unusable(f"result {place}: {error}") from None
    if documents.cut and inference_perf.has_requests(
        documents.found[0]
    ):  # its entries are requests
        return [replace(load, unread=(*load.unread, f"{documents.cut}: cut off")) for load in loads]
    return [replace(load, cut=documents.cut) for load in loads]


def _results(documents: Documents) -> list[object]:
    """Each result of a file: a list is one of inference-perf, or holds several."""
    alone = documents.found[0]
    several = len(documents.found) > 1 or inference_perf.has_requests(alone)
    return documents.found if several else results_of(alone)


def _loads(document: object, path: Path) -> list[Imported]:
    """Of one result of this file."""
    if isinstance(document, list) and inference_perf.has_requests(document):
        return _used(inference_perf.read_tool_requests(document, path))
    try:
        for reader in (vllm_bench, guidellm):
            if isinstance(document, dict) and reader.has_requests(document):
                return _used(reader.read_tool_requests(document, path))
    except Unusable as error:
        raise Unusable(f"{error}; {ELSE}") from None
    if nested_value(document, "individual_request_metrics") is not None:
        raise Unusable(
            f"genai-bench keeps no start time of a request, so nothing over time can be known; "
            f"{ELSE}"
        )
    raise Unusable(_without_requests(path))


def _without_requests(path: Path) -> str:
    try:
        tool = figures.read_figures(path)[0].title
    except (OSError, figures.UnknownFormat) as error:
        return f"{error}; import takes {KNOWN}"
    return f"it has the figures of {tool}, and no requests; {ELSE}"


def _used(found: list[Imported]) -> list[Imported]:
    for one in found:
        if not one.records:
            first = f" ({one.unread[0]})" if one.unread else ""
            raise Unusable(f"none of its requests can be read{first}")
    return found


def _of_folder(folder: Path) -> list[Imported]:
    """Of the one file with requests."""
    files = [folder / name for name in NAMES if (folder / name).is_file()] or sorted(
        folder.glob("*.json")
    )[:MAX_FILES]
    found = list[list[Imported]]()
    refused = list[str]()
    for file in files:
        try:
            found.append(read_imported_runs(file))
        except Unusable as error:
            refused.append(str(error))
    if len(found) > 1:
        raise Unusable(f"it is a folder with {len(found)} results: name the file of one")
    if not found:
        raise Unusable(
            refused[0]
            if len(files) == 1
            else next((why for why in refused if ELSE in why), NOTHING)
        )
    return found[0]

"""Metrics registry: which tool wrote a file, and its figures."""

from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Final

from msgspec.structs import replace

from locust_llm.lab.interop import aiperf, evalscope, guidellm, inference_perf, vllm_bench
from locust_llm.lab.interop.load_metrics import Figures

from . import genai_bench, text_table
from .file_contents import contents, decode_documents, decode_json, results_of

READERS: Final[tuple[ModuleType, ...]] = (
    aiperf,
    evalscope,
    genai_bench,
    guidellm,
    inference_perf,
    vllm_bench,
)
IN_FOLDERS: Final = ("profile_export_aiperf.json", evalscope.SUMMARY)
"""Of a run folder, and of evalscope's."""

OF_REQUESTS: Final = {
    "profile_export.jsonl": IN_FOLDERS[0],
    "benchmark_data.db": evalscope.SUMMARY,
    "per_request_lifecycle_metrics.json": "stage_0_lifecycle_metrics.json",
}
"""Files of requests, and those beside them that have the figures."""


class UnknownFormat(ValueError):
    """No tool that is known here wrote it, or it is cut. One sentence."""


def read_figures(path: Path) -> list[Figures]:
    """The loads of a file, or of a run folder. Raises OSError and UnknownFormat."""
    if path.is_dir():
        path = next((path / name for name in IN_FOLDERS if (path / name).is_file()), path)
        if path.is_dir():
            raise UnknownFormat(f"it is a folder without {' and without '.join(IN_FOLDERS)}")
    if beside := OF_REQUESTS.get(path.name):
        raise UnknownFormat(
            f"it has requests, no figures: take {beside} beside it, or the folder that import "
            f"makes of it"
        )
    raw = contents(path)
    try:
        documents = decode_documents(raw)
    except ValueError as error:
        found = text_table.read_tables(raw.decode("utf-8", "replace"))
        if found:
            return found
        raise UnknownFormat(
            f"it is no JSON ({error}), and has no table with a latency or a TTFT"
        ) from None
    if path.name == evalscope.SUMMARY and isinstance(documents.found[0], dict):
        with suppress(OSError, ValueError):
            documents.found[0][evalscope.PERCENTILES] = decode_json(
                contents(path.parent / evalscope.PERCENTILES)
            )
    results = documents.found if len(documents.found) > 1 else results_of(documents.found[0])
    if len(results) == 1 and not documents.cut:
        return _loads(results[0])
    return [
        load
        for place, result in enumerate(results, 1)
        for load in _of_several(result, place, documents.cut)
    ]


def _of_several(result: object, place: int, cut: str) -> list[Figures]:
    """The loads of one of the results of a file. Raises UnknownFormat."""
    try:
        loads = _loads(result)
    except UnknownFormat as error:
        raise UnknownFormat(f"result {place}: {error}") from None
    label = f"result {place}"
    return [
        replace(load, label=" ".join(filter(None, (label, load.label))), cut=cut) for load in loads
    ]


def _loads(document: object) -> list[Figures]:
    """Of one result. Raises UnknownFormat."""
    for reader in READERS:
        if isinstance(document, dict) and reader.has_figures(document):
            found = list(reader.read_tool_figures(document))
            if found:
                return found
    tools = ", ".join(_name_tool(reader.__name__) for reader in READERS)
    raise UnknownFormat(f"no tool that is known here wrote it (known: {tools}, and tables as text)")


def _name_tool(module: str) -> str:
    """``vllm_bench`` of ``....vllm_bench.metrics``."""
    return module.removesuffix(".metrics").rpartition(".")[2].replace("_", " ")

"""Command ``locust-llm pareto``: shows the curves of several runs as a table, a chart and JSON."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.files.json_file import STANDARD_OUTPUT, replace_file
from locust_llm.lab.pareto import pareto_chart as pareto_svg
from locust_llm.lab.pareto.pareto_curve import (
    ParetoCurve,
    describe_curve_differences,
    make_curve_of_runs,
    make_sweep_curve,
)
from locust_llm.records.run_facts import RECORDS, SIMULATED, Run
from locust_llm.records.server_metrics_history import read_history
from locust_llm.report import console_summary, write_report_files
from locust_llm.report import timeline_figure as drawing
from locust_llm.report.document_blocks import Block, Heading, TableBlock, TextBlock
from locust_llm.report.render import text_report as tables
from locust_llm.report.sections.energy import measure_stage_energies
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.sweep.best_points import CurvePoint
from locust_llm.text.format import format_brief, format_count, format_number, print_safely

Summarise = Callable[[Path], tuple[Summary, Run]]
ALONE = "runs"
"""Runs that are no sweep share a curve of this name."""


def load_pareto_curves(
    folders: Sequence[Path], summarised: Summarise, gpus: int | None, percentile: float
) -> list[ParetoCurve]:
    """Loads a curve for each sweep, and one curve of all runs that have a single load. ``gpus``
    overrides the number of GPUs of the runs. Raises ValueError and OSError."""
    curves = list[ParetoCurve]()
    alone = list[tuple[Run, Summary]]()
    for folder in folders:
        if not (folder / RECORDS).is_file():
            raise ValueError(f"{folder} is not a run folder: it has no {RECORDS}")
        summary, run = summarised(folder)
        if summary.examination is not None or summary.paired is not None:
            raise ValueError(f"{folder} is a probe or an A/B test: it has no curve")
        if summary.sweep is not None and summary.swept:
            joules = measure_stage_energies(summary.sweep, run, read_history(folder))
            curves.append(
                make_sweep_curve(
                    run,
                    summary,
                    gpus or run.settings.gpus,
                    percentile,
                    joules,
                    folder.resolve().name,
                )
            )
        else:
            alone.append((run, summary))
    if alone:
        own = {run.settings.gpus for run, _ in alone}
        if gpus is None and len(own) > 1:
            raise ValueError(
                "runs of different numbers of GPUs make no curve: give --gpus, or draw them one by one"
            )
        models = {summary.conditions.model for _, summary in alone}
        if len(models) > 1:
            raise ValueError(f"runs of different models make no curve: {', '.join(sorted(models))}")
        name = (
            alone[0][0].name
            if len(alone) == 1
            else f"{ALONE} of {next(iter(models)) or 'one model'}"
        )
        curves.append(make_curve_of_runs(alone, gpus or own.pop(), percentile, name))
    if len({bool(curve.gpus) for curve in curves}) > 1:
        lacking = ", ".join(curve.name for curve in curves if not curve.gpus)
        raise ValueError(f"the number of GPUs of {lacking} is unknown: give --gpus")
    return curves


def build_pareto_document(curves: Sequence[ParetoCurve], percentile: float) -> Iterator[Block]:
    """Yields the blocks in reading order. Their texts are not escaped yet."""
    per_gpu = "per GPU" if all(curve.gpus for curve in curves) else "whole server"
    yield Heading(f"Tokens/s {per_gpu} against tokens/s per user (TPOT p{percentile:g})")
    if any(curve.simulated for curve in curves):
        yield TextBlock(SIMULATED, loud=True)
    if why := describe_curve_differences(curves):
        yield TextBlock(f"WARNING: {why}.", loud=True)
    for curve in curves:
        gpus = (
            "GPUs unknown, so the whole server"
            if curve.gpus is None
            else format_count(curve.gpus, "GPU")
        )
        yield Heading(f"{curve.name}, {gpus}")
        if curve.not_valid:
            yield TextBlock(f"NOT VALID by {curve.not_valid}.", loud=True)
        head = (
            curve.axis,
            "tokens/s/user",
            "tokens/s/GPU" if curve.gpus else "tokens/s",
            f"TTFT p{percentile:g} (ms)",
        )
        energy = any(point.joules_per_output_token is not None for point in curve.points)
        yield TableBlock(
            (*head, *(["J/token"] if energy else []), "ok", "SLO", ""), tuple(_rows(curve, energy))
        )
        for limit in curve.limits:
            yield TextBlock(
                f"{limit.rule}: {format_brief(limit.per_user, digits=3)} tokens/s per user at "
                f"least."
            )


def _rows(curve: ParetoCurve, energy: bool) -> Iterator[tuple[str, ...]]:
    for point in curve.points:
        figures = (point.per_user, point.per_gpu, point.ttft_ms)
        joules = [format_number(point.joules_per_output_token, 3)] if energy else []
        cells = (
            *(format_number(figure, 4) for figure in figures),
            *joules,
            str(point.requests),
            point.slo_status or "-",
        )
        yield f"{point.value:g}", *cells, _describe_point(curve, point)


def _describe_point(curve: ParetoCurve, point: CurvePoint) -> str:
    if point.silence:
        return point.silence
    if not point.sound:
        return f"client {point.client}"
    words = []
    if point.best:
        words.append("best")
    if point.value == curve.knee:
        words.append(f"knee ({curve.knee_rule})")
    return ", ".join(words) or "dominated"


def run_pareto_command(words: list[str]) -> int:
    """Draws throughput per GPU over throughput per user, of sweeps and runs."""
    parser = argparse.ArgumentParser(
        prog="locust-llm pareto",
        description=(
            "Compare tokens/s per GPU with tokens/s per user (Pareto curve), as a table and a "
            "figure. Each sweep has a curve, and all runs at a single load share one."
        ),
    )
    parser.add_argument(
        "folders",
        type=Path,
        metavar="DIR",
        nargs="+",
        help="run folder of a sweep or of a single load",
    )
    parser.add_argument("-o", "--output", type=Path, action="append", default=[], metavar="FILE",
                        help="file for the figure, .svg or .png (repeatable)")  # fmt: skip
    parser.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help="number of GPUs of each server (default: --gpus of the runs)",
    )
    parser.add_argument(
        "--percentile", type=float, default=50.0, metavar="P",
        help=(
            "percentile of TPOT from which the tokens/s per user follow (1000 / TPOT in ms). "
            "MLPerf Endpoints uses 90 (default: 50)"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--json", type=Path, metavar="FILE",
        help="also write the values to this file; - prints them in place of the tables",
    )  # fmt: skip
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="also write the tables as Markdown"
    )
    parser.add_argument("--title", default="", metavar="T", help="title of the figure")
    options = parser.parse_args(words)
    try:
        if options.gpus is not None and options.gpus < 1:
            raise ValueError(f"--gpus must be at least 1, got {options.gpus}")
        formats = [drawing.choose_image_format(path.name) for path in options.output]
        curves = load_pareto_curves(
            options.folders, write_report_files.summarise_folder, options.gpus, options.percentile
        )
        svg = (
            pareto_svg.draw_pareto_svg(curves, options.percentile, options.title) if formats else ""
        )
        blocks = [*build_pareto_document(curves, options.percentile)]
        for path, to_bytes in zip(options.output, formats, strict=True):
            replace_file(path, to_bytes(svg))
        values = msgspec.json.format(msgspec.json.encode(curves), indent=2) + b"\n"
        if options.json and options.json != STANDARD_OUTPUT:
            replace_file(options.json, values)
        if options.markdown:
            replace_file(options.markdown, tables.render_markdown_blocks(blocks).encode())
    except (OSError, ValueError) as error:
        return fail(str(error))
    except Exception as error:
        return fail(f"these runs have no curve: {write_report_files.describe_failure(error)}")
    if options.json == STANDARD_OUTPUT:
        print_safely(values.decode())
    else:
        print_safely(tables.render_plain_blocks(blocks, console_summary.find_console_width()))
    return ExitStatus.OK

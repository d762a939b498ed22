"""Command: ``locust-llm pareto DIR...``, throughput per GPU against throughput per user, of sweeps
and of runs."""

import argparse
from pathlib import Path

import msgspec

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.records import storage
from locust_llm.report import build, console_end
from locust_llm.report import timeline_figure as drawing
from locust_llm.report.render import text as tables
from locust_llm.text.format import print_safely

from . import chart as pareto_svg
from . import table


def run_pareto_command(words: list[str]) -> int:
    """Draw throughput per GPU against throughput per user, of sweeps and of runs."""
    parser = argparse.ArgumentParser(
        prog="locust-llm pareto",
        description="Tokens/s per GPU against tokens/s per user, as step functions: a curve for "
        "each sweep, and one of all "
        "runs of a single load.",
    )
    parser.add_argument(
        "folders", type=Path, metavar="DIR", nargs="+", help="folder of a sweep, or of a run"
    )
    parser.add_argument("-o", "--output", type=Path, action="append", default=[], metavar="FILE",
                        help="draw it: a name that ends in .svg or .png; may be given twice")  # fmt: skip
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs of each server (default: --gpus of the runs)"
    )
    parser.add_argument(
        "--percentile", type=float, default=50.0, metavar="P",
        help="of TPOT, of which 1000 / TPOT is a user's tokens/s; MLPerf Endpoints: 90 (default: 50)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the tables there")
    parser.add_argument("--title", default="", metavar="T")
    options = parser.parse_args(words)
    try:
        if options.gpus is not None and options.gpus < 1:
            raise ValueError(f"--gpus must be at least 1, got {options.gpus}")
        formats = [drawing.choose_image_format(path.name) for path in options.output]
        found = table.load_pareto_curves(
            options.folders, build.summarise_folder, options.gpus, options.percentile
        )
        svg = (
            pareto_svg.draw_pareto_svg(found, options.percentile, options.title) if formats else ""
        )
        blocks = [*table.build_pareto_document(found, options.percentile)]
        for path, to_bytes in zip(options.output, formats, strict=True):
            storage.replace_file(path, to_bytes(svg))
        if options.json:
            storage.replace_file(
                options.json, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
            )
        if options.markdown:
            storage.replace_file(options.markdown, tables.render_markdown_blocks(blocks).encode())
    except (OSError, ValueError) as error:
        return fail(str(error))
    except Exception as error:
        return fail(f"these runs have no curve: {build.describe_failure(error)}")
    print_safely(tables.render_plain_blocks(blocks, console_end.find_console_width()))
    return ExitStatus.OK

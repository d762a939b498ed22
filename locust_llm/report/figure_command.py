"""Command ``locust-llm figure``: draws a timeline of a run as SVG or PNG."""

import argparse
from pathlib import Path

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.files.json_file import replace_file
from locust_llm.text.format import print_safely

from . import timeline_figure as drawing
from . import write_report_files
from .chart_data.timeline import MAX_ROWS


def run_figure_command(words: list[str]) -> int:
    """Draw a timeline of a run."""
    parser = argparse.ArgumentParser(
        prog="locust-llm figure",
        description=(
            "Draw a timeline of a run around its longest stall, with a line for each request and "
            "a dot for each chunk."
        ),
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="run folder")
    parser.add_argument(
        "-o", "--output", type=Path, action="append", metavar="FILE",
        help="file to write, .svg or .png, repeatable (default: DIR/timeline.svg)",
    )  # fmt: skip
    parser.add_argument(
        "--from",
        type=float,
        dest="start",
        metavar="S",
        help="first second of the run to show",
    )
    parser.add_argument("--to", type=float, dest="end", metavar="S", help="last second to show")
    parser.add_argument(
        "--requests", type=int, default=MAX_ROWS, metavar="N",
        help=f"maximum number of requests to show, 1 to {drawing.MAX_ROWS} (default: {MAX_ROWS})",
    )  # fmt: skip
    parser.add_argument("--title", default="", metavar="T", help="title of the figure")
    options = parser.parse_args(words)
    files = options.output or [options.folder / write_report_files.TIMELINE_FILE]
    try:
        formats = [drawing.choose_image_format(path.name) for path in files]
        svg = write_report_files.draw_timeline(
            options.folder, options.start, options.end, options.requests, options.title
        )
        drawn = [to_bytes(svg) for to_bytes in formats]
        for path, data in zip(files, drawn, strict=True):
            try:
                replace_file(path, data)
            except OSError as error:
                raise ValueError(f"{path} cannot be written: {error.strerror or error}") from None
    except ValueError as error:
        return fail(str(error))
    except Exception as error:
        return fail(
            f"{options.folder} cannot be drawn: {write_report_files.describe_failure(error)}"
        )
    print_safely("".join(f"{path}\n" for path in files))
    return ExitStatus.OK

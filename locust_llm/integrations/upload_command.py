"""Command ``locust-llm upload DIR URL``: copies the folder of a run to a store."""

import argparse
from pathlib import Path

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.text.format import print_safely

from .upload import copy_folder, explain_unreadable_folder, explain_upload_refusal


def run_upload(words: list[str]) -> int:
    """Run ``locust-llm upload DIR URL`` and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="locust-llm upload",
        description="Copy a run folder to object storage, such as s3://bucket/prefix.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="run folder")
    parser.add_argument("url", metavar="URL", help="folder of the store")
    given = parser.parse_args(words)
    why = explain_upload_refusal(given.url) or explain_unreadable_folder(given.folder)
    if why:
        return fail(why)
    try:
        print_safely(f"uploaded: {copy_folder(given.folder, given.url)}\n")
    except Exception as error:  # of whatever client
        why = f"{given.url}: {type(error).__name__}: {error}".replace("\n", " ")
        return fail(why, ExitStatus.INCOMPLETE)
    return ExitStatus.OK

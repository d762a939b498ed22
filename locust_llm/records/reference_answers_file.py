"""Reference answers file: the answers to the reference prompts of a run, a line for each, in the
order of their ends."""

from pathlib import Path
from typing import Final

import msgspec

from locust_llm.answers.reference_answer import ReferenceAnswer
from locust_llm.files.regular_file import open_regular

REFERENCE_ANSWERS: Final = "reference_answers.jsonl"
MAX_LINE_BYTES: Final = 2**22


def read_reference_answers(folder: Path) -> tuple[list[ReferenceAnswer], int]:
    """(the answers of a run's folder, how many lines could not be read). A stage's are in the run's
    folder. Without a file there are none. Raises OSError."""
    path = folder / REFERENCE_ANSWERS
    if not path.exists() and folder.parent.name == "stages":
        path = folder.parent.parent / REFERENCE_ANSWERS
    if not path.exists():
        return [], 0
    decoder = msgspec.json.Decoder(ReferenceAnswer)
    answers = list[ReferenceAnswer]()
    unread = 0
    with open_regular(path) as file:
        while line := file.readline(MAX_LINE_BYTES):
            try:
                answers.append(decoder.decode(line))
            except (ValueError, RecursionError):
                unread += bool(line.strip())
    return answers, unread


def format_reference_answer(answer: ReferenceAnswer) -> bytes:
    """A line of the file, without its end."""
    return msgspec.json.encode(answer)

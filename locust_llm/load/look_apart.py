"""The look through a dataset in a process of its own, within limits: what it holds is not known before.

Its input is a JSON object with the arguments of ``summary.check``, and ``most_s``; its output one with ``summary`` or
``wrong``. Run as ``python -m locust_llm.load.look_apart``.
"""

import resource
import sys
from typing import Final

import msgspec

from .formats import DatasetError
from .summary import Summary, check

MAX_MEMORY_BYTES: Final = 2 << 30
MAX_UNPACKED_BYTES: Final = 512 << 20
"""Of a file that has to be unpacked to the disk."""


class Question(msgspec.Struct):
    """What to look at."""

    path: str
    kind: str | None = None
    columns: dict[str, str] | None = None
    timed: bool = False
    skip_broken: bool = False
    most_s: int | None = None
    """Of CPU time; the system ends the process then."""


class Answer(msgspec.Struct):
    """One of both."""

    summary: Summary | None = None
    wrong: str = ""


def answer_of(question: Question) -> Answer:
    try:
        return Answer(
            check(
                question.path,
                kind=question.kind,
                columns=question.columns,
                timed=question.timed,
                skip_broken=question.skip_broken,
            )
        )
    except (DatasetError, ValueError) as error:
        return Answer(wrong=str(error))
    except OSError as error:
        return Answer(wrong=f"{error.filename}: {error.strerror}")
    except MemoryError:
        return Answer(wrong=f"{question.path}: a row or list of it takes over {MAX_MEMORY_BYTES >> 30} GB of memory")


def main() -> None:
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    if question.most_s is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (question.most_s, question.most_s))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_UNPACKED_BYTES, MAX_UNPACKED_BYTES))
    sys.stdout.buffer.write(msgspec.json.encode(answer_of(question)))


if __name__ == "__main__":
    main()

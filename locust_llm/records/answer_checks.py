"""Answer checks: what was found in the text of one answer (``--check-answers``)."""

from typing import Annotated, Final

import msgspec

MAX_MARKER: Final = 2**33 - 1
MAX_ID_HASH: Final = 2**62 - 1
MarkerNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_MARKER)]
IdHash = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID_HASH)]


class AnswerChecks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The checks of one answer. Markers are their numbers: no text of a prompt is in it."""

    marker: MarkerNumber | None = None
    """The number of its session's marker. None: its prompt has none, as it was replayed or written
    by a locustfile, or is too short for one."""
    asked: bool = False
    """The request asked the model to repeat its marker."""
    repeated: bool = False
    """The answer has its own marker."""
    foreign: tuple[MarkerNumber, ...] = ()
    """The markers of other sessions in the answer. Each one is a leak."""
    faults: tuple[str, ...] = ()
    """What else was wrong, by the names in answers/fault_names.py."""
    id_hash: IdHash | None = None
    """A hash of the response id. Two answers of a run with the same one have the same id."""
    searched: bool = False
    """The text of the answer was searched for markers, as far as it came."""
    text: str = ""
    """The text of the answer, only with ``--keep-text``."""

"""Registry: the sections that stand by themselves, in the order of the report. A new one is a file
in this folder and a line here."""

from typing import Final

from .best_limit import BEST_LIMIT
from .section import AnySection
from .sessions import SESSIONS
from .tenants import TENANTS

REPORT_SECTIONS: Final[tuple[AnySection, ...]] = (BEST_LIMIT, SESSIONS, TENANTS)

"""Section registry: the sections that stand by themselves, in the order of the report. A new one is
a file in this folder and a line here."""

from typing import Final

from .answers_under_load import ANSWERS_UNDER_LOAD
from .cancelled_work_text import CANCELLED_WORK
from .disruptions import DISRUPTION_SECTION
from .prefill_limit_comparison import BEST_LIMIT
from .section import AnySection
from .session_tables import SESSIONS
from .soak_section import SOAK_SECTION
from .tenant_fairness import TENANTS

REPORT_SECTIONS: Final[tuple[AnySection, ...]] = (
    BEST_LIMIT,
    ANSWERS_UNDER_LOAD,
    DISRUPTION_SECTION,
    CANCELLED_WORK,
    SOAK_SECTION,
    SESSIONS,
    TENANTS,
)

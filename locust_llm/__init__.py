"""locust-llm: load testing for LLM servers, as an extension of Locust. Importing this imports
nothing heavy."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, whose import takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

    from locust_llm.client.chat_answer import Answer as Answer
    from locust_llm.lab.probe.probe_user import ProbeUser as ProbeUser
    from locust_llm.report.write_report_files import read as read
    from locust_llm.user import LLMUser as LLMUser

__version__ = "1.0.0rc1"


PUBLIC = {
    "LLMUser": "locust_llm.user:LLMUser",
    "ProbeUser": "locust_llm.lab.probe.probe_user:ProbeUser",
    "Answer": "locust_llm.client.chat_answer:Answer",
    "read": "locust_llm.report.write_report_files:read",
}
"""The names that user code imports from here, and the module of each."""


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pkgutil import resolve_name

    if name in (
        "LLMUser",
        "ProbeUser",
    ):  # importing Locust patches the whole process: only who asks for a user pays that
        from . import plugin  # noqa: F401
    return resolve_name(PUBLIC[name])

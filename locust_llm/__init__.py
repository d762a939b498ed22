"""locust-llm: load testing for LLM servers, as an extension of Locust. Importing this imports nothing heavy."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, whose import takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

    from locust_llm.client.answer import Answer as Answer
    from locust_llm.probe_user import ProbeUser as ProbeUser
    from locust_llm.report.build import read as read
    from locust_llm.user import LLMUser as LLMUser

__version__ = "1.0.0rc1"


def __getattr__(name: str) -> Any:
    # importing Locust patches the whole process: only who asks for LLMUser pays that
    if name == "LLMUser":
        from locust_llm import plugin
        from locust_llm.user import LLMUser

        return LLMUser
    if name == "ProbeUser":
        from locust_llm import plugin  # noqa: F401
        from locust_llm.probe_user import ProbeUser

        return ProbeUser
    if name == "Answer":
        from locust_llm.client.answer import Answer

        return Answer
    if name == "read":
        from locust_llm.report.build import read

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

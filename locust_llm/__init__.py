"""locust-llm: load testing for LLM servers, as an extension of Locust. Importing this imports nothing heavy."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .probe import ProbeUser as ProbeUser
    from .report import read as read
    from .user import LLMUser as LLMUser

__all__ = ["LLMUser", "ProbeUser", "read"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # importing Locust patches the whole process: only who asks for LLMUser pays that
    if name == "LLMUser":
        from . import plugin
        from .user import LLMUser

        return LLMUser
    if name == "ProbeUser":
        from . import plugin  # noqa: F401
        from .probe import ProbeUser

        return ProbeUser
    if name == "read":
        from .report import read

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Other system: hides Linux-only functions from locust_llm and its packages. psutil is exempt, as
it has its own code for each system.

Put this folder first on a process's path.
"""

import ctypes
import os
import select
import sys
from pathlib import Path
from typing import Any

EPOLL = ("epoll", "EPOLLIN", "EPOLLET", "EPOLLRDHUP")
for name in EPOLL:
    delattr(select, name)  # before selectors looks for it
import socket  # noqa: E402

GONE: dict[Any, tuple[str, ...]] = {
    os: (
        "eventfd", "eventfd_read", "eventfd_write", "memfd_create", "sched_getaffinity",
        "sched_setaffinity", "pidfd_open",
        "splice", "copy_file_range", "getrandom", "posix_fadvise", "posix_fallocate", "setresuid",
        "unshare",
    ),
    socket: ("TCP_INFO", "TCP_QUICKACK", "TCP_USER_TIMEOUT", "SO_BINDTODEVICE", "SO_PEERCRED",
        "MSG_ERRQUEUE"),
}  # fmt: skip
CALLS = (
    "timerfd_create",
    "timerfd_settime",
    "epoll_create1",
    "epoll_wait",
    "eventfd",
    "memfd_create",
    "prctl",
    "syscall",
)
FILES = ("/proc", "/sys")

for module, names in GONE.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
        if name in getattr(module, "__all__", ()):
            module.__all__.remove(name)

function_of = ctypes.CDLL.__getattr__


def without_calls(library: ctypes.CDLL, name: str) -> Any:
    if name in CALLS:
        raise AttributeError(name)
    return function_of(library, name)


ctypes.CDLL.__getattr__ = without_calls  # type: ignore[method-assign]


def asked_by_us() -> bool:
    """Returns whether the nearest frame outside the standard library is locust_llm's."""
    standard = str(Path(os.__file__).parent) + os.sep
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((standard, "<")) or "site-packages" in file:
            return "locust_llm" in file
        frame = frame.f_back  # type: ignore[assignment]
    return False


def without_files(event: str, arguments: tuple[Any, ...]) -> None:
    if (
        event in ("open", "os.listdir", "os.scandir")
        and arguments
        and isinstance(arguments[0], str)
    ):
        path = arguments[0]
        if path.startswith(FILES) and asked_by_us():
            raise FileNotFoundError(2, "No such file or directory", path)


sys.addaudithook(without_files)
stat = os.stat


def stat_of_others(path: Any, *args: Any, **how: Any) -> os.stat_result:
    if str(path).startswith(FILES) and asked_by_us():
        raise FileNotFoundError(2, "No such file or directory", path)
    return stat(path, *args, **how)


os.stat = stat_of_others

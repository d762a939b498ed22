"""recvmsg(2), with the kernel's stamp of what it read, and epoll_wait(2): calls that never wait, so they keep the GIL.

Python's own let go of the GIL around the call, which is right for one that may wait. But beside an event loop that is
busy, the reader's thread would have to win it back each time. They go through ctypes' PyDLL, which keeps the GIL and takes
as long (about 2 µs for a read with its copy).
"""

import ctypes
import errno
import os
import platform
import socket
from collections.abc import Callable
from struct import Struct
from typing import Final

READ_BYTES: Final = 65_536
_CONTROL_BYTES: Final = 64
_HEADER_BYTES: Final = 16
"""struct cmsghdr, see cmsg(3); the timespec of SO_TIMESTAMPNS follows it."""
_MSG_DONTWAIT: Final = 0x40
_timespec: Final = Struct("qq")
_event: Final = Struct("=Ii4x" if platform.machine() == "x86_64" else "=I4xi4x")
"""struct epoll_event: what happened, and of its data the descriptor; packed on x86-64 alone (sys/epoll.h)."""
MAX_READY: Final = 4096
"""Descriptors in one answer of epoll_wait."""


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Msghdr(ctypes.Structure):
    """struct msghdr of 64-bit Linux."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("iov", ctypes.c_void_p),
        ("iov_length", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Call(ctypes.Structure):
    """All that the kernel gets an address of, in one piece, so that it lives and dies as one."""

    _fields_ = (
        ("message", _Msghdr),
        ("iovec", _Iovec),
        ("control", ctypes.c_char * _CONTROL_BYTES),
        ("data", ctypes.c_char * READ_BYTES),
    )


def make_recvmsg() -> Callable[[int], tuple[bytes, int]]:
    """A function for one thread: descriptor -> (bytes, Unix ns of the newest of them, 0 where the kernel gave no stamp).

    The bytes are empty at the end of the connection. Raises OSError; BlockingIOError when there is nothing to read.
    """
    recvmsg = ctypes.PyDLL(None, use_errno=True).recvmsg
    recvmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    recvmsg.restype = ctypes.c_ssize_t
    call = _Call()
    address = ctypes.addressof(call)
    call.iovec.base = address + _Call.data.offset
    call.iovec.length = READ_BYTES
    message = call.message  # the first field, so it has the address of the whole
    message.iov, message.iov_length = address + _Call.iovec.offset, 1
    message.control = address + _Call.control.offset
    view = memoryview(call).cast("B")
    data, control = view[_Call.data.offset :], view[_Call.control.offset : _Call.data.offset]
    stamped, timespec = _HEADER_BYTES + _timespec.size, _timespec.unpack_from

    def receive(fd: int) -> tuple[bytes, int]:
        message.control_length = _CONTROL_BYTES
        size = recvmsg(fd, address, _MSG_DONTWAIT)
        if size < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        if message.control_length < stamped:
            return data[:size].tobytes(), 0
        seconds, nanoseconds = timespec(control, _HEADER_BYTES)
        return data[:size].tobytes(), seconds * 1_000_000_000 + nanoseconds

    return receive


def make_poll(epoll_fd: int) -> Callable[[], list[tuple[int, int]]]:
    """A function for one thread: -> [(events, descriptor), ...], at most MAX_READY, of what is ready now."""
    wait = ctypes.PyDLL(None, use_errno=True).epoll_wait
    wait.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    buffer = ctypes.create_string_buffer(MAX_READY * _event.size)
    address, view = ctypes.addressof(buffer), memoryview(buffer).cast("B")

    def poll() -> list[tuple[int, int]]:
        count = wait(epoll_fd, address, MAX_READY, 0)  # with a time-out of 0 it fails only for a bad descriptor
        return list(_event.iter_unpack(view[: count * _event.size])) if count > 0 else []

    return poll


_recv: Final = ctypes.PyDLL(None, use_errno=True).recv
_recv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_recv.restype = ctypes.c_ssize_t
_peeked: Final = ctypes.create_string_buffer(1)
_PEEK: Final = _MSG_DONTWAIT | socket.MSG_PEEK


def quiet(fd: int) -> bool:
    """This connection is open, and nothing has come that was not read. Keeps Python's lock, which the reader's thread would
    else take, while a request that is due waits."""
    return bool(_recv(fd, ctypes.addressof(_peeked), 1, _PEEK) < 0) and ctypes.get_errno() == errno.EAGAIN

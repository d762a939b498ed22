"""recvmsg(2) with the kernel's stamp of what it read, and without letting go of the GIL.

Python's own ``socket.recvmsg`` lets go of the GIL around the call, which is right for one that may wait. This one never
waits; and beside an event loop that is busy, the reader's thread would have to win the GIL back for every single read. It
goes through ctypes' PyDLL, which keeps the GIL and takes as long (about 2 µs with its copy).
"""

import ctypes
import os
from collections.abc import Callable
from struct import Struct
from typing import Final

READ_BYTES: Final = 65_536
_CONTROL_BYTES: Final = 64
_HEADER_BYTES: Final = 16
"""struct cmsghdr, see cmsg(3); the timespec of SO_TIMESTAMPNS follows it."""
_MSG_DONTWAIT: Final = 0x40
_timespec: Final = Struct("qq")


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


def receiver() -> Callable[[int], tuple[bytes, int]]:
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

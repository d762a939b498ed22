"""Source addresses: whose turn it is, and what the server sees."""

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from locust_llm.client.connection import ConnectFailed, Connection, Target
from locust_llm.client.source_address_rotation import (
    SourceAddresses,
    bind_source_address,
    connect_socket,
)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def seen(listener: socket.socket, sources: SourceAddresses | None) -> str:
    sock = connect_socket("127.0.0.1", listener.getsockname()[1], sources)
    accepted, (address, _) = listener.accept()
    accepted.close()
    sock.close()
    return str(address)


def test_each_connection_begins_with_the_next_and_goes_once_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = SourceAddresses(["127.0.0.2", "::1", "127.0.0.3", "127.0.0.4"])
    monkeypatch.setattr(os, "getpid", lambda: 300)
    turns = [list(sources.turn(socket.AF_INET)) for _ in range(2)]
    assert turns == [
        ["127.0.0.2", "127.0.0.3", "127.0.0.4"],
        ["127.0.0.3", "127.0.0.4", "127.0.0.2"],
    ]
    monkeypatch.setattr(os, "getpid", lambda: 301)  # the process that was forked next
    assert next(SourceAddresses(sources.addresses).turn(socket.AF_INET)) == "127.0.0.3"
    assert list(sources.turn(socket.AF_INET6)) == ["::1"]
    assert list(sources.turn(socket.AF_UNIX)) == []


def test_the_server_sees_them_in_turn(listener: socket.socket) -> None:
    sources = SourceAddresses(["127.0.0.2", "127.0.0.3"])
    assert (
        sorted(seen(listener, sources) for _ in range(4)) == ["127.0.0.2"] * 2 + ["127.0.0.3"] * 2
    )
    assert seen(listener, None) == "127.0.0.1"


def test_the_port_is_taken_when_the_destination_is_known(listener: socket.socket) -> None:
    with socket.socket() as sock:
        bind_source_address(sock, "127.0.0.2")
        assert sock.getsockname() == ("127.0.0.2", 0)
        sock.connect(listener.getsockname())
        assert sock.getsockname()[1] > 0


def test_a_host_of_another_family(listener: socket.socket) -> None:
    with pytest.raises(
        OSError, match=r"no address of --source-ip can reach 127\.0\.0\.1"
    ) as failed:
        connect_socket("127.0.0.1", listener.getsockname()[1], SourceAddresses(["::1"]))
    assert failed.value.errno == errno.EAFNOSUPPORT


def test_an_address_that_has_gone_is_this_machines_fault(listener: socket.socket) -> None:
    target = Target(
        "127.0.0.1", listener.getsockname()[1], sources=SourceAddresses(["192.0.2.1"])
    )  # RFC 5737: nobody's
    with pytest.raises(ConnectFailed) as failed:
        Connection(target)
    assert failed.value.outcome == "no_socket"


def test_over_ipv6() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no ::1")
    with listener:
        sock = connect_socket(
            "::1", listener.getsockname()[1], SourceAddresses(["127.0.0.2", "::1"])
        )
        assert sock.getsockname()[0] == "::1"
        sock.close()

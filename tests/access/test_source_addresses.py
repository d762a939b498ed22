"""--source-ip: which addresses these are, and that each is this machine's and leads to the
server."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from locust_llm.access.source_addresses import (
    MOST,
    VARIABLE,
    count_source_addresses,
    note_source_addresses,
    parse_source_addresses,
    use_source_options,
)
from locust_llm.client import source_address_rotation
from locust_llm.settings.run_options import Settings

NOBODYS = "192.0.2.1"  # RFC 5737


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    yield
    source_address_rotation.set_source_addresses(None)


def to(*hosts: str) -> Settings:
    return replace(Settings(), host=hosts[0], hosts=hosts if len(hosts) > 1 else ())


@pytest.mark.parametrize(
    ("texts", "addresses"),
    [
        (["127.0.0.2,127.0.0.3", " 127.0.0.2 "], ("127.0.0.2", "127.0.0.3")),
        (["127.0.0.8/30"], ("127.0.0.9", "127.0.0.10")),
        (["127.0.0.8/31", "127.0.0.9/32"], ("127.0.0.8", "127.0.0.9")),
        (["FD00:0::1, 127.0.0.2"], ("fd00::1", "127.0.0.2")),
        (["", ","], ()),
    ],
)
def test_addresses(texts: list[str], addresses: tuple[str, ...]) -> None:
    assert parse_source_addresses(texts) == addresses


@given(st.integers(22, 30), st.integers(0, 2**20))
def test_all_of_a_network_but_its_ends(prefix: int, number: int) -> None:
    network = ip_network(((10 << 24) + (number << (32 - prefix)) % (1 << 24), prefix))
    found = parse_source_addresses([str(network)])
    assert len(found) == 2 ** (32 - prefix) - 2
    assert (found[0], found[-1]) == (str(network[1]), str(network[-2]))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("eth0", "'eth0' does not appear to be an IPv4 or IPv6 address"),
        ("127.0.0.9/29", "127.0.0.9/29 has host bits set"),
        ("0.0.0.0", "0.0.0.0 is not a valid source address"),
        ("224.0.0.1", "224.0.0.1 is not a valid source address"),
    ],
)
def test_what_is_no_address(text: str, why: str) -> None:
    with pytest.raises(
        ValueError, match="--source-ip takes addresses and networks, such as"
    ) as refused:
        parse_source_addresses([text])
    assert str(refused.value).endswith(why)


@given(st.text())
def test_any_text_is_addresses_or_a_refusal(text: str) -> None:
    with suppress(ValueError):
        assert len(parse_source_addresses([text])) <= MOST


def test_a_network_without_end() -> None:
    with pytest.raises(ValueError, match="at most 1024 addresses"):
        parse_source_addresses(["fd00::/64"])


def test_an_address_of_another_machine() -> None:
    with pytest.raises(
        ValueError,
        match=rf"--source-ip {NOBODYS} is not an address of this machine \(Cannot assign",
    ):
        use_source_options(Namespace(source_ip=["127.0.0.2", NOBODYS]))
    assert source_address_rotation.current_source_addresses() is None


def test_flag_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    use_source_options(Namespace(source_ip=[]))
    assert (
        source_address_rotation.current_source_addresses(),
        note_source_addresses(),
        count_source_addresses(to("http://127.0.0.1:1")),
    ) == (None, "", 1)
    monkeypatch.setenv(VARIABLE, "127.0.0.2\n127.0.0.3,127.0.0.4")
    use_source_options(Namespace(source_ip=["127.0.0.5"]))
    assert (
        note_source_addresses()
        == "connections leave from 127.0.0.2, 127.0.0.3, 127.0.0.4, 127.0.0.5 in turn (--source-ip)"
    )
    use_source_options(Namespace(source_ip=["127.0.0.8/29"]))
    assert note_source_addresses().startswith(
        "connections leave from 9 addresses: 127.0.0.2, 127.0.0.3, ..., 127.0.0.14 in turn"
    )


def test_how_many_lead_to_the_server() -> None:
    use_source_options(Namespace(source_ip=["127.0.0.2,127.0.0.3"]))
    assert count_source_addresses(to("http://127.0.0.1:1")) == 2
    assert count_source_addresses(to("http://127.0.0.1:1", "http://127.0.0.9:1")) == 2
    with pytest.raises(ValueError, match="--source-ip has no IPv6 address, as ::1 has"):
        count_source_addresses(to("http://127.0.0.1:1", "http://[::1]:1"))
    with pytest.raises(ValueError, match=rf"--source-ip 127\.0\.0\.2 cannot reach {NOBODYS}: "):
        count_source_addresses(to(f"http://{NOBODYS}:1"))


def test_a_proxy_is_what_they_lead_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    use_source_options(Namespace(source_ip=["127.0.0.2"]))
    assert count_source_addresses(to("http://far.example:1")) == 1

"""The guard of the web pages: no page of another site, and no strange name, whatever the route;
ours pass."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.web_pages import Page

from locust_llm.web import cross_site_guard
from locust_llm.web.cross_site_guard import guard_origin, parse_allowed_hosts

ALLOWED = parse_allowed_hosts("load.example.com, proxy:8443", "0.0.0.0")


def asked(
    method: str = "POST",
    host: str | None = "localhost:8089",
    allowed: Iterable[str] = ALLOWED,
    **more: str,
) -> int:
    """The status of the answer to a request with these headers (``Sec_Fetch_Site`` for
    ``Sec-Fetch-Site``)."""
    statuses: list[str] = []
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": "/swarm"}
    environ |= {f"HTTP_{name.upper()}": value for name, value in more.items()}
    if host is not None:
        environ["HTTP_HOST"] = host

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [])
        return []

    list(
        guard_origin(app, frozenset(allowed))(
            environ, lambda status, headers, *more: statuses.append(status)
        )
    )
    return int(statuses[0][:3])


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_site_guard, "_own_names", lambda: frozenset({"gpu1", "gpu1.lan"}))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8089", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:8089", 200),
        ("10.1.2.3", 200),  # no name, so that no name server can have said it
        ("[::1]:8089", 200),
        ("[fe80::1%25eth0]:8089", 200),
        ("gpu1:8089", 200),
        ("gpu1.lan.", 200),
        ("load.example.com", 200),
        ("load.example.com:8089", 200),
        ("proxy", 200),
        (None, 200),  # HTTP/1.0 without: no browser
        ("evil.example.com:8089", 403),
        ("localhost.evil.com", 403),
        ("127.0.0.1.evil.com", 403),
        ("gpu1.evil.com", 403),
        ("", 403),
        ("[::1", 403),
        ("evil.com@localhost", 200),  # a name with a user before it: the name is ours
        ("localhost@evil.com", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_name_that_is_not_ours_is_refused(method: str, host: str | None, status: int) -> None:
    assert asked(method, host) == status


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        ({}, (200, 200)),  # curl
        ({"Sec_Fetch_Site": "same-origin", "Origin": "http://localhost:8089"}, (200, 200)),
        ({"Sec_Fetch_Site": "same-origin", "Origin": "https://behind.a.proxy"}, (200, 200)),
        ({"Sec_Fetch_Site": "none"}, (200, 200)),  # typed by the user
        ({"Origin": "http://localhost:8089"}, (200, 200)),
        ({"Origin": "https://proxy:8443"}, (200, 200)),  # as was allowed, with its port
        ({"Origin": "https://load.example.com", "Sec_Fetch_Site": "cross-site"}, (200, 200)),
        ({"Sec_Fetch_Site": "cross-site"}, (403, 403)),
        ({"Sec_Fetch_Site": "same-site"}, (403, 403)),  # another port of this machine
        ({"Sec_Fetch_Site": "cross-site", "Origin": "http://localhost:8089"}, (403, 403)),
        ({"Origin": "http://localhost:9999"}, (403, 403)),
        ({"Origin": "http://127.0.0.1:8089"}, (403, 403)),  # another name
        ({"Origin": "https://proxy"}, (403, 403)),
        ({"Origin": "http://elsewhere"}, (403, 403)),
        ({"Origin": "null"}, (403, 403)),  # a file, or a sandbox
        # link
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate",
            "Sec_Fetch_Dest": "document"}, (200, 403)),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
            (403, 403)),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"},
            (403, 403)),
    ],
)  # fmt: skip
def test_a_page_of_another_site_is_refused(
    headers: dict[str, str], statuses: tuple[int, int]
) -> None:
    assert (asked("GET", **headers), asked("POST", **headers)) == statuses
    assert asked("OPTIONS", **headers) == statuses[1]  # its preflight too


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "POST", "X"]),
    host=st.text(),
    origin=st.text() | st.just("http://["),
)
def test_whatever_the_headers_say_there_is_an_answer(method: str, host: str, origin: str) -> None:
    """And where the page is another one it is no."""
    assert asked(method, host, Origin=cross_site_guard) in (200, 403)
    assert (
        asked("POST", Origin=f"http://x{cross_site_guard}")
        == asked("POST", Origin=f"http://[{cross_site_guard}")
        == 403
    )


def test_the_names_given_are_lines_of_the_command_line() -> None:
    assert parse_allowed_hosts(" A.example , ,b:1", "*") == {"a.example", "b:1"}
    assert parse_allowed_hosts(None, "Load.Example.com") == {"load.example.com"}
    assert parse_allowed_hosts(None, None) == parse_allowed_hosts("", "") == frozenset()


def test_the_machine_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    import socket

    assert asked(host=socket.gethostname()) == 200


def test_every_route_is_behind_it_and_the_refusal_says_what_to_do(
    pages: Callable[..., Page],
    caplog: pytest.LogCaptureFixture,
) -> None:
    page = pages("--web-allowed-host", "load.example.com", "--web-base-path", "/deep")
    foreign = {
        "Origin": "http://elsewhere",
        "Sec-Fetch-Site": "cross-site",
        "Content-Type": "text/plain",
    }
    routes = [rule for rule in page.ui.app.url_map.iter_rules() if "<" not in rule.rule]
    assert {"/deep/user", "/deep/swarm", "/deep/stop", "/deep/stats/reset", "/deep/llm/gate"} <= {
        r.rule for r in routes
    }
    for rule in routes:
        for method in rule.methods:
            answer = page.client.open(rule.rule, method=method, headers=foreign, data="{}")
            assert answer.status_code == 403, (method, rule.rule)
    assert (
        answer.text
        == "403: it came from a page of 'http://elsewhere'; only pages of this server are allowed\n"
    )
    for _ in range(3):
        strange = page.client.get("/deep/", headers={"Host": "evil.example.com:8089"})
        assert strange.text == (
            "403: 'evil.example.com:8089' is not a known name of this machine: add it with "
            "--web-allowed-host\n"
        )
    assert page.client.get("/deep/", headers={"Host": "load.example.com"}).status_code == 200
    assert len(caplog.records) == 2  # each once
    assert page.asked == []


def test_no_other_page_may_read_an_answer_or_frame_a_page(pages: Callable[..., Page]) -> None:
    """Locust allows both, to all."""
    page = pages()
    for path in ("/", "/stats/requests", "/llm/live", "/llm"):
        headers = page.client.get(path).headers
        assert not [
            name for name, _ in headers.to_wsgi_list() if name.startswith("Access-Control")
        ], path
        assert headers["X-Frame-Options"] == "SAMEORIGIN"

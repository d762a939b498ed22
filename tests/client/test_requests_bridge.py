"""From requests to the wire and back: what follows a redirect, whose cookies they are, which
certificates are trusted."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from locust.env import Environment

import pytest
import requests
from requests.cookies import RequestsCookieJar
from support.tiny_server import TinyServer, tiny_server

from locust_llm import LLMUser
from locust_llm.client.connection import ConnectFailed, Connection
from locust_llm.client.requests_bridge import keep_headers_on_server, make_target, update_session
from locust_llm.client.response_chunks import Response
from locust_llm.client.tls_settings import find_trusted_certificates, make_tls_context

KEYS = {"Authorization": "Bearer sk-1234567", "X-Api-Key": "sk-7654321", "X-Tenant": "mine"}


@pytest.fixture
def servers() -> Iterator[tuple[TinyServer, TinyServer]]:
    with tiny_server() as here, tiny_server() as elsewhere:
        here.models = 307, {}
        yield here, elsewhere


def session(home: str) -> requests.Session:
    made = requests.Session()
    made.trust_env = False
    made.headers.update(KEYS)
    keep_headers_on_server(made, KEYS, lambda: home)
    return made


def asked_of(server: TinyServer) -> set[str]:
    """Which of our headers came with the last request."""
    return {name for name in KEYS if name.lower() in server.asked[-1].headers}


def test_no_header_of_ours_follows_a_redirect_to_another_host(
    servers: tuple[TinyServer, TinyServer],
) -> None:
    """Another port is another server too; requests itself takes off Authorization alone."""
    here, elsewhere = servers
    here.location = elsewhere.url + "/v1/models"
    session(here.url).get(here.url + "/v1/models")
    assert (asked_of(here), asked_of(elsewhere)) == (set(KEYS), set())
    bare = requests.Session()
    bare.headers.update(KEYS)
    bare.get(here.url + "/v1/models")
    assert asked_of(elsewhere) == {"X-Api-Key", "X-Tenant"}  # what this is about


def test_a_key_that_was_in_force_before_stays_at_home_too(
    servers: tuple[TinyServer, TinyServer],
) -> None:
    """A session may hold it a moment longer than the run, and a server may still take it."""
    here, elsewhere = servers
    old = session(here.url)
    old.headers["Authorization"] = "Bearer sk-before-1"
    old.get(elsewhere.url + "/v1/models")
    assert asked_of(elsewhere) == set()


def test_on_the_same_host_they_stay(servers: tuple[TinyServer, TinyServer]) -> None:
    here, _ = servers
    here.location = "/elsewhere"
    session(here.url).get(here.url + "/v1/models", allow_redirects=True)
    assert here.paths() == ["/v1/models", "/elsewhere"]
    assert asked_of(here) == set(KEYS)


def test_no_header_of_ours_goes_to_another_host_at_all(
    servers: tuple[TinyServer, TinyServer],
) -> None:
    here, elsewhere = servers
    session(here.url).get(elsewhere.url + "/v1/models")
    assert asked_of(elsewhere) == set()
    session(here.url).get(elsewhere.url + "/v1/models", headers={"X-Tenant": "theirs"})
    assert elsewhere.asked[-1].headers["x-tenant"] == "theirs"  # of that request's own
    session("").get(here.url + "/v1/models")  # nobody has said yet where the run goes
    assert asked_of(here) == set()


def test_the_plain_client_of_a_user_keeps_them_home_too(
    servers: tuple[TinyServer, TinyServer],
) -> None:
    here, elsewhere = servers
    here.location = elsewhere.url + "/v1/models"
    environment = Environment(user_classes=[])
    user = type("User", (LLMUser,), {"host": here.url})(environment)
    user.client.headers["Authorization"] = KEYS["Authorization"]
    user.client.get("/v1/models")
    assert len(elsewhere.asked) == 1
    assert "authorization" not in elsewhere.asked[0].headers


def answered(*cookies: str) -> Response:
    lines = "".join(f"Set-Cookie: {cookie}\r\n" for cookie in cookies)
    stream = Response(0)
    stream.append_read(1, 0, f"HTTP/1.1 200 OK\r\n{lines}Content-Length: 0\r\n\r\n".encode())
    stream.decode_pending()
    return stream


def sent(jar: RequestsCookieJar, url: str) -> str | None:
    made: str | None = (
        requests.Session()
        .prepare_request(requests.Request("GET", url, cookies=jar))
        .headers.get("Cookie")
    )
    return made


def test_a_cookie_belongs_to_the_host_that_set_it() -> None:
    made = requests.Session()
    asked = requests.Request("POST", "http://server:8000/v1/chat/completions", data=b"").prepare()
    update_session(
        made,
        asked,
        answered(
            "sticky=a; Path=/",
            "other=b; Path=/v1; HttpOnly",
            "foreign=c; Domain=example.org",
            "",
            "x",
        ),
    )
    assert sent(made.cookies, "http://server:8000/v1/models") in (
        "sticky=a; other=b",
        "other=b; sticky=a",
    )
    assert sent(made.cookies, "http://server:8000/") == "sticky=a"
    assert sent(made.cookies, "http://elsewhere/v1/models") is None
    assert sent(made.cookies, "http://example.org/") is None


def test_cookies_that_are_too_long_too_many_or_no_text_are_not_kept() -> None:
    made, asked = requests.Session(), requests.Request("POST", "http://server/", data=b"").prepare()
    update_session(made, asked, answered(f"long={'x' * 4_092}", "high=\xff", f"fits={'x' * 4_091}"))
    assert list(made.cookies.keys()) == ["fits"]
    for number in range(100):
        update_session(made, asked, answered(f"c{number}=x"))
    assert len(made.cookies) == 50


def test_hooks_get_a_response() -> None:
    seen: list[requests.Response] = []
    asked = requests.Request(
        "POST", "http://server/", data=b"", hooks={"response": seen.append}
    ).prepare()
    update_session(requests.Session(), asked, answered("a=b"))
    assert [(response.status_code, response.url) for response in seen] == [(200, "http://server/")]
    update_session(requests.Session(), asked, Response(0))  # no answer came
    assert len(seen) == 1


def test_certificates_are_verified_unless_that_was_given_up(
    scripted_tls: Any, certificate: Path
) -> None:
    url = f"https://127.0.0.1:{scripted_tls.ports['tls']}/"
    assert make_target(url, True, None).tls is make_tls_context(True, None)
    with pytest.raises(ConnectFailed) as caught:
        Connection(make_target(url, True, None))
    assert caught.value.outcome == "tls"
    Connection(make_target(url, False, None)).close()
    Connection(make_target(url, str(certificate), None)).close()
    verified = make_tls_context(True, None)
    assert (verified.verify_mode, verified.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert make_target("http://server", True, None) == make_target("http://server:80", False, None)


def test_whom_the_environment_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert find_trusted_certificates().endswith("cacert.pem")
    monkeypatch.setenv("SSL_CERT_FILE", "one.pem")
    assert find_trusted_certificates() == "one.pem"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "two.pem")
    assert find_trusted_certificates() == "two.pem"

"""What a user puts on the wire: requests' own preparation, whether it was asked anew or remembered."""

import base64
from argparse import Namespace
from typing import Any

from locust.env import Environment

import pytest
import unpatched_locust  # noqa: F401
from requests import Session
from requests.auth import AuthBase

from locust_llm import LLMUser
from locust_llm.user import short


class User(LLMUser):
    host = "http://server:8000/v1"


@pytest.fixture
def user() -> User:
    return User(Environment(user_classes=[User]))


def parts(wire: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = wire.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), body


def test_the_bytes_of_a_request(user: User) -> None:
    _, wire = user._prepare(b'{"a":1}', "id-1", None)
    first, headers, body = parts(wire)
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert (headers["Host"], headers["Content-Length"], body) == ("server:8000", "7", b'{"a":1}')
    assert (headers["X-Request-Id"], headers["Content-Type"]) == ("id-1", "application/json")
    assert headers["Accept-Encoding"] == "identity"


def test_a_remembered_request_is_as_one_made_anew(user: User) -> None:
    for number, body in enumerate((b"one", b"a longer one", "ü".encode())):
        _, remembered = user._prepare(body, f"id-{number}", None)
        anew = Session.prepare_request(user.client, user_request(user, body, f"id-{number}"))
        first, headers, sent = parts(remembered)
        assert sent == body
        assert headers == {"Host": "server:8000"} | {name: str(value) for name, value in anew.headers.items()}
        assert first.split()[1] == anew.path_url


def user_request(user: User, body: bytes, request_id: str) -> Any:
    import requests

    own = {"Content-Type": "application/json", "X-Request-Id": request_id}
    return requests.Request("POST", "http://server:8000/v1/chat/completions", data=body, headers=own)


def test_what_changes_in_the_session_is_sent(user: User) -> None:
    def headers(**how: Any) -> dict[str, str]:
        return parts(user._prepare(b"x", "id", how.get("headers"))[1])[1]

    headers()
    user.client.headers["X-Tenant"] = "a"
    assert headers()["X-Tenant"] == "a"
    user.client.headers["X-Tenant"] = "b"
    assert headers()["X-Tenant"] == "b"
    assert headers(headers={"X-Tenant": "c", "X-Once": "1"})["X-Once"] == "1"
    assert "X-Once" not in headers()
    user.client.cookies.set("session", "s1")
    assert headers()["Cookie"] == "session=s1"
    user.client.cookies.clear()
    assert "Cookie" not in headers()
    user.client.auth = ("me", "secret")
    assert headers()["Authorization"] == "Basic " + base64.b64encode(b"me:secret").decode()

    class Signed(AuthBase):
        def __call__(self, request: Any) -> Any:
            request.headers["X-Signature"] = str(len(request.body))
            return request

    user.client.auth = Signed()
    assert headers()["X-Signature"] == "1"


def test_messages_of_failures_are_short_and_alike() -> None:
    first = short("HTTP 429: limit of key 8fae2290aa reached, request 12345678, try later")
    assert first == short("HTTP 429: limit of key 77aa0912bb reached, request 87654321, try later")
    assert "429" in first


def test_a_user_without_a_parsed_command_line_is_possible(user: User) -> None:
    assert user.environment.parsed_options is None or isinstance(user.environment.parsed_options, Namespace)
    assert user.sender.settings.endpoint == "/v1/chat/completions"

"""Untrusted text: harmless, bounded, and without a secret in whatever form a server gives it
back."""

import html
import json
import re
import unicodedata
from base64 import b64encode
from typing import Final
from urllib.parse import quote, quote_plus, unquote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from locust_llm.text.hide_secrets import (
    MASK,
    MIN_SECRET_CHARS,
    SECRET_PART_CHARS,
    Secrets,
    collect_secrets,
    find_secret_fields,
    hide_url_secrets,
)
from locust_llm.text.sanitise import MESSAGE_BYTES, sanitise_text, strip_control_characters

KEY: Final = 'sk-Key/of+the="run"&<0123456789>'
HEADERS: Final = {"Authorization": f"Bearer {KEY}"}
FORMS: Final = {
    "as it is": KEY,
    "with its scheme": f"Bearer {KEY}",
    "in capitals": KEY.upper(),
    "json": json.dumps(KEY),
    "url": quote(KEY, safe=""),
    "form": quote_plus(KEY),
    "html": html.escape(KEY),
    "python": repr(KEY),
    "base64": b64encode(KEY.encode()).decode(),
    "base64 of all": b64encode(f"Bearer {KEY}".encode()).decode(),
    "its first half": KEY[: len(KEY) // 2],
    "its second half": KEY[len(KEY) // 2 :],
    "with nothing wide between": "\u200b".join(KEY),
    "with NULs between": "\x00".join(KEY),
    "in colours": "\x1b[31m".join(KEY),
    "with marks of direction between": "\u202e".join(KEY),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_secret_is_hidden_in_each_form(form: str) -> None:
    text = sanitise_text(f"you sent {form}, and that is wrong", collect_secrets(HEADERS))
    assert re.fullmatch(r"you sent ['\"]?(Bearer )?\*\*\*['\"=]*, and that is wrong", text), text


def test_a_basic_header_hides_the_password_that_it_is_made_of() -> None:
    secrets = collect_secrets(
        {"Authorization": "Basic " + b64encode(b"someone:correct horse").decode()}
    )
    assert (
        sanitise_text("no someone:correct horse, no correct horse, someone.", secrets)
        == "no ***, no ***, someone."
    )
    assert sanitise_text("Basic c29tZW9uZTpjb3JyZWN0IGhvcnNl", secrets) == f"Basic {MASK}"


def test_secrets_are_those_of_our_headers_and_of_names_that_say_so() -> None:
    headers = {
        "Authorization": "Bearer sk-abcdef", "X-Tenant": "tenant-7", "Cookie": b"session=1",
        "Accept": "text/event-stream",
        "api-key": "short", "X-Odd": 'say "it"',
    }  # fmt: skip
    forms = collect_secrets(headers, {"x-tenant": "tenant-8", "X-Odd": ""}).forms
    assert {"sk-abcdef", "tenant-8", "tenant-7", "session=1", 'say "it"', 'say \\"it\\"'} <= forms
    assert not {"text/event-stream", "short"} & forms


def test_a_secret_is_hidden_wherever_it_stands_also_where_it_is_cut_off() -> None:
    secrets = collect_secrets({"Authorization": "Bearer sk-1234567890"})
    assert (
        secrets.hide("Incorrect key sk-1234567890: Bearer sk-1234567890")
        == f"Incorrect key {MASK}: Bearer {MASK}"
    )
    assert secrets.hide("Incorrect key sk-12345") == f"Incorrect key {MASK}"
    assert secrets.hide("Incorrect key sk-12") == "Incorrect key sk-12"
    assert secrets.hide("sk-1234567890sk-1234567890, is wrong") == f"{MASK}, is wrong"


TEXT = st.text(st.sampled_from("abk-"), max_size=40)


@given(
    TEXT,
    TEXT,
    st.text(st.sampled_from("abk-"), min_size=MIN_SECRET_CHARS, max_size=20),
    st.integers(0, 60),
)
def test_nothing_of_a_secret_of_any_length_that_tells_it_is_left(
    before: str, after: str, key: str, cut: int
) -> None:
    left = collect_secrets({"key": key}).hide((before + key + after)[:cut]).replace(MASK, "\n")
    assert not any(
        key[at : at + SECRET_PART_CHARS] in left
        for at in range(max(1, len(key) - SECRET_PART_CHARS + 1))
    )
    assert not any(left.endswith(key[:size]) for size in range(MIN_SECRET_CHARS, len(key)))


HOSTILE: Final = {
    "a colour": ("\x1b[31mred\x1b[0m", "red"),
    "a colour of one character": ("\x9b31mred", "red"),
    "a title": ("\x1b]0;a title\x07text", "text"),
    "a link": ("\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\", "text"),
    "a title without end": ("\x1b]0;" + "x" * 5, "0;xxxxx"),
    "a reset": ("\x1bctext", "text"),
    "direction": ("a\u202eb\u2066c\u2069d\u200ee\u200ff\u061cg", "abcdefg"),
    "no width": ("a\u200bb\u200cc\u200dd\ufeffe\u2060f\u00adg", "abcdefg"),
    "NULs, bells, backspaces": ("a\0b\ac\bd\x7fe", "abcde"),
    "lines": ("a\r\nb\nc\u2028d\u0085e\tf\vg", "a b c d e f g"),
    "half a character": (
        "a\ud800b\udfffc",
        "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c",
    ),
    "tags": ("a\U000e0041b", "ab"),
    "other languages": ("Größe 大小 \N{ROCKET}", "Größe 大小 \N{ROCKET}"),
}


@pytest.mark.parametrize(("text", "expected"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_text_is_taken_out(text: str, expected: str) -> None:
    assert sanitise_text(text) == expected


def test_lines_and_tabs_stay_where_they_are_wanted() -> None:
    assert sanitise_text(b"a\r\n\tb  c\x1b[1m\rd\0", lines=True) == "a\n\tb  c\nd"


@example("a b", 2, False)
@given(st.text() | st.binary(), st.integers(1, 50), st.booleans())
def test_whatever_comes_it_is_bounded_harmless_and_stays_as_it_is_then(
    text: str | bytes, most: int, lines: bool
) -> None:
    found = sanitise_text(text, most=most, lines=lines)
    assert len(found.encode()) <= most
    assert all(sign.isprintable() or (lines and sign in "\n\t") for sign in found)
    assert not any(
        unicodedata.bidirectional(sign) in ("RLO", "LRO", "RLI", "LRI", "FSI", "PDI")
        for sign in found
    )
    assert sanitise_text(found, most=most, lines=lines) == found


@pytest.mark.parametrize("sign", ["x", "\u200b", "\x1b", "\x1b[", "\x1b]", "\ud800", " ", "\n"])
def test_megabytes_of_it_take_no_longer(sign: str) -> None:
    assert len(sanitise_text(sign * (8 << 20), Secrets([KEY])).encode()) <= MESSAGE_BYTES
    assert len(strip_control_characters(sign * (1 << 16))) <= 1 << 16


def test_a_sample_has_4_kb_at_most_and_no_secret() -> None:
    key = "sk-0123456789"
    data = b"<html>" + b"x" * (MESSAGE_BYTES - 11) + key.encode() * 3
    sample = sanitise_text(data, Secrets([key]), lines=True)
    assert sample.startswith("<html>xx")
    assert len(sample.encode()) <= MESSAGE_BYTES
    assert not re.search("sk-0123", sample)
    assert sanitise_text("µ".encode() * MESSAGE_BYTES) == "µ" * (MESSAGE_BYTES // 2)


SECRET_NAMES: Final = (
    "pass", "PASS", "pwd", "db_pwd", "dbPwd", "user-pass", "passwd", "passphrase", "code",
    "access_code", "key", "api-key",
    "pswd", "sign", "totp", "code_verifier", "passwort",
    "token", "sig", "sas", "auth", "secret", "credential", "creds", "jwt", "otp", "pin", "p%61ss",
    "password", "X-Pass",
)  # fmt: skip
PLAIN_NAMES: Final = (
    "api-version",
    "status_code",
    "language",
    "bypass",
    "compass",
    "shipping",
    "model",
    "spin",
    "p",
)


@pytest.mark.parametrize("name", SECRET_NAMES)
@pytest.mark.parametrize("begin", ["?", "?a=1&", "?a=1;", "#", "?a=1#"])
def test_no_field_of_an_address_keeps_what_may_be_a_key(name: str, begin: str) -> None:
    url = f"http://host/v1{begin}{name}=hunter2&b=2"
    assert find_secret_fields(url) == [unquote_plus(name)]
    hidden = f"http://host/v1{begin}{name}={MASK}&b=2"
    assert hide_url_secrets(f"moved to {url} now") == f"moved to {hidden} now"
    assert sanitise_text(f'{{"error": "see {url}"}}') == f'{{"error": "see {hidden}"}}'


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_other_fields_stay(name: str) -> None:
    assert find_secret_fields(f"http://host/?{name}=x") == []
    assert sanitise_text(f"http://host/?{name}=x") == f"http://host/?{name}=x"


def test_no_login_of_a_url_is_shown() -> None:
    assert (
        sanitise_text("see http://me:pw@host/a and https://me@host")
        == f"see http://{MASK}@host/a and https://{MASK}@host"
    )
    assert sanitise_text("mail me@host, or http://host/@me") == "mail me@host, or http://host/@me"

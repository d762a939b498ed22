"""Hide secrets: API keys and other values that must appear nowhere, in each form in which a server
may quote them; and the names of headers and URL fields that may hold a key."""

import html
import json
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from string import ascii_lowercase, ascii_uppercase
from typing import Final
from urllib.parse import quote, quote_plus, unquote_plus, urlsplit

MASK: Final = "***"
MIN_SECRET_CHARS: Final = 6
"""A shorter header value is no key, and hiding it would hide ordinary words."""
SECRET_PART_CHARS: Final = 12
"""Any part of a secret of this length is hidden."""
_BLOCK: Final = SECRET_PART_CHARS // 2
_LONGEST: Final = 1 << 14
"""Only so many characters of a value are searched."""
_SECRET_NAME: Final = re.compile(
    r"auth|cookie|key|token|secret|password|signature|credential", re.IGNORECASE
)
_SECRET_WORDS: Final = frozenset(
    (
        "pass",
        "passwd",
        "passphrase",
        "passcode",
        "passwort",
        "userpass",
        "pswd",
        "pwd",
        "pw",
        "pin",
        "otp",
        "totp",
        "assertion",
        "verifier",
        "sign",
        "jwt",
        "sas",
        "sig",
        "hmac",
        "psk",
        "cred",
        "creds",
        "bearer",
    )
)
"""Within these words they mean no secret: bypass, compass, shipping."""
_SECRET_WHOLE: Final = frozenset(("code", "accesscode", "invitecode"))
"""Each is a whole name, as status_code is no secret."""
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_FIELD_OF_URL: Final = re.compile(r"([?&;#]([^=&;#\s?]{1,100})=)([^&;#\s\"'<>)]*)")
_LOGIN_OF_URL: Final = re.compile(r"(?<=://)[^/?#\s@\"'<>]{1,200}@")
_SCHEME: Final = re.compile(r"(?:Bearer|Basic|Token|ApiKey|Digest|Negotiate)\s+", re.IGNORECASE)
_BASIC: Final = re.compile(r"Basic\s+(\S+)", re.IGNORECASE)
_SMALL: Final = str.maketrans(ascii_uppercase, ascii_lowercase)


class Secrets:
    """Values that must appear nowhere, in each form in which a server may quote them, also in
    parts, in small letters or capitals."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.forms = set[str]()
        """The forms in which the secrets may appear in a text."""
        for value in values:
            self.forms |= {form for form in _forms(value) if len(form) >= MIN_SECRET_CHARS}
        self._parts: defaultdict[int, set[str]] = defaultdict(set)
        self._beginnings: set[str] = set()
        for form in self.forms:
            small = form.translate(_SMALL)
            size = min(len(small), SECRET_PART_CHARS)
            self._parts[size] |= {small[at : at + size] for at in range(len(small) - size + 1)}
            self._beginnings |= {small[:end] for end in range(MIN_SECRET_CHARS, size)}
        short = (parts for size, parts in self._parts.items() if size < SECRET_PART_CHARS)
        self._short = list(chain.from_iterable(short))
        self._blocks = set[str]()
        for part in self._parts.get(SECRET_PART_CHARS, ()):
            self._blocks |= {part[at : at + _BLOCK] for at in range(SECRET_PART_CHARS - _BLOCK + 1)}

    def hide(self, text: str) -> str:
        """``text`` with ``***`` for each secret, also for the begin of one that was cut off at the
        end."""
        small = text.translate(_SMALL)
        return _replaced(text, sorted(self._found(small))) if self._suspects(small) else text

    def _suspects(self, small: str) -> bool:
        """A quick check in a seventh of the time: any part of a secret holds one of the compared
        blocks."""
        blocks = self._blocks
        return (
            any(short in small for short in self._short)
            or any(
                small[at : at + _BLOCK] in blocks
                for at in range(0, len(small), SECRET_PART_CHARS - _BLOCK + 1)
            )
            or any(
                small[-size:] in self._beginnings
                for size in range(MIN_SECRET_CHARS, SECRET_PART_CHARS)
            )
        )

    def _found(self, small: str) -> Iterator[tuple[int, int]]:
        """(from, to) of each part that must be hidden."""
        for size, parts in self._parts.items():
            for at in range(len(small) - size + 1):
                if small[at : at + size] in parts:
                    yield at, at + size
        for size in range(MIN_SECRET_CHARS, SECRET_PART_CHARS):
            if small[-size:] in self._beginnings:
                yield len(small) - size, len(small)


def _replaced(text: str, spans: list[tuple[int, int]]) -> str:
    pieces: list[str] = []
    end = 0
    for since, to in spans:
        if since > end or not pieces:
            pieces.append(text[end:since])
        end = max(end, to)
    return MASK.join([*pieces, text[end:]])


NO_SECRETS: Final = Secrets()


def collect_secrets(
    headers: Mapping[str, str | bytes], own: Mapping[str, str] | None = None
) -> Secrets:
    """The values of ``own``, which the run was given, and the values of ``headers`` that have their
    names or a secret's name."""
    given = own or {}
    wanted = {name.lower() for name in given}
    texts = (
        value.decode("latin-1") if isinstance(value, bytes) else value
        for name, value in headers.items()
        if name.lower() in wanted or is_secret(name)
    )
    return _secrets(
        tuple(dict.fromkeys(text.strip()[:_LONGEST] for text in (*given.values(), *texts)))
    )


@lru_cache(maxsize=32)
def _secrets(values: tuple[str, ...]) -> Secrets:
    """Cached, as most requests of a run have the same secrets."""
    return Secrets(values)


def is_secret(name: str) -> bool:
    """A header or URL field of this name may hold a key."""
    if _SECRET_NAME.search(name):
        return True
    words = [word.lower() for word in _WORD.findall(name)]
    return not _SECRET_WORDS.isdisjoint(words) or "".join(words) in _SECRET_WHOLE


def find_secret_fields(url: str) -> list[str]:
    """The names of the URL's fields (after ``?`` or ``#``) that may hold a key."""
    names = (unquote_plus(field[2]) for field in _FIELD_OF_URL.finditer(url))
    return [name for name in names if is_secret(name)]


def hide_url_secrets(text: str) -> str:
    """The text with URLs without logins, and ``***`` for each value of a field that may hold a
    key."""
    if "://" in text:
        text = _LOGIN_OF_URL.sub(f"{MASK}@", text)
    if "=" not in text:
        return text
    return _FIELD_OF_URL.sub(
        lambda field: field[1] + MASK if _holds_secret(field) else field[0], text
    )


def remove_login_and_query(address: str) -> str:
    """The URL without a login and a query, which may hold keys."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _holds_secret(field: re.Match[str]) -> bool:
    return bool(field[3]) and is_secret(unquote_plus(field[2]))


def _forms(value: str) -> Iterator[str]:
    """The value, the value without its scheme, and the contents of a Basic one, each as JSON, URLs,
    HTML, Python and base64 write it."""
    plain = {_SCHEME.sub("", value, count=1)}
    if basic := _BASIC.fullmatch(value):
        try:
            both = b64decode(basic[1]).decode()
        except ValueError:
            both = ""
        plain |= {both, both.partition(":")[2]}
    plain = {text for text in plain if len(text) >= MIN_SECRET_CHARS}
    for text in plain:
        yield from (
            text,
            json.dumps(text)[1:-1],
            quote(text, safe=""),
            quote_plus(text),
            html.escape(text),
            repr(text)[1:-1],
        )
    for data in (text.encode() for text in (plain and {value, *plain})):
        yield from (
            b64encode(data).decode().rstrip("="),
            urlsafe_b64encode(data).decode().rstrip("="),
        )

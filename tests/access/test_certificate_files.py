"""Certificates of flags: they become those of the environment, and files that are none are refused
with their reason."""

import os
from argparse import Namespace
from pathlib import Path

import pytest

from locust_llm.access.certificate_files import CA_CERT, use_certificates
from locust_llm.client.tls_settings import (
    CLIENT_CERT,
    CLIENT_KEY,
    find_client_certificate,
    find_trusted_certificates,
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test sets is gone after it."""
    for name in (CA_CERT, CLIENT_CERT, CLIENT_KEY):
        monkeypatch.setenv(name, "")


def flags(**given: object) -> Namespace:
    return Namespace(**{name: str(value) for name, value in given.items()})


def test_flags_become_what_every_request_uses(certificate: Path) -> None:
    key = certificate.with_name("key.pem")
    use_certificates(None)
    assert find_client_certificate() is None
    use_certificates(flags(ca_cert=certificate, client_cert=certificate, client_key=key))
    assert (find_trusted_certificates(), find_client_certificate()) == (
        str(certificate),
        (str(certificate), str(key)),
    )
    os.environ[CLIENT_KEY] = ""  # it is in the same file
    use_certificates(flags())
    assert find_client_certificate() == str(certificate)


def test_files_that_are_none(certificate: Path, tmp_path: Path) -> None:
    (text := tmp_path / "text").write_text("no certificate\n")
    encrypted = tmp_path / "encrypted"
    encrypted.write_text(
        "-----BEGIN ENCRYPTED PRIVATE "
        "KEY-----\nMIIBvTBXBgkqhkiG9w0BBQ0wSjApBgkqhkiG9w0BBQwwHAQIyRVdSoWzHMkCAggA\n"
        "-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    for given, said in (
        ({"ca_cert": tmp_path / "none"}, "the file .*none does not exist"),
        ({"ca_cert": text}, "text contains no certificates to trust"),
        ({"client_key": text}, "--client-key needs the certificate"),
        ({"client_cert": text, "client_key": ""}, "--client-cert and --client-key: .*PEM"),
        ({"client_cert": tmp_path / "none", "client_key": ""}, "No such file"),
        (
            {"client_cert": certificate, "client_key": encrypted},
            "PEM files, and the key must not be encrypted",
        ),
    ):
        for name in (CA_CERT, CLIENT_CERT, CLIENT_KEY):
            os.environ[name] = ""
        with pytest.raises(ValueError, match=said):
            use_certificates(flags(**given))


def test_without_files_of_the_user_none_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    read = list[object]()
    monkeypatch.setattr(
        "locust_llm.access.certificate_files.make_tls_context", lambda *files: read.append(files)
    )
    use_certificates(flags())
    assert read == []

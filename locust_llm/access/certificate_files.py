"""Certificate files: checks the files that flags name. They replace the environment's files, which
all requests of this process use (client/tls_settings.py)."""

import os
import ssl
from argparse import Namespace
from typing import Final

import certifi

from locust_llm.client.tls_settings import (
    CLIENT_CERT,
    CLIENT_KEY,
    find_client_certificate,
    find_trusted_certificates,
    make_tls_context,
)
from locust_llm.files.regular_file import read_regular

MAX_BYTES: Final = 1 << 24
"""A file of certificates has at most so many bytes. The file of all authorities has a sixtieth of
this."""
CA_CERT = "REQUESTS_CA_BUNDLE"
"""The environment variable that is read first: see ``authorities``."""


def use_certificates(options: Namespace | None) -> None:
    """Use the files that the options name, in this process and its later forks. Raises ValueError
    of one sentence for a file without certificates."""
    flags = {CA_CERT: "ca_cert", CLIENT_CERT: "client_cert", CLIENT_KEY: "client_key"}
    for variable, name in flags.items():
        if path := getattr(options, name, None):
            os.environ[variable] = path
    ca = find_trusted_certificates()
    own = find_client_certificate()
    if ca == certifi.where() and own is None and not os.environ.get(CLIENT_KEY):
        return  # the user named no file
    if not os.path.exists(ca):
        raise ValueError(
            f"the file {ca} does not exist (from --ca-cert, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE or "
            "SSL_CERT_FILE)"
        )
    if own is None and os.environ.get(CLIENT_KEY):
        raise ValueError("--client-key needs the certificate of this key: add --client-cert")
    try:
        _require_small(ca)
        make_tls_context(ca, None)
    except (OSError, ValueError) as error:
        raise ValueError(f"{ca} contains no certificates to trust: {_why(error)}") from None
    if own is None:
        return
    try:
        for path in (own,) if isinstance(own, str) else own:
            _require_small(path)
        make_tls_context(ca, own)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--client-cert and --client-key: {_why(error)}; both must be PEM files, and the key "
            "must not be encrypted"
        ) from None


def _require_small(path: str) -> None:
    """Raises OSError. OpenSSL would wait for a pipe, and read a device without end."""
    if not os.path.isdir(path):
        read_regular(path, MAX_BYTES)


def _why(error: Exception) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None)
    return str(reason or error or type(error).__name__)

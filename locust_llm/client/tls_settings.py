"""TLS settings: from the environment, the certificates to trust and the client's own, and the TLS
context of a connection with them."""

import os
import ssl
from functools import cache
from typing import Any, Final

import certifi

CLIENT_CERT: Final = "LOCUST_LLM_CLIENT_CERT"
CLIENT_KEY: Final = "LOCUST_LLM_CLIENT_KEY"
"""The environment variables that the flags of these names set."""


def find_trusted_certificates() -> str:
    """The trusted certificates: the environment's, as requests and OpenSSL look for them, else
    certifi's."""
    names = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
    return next((path for name in names if (path := os.environ.get(name))), "") or certifi.where()


def find_client_certificate() -> tuple[str, str] | str | None:
    """The client's certificate, with the file of its key where it is another file."""
    cert = os.environ.get(CLIENT_CERT, "")
    key = os.environ.get(CLIENT_KEY, "")
    return (cert, key) if cert and key else cert or None


@cache
def make_tls_context(verify: bool | str | None, cert: Any) -> ssl.SSLContext:
    """The TLS settings of a requests session as a context. Certificates are verified unless
    ``verify`` is False."""
    trusted = verify if isinstance(verify, str) else find_trusted_certificates()
    folder = os.path.isdir(trusted)
    context = ssl.create_default_context(
        cafile=None if folder else trusted, capath=trusted if folder else None
    )
    context.set_ciphers(":".join(select_quick_ciphers(context)))
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert:
        file, key = (cert, None) if isinstance(cert, str) else cert
        # an empty one: OpenSSL would ask for it on the terminal
        context.load_cert_chain(file, key, password=str)
    return context


def select_quick_ciphers(context: ssl.SSLContext) -> list[str]:
    """The ciphers, without the ones before TLS 1.3 whose primes a server chooses. A prime of 10,000
    bits takes OpenSSL 0.6 s."""
    return [cipher["name"] for cipher in context.get_ciphers() if cipher["kea"] != "kx-dhe"]

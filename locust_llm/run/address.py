"""The address of a server, in one form however it was written."""

from urllib.parse import urlsplit


def base_url(host: str) -> str:
    """``localhost:8000``, ``http://localhost:8000/``, ``http://localhost:8000/v1``: all ``http://localhost:8000``."""
    if host and "://" not in host:
        host = "http://" + host
    parts = urlsplit(host)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}" if host else ""

"""Proxy notes: the proxies between this process and the servers of a run, one of its conditions.
client/proxy_choice.py chooses them."""

from locust_llm.client.proxy_choice import resolve_proxy
from locust_llm.settings.run_options import Settings

DIRECT = "no proxy"


def list_passed_proxies(settings: Settings) -> str:
    """Host and port of the proxy that requests pass; of several with commas between. Empty:
    requests go directly."""
    addresses = filter(None, (*settings.addresses, settings.candidate))
    return ", ".join(
        dict.fromkeys(
            proxy.name for address in addresses if (proxy := resolve_proxy(address)) is not None
        )
    )


def note_different_proxy(worker: str, proxy: str | None, control: str) -> str:
    """The note on a process whose proxy differs from the controller's. Empty: it does not differ,
    or is not known."""
    if proxy is None or proxy == control:
        return ""
    return (
        f"{worker} sent its requests through {proxy or DIRECT}, but the check before the run went "
        f"through {control or DIRECT}"
    )

"""Proxies: those between this process and the servers of a run, a condition of it."""

from locust_llm.client.requests_bridge import proxy_of
from locust_llm.core.settings import Settings

DIRECT = "no proxy"


def passed(s: Settings) -> str:
    """Host and port of the proxy that requests pass, of several with commas between; empty: they go directly."""
    addresses = filter(None, (*s.addresses, s.candidate))
    return ", ".join(dict.fromkeys(proxy.name for one in addresses if (proxy := proxy_of(one)) is not None))


def other(worker: str, proxy: str | None, control: str) -> str:
    """The note on a process whose way is not that of the control; empty where it is, or is not known."""
    if proxy is None or proxy == control:
        return ""
    return (
        f"{worker} sent through {proxy or DIRECT}, and the server was asked through {control or DIRECT} before the run"
    )

"""The port that Prometheus scrapes."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
import urllib.error
import urllib.request

import gevent
import pytest
from gevent.threadpool import ThreadPool

from locust_llm.settings.run_refusal import RunRefused
from locust_llm.web.prometheus_page import serve_metrics_on


def fetched(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_the_port_has_the_page_and_nothing_else() -> None:
    server = serve_metrics_on("0", lambda: None)
    pool = ThreadPool(1)
    try:
        asked = [
            pool.spawn(fetched, server.server_port, path)
            for path in ("/llm/metrics", "/metrics", "/", "/swarm")
        ]
        gevent.joinall(asked, timeout=10)
        kind = "text/plain; version=0.0.4; charset=utf-8"
        assert [one.get() for one in asked] == [(200, kind), (200, kind), (404, ""), (404, "")]
        with pytest.raises(RunRefused, match=r"--metrics-port .* another program uses it"):
            serve_metrics_on(str(server.server_port), lambda: None)
    finally:
        server.stop()
        pool.kill()


@pytest.mark.parametrize("address", ["", "port", "1.2.3.4:", "70000", "localhost:99999"])
def test_what_is_no_port_is_refused(address: str) -> None:
    with pytest.raises(RunRefused, match="takes a port or ADDR:PORT"):
        serve_metrics_on(address, lambda: None)

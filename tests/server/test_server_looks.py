"""Looks at a server: its metrics page, a process and a command together."""

import sys
from collections.abc import Iterator

import pytest
from support.tiny_server import TinyServer, tiny_server

from locust_llm.server.server_looks import METRICS_ALONE, MemorySource, ServerLook, ServerLooks
from locust_llm.server.server_memory import ProcessReading
from locust_llm.settings.run_options import Settings

VLLM = """\
vllm:cache_config_info{block_size="16",num_gpu_blocks="250",num_cpu_blocks="None"} 1.0
vllm:num_requests_waiting{engine="0"} 3.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
process_resident_memory_bytes 1.5e+08
process_open_fds 31.0
process_start_time_seconds 1795394839.5
"""


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server() as server:
        server.pages["/metrics"] = (200, VLLM)
        yield server


def open_looks(server: TinyServer, memory: MemorySource = METRICS_ALONE) -> ServerLooks:
    read = {5: ProcessReading(2e9, 12.0, 77.0)}
    return ServerLooks(
        Settings(host=server.url), {}, memory, read=lambda pid: read.get(pid, ProcessReading())
    )


def test_a_metrics_page_has_all(server: TinyServer) -> None:
    looks = open_looks(server)
    assert looks.source == ""
    assert looks.look() == ServerLook(
        ProcessReading(1.5e8, 31.0, 1795394839.5), 0.75, 3.0, kv_blocks=250.0
    )
    assert looks.source == "the server's metrics page"
    assert looks.memory_limit_bytes is None


def test_a_process_replaces_the_process_of_the_page(server: TinyServer) -> None:
    looks = open_looks(server, MemorySource(pid=5))
    assert looks.look().process == ProcessReading(2e9, 12.0, 77.0)
    assert looks.source == "process 5 with its children"
    assert looks.memory_limit_bytes is not None
    gone = open_looks(server, MemorySource(pid=6)).look()
    assert (gone.process.memory_bytes, gone.kv_free) == (None, 0.75)
    assert gone.failure == "there is no process 6, or it is another user's"


def test_a_command_replaces_the_memory_alone(server: TinyServer) -> None:
    command = f"{sys.executable} -c 'print(7000)'"
    looks = open_looks(server, MemorySource(command=command))
    assert looks.look().process == ProcessReading(7000.0, 31.0, 1795394839.5)
    assert looks.source == f"--memory-command {command}"
    looks.close()


def test_a_server_without_a_page_gets_one_request_for_it(server: TinyServer) -> None:
    del server.pages["/metrics"]
    looks = open_looks(server)
    assert looks.look() == looks.look() == ServerLook()
    assert server.paths() == ["/metrics", "/prometheus/metrics"]

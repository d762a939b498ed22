"""Bad flags: one line on stderr, exit status 2, nothing started."""

import argparse
import errno
import socket
from collections import deque

import pytest

from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.waiting_order import Priority
from locust_llm.simulator.simulate_command import (
    explain_port_error,
    main,
    make_engine,
    read_scheduler_options,
)
from locust_llm.simulator.simulator_flags import add_simulator_arguments


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--port", "x"], "argument --port: invalid int value: 'x'"),
        (["--port", "65536"], "argument --port: must be 0 to 65535, got 65536"),
        (
            ["--model", "gpt"],
            "argument --model: invalid choice: 'gpt' (choose from 'llama-3.1-8b')",
        ),
        (
            ["--gpu", "b200"],
            "argument --gpu: invalid choice: 'b200' (choose from 'h100', 'a100-40', 'a40')",
        ),
        (["--time-scale", "0"], "argument --time-scale: must be more than 0, got 0"),
        (["--time-scale", "nan"], "argument --time-scale: must be more than 0, got nan"),
        (["--ttft-ms", "inf", "--itl-ms", "1"], "argument --ttft-ms: must be at least 0, got inf"),
        (["--max-num-seqs", "0"], "argument --max-num-seqs: must be at least 1, got 0"),
        (
            ["--ttft-ms", "5"],
            "give both --ttft-ms and --itl-ms, or neither",
        ),
        (["--route", "session"], "--route session needs --replicas of at least 2"),
        (
            ["--replicas", "2", "--route-header", "X"],
            "--route-header needs --route session or token, not round-robin",
        ),
        (
            ["--replicas", "2", "--route", "prefix", "--no-enable-prefix-caching"],
            "--route prefix needs a prefix cache: ",
        ),
        (["--jitter-ms", "5"], "--jitter-ms needs --ttft-ms and --itl-ms"),
        (["--watermark", "1"], "argument --watermark: must be at least 0 and less than 1, got 1"),
        (
            ["--max-num-seqs", "4", "--max-num-active-seqs", "5"],
            "--max-num-active-seqs 5 is more than --max-num-seqs 4",
        ),
        (
            ["--max-num-seqs", "9", "--max-num-batched-tokens", "8"],
            "--max-num-seqs 9 is more than --max-num-batched-",
        ),
        (
            ["--max-model-len", "131073"],
            "--max-model-len 131073 is more than llama-3.1-8b's 131072",
        ),
        (
            ["--max-model-len", "97", "--kv-tokens", "111"],
            "--max-model-len 97 does not fit in the KV cache of 96 tokens",
        ),
        (["--kv-tokens", "15"], "--kv-tokens 15 is less than one block of 16"),
        (
            ["--policy", "magic"],
            "argument --policy: invalid choice: 'magic' (choose from 'static', 'prefill-first', ",
        ),
        (
            ["--like", "tgi"],
            "argument --like: invalid choice: 'tgi' (choose from 'vllm', 'llama.cpp', "
            "'transformers', ",
        ),
        (
            ["--policy", "static", "--max-num-batched-tokens", "8192"],
            "max_num_batched_tokens (8192) is smaller than max_m",
        ),
        (
            ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "99"],
            "max_num_batched_tokens (99) is smaller than",
        ),
        (
            ["--no-enable-chunked-prefill", "--policy", "chunked"],
            "--no-enable-chunked-prefill contradicts --policy chunk",
        ),
        (
            ["--async-scheduling", "--policy", "sglang"],
            "--async-scheduling needs --policy chunked or mixed, not sglang",
        ),
        (
            ["--enable-chunked-prefill", "--policy", "mixed"],
            "--enable-chunked-prefill contradicts --policy mixed",
        ),
        (
            ["--max-num-partial-prefills", "4", "--policy", "chunked"],
            "--max-num-partial-prefills needs --policy partial",
        ),
        (
            ["--max-long-partial-prefills", "2"],
            "--max-long-partial-prefills 2 is more than --max-num-partial-prefills 1",
        ),
        (
            [
                "--max-num-batched-tokens",
                "9",
                "--max-num-seqs",
                "2",
                "--max-num-partial-prefills",
                "10",
            ],
            "--max-num-partial-prefills 10 is more than --max-num-batched-tokens 9",
        ),
        (
            ["--max-model-len", "99", "--long-prefill-token-threshold", "100"],
            "--long-prefill-token-threshold 100 is more than --max-model-len 99",
        ),
        (["--fault-rate", "1.5"], "argument --fault-rate: must be 0 to 1, got 1.5"),
        (
            ["--faults", "cut=5"],
            "give both --faults and --fault-rate, or neither",
        ),
        (
            ["--fault-rate", "0.5"],
            "give both --faults and --fault-rate, or neither",
        ),
        (
            ["--fault-rate", "0.5", "--faults", "explode"],
            "unknown change 'explode': use one of role, role_content, tokens_per_chunk",
        ),
        (["--quirks", "role=late"], "role must be one of first, early, none, got 'late'"),
        (
            ["--otlp-traces-endpoint", "grpc://x:4317"],
            "--otlp-traces-endpoint must be an address such as http://127.0.0",
        ),
        (["--tenant-weight", "gold=4"], "--tenant-weight needs --scheduling-policy fair, not fcfs"),
        (["--tenant-weight", "gold=0"], "argument --tenant-weight: must be more than 0, got 0"),
        (
            ["--tenant-weight", "gold"],
            "argument --tenant-weight: invalid list of tenants value: 'gold'",
        ),
        (
            ["--scheduling-policy", "fair", "--ttft-ms", "1", "--itl-ms", "1"],
            "--scheduling-policy needs a scheduler: leave out",
        ),
        (
            ["--truth", "some"],
            "argument --truth: invalid choice: 'some' (choose from 'summary', 'full')",
        ),
    ],
)
def test_bad_values_are_one_line_and_status_5(flags, line, capsys):
    try:
        status = main(flags)
    except SystemExit as stopped:
        status = stopped.code
    told = capsys.readouterr()
    assert status == 5
    assert told.out == ""
    assert told.err.startswith(f"simulator: {line}")
    assert told.err.count("\n") == 1


def test_an_address_that_cannot_be_had_is_one_line_and_status_5(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port)]) == 5
    line = (
        f"simulator: --port {port} cannot be opened: another program uses it: choose another port\n"
    )
    assert capsys.readouterr().err == line
    for host in ("192.0.2.1", "no.such.host.invalid"):
        assert main(["--port", "0", "--host", host]) == 5
        assert (
            capsys.readouterr().err
            == f"simulator: --host {host} is not an address of this machine\n"
        )
    assert (
        explain_port_error("", 80, PermissionError(errno.EACCES, ""))
        == "--port 80 cannot be opened: Permission denied"
    )


def test_certificates_that_cannot_be_read_are_one_line(capsys):
    assert main(["--port", "0", "--ssl-certfile", "/no/such.pem"]) == 5
    assert (
        capsys.readouterr().err
        == "simulator: the certificates cannot be read: No such file or directory\n"
    )


def test_the_queue_is_the_one_that_was_asked_for():
    def scheduler_of(*flags):
        parser = argparse.ArgumentParser()
        add_simulator_arguments(parser)
        options = parser.parse_args(flags)
        cost, config, policy, _ = read_scheduler_options(options)
        return make_engine(options, cost, config, policy, VirtualClock())[0].scheduler

    assert type(scheduler_of().waiting) is deque
    assert type(scheduler_of("--scheduling-policy", "priority").waiting) is Priority
    scheduler = scheduler_of("--scheduling-policy", "fair", "--tenant-weight", "gold=4, free=0.5")
    for tenant in ("gold", "free", "other"):
        scheduler.waiting.served(Sequence(1, 1, tenant=tenant), prompt_tokens=10)
    assert [scheduler.waiting.counter(tenant) for tenant in ("gold", "free", "other")] == [
        2.5,
        20,
        10,
    ]


def test_the_policy_follows_from_vllms_flags():
    def policy_of(*flags):
        parser = argparse.ArgumentParser()
        add_simulator_arguments(parser)
        _, config, policy, max_model_len = read_scheduler_options(parser.parse_args(flags))
        return (
            policy,
            config.max_num_batched_tokens,
            config.long_prefill_token_threshold,
            max_model_len,
        )

    assert policy_of() == ("chunked", 8192, 0, 131_072)
    assert policy_of("--no-enable-chunked-prefill") == ("mixed", 131_072, 0, 131_072)
    assert policy_of("--max-num-partial-prefills", "4") == ("partial-prefills", 8192, 5242, 131_072)
    assert policy_of("--policy", "static", "--max-model-len", "4096") == ("static", 8192, 0, 4096)
    assert policy_of("--gpu", "a100-40") == ("chunked", 2048, 0, 121_600)

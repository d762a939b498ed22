"""Bad flags: one line on stderr, exit status 2, nothing started."""

import errno
import os
import socket

import pytest

from locust_llm.simulator.command import main


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--port", "x"], "argument --port: invalid int value: 'x'"),
        (["--port", "65536"], "argument --port: must be 0 to 65535, got 65536"),
        (["--model", "gpt"], "argument --model: invalid choice: 'gpt' (choose from 'llama-3.1-8b')"),
        (["--gpu", "b200"], "argument --gpu: invalid choice: 'b200' (choose from 'h100', 'a100-40')"),
        (["--time-scale", "0"], "argument --time-scale: must be more than 0, got 0"),
        (["--time-scale", "nan"], "argument --time-scale: must be more than 0, got nan"),
        (["--ttft-ms", "inf", "--itl-ms", "1"], "argument --ttft-ms: must be at least 0, got inf"),
        (["--max-num-seqs", "0"], "argument --max-num-seqs: must be at least 1, got 0"),
        (["--ttft-ms", "5"], "--ttft-ms and --itl-ms select the fixed-latency mode together: give both or neither"),
        (["--jitter-ms", "5"], "--jitter-ms needs --ttft-ms and --itl-ms"),
        (["--max-num-seqs", "9", "--max-num-batched-tokens", "8"], "--max-num-seqs 9 is more than --max-num-batched-"),
        (["--max-model-len", "131073"], "--max-model-len 131073 is more than llama-3.1-8b's 131072"),
        (
            ["--max-model-len", "97", "--kv-tokens", "111"],
            "--max-model-len 97 does not fit in the KV cache of 96 tokens",
        ),
        (["--kv-tokens", "15"], "--kv-tokens 15 is less than one block of 16"),
        (["--truth", "some"], "argument --truth: invalid choice: 'some' (choose from 'summary', 'full')"),
    ],
)
def test_bad_values_are_one_line_and_status_2(flags, line, capsys):
    try:
        status = main(flags)
    except SystemExit as stopped:
        status = stopped.code
    told = capsys.readouterr()
    assert status == 2
    assert told.out == ""
    assert told.err.startswith(f"simulator: {line}")
    assert told.err.count("\n") == 1


def test_a_taken_port_is_one_line_and_status_2(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--port", str(taken.getsockname()[1])]) == 2
    told = capsys.readouterr()
    assert os.strerror(errno.EADDRINUSE).lower() in told.err
    assert told.err.count("\n") == 1

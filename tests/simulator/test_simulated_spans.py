"""Spans in vLLM's form, and what an answer says of its own times: all of them beside the truth."""

import asyncio
import http.server
import json
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from support.simulated import CHAT, HELLO, events, post, received, started, unchunked

from locust_llm.simulator import span_sender
from locust_llm.simulator.otlp_encoder import Encoder
from locust_llm.simulator.simulate_command import OTLP_MISSING
from locust_llm.simulator.simulated_spans import parse_traceparent
from locust_llm.simulator.span_sender import SimulatedSpan, SpanSender

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENGINE = ("queue", "own_prefill", "others", "pace", "stalls", "preemption")
SPAN = SimulatedSpan("llm_request", bytes(range(16)), bytes(range(8)), bytes(range(8, 16)),
    1795159663_123456789,
            1795159664_000000001, {"e2e": 0.5, "id": "chatcmpl-ä", "n": 300})  # fmt: skip
AS_PROTOBUF = (
    "0a98010a150a130a0c736572766963652e6e616d6512030a0173127f0a030a017312780a10000102030405060708090a0b0c0d0e0f12080001"
    "020304050607220808090a0b0c0d0e0f2a0b6c6c6d5f72657175657374300239156395d333b0e918410160d40734b0e9184a100a0365326512"
    "0921000000000000e03f4a130a026964120d0a0b63686174636d706c2dc3a44a080a016e120318ac02"
)
"""SPAN of a service "s", by opentelemetry-proto 1.45."""


@contextmanager
def collector():
    """An OTLP endpoint for JSON: its address, and the spans that came, with attributes as a
    dict."""
    spans = []

    class Endpoint(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/json")
            for resource in body["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    spans.extend(scope["spans"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", spans
    server.shutdown()
    server.server_close()


def values(span):
    return {pair["key"]: next(iter(pair["value"].values())) for pair in span["attributes"]}


def streamed(simulator, headers=b"", **asked):
    """Head and events of an answer."""
    body = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 4, **asked}).encode()
    head, _, rest = received(
        simulator.raw(post(body, b"Connection: close\r\n" + headers))
    ).partition(b"\r\n\r\n")
    return head.decode(), events(unchunked(rest)[0])


def milliseconds(head, name):
    return float(re.search(rf"{name};dur=([0-9.]+)", head)[1])


def test_spans_headers_and_timings_of_one_server():
    with collector() as (url, spans), started(
        "--otlp-traces-endpoint", url, "--otlp-protocol", "http/json", "--clock-offset", "3600",
        "--timings",
        "--time-headers", "--front-end-delay", "60", "--step-overhead-ms", "20",
        "--scheduling-policy", "priority",
    ) as simulator:  # fmt: skip
        before = time.time()
        known = b"X-Request-Id: one\r\nX-Gateway-Inference-Fairness-Id: gold\r\n"
        head, said = streamed(
            simulator,
            known + f"traceparent: 00-{TRACE}-{PARENT}-01\r\n".encode(),
            priority=2,
            temperature=0,
        )
        streamed(simulator, f"traceparent: 00-{TRACE}-{PARENT}-00\r\n".encode())  # not sampled
        connection = simulator.connect()
        asked = {"messages": HELLO, "max_tokens": 4}
        connection.request(
            "POST", CHAT, json.dumps(asked), {"X-Request-Id": "two", "traceparent": "00-nonsense"}
        )
        answer = connection.getresponse()
        whole, whole_head = json.loads(answer.read()), str(answer.headers)
        connection.close()
        with simulator.raw(
            post(json.dumps({**asked, "stream": True, "max_tokens": 5000}).encode())
        ):
            simulator.until(lambda told: told["engine"]["running"] == 1)  # and gone: no span of it
        simulator.raw(post(json.dumps(asked).encode())).close()  # gone while the front end had it
        told = simulator.until(
            lambda told: [row["done_at"] is None for row in told["requests"]] == [False] * 5
        )
        rows = told["requests"]
        assert [row["aborted"] for row in rows] == [False] * 3 + [True] * 2
    one, two = sorted(spans, key=lambda span: values(span)["gen_ai.request.id"])
    assert (one["traceId"], one["parentSpanId"], one["name"], one["kind"]) == (
        TRACE,
        PARENT,
        "llm_request",
        2,
    )
    assert two["traceId"] != TRACE
    assert "parentSpanId" not in two
    for span, row in zip((one, two), (rows[0], rows[2]), strict=True):
        found = values(span)
        start, end = int(span["startTimeUnixNano"]) / 1e9, int(span["endTimeUnixNano"]) / 1e9
        assert before + 3600 <= start <= end <= time.time() + 3600
        seconds = {
            name.removeprefix("gen_ai.latency."): value
            for name, value in found.items()
            if "latency" in name
        }
        assert end - start == pytest.approx(seconds["e2e"], abs=1e-6)
        truth = {name: found[f"simulator.{name}"] for name in (*ENGINE, "front_end")}
        assert {name: truth[name] for name in ENGINE} == row["parts"]
        prefill, decode = (
            truth["own_prefill"] + truth["others"],
            sum(truth[name] for name in ENGINE[3:]),
        )
        assert seconds["time_in_queue"] == truth["queue"]
        assert seconds["time_in_model_prefill"] == pytest.approx(prefill)
        assert seconds["time_in_model_decode"] == pytest.approx(decode)
        assert seconds["time_in_model_inference"] == pytest.approx(prefill + decode)
        assert seconds["time_to_first_token"] == pytest.approx(
            truth["queue"] + prefill + truth["front_end"]
        )
        assert truth["front_end"] >= 0.06
        assert prefill >= 0.02
        assert decode == pytest.approx(truth["pace"])
        assert decode >= 0.06  # three rounds, alone
        assert (found["gen_ai.usage.prompt_tokens"], found["gen_ai.usage.completion_tokens"]) == (
            "12",
            "4",
        )
        assert (found["gen_ai.request.max_tokens"], found["gen_ai.request.n"]) == ("4", "1")
    assert values(one)["gen_ai.request.id"] == "chatcmpl-one"
    assert [values(span).get("gen_ai.request.temperature") for span in (one, two)] == [
        None,
        1.0,
    ]  # none of 0, as in vLLM
    assert [values(span)["gen_ai.request.top_p"] for span in (one, two)] == [1.0, 1.0]
    assert (rows[0]["tenant"], rows[2]["tenant"], rows[3]["parts"]) == ("gold", "", None)
    # headers: of the stream what its first token knows, whole milliseconds rounded down; of the
    # other everything
    parts = rows[0]["parts"]
    prefill_ms = 1e3 * (parts["own_prefill"] + parts["others"])
    assert milliseconds(head, "prefill") == pytest.approx(prefill_ms, abs=1e-3)
    assert milliseconds(head, "queue") == pytest.approx(1e3 * parts["queue"], abs=1e-3)
    assert f"x-queue-time: {int(1e3 * parts['queue'])}\r\n" in head
    assert int(re.search(r"x-validation-time: (\d+)", head)[1]) >= 60
    assert "x-total-time" not in head
    found = {
        name: int(value)
        for name, value in re.findall(r"(x-\S+-time|x-time-per-token): (\d+)", whole_head)
    }
    assert (
        found["x-total-time"]
        >= found["x-validation-time"] + found["x-queue-time"] + found["x-inference-time"]
    )
    assert found["x-time-per-token"] in (
        found["x-inference-time"] // 4,
        (found["x-inference-time"] + 1) // 4,
    )
    # timings: in the last event, which has no usage here, and in the body
    assert said[-1] == b"[DONE]"
    timed = [json.loads(event) for event in said[:-1]]
    assert [("timings" in event) for event in timed] == [False] * (len(timed) - 1) + [True]
    for timings, row in ((timed[-1]["timings"], rows[0]), (whole["timings"], rows[2])):
        prompt_s = row["parts"]["own_prefill"] + row["parts"]["others"]
        assert timings["prompt_ms"] == pytest.approx(1e3 * prompt_s, abs=1e-3)
        assert timings["predicted_ms"] == pytest.approx(1e3 * row["parts"]["pace"], abs=1e-3)
        assert timings["prompt_n"] + timings["cache_n"] == 12
        assert timings["predicted_n"] == 4
        assert timings["predicted_per_token_ms"] == pytest.approx(
            timings["predicted_ms"] / 3, abs=1e-3
        )


def test_timings_are_in_the_last_event_whatever_that_is():
    """With the usage; with the finish_reason, alone or not; with the last text. And no error is
    without headers."""
    with started("--ttft-ms", "1", "--itl-ms", "1", "--like", "llama.cpp") as simulator:
        for quirks in (
            "",
            "usage=none",
            "usage=finish",
            "usage=none,finish=last",
            "role=early,time_headers=yes",
        ):
            _, said = streamed(
                simulator,
                b"X-Simulate: %b\r\n" % quirks.encode(),
                stream_options={"include_usage": True},
            )
            timed = ["timings" in json.loads(event) for event in said if event != b"[DONE]"]
            assert timed == [False] * (len(timed) - 1) + [True], quirks
        _, failed = streamed(simulator, b"X-Simulate: time_headers=yes,error=0\r\n")
        assert "error" in json.loads(failed[0])


@pytest.mark.parametrize(
    ("text", "trace"),
    [
        (f"00-{TRACE}-{PARENT}-01", TRACE),
        (f" 00-{TRACE}-{PARENT}-ff ", TRACE),
        (f"01-{TRACE}-{PARENT}-01-later", TRACE),
        (f"00-{TRACE}-{PARENT}-01-later", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE[1:]}-{PARENT}-01", None),
        ("", None),
    ],
)
def test_traceparent(text, trace):
    parent = parse_traceparent(text)
    assert (parent and parent.trace_id.hex()) == trace
    assert parent is None or (parent.span_id.hex(), parent.sampled) == (PARENT, True)


def test_a_span_as_protobuf():
    encoder = Encoder("http/protobuf", "s")
    assert encoder.encode_request([encoder.encode_span(SPAN)]).hex() == AS_PROTOBUF


def test_spans_as_json_have_ids_in_hex_and_integers_as_texts():
    encoder = Encoder("http/json", "s")
    root = SPAN._replace(parent_id=b"", attributes={})
    sent = json.loads(
        encoder.encode_request([encoder.encode_span(SPAN), encoder.encode_span(root)])
    )
    (resource,) = sent["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    assert resource["resource"] == {
        "attributes": [{"key": "service.name", "value": {"stringValue": "s"}}]
    }
    assert scope["scope"] == {"name": "s"}
    first, second = scope["spans"]
    assert first == {
        "traceId": "000102030405060708090a0b0c0d0e0f", "spanId": "0001020304050607",
        "parentSpanId": "08090a0b0c0d0e0f",
        "name": "llm_request", "kind": 2,
        "startTimeUnixNano": "1795159663123456789", "endTimeUnixNano": "1795159664000000001",
        "attributes": [
            {"key": "e2e", "value": {"doubleValue": 0.5}},
            {"key": "id", "value": {"stringValue": "chatcmpl-ä"}},
            {"key": "n", "value": {"intValue": "300"}},
        ],
    }  # fmt: skip
    assert "parentSpanId" not in second
    assert "attributes" not in second


WITHOUT_EXTRA = """
import sys
sys.modules["opentelemetry"] = None  # an import of it fails, as without the extra
from locust_llm.simulator.simulate_command import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_the_extra_the_simulator_names_it_where_spans_are_asked_for():
    words = ("--port", "0", "--otlp-traces-endpoint", "http://127.0.0.1:4318")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRA, *words], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (5, "", 1)
    assert OTLP_MISSING in done.stderr
    assert "locust-llm[otlp]" in OTLP_MISSING


def test_without_the_extra_the_simulator_starts():
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_EXTRA, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline().startswith("simulator listening on ")
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()


def test_who_does_not_take_spans_holds_up_nobody(monkeypatch):
    """A full queue drops the newest, and a batch that is refused is dropped: all are counted."""
    monkeypatch.setattr(span_sender, "MAX_QUEUED", 5)
    monkeypatch.setattr(span_sender, "BATCH", 2)
    answers = iter([b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 503 Busy\r\n\r\n", b""])
    bodies = []

    async def endpoint(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        bodies.append(await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1])))
        writer.write(next(answers))
        writer.close()

    async def count():
        server = await asyncio.start_server(endpoint, "127.0.0.1", 0)
        sender = SpanSender(
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/traces",
            Encoder("http/protobuf", "s"),
        )
        for _ in range(7):
            sender.add(SPAN)
        await sender.flush()
        server.close()
        sender.add(SPAN)
        await sender.flush()  # nobody listens
        return sender.sent, sender.dropped

    assert asyncio.run(count()) == (2, 6)
    assert len(bodies) == 3


def test_where_spans_may_go():
    for url in ("https://127.0.0.1:4318", "grpc://127.0.0.1:4317", "127.0.0.1:4318"):
        with pytest.raises(ValueError, match="--otlp-traces-endpoint must be an address such as"):
            SpanSender(url, Encoder("http/json", "s"))
    sender = SpanSender("http://[::1]", Encoder("http/json", "s"))
    assert (sender.host, sender.port, sender.path) == ("::1", 4318, "/v1/traces")

"""AIPerf's page on prefill concurrency: the gate, its commands and their sample outputs."""

from collections.abc import Sequence
from itertools import pairwise

import aiperf_runs as a
import experiments as e
import pictures
from chart import Line, chart
from section import Check, Section, ms, table, verdict


def prefill_limits() -> Section:
    def rows_of(found: Sequence[e.Limited]) -> str:
        rows = [
            (f.limit, f"{f.ttft_mean:.2f}", f"{f.from_asked_mean:.2f}", ms(f.itl_mean),
                f"{f.peak_kv:.0%}", f.preemptions,
             f"{f.requests_per_s:.2f}")
            for f in found
        ]  # fmt: skip
        headers = (
            "limit",
            "TTFT, s",
            "with the wait, s",
            "ITL, ms",
            "peak KV",
            "preemptions",
            "requests/s",
        )
        return table(headers, rows)

    thin = e.limits(lambda limit: e.load(limit=limit, long_prefill_token_threshold=512))
    plain = e.limits(lambda limit: e.load(limit=limit))
    lines = [
        Line("TTFT", [f.limit for f in thin], [f.ttft_mean for f in thin]),
        Line("with the wait", [f.limit for f in thin], [f.from_asked_mean for f in thin]),
    ]
    return Section(
        "Limiting prefills at the client sets how much queues in the server, and prevents memory "
            "exhaustion",
        "AIPerf, prefill concurrency: 30 users, 16,000 tokens in",
        verdict(
            Check("TTFT follows the limit",
                all(_rises([f.ttft_mean for f in found]) for found in (thin, plain)),
                  f"{plain[0].ttft_mean:.1f} to {plain[-1].ttft_mean:.1f} s with the defaults"),
            Check("memory does, where the server computes many prompts at a time",
                thin[0].peak_kv < thin[-1].peak_kv / 2,
                  f"peak {thin[0].peak_kv:.0%} at a limit of 1, {thin[-1].peak_kv:.0%} and "
                      f"{thin[-1].preemptions} "
                  "preemptions at 30"),
            Check("memory does with vLLM's defaults", plain[0].peak_kv < plain[-1].peak_kv / 2,
                  f"{plain[0].peak_kv:.0%} and {plain[-1].peak_kv:.0%}"),
        ),
        "vLLM with a long-prefill-token-threshold of 512, so that up to 16 prompts share a step, "
            "each with its blocks:\n\n"
        + rows_of(thin)
        + "\n\nWith vLLM's defaults a prompt that waits holds no memory and one or two are "
            "computed at a time, so the limit "
        "moves the queue from the server to the client and changes nothing else:\n\n"
        + rows_of(plain)
        + "\n\nWhat a user waits, gate included, is in the third column. With the defaults no "
            "limit makes it shorter; with "
        "the threshold 5 is best: enough prompts to fill a step, and room for all of them.",
        {"limits.svg": chart("30 users, 16,000 tokens in, by prefill limit", "limit", "mean, s",
            lines)},
    )  # fmt: skip


def _rises(values: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


def disaggregated() -> Section:
    found = e.limits(e.disaggregated)
    rows = [
        (f.limit, f"{f.ttft_mean:.2f}", ms(f.itl_mean), ms(f.stall_p99), f"{f.requests_per_s:.2f}")
        for f in found
    ]
    lines = [Line("TTFT", [f.limit for f in found], [f.ttft_mean for f in found])]
    return Section(
        "With disaggregated serving the gate sets TTFT directly",
        "AIPerf; one H100 for prompts, one for decodes, 400 Gbit/s between them",
        verdict(
            Check("TTFT is about the limit times one prefill, up to 10",
                  all(0.8 < f.ttft_mean / found[0].ttft_mean / f.limit < 1.2 for f in found if f.limit <= 10),
                  f"{found[0].ttft_mean:.2f} s at 1, "
                      f"{next(f.ttft_mean for f in found if f.limit == 10):.2f} at 10"),
            Check("ITL does not move", max(f.itl_mean for f in found) < 1.05 * min(f.itl_mean for f in found),
                  f"{ms(min(f.itl_mean for f in found))} to {ms(max(f.itl_mean for f in found))} ms"),
        ),
        table(("limit", "TTFT, s", "ITL, ms", "longest stall p99, ms", "requests/s"), rows),
        {"disaggregated.svg": chart("Disaggregated: TTFT by prefill limit", "limit", "mean, s",
            lines)},
        (pictures.disaggregated(),),
    )  # fmt: skip


def omission() -> Section:
    found = a.gated()
    rows = [
        (
            f"{g.rate:g}",
            f"{g.without:.2f}",
            f"{g.from_send:.2f}",
            f"{g.from_due:.2f}",
            f"{g.sent_per_s:.1f}",
        )
        for g in found
    ]
    full = found[-1]
    return Section(
        "With a gate the latencies that are measured are lower than what users would see: "
            "coordinated omission",
        f"AIPerf; Poisson arrivals of 3,000 in, 100 out for a minute, a gate of {a.GATE}; capacity "
            f"about 8.5 a second",
        verdict(
            Check("TTFT from the send is lower with the gate",
                all(g.from_send < g.without for g in found),
                  f"{full.from_send:.2f} s for {full.without:.2f} at {full.rate:g}/s"),
            Check("the load throttles itself to the server", full.sent_per_s < 0.95 * full.rate,
                  f"{full.sent_per_s:.1f} sent a second for {full.rate:g}"),
            Check("TTFT from due shows what users see",
                all(abs(g.from_due / g.without - 1) < 0.1 for g in found),
                  f"{full.from_due:.2f} s"),
        ),
        table(("offered/s", "no gate: TTFT, s", "gate: TTFT from send, s", "gate: TTFT from due, s",
            "sent/s"), rows)
        + "\n\nMeans over all requests. The last check is not the seed's: it is why every report "
            "here has TTFT from due "
        "beside TTFT.",
        {},
    )  # fmt: skip


def sample_outputs() -> Section:
    rows = [
        (f"{number}", f"{s.latency_s:.2f}", f"{s.expected_latency_s:.1f}", f"{s.per_s:.2f}",
         f"{s.count / s.seconds:.2f}" if s.count else "-", f"{s.in_prefill:.1f}", f"{s.limit}")
        for number, s in enumerate(a.SAMPLES, 1)
    ]  # fmt: skip
    headers = (
        "command",
        "latency, s",
        "from TTFT and ITL, s",
        "requests/s",
        "from count and time",
        "awaiting first token",
        "limit",
    )
    counted = [s for s in a.SAMPLES if s.count]
    lengths = [f"{1 + (s.latency_s - s.ttft_s) / s.itl_s:.0f}" for s in a.SAMPLES]
    return Section(
        "The sample outputs of the three commands: latency, TTFT, ITL and throughput of one run "
        "each",
        "AIPerf; arithmetic on what is printed, nothing simulated",
        verdict(
            Check(
                "latency is TTFT + (tokens out - 1) x ITL",
                all(abs(s.expected_latency_s / s.latency_s - 1) < 0.1 for s in a.SAMPLES),
                "; ".join(
                    f"{s.ttft_s * 1e3:,.0f} + {s.output_tokens - 1} x {s.itl_s * 1e3:.2f} ms = "
                    f"{s.expected_latency_s:.1f} s, printed {s.latency_s:.2f}"
                    for s in a.SAMPLES
                ),
            ),
            Check(
                "throughput is requests over time",
                all(abs(s.count / s.seconds / s.per_s - 1) < 0.1 for s in counted),
                "; ".join(
                    f"{s.count} in {s.seconds // 60:.0f}:{s.seconds % 60:02.0f} = "
                    f"{s.count / s.seconds:.2f}/s, printed "
                    f"{s.per_s:.2f}"
                    for s in counted
                ),
            ),
            Check(
                "no more awaiting first token than the gate lets in",
                all(s.in_prefill <= 1.1 * s.limit for s in a.SAMPLES),
                "; ".join(f"{s.in_prefill:.1f} at a limit of {s.limit}" for s in a.SAMPLES),
            ),
        ),
        table(headers, rows)
        + "\n\n*Awaiting first token*: Little's law, throughput times TTFT. The latencies would be right for "
        "answers of "
        + " and ".join(filter(None, (", ".join(lengths[:-1]), lengths[-1])))
        + " tokens; the throughput of the first for no length.",
        {},
    )


def commands() -> Section:
    found = a.commands()
    rows = []
    for number, (said, got) in enumerate(zip(a.SAMPLES, found, strict=True), 1):
        rows += [
            (f"{number}, printed", *(f"{x:.2f}" for x in (said.ttft_s, said.latency_s)),
                f"{said.itl_s * 1e3:.1f}",
             f"{said.per_s:.2f}", "-", "-"),
            (f"{number}, simulated", *(f"{x:.2f}" for x in (got.ttft_s, got.latency_s)),
                f"{got.itl_s * 1e3:.1f}",
             f"{got.per_s:.2f}", f"{got.wait_s:.1f}", f"{got.most_in_prefill}"),
        ]  # fmt: skip
    each, third = list(zip((1, 2, 3), a.SAMPLES, found, strict=True)), found[2]
    return Section(
        "The three commands: their TTFT, ITL and throughput; a ramp of the limit; requests that "
            "wait where a prefill takes "
        "longer than the time between arrivals",
        "AIPerf; Qwen2.5-7B there, GPU and server not named; here Llama-3.1-8B on an H100 with "
            "vLLM's defaults",
        verdict(
            *(_near(number, "TTFT", got.ttft_s, said.ttft_s, " s") for number, said, got in each),
            *(_near(number, "throughput", got.per_s, said.per_s, "/s") for number, said,
                got in each),
            Check("never more awaiting first token than the limit",
                all(got.most_in_prefill <= said.limit for _, said, got in each)),
            Check("command 2: TTFT grows along the ramp",
                found[1].ttft_by_limit[-1] > 1.5 * found[1].ttft_by_limit[0],
                  ", ".join(f"{x:.1f}" for x in found[1].ttft_by_limit) + " s at limits of 1 to 5"),
            Check("command 3: requests wait at the gate", third.wait_s > third.ttft_s,
                f"{third.wait_s:.1f} s on average"),
        ),
        table(
            ("command", "TTFT, s", "latency, s", "ITL, ms", "requests/s", "wait at the gate, s",
                "most awaiting first token"), rows
        )
        + "\n\nMeans of requests that ended; TTFT and latency from the send. In command 3 ten "
            "prompts of 8,000 tokens "
        "arrive each second; at 28.4 us a token one H100 computes 4.4. A larger server could have "
            "the throughputs, "
        "none the printed figures together (section 16).",
        {},
    )  # fmt: skip


def _near(number: int, what: str, got: float, said: float, unit: str) -> Check:
    return Check(
        f"command {number}: {what} within a factor of 1.5",
        1 / 1.5 < got / said < 1.5,
        f"{got:.2f}{unit} for {said:.2f}",
    )

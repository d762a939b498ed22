"""The timelines beside the seeds' words: what a seed says, the picture of it, and where to look."""

from collections.abc import Sequence
from typing import NamedTuple

import timelines as t

from locust_llm.records.record import Record

H100, A40 = "Llama-3.1-8B on an H100, virtual time", "Llama-3.1-8B on an A40, virtual time"
TNG = "TNG (Prefill and Decode for Concurrent Requests, 2025)"
SECONDS, QUEUED_SECONDS = 2.0, 5.6
"""One axis for all of the same requests, so that they can be laid beside each other."""


class Picture(NamedTuple):
    """``words``: the seed's, told again; ``look``: what to see in it."""

    name: str
    title: str
    svg: str
    words: str
    look: str


def _interrupted(
    name: str, title: str, about: str, records: Sequence[Record], words: str, look: str
) -> Picture:
    return Picture(name, title, t.drawn(title, f"{about}. {H100}", records, SECONDS), words, look)


def static() -> Picture:
    records = t.interrupted("static")
    ended = sorted(record.closed_at for record in t.of_kind(records, "decoder"))
    waited = t.ttft_s([record for record in records if record.name != "decoder"])
    return _interrupted(
        "timeline-static.svg",
        "Static batching: who comes later waits for the longest answer",
        "Static batching",
        records,
        f"{TNG}: the prompts of a batch are computed together and nothing disturbs its decodes; "
        f"the next batch begins "
        "only when the longest answer of this one is done, however early the others ended.",
        f"Of the upper four the first has ended at {ended[0]:.2f} s. Nobody takes its place: the "
        f"lower four, sent from "
        f"0.20 s on, wait until the last of the upper ends at {ended[-1]:.2f} s; then their "
        f"prompts are computed together, "
        f"and all begin at the same moment (TTFT {min(waited):.2f} to {max(waited):.2f} s). The "
        f"dots of all lines are "
        f"evenly spaced; the longest gap is {t.meanwhile(records).longest_gap * 1e3:.1f} ms. "
        f"Orange is what a client "
        "sees, from the send to the first token: how much of that was queue it cannot see.",
    )


def prefill_first() -> Picture:
    records = t.interrupted("prefill-first")
    found = t.meanwhile(records)
    return _interrupted(
        "timeline-prefill-first.svg",
        "Prefill-first: while a prompt is computed every stream stops",
        "Prefill-first, as vLLM V0",
        records,
        f"{TNG}: whoever comes is computed at once and whole, so TTFT is as short as it gets; "
        f"whoever decodes gets a "
        "single token meanwhile at the most, and its reader sees a pause.",
        f"Above each orange bar all lines are red at once: nothing for over {t.SLOW_MS:.0f} ms. "
        f"From the send of the "
        f"8,000 tokens to their first token ({found.long_ttft * 1e3:.0f} ms) each of the four gets "
        f"{found.tokens[0]} "
        "token, of the step that had begun. Then the 4,000 and the 6,000 come in a row and the "
        "pause is that of both, "
        f"{found.longest_gap * 1e3:.0f} ms; it stops the stream of the 8,000 too.",
    )


def chunked() -> Picture:
    records = t.interrupted("chunked 512")
    found, whole = t.meanwhile(records), t.meanwhile(t.interrupted("prefill-first"))
    return _interrupted(
        "timeline-chunked.svg",
        "Chunked prefill, 512 tokens a step: streams slow down, none stops",
        "Chunked prefill, max-num-batched-tokens 512",
        records,
        f"{TNG}: the prompt is spread over steps, and each gives every decode a token; streams are "
        f"slowed instead of "
        "paused, lines that looked continuous come apart into dots, and the prompt waits a little "
        "longer for its own "
        "first token.",
        "The same orange bars, and above them the dots stand apart, on all lines alike; no line is "
        "red. Each of the "
        f"four gets {found.tokens[0]} tokens during the 8,000: 8,000 / (512 less 4 that decode) = "
        f"{t.LONG / 508:.1f} "
        f"steps. The longest gap is {found.longest_gap * 1e3:.1f} ms, not "
        f"{whole.longest_gap * 1e3:.0f}; the 8,000 "
        f"tokens take {found.long_ttft * 1e3:.0f} ms, not {whole.long_ttft * 1e3:.0f}.",
    )


def disaggregated() -> Picture:
    records = t.interrupted("disaggregated")
    found = t.meanwhile(records)
    return _interrupted(
        "timeline-disaggregated.svg",
        "Disaggregated: prompts are computed elsewhere, no stream notices",
        "Disaggregated, another H100 for the prompts",
        records,
        "AIPerf's page on prefill concurrency calls the limit most useful where serving is "
        "disaggregated and TTFT is to "
        "be controlled by itself. What prompts leave alone there, with the requests of sections 2 "
        "and 3:",
        "The orange bars are nearly those of prefill-first, but above them the dots go on as if "
        "nothing had come: "
        f"{found.tokens[0]} tokens each during the 8,000, and no gap over "
        f"{found.longest_gap * 1e3:.1f} ms. These are "
        "two GPUs, not one; and the KV cache travels inside the orange, "
        f"{found.long_ttft * 1e3:.0f} ms to the first token.",
    )


def one_at_a_time() -> Picture:
    title = "One prompt after the other: short ones wait behind long ones"
    records = t.queued("one at a time")
    short = t.ttft_s(t.of_kind(records, "short"))
    return Picture(
        "timeline-one-prefill.svg",
        title,
        t.drawn(
            title,
            f"Chunked prefill, max-num-batched-tokens 2048. {A40}",
            records,
            QUEUED_SECONDS,
            stalls=False,
        ),
        "vLLM pull request 31330: prompts take the budget of each step in the order in which they "
        "came, so large ones "
        "starve the small ones behind them.",
        "The long bars end one after the other, like stairs; the short prompts, a twentieth of a "
        "step's budget each, "
        f"begin under them and end no sooner than the last of them (TTFT {min(short):.1f} to "
        f"{max(short):.1f} s).",
    )


def partial_prefills() -> Picture:
    title = "Four partial prefills, one of them long: short ones pass"
    about = f"max-num-partial-prefills 4, long-prefill-token-threshold 2048. {A40}"
    records = t.queued("4 slots, 1 long")
    short, long = (t.ttft_s(t.of_kind(records, kind)) for kind in ("short", "long"))
    before = t.ttft_s(t.of_kind(t.queued("one at a time"), "long"))
    return Picture(
        "timeline-partial-prefills.svg",
        title,
        t.drawn(title, about, records, QUEUED_SECONDS, stalls=False),
        "Its answer: a few slots share the budget, and only one of them (by default) is for a long "
        "prompt, so that the "
        "short ones keep moving.",
        "The lower bars are short now: a prompt of 100 tokens waits for the step under way and is "
        "computed in the next "
        f"(TTFT {min(short):.2f} to {max(short):.2f} s). The stairs of the long ones move little: "
        f"{min(long):.2f} s for "
        f"the first, {min(before):.2f} without; {max(long):.2f} s for the last, {max(before):.2f} "
        f"without. The dots are "
        "as far apart as the steps are long, with it and without.",
    )

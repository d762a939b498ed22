"""TNG's article: throughput by concurrency, and the policies by which prompts and decodes share a
GPU."""

from itertools import pairwise

import experiments as e
import pictures
import timelines
from chart import Line, chart
from disturbed import disturbed
from section import Check, Section, ms, table, verdict

LINEAR = 0.8
"""From this share of n times the throughput of one user on it is almost linear at n users."""


def saturation() -> Section:
    levels = e.throughput((3000, 1500), (1, 2, 4, 8, 16, 32, 64, 128, 256))
    by_prompt = {
        prompt: [level for level in levels if level.prompt_tokens == prompt]
        for prompt in (3000, 1500)
    }
    top = {
        prompt: max(level.requests_per_s for level in found) for prompt, found in by_prompt.items()
    }
    lines = [
        Line(
            f"{prompt:,} in, 100 out",
            [level.users for level in found],
            [level.output_per_s for level in found],
        )
        for prompt, found in by_prompt.items()
    ]
    alone, at_eight, at_128, at_256 = (
        [
            next(level.requests_per_s for level in by_prompt[prompt] if level.users == users)
            for prompt in (3000, 1500)
        ]
        for users in (1, 8, 128, 256)
    )
    grown = [eight / one for one, eight in zip(alone, at_eight, strict=True)]
    stays = [most / before for before, most in zip(at_128, at_256, strict=True)]
    rows = [
        (long.users, f"{long.output_per_s:,.0f}", f"{long.requests_per_s:.1f}",
            f"{short.output_per_s:,.0f}",
         f"{short.requests_per_s:.1f}")
        for long, short in zip(*by_prompt.values(), strict=True)
    ]  # fmt: skip
    return Section(
        "Throughput grows almost linearly with concurrency, then stays; half the prompt, about "
        "twice the request rate",
        "TNG, Llama-3.1-8B on an H100, 3,000 and 1,500 tokens in, 100 out",
        verdict(
            Check(
                "almost linear at low concurrency",
                min(grown) >= LINEAR * 8,
                f"{grown[0]:.1f} and {grown[1]:.1f} times the throughput of one user at 8 users, "
                f"with 3,000 and 1,500 in",
            ),
            Check(
                "flat at capacity",
                max(abs(one - 1) for one in stays) < 0.05,
                f"{stays[0]:.2f} and {stays[1]:.2f} times from 128 to 256 users",
            ),
            Check(
                "half the prompt saturates at about twice the rate",
                1.8 < top[1500] / top[3000] < 2.2,
                f"{top[1500] / top[3000]:.2f} times",
            ),
        ),
        table(
            ("users", "3,000 in: tokens/s", "requests/s", "1,500 in: tokens/s", "requests/s"), rows
        ),
        {
            "throughput.svg": chart(
                "Output throughput by concurrency",
                "users",
                "tokens/s",
                lines,
                log_x=True,
                log_y=True,
            )
        },
    )


def order_of_policies() -> Section:
    found = e.policies()
    rows = [
        (o.policy, ms(o.ttft_p50), ms(o.ttft_p99), ms(o.itl_mean), ms(o.stall_p99)) for o in found
    ]
    static, *others = found
    worse = static.ttft_p50 / max(o.ttft_p50 for o in others)
    calmer = min(o.stall_p99 for o in others) / static.stall_p99
    return Section(
        "Static batching waits for the longest answer: the worst TTFT, and an undisturbed decode",
        "TNG; 3 requests a second, 1,000 to 5,000 in, 20 to 300 out (chunks of 2,048)",
        verdict(
            Check("the worst TTFT", worse > 1, f"median {worse:.0f} times the next"),
            Check(
                "an undisturbed decode",
                calmer > 1 and static.itl_mean < min(o.itl_mean for o in others),
                f"p99 of the longest stalls 1/{calmer:.0f} of the next",
            ),
        ),
        table(("policy", "TTFT p50, ms", "TTFT p99, ms", "ITL, ms", "longest stall p99, ms"), rows),
        {},
        (pictures.static(),),
    )


def pauses() -> Section:
    found = e.bursts()
    rows = [
        (b.name, ms(b.longest_stall), b.tokens_meanwhile, ms(b.ttft_first), ms(b.ttft_mean))
        for b in found
    ]
    first, smallest = found[0], found[2]
    whole = e.beside_decoders("whole", e.load("prefill-first"), [3000])
    chunks = e.beside_decoders("512", e.load(max_num_batched_tokens=512, max_num_seqs=256), [3000])
    return Section(
        "Prefill-first pauses those who decode; chunked prefill only slows them, at a little more "
        "TTFT",
        "TNG; 32 prompts of 3,000 tokens at once, beside 32 that decode",
        verdict(
            Check(
                "prefill-first pauses who decodes",
                first.tokens_meanwhile <= 1,
                f"{first.tokens_meanwhile} token in {first.longest_stall:.1f} s",
            ),
            Check(
                "chunks of 512 only slow them",
                smallest.tokens_meanwhile > 1 and smallest.longest_stall < first.longest_stall / 10,
                f"longest stall {ms(smallest.longest_stall)} ms",
            ),
            Check(
                "a little more TTFT for a prompt that comes alone",
                1 < chunks.ttft_mean / whole.ttft_mean < 1.5,
                f"{ms(whole.ttft_mean)} and {ms(chunks.ttft_mean)} ms for 3,000 tokens",
            ),
        ),
        table(
            ("policy", "longest stall, ms", "tokens meanwhile", "first TTFT, ms", "mean TTFT, ms"),
            rows,
        )
        + "\n\nWhole prompts are done together, at the end; chunks one after the other, so their "
        "mean TTFT is lower here. "
        "What chunking costs a prompt that is alone is in section 5.",
        {},
        (pictures.prefill_first(), pictures.chunked()),
        _same_requests() + "\n\n" + _gaps_apart(),
    )


def _same_requests() -> str:
    rows = []
    for policy in ("static", "prefill-first", "chunked 512", "disaggregated"):
        m = timelines.meanwhile(timelines.interrupted(policy))
        tokens = (
            f"{m.tokens[0]}" if m.tokens[0] == m.tokens[1] else f"{m.tokens[0]} to {m.tokens[1]}"
        )
        rows.append(
            (policy, ms(m.long_ttft), tokens, ms(m.longest_gap), ms(m.late_ttft), f"{m.ended:.2f}")
        )
    headers = ("policy", "TTFT of the 8,000, ms", "tokens each meanwhile", "longest gap, ms",
        "TTFT of the later, ms",
               "all done, s")  # fmt: skip
    return (
        "The same eight requests in each timeline (static is in section 2, disaggregated in "
        "section 9):\n\n" + table(headers, rows)
    )


def _gaps_apart() -> str:
    rows, left = [], []
    for policy, found in disturbed().items():
        calm, beside, all_beside = (found.row(prefills) for prefills in ("0", "1", "1+"))
        left.append(found.decode_s - found.lost_s)
        rows.append((
            policy, f"{calm.gaps:,}", ms(calm.icl_ms[50] / 1e3), f"{beside.gaps:,}",
            ms(beside.icl_ms[50] / 1e3),
            ms(beside.icl_ms[99] / 1e3), f"{all_beside.slowdown:.2f}", f"{all_beside.share:.0%}",
            f"{found.decode_s:.0f}",
            f"{found.lost_s:.1f}",
        ))  # fmt: skip
    headers = ("policy", "gaps at 0", "p50, ms", "gaps at 1", "p50, ms", "p99, ms", "slow-down",
        "time disturbed",
               "decode, s", "lost, s")  # fmt: skip
    return (
        "Gaps told apart by how many other requests awaited their first token meanwhile (0, 1), as in every "
        "report of a run. One load "
        "for all: section 2's lengths, 2 requests a second for two minutes.\n\n"
        + table(headers, rows)
        + "\n\n*Slow-down*: the mean gap beside one prefill or more, over the mean of undisturbed "
        "gaps at as many streams. "
        "*Time disturbed*: the share of these gaps in *decode*, the sum of all gaps. *Lost*: what "
        "they took longer than "
        f"undisturbed ones. Without it {min(left):.0f} to {max(left):.0f} s of decoding are left "
        f"under each policy: what "
        "the client's records tell as lost is what sets the policies apart; the rest are batches "
        "of other sizes. Static "
        "batching loses next to nothing: it computes prompts when nobody decodes, and what a "
        "client sees beside a decode "
        "is a wait."
    )


def chunking_throughput() -> Section:
    found = e.chunking_gain(
        [(204, 64, 32), (204, 64, 64), (204, 64, 128), (1500, 100, 64), (3000, 100, 64)]
    )
    rows = [
        (f"{g.prompt_tokens:,} / {g.output_tokens}", g.users, g.overheads, f"{g.static:.1f}",
            f"{g.prefill_first:.1f}",
         f"{g.chunked:.1f}", f"{g.chunked / g.prefill_first - 1:+.0%}")
        for g in found
    ]  # fmt: skip
    same, v0, long = (
        next(g for g in found if (g.prompt_tokens, g.users, g.overheads) == key)
        for key in ((204, 64, "same"), (204, 64, "V0's"), (3000, 64, "same"))
    )
    gains = [g.chunked / g.prefill_first - 1 for g in (same, v0, long)]
    return Section(
        "Chunked prefill raises the total throughput, +50 % in the seed's own deployment",
        "TNG, evenly sized requests; here closed loops with a staggered start",
        verdict(
            Check(
                "more with short prompts",
                gains[0] > 0.05,
                f"{gains[0]:+.0%} with 204 in, 64 out, 64 users",
            ),
            Check("+50 % against V0 with its own overheads", gains[1] > 0.45, f"{gains[1]:+.0%}"),
            Check("+50 % by scheduling alone", gains[0] > 0.45, f"{gains[0]:+.0%}"),
            Check("more with long prompts", gains[2] > 0.05, f"{gains[2]:+.0%} with 3,000 in"),
        ),
        table(
            ("in / out", "users", "overheads", "static", "prefill-first", "chunked", "gain"), rows
        )
        + "\n\nRequests a second. A step that computes prompts and one that decodes cost less as "
        "one step: the weights are "
        "read once, and the overhead comes once. That counts where prompts are short. Prompts of "
        "3,000 tokens fill steps of "
        "their own, there is little to share, and the attention of chunks is spread over more "
        "steps. The seed does not name "
        "its lengths, its model or its engine's version: between two versions of vLLM more changed "
        "than the scheduling.",
        {},
    )


def chunk_size() -> Section:
    found = e.chunk_sizes()
    whole = e.beside_decoders("whole", e.load("prefill-first"), [10_000])
    sizes = [float(b.name) for b in found]
    rows = [
        (b.name, ms(b.longest_stall), ms(b.ttft_mean), b.tokens_meanwhile) for b in [*found, whole]
    ]
    lines = [
        Line("longest stall", sizes, [b.longest_stall * 1e3 for b in found]),
        Line("TTFT of the prompt", sizes, [b.ttft_mean * 1e3 for b in found]),
    ]
    return Section(
        "The chunk size, 512 to 8,192, trades TTFT for ITL",
        "TNG; one prompt of 10,000 tokens beside 32 that decode",
        verdict(
            Check(
                "longer stalls with larger chunks",
                all(a.longest_stall < b.longest_stall for a, b in pairwise(found)),
                f"{ms(found[0].longest_stall)} to {ms(found[-1].longest_stall)} ms",
            ),
            Check(
                "and shorter TTFT",
                all(a.ttft_mean > b.ttft_mean for a, b in pairwise(found)),
                f"{ms(found[0].ttft_mean)} to {ms(found[-1].ttft_mean)} ms",
            ),
        ),
        table(("chunk", "longest stall, ms", "TTFT, ms", "tokens meanwhile"), rows),
        {
            "chunks.svg": chart(
                "One prompt of 10,000 tokens beside 32 decodes",
                "chunk, tokens",
                "ms",
                lines,
                log_x=True,
            )
        },
    )

"""The page of the seeds: each claim, its experiment in the simulator, and what came out."""

from collections.abc import Sequence

import experiments as e
import numpy as np
import pictures
import timelines
from chart import Line, chart
from disturbed import disturbed
from section import Section, ms, table


def saturation() -> Section:
    levels = e.throughput((3000, 1500), (1, 2, 4, 8, 16, 32, 64, 128, 256))
    by_prompt = {prompt: [level for level in levels if level.prompt_tokens == prompt] for prompt in (3000, 1500)}
    top = {prompt: max(level.requests_per_s for level in found) for prompt, found in by_prompt.items()}
    lines = [
        Line(f"{prompt:,} in, 100 out", [level.users for level in found], [level.output_per_s for level in found])
        for prompt, found in by_prompt.items()
    ]
    rows = [
        (long.users, f"{long.output_per_s:,.0f}", f"{long.requests_per_s:.1f}", f"{short.output_per_s:,.0f}",
         f"{short.requests_per_s:.1f}")
        for long, short in zip(*by_prompt.values(), strict=True)
    ]  # fmt: skip
    return Section(
        "Throughput grows almost linearly with concurrency, then stays; half the prompt, about twice the request rate",
        "TNG, Llama-3.1-8B on an H100, 3,000 and 1,500 tokens in, 100 out",
        f"reproduced: {top[1500] / top[3000]:.2f} times the saturated request rate",
        table(("users", "3,000 in: tokens/s", "requests/s", "1,500 in: tokens/s", "requests/s"), rows),
        {
            "throughput.svg": chart(
                "Output throughput by concurrency", "users", "tokens/s", lines, log_x=True, log_y=True
            )
        },
    )


def order_of_policies() -> Section:
    found = e.policies()
    rows = [(o.policy, ms(o.ttft_p50), ms(o.ttft_p99), ms(o.itl_mean), ms(o.stall_p99)) for o in found]
    return Section(
        "Static batching waits for the longest answer: the worst TTFT, and an undisturbed decode",
        "TNG; 3 requests a second, 1,000 to 5,000 in, 20 to 300 out (chunks of 2,048)",
        "reproduced",
        table(("policy", "TTFT p50, ms", "TTFT p99, ms", "ITL, ms", "longest stall p99, ms"), rows),
        {},
        (pictures.static(),),
    )


def pauses() -> Section:
    found = e.bursts()
    rows = [(b.name, ms(b.longest_stall), b.tokens_meanwhile, ms(b.ttft_first), ms(b.ttft_mean)) for b in found]
    return Section(
        "Prefill-first pauses those who decode; chunked prefill only slows them, at a little more TTFT",
        "TNG; 32 prompts of 3,000 tokens at once, beside 32 that decode",
        f"reproduced: a stall of {found[0].longest_stall:.1f} s against {ms(found[2].longest_stall)} ms",
        table(("policy", "longest stall, ms", "tokens meanwhile", "first TTFT, ms", "mean TTFT, ms"), rows)
        + "\n\nWhole prompts are done together, at the end; chunks one after the other, so their mean TTFT is lower here. "
        "What chunking costs a prompt that is alone is in section 5.",
        {},
        (pictures.prefill_first(), pictures.chunked()),
        _same_requests() + "\n\n" + _gaps_apart(),
    )


def _same_requests() -> str:
    rows = []
    for policy in ("static", "prefill-first", "chunked 512", "disaggregated"):
        m = timelines.meanwhile(timelines.interrupted(policy))
        tokens = f"{m.tokens[0]}" if m.tokens[0] == m.tokens[1] else f"{m.tokens[0]} to {m.tokens[1]}"
        rows.append((policy, ms(m.long_ttft), tokens, ms(m.longest_gap), ms(m.late_ttft), f"{m.ended:.2f}"))
    headers = ("policy", "TTFT of the 8,000, ms", "tokens each meanwhile", "longest gap, ms", "TTFT of the later, ms",
               "all done, s")  # fmt: skip
    return "The same eight requests in each timeline (static is in section 2, disaggregated in section 9):\n\n" + table(
        headers, rows
    )


def _gaps_apart() -> str:
    rows, left = [], []
    for policy, found in disturbed().items():
        calm, beside, all_beside = (found.row(prefills) for prefills in ("0", "1", "1+"))
        left.append(found.decode_s - found.lost_s)
        rows.append((
            policy, f"{calm.gaps:,}", ms(calm.icl_ms[50] / 1e3), f"{beside.gaps:,}", ms(beside.icl_ms[50] / 1e3),
            ms(beside.icl_ms[99] / 1e3), f"{all_beside.slowdown:.2f}", f"{all_beside.share:.0%}", f"{found.decode_s:.0f}",
            f"{found.lost_s:.1f}",
        ))  # fmt: skip
    headers = ("policy", "gaps at 0", "p50, ms", "gaps at 1", "p50, ms", "p99, ms", "slow-down", "time disturbed",
               "decode, s", "lost, s")  # fmt: skip
    return (
        "Gaps told apart by how many other requests were in prefill meanwhile (0, 1), as in every report of a run. One load "
        "for all: section 2's lengths, 2 requests a second for two minutes.\n\n"
        + table(headers, rows)
        + "\n\n*Slow-down*: the mean gap beside one prefill or more, over the mean of undisturbed gaps at as many streams. "
        "*Time disturbed*: the share of these gaps in *decode*, the sum of all gaps. *Lost*: what they took longer than "
        f"undisturbed ones. Without it {min(left):.0f} to {max(left):.0f} s of decoding are left under each policy: what "
        "the client's records tell as lost is what sets the policies apart; the rest are batches of other sizes. Static "
        "batching loses next to nothing: it computes prompts when nobody decodes, and what a client sees beside a decode "
        "is a wait."
    )


def chunk_size() -> Section:
    found = e.chunk_sizes()
    whole = e.beside_decoders("whole", e.load("prefill-first"), [10_000])
    sizes = [float(b.name) for b in found]
    rows = [(b.name, ms(b.longest_stall), ms(b.ttft_mean), b.tokens_meanwhile) for b in [*found, whole]]
    lines = [
        Line("longest stall", sizes, [b.longest_stall * 1e3 for b in found]),
        Line("TTFT of the prompt", sizes, [b.ttft_mean * 1e3 for b in found]),
    ]
    return Section(
        "The chunk size, 512 to 8,192, trades TTFT for ITL",
        "TNG; one prompt of 10,000 tokens beside 32 that decode",
        "reproduced",
        table(("chunk", "longest stall, ms", "TTFT, ms", "tokens meanwhile"), rows),
        {
            "chunks.svg": chart(
                "One prompt of 10,000 tokens beside 32 decodes", "chunk, tokens", "ms", lines, log_x=True
            )
        },
    )


def chunking_throughput() -> Section:
    found = e.chunking_gain([(204, 64, 32), (204, 64, 64), (204, 64, 128), (1500, 100, 64), (3000, 100, 64)])
    rows = [
        (f"{g.prompt_tokens:,} / {g.output_tokens}", g.users, g.overheads, f"{g.static:.1f}", f"{g.prefill_first:.1f}",
         f"{g.chunked:.1f}", f"{g.chunked / g.prefill_first - 1:+.0%}")
        for g in found
    ]  # fmt: skip
    same, v0 = (next(g for g in found if (g[0], g[2], g.overheads) == (204, 64, name)) for name in ("same", "V0's"))
    return Section(
        "Chunked prefill raises the total throughput, +50 % in the seed's own deployment",
        "TNG, evenly sized requests; here closed loops with a staggered start",
        f"in part: {same.chunked / same.prefill_first - 1:+.0%} by scheduling alone with short prompts, "
        f"{v0.chunked / v0.prefill_first - 1:+.0%} against V0 with its own overheads, about nothing with long prompts",
        table(("in / out", "users", "overheads", "static", "prefill-first", "chunked", "gain"), rows)
        + "\n\nRequests a second. A step that computes prompts and one that decodes cost less as one step: the weights are "
        "read once, and the overhead comes once. That counts where prompts are short. Prompts of 3,000 tokens fill steps of "
        "their own, there is little to share, and the attention of chunks is spread over more steps. The seed does not name "
        "its lengths, its model or its engine's version: between two versions of vLLM more changed than the scheduling.",
        {},
    )


def tails() -> Section:
    seed = {8: 90, 32: 280, 64: 480}
    burst, steady, full = e.synchronised(), e.steady(), e.near_saturation()
    rows = [
        (b.users, seed[b.users], ms(b.p99), f"{b.p99 * 1e3 / seed[b.users] - 1:+.0%}", ms(s.p99))
        for b, s in zip(burst, steady, strict=True)
    ]
    more = [(t.users, ms(t.p50), ms(t.p99)) for t in full]
    calm, over = full[3].p99 / full[0].p99, full[5].p99 / full[3].p99
    lines = [
        Line("p99", [t.users for t in full], [t.p99 for t in full]),
        Line("p50", [t.users for t in full], [t.p50 for t in full]),
    ]
    return Section(
        "P99 TTFT of 90, 280, 480 ms at 8, 32, 64 requests; it grows faster than the concurrency",
        "Spheron, by way of the second seed; neither model nor lengths are given",
        "the figures within 40 % for 256-token prompts that arrive at the same moment; the words only past saturation",
        table(("requests at once", "seed, ms", "simulated, ms", "off by", "one after the other, ms"), rows)
        + "\n\nThe seed's own figures grow 5.3-fold over eightfold concurrency: slower than it. Users who send one request "
        "after the other do not arrive together, and see far less (last column). With long prompts among short ones (of "
        "ten, nine of 500 tokens and one of 12,000; 100 out; 64 places):\n\n"
        + table(("users", "TTFT p50, ms", "TTFT p99, ms"), more)
        + f"\n\nFrom 8 to 64 users P99 grows {calm:.1f}-fold, slower than the concurrency. When the 64 places are taken "
        f"it grows {over:.1f}-fold from 64 to 128: there the words hold.",
        {"tails.svg": chart("TTFT with long and short prompts, 64 places", "users", "s", lines)},
    )


def partial_prefills() -> Section:
    parts, said = [], {"small": "20 to 200, 500 to 2,000 and 4,000 to 10,000 tokens (90, 8 and 2 %)",
                       "large": "50 to 300, 1,500 to 3,000 and 10,000 to 20,000 tokens (80, 15 and 5 %)"}  # fmt: skip
    gains = {}
    for mix, sizes in said.items():
        found = e.partial_prefills(mix=mix)
        base = {(p.output_tokens, p.max_num_seqs): p for p in found if p.max_num_partial_prefills == 1}
        rows = []
        for p in found:
            without = base[p.output_tokens, p.max_num_seqs]
            gain = without.ttft_mean / p.ttft_mean
            gains[mix, p.output_tokens, p.max_num_seqs, p.max_num_partial_prefills] = gain
            rows.append((p.output_tokens, p.max_num_seqs, p.max_num_partial_prefills, f"{p.ttft_mean:.2f}",
                         f"{gain:.2f}", f"{p.ttft_p50:.2f}", f"{p.ttft_p99:.1f}", f"{p.output_per_s:,.1f}"))  # fmt: skip
        parts.append(
            f"Prompts of {sizes}:\n\n"
            + table(
                ("out", "max_num_seqs", "slots", "mean TTFT, s", "times better", "p50, s", "p99, s", "tokens/s"), rows
            )
        )
    uniform = e.partial_prefills((1, 4), (1024,), (256,), 240, "uniform")
    parts.append(
        f"All of 2,048 tokens (120 users, 1,024 out): mean TTFT {uniform[0].ttft_mean:.1f} s without, "
        f"{uniform[1].ttft_mean:.1f} s with four slots."
    )
    parts.append(
        "The pull request says about 20 % better with 128 tokens out and 128 places, about 400 % with one token out, and "
        "blames the places: decodes hold them, so a short prompt waits for a place however its prefill is scheduled. So "
        "it is here. Its P99 gets worse, here too. **Its throughput that rises with the slots is not reproduced**: the "
        "simulated GPU computes the same tokens at the same cost whichever come first. On a real server larger batches of "
        "decodes, or the order in which a benchmark's last requests end, may do it. The request's dataset is not public: "
        "the sizes of the first table were chosen so that its first cell has the request's 20 %, the other cells "
        "followed; with the larger prompts of the second the queue is long whatever is done, and the gain larger."
    )
    slots = []
    for name in timelines.SLOTS:
        records = timelines.queued(name)
        short, long = (timelines.ttft_s(timelines.of_kind(records, kind)) for kind in ("short", "long"))
        slots.append((name, *(f"{value:.2f}" for value in (np.mean(short), max(short), np.mean(long), max(long)))))
    return Section(
        "Concurrent partial prefills: mean TTFT several times better on a mix, P99 worse; the size of the gain depends on "
        "the output and on max_num_seqs; equal prompts unchanged",
        "vLLM pull request 31330: A40, 8B, 12 requests a second, threshold 2,048",
        f"reproduced, but for the throughput: {gains['small', 128, 128, 4]:.2f} times better with 128 out and 128 places, "
        f"{gains['small', 128, 1024, 4]:.1f} with 1,024 places, {gains['small', 1, 128, 4]:.1f} with one token out",
        "\n\n".join(parts),
        {},
        (pictures.one_at_a_time(), pictures.partial_prefills()),
        "The requests of both timelines, and what a threshold does alone:\n\n"
        + table(("how prompts share", "short TTFT, s", "longest", "long TTFT, s", "longest"), slots)
        + "\n\nWhat the request's author says against a threshold alone holds: four long prompts at 512 tokens a step use "
        "up the 2,048; the short ones wait as before, and each long one to the end of all. With one long prompt, as in "
        "section 11, a threshold is enough.",
    )


def prefill_limits() -> Section:
    def rows_of(found: Sequence[e.Limited]) -> str:
        rows = [
            (f.limit, f"{f.ttft_mean:.2f}", f"{f.from_asked_mean:.2f}", ms(f.itl_mean), f"{f.peak_kv:.0%}", f.preemptions,
             f"{f.requests_per_s:.2f}")
            for f in found
        ]  # fmt: skip
        headers = ("limit", "TTFT, s", "with the wait, s", "ITL, ms", "peak KV", "preemptions", "requests/s")
        return table(headers, rows)

    thin = e.limits(lambda limit: e.load(limit=limit, long_prefill_token_threshold=512))
    plain = e.limits(lambda limit: e.load(limit=limit))
    lines = [
        Line("TTFT", [f.limit for f in thin], [f.ttft_mean for f in thin]),
        Line("with the wait", [f.limit for f in thin], [f.from_asked_mean for f in thin]),
    ]
    return Section(
        "Limiting prefills at the client sets how much queues in the server, and prevents memory exhaustion",
        "AIPerf, prefill concurrency: 30 users, 16,000 tokens in",
        "reproduced: TTFT follows the limit; memory does where the server computes many prompts at a time, not elsewhere",
        "vLLM with a long-prefill-token-threshold of 512, so that up to 16 prompts share a step, each with its blocks:\n\n"
        + rows_of(thin)
        + "\n\nWith vLLM's defaults a prompt that waits holds no memory and one or two are computed at a time, so the limit "
        "moves the queue from the server to the client and changes nothing else:\n\n"
        + rows_of(plain)
        + "\n\nWhat a user waits, gate included, is in the third column. With the defaults no limit makes it shorter; with "
        "the threshold 5 is best: enough prompts to fill a step, and room for all of them.",
        {"limits.svg": chart("30 users, 16,000 tokens in, by prefill limit", "limit", "mean, s", lines)},
    )


def disaggregated() -> Section:
    found = e.limits(e.disaggregated)
    rows = [(f.limit, f"{f.ttft_mean:.2f}", ms(f.itl_mean), ms(f.stall_p99), f"{f.requests_per_s:.2f}") for f in found]
    lines = [Line("TTFT", [f.limit for f in found], [f.ttft_mean for f in found])]
    return Section(
        "With disaggregated serving the gate sets TTFT directly",
        "AIPerf; one H100 for prompts, one for decodes, 400 Gbit/s between them",
        "reproduced: TTFT is about the limit times one prefill, ITL does not move",
        table(("limit", "TTFT, s", "ITL, ms", "longest stall p99, ms", "requests/s"), rows),
        {"disaggregated.svg": chart("Disaggregated: TTFT by prefill limit", "limit", "mean, s", lines)},
        (pictures.disaggregated(),),
    )


def goodput() -> Section:
    found = e.goodput((1, 2, 4, 6, 7, 8, 9, 10, 12))
    rows = [
        (
            f"{g.rate:g}",
            f"{g.utilisation:.0%}",
            f"{g.completed_per_s:.1f}",
            f"{g.attainment:.0%}",
            f"{g.goodput_per_s:.1f}",
        )
        for g in found
    ]
    rates = [g.rate for g in found]
    lines = [
        Line("utilisation", rates, [g.utilisation * 100 for g in found]),
        Line("attainment", rates, [g.attainment * 100 for g in found]),
    ]
    return Section(
        "Beyond the knee goodput falls while the GPU stays busy",
        "second seed; 2,000 to 4,000 in, 100 out; targets: TTFT 3 s (TNG), 100 ms a token",
        "reproduced",
        table(("offered/s", "utilisation", "completed/s", "attainment", "goodput/s"), rows)
        + "\n\nUtilisation is the share of the time with a step under way, as nvidia-smi counts it, not the share of its "
        "FLOP/s.",
        {"goodput.svg": chart("Attainment and utilisation by offered rate", "requests/s offered", "%", lines)},
    )


# tests/real/contention.py, three runs each, lowest and highest, in ms: vLLM 0.32.0 on a CPU with a tiny random Llama, on
# 2 cores that other programs used too, 2026-11-20
REAL = (
    ("2048", "3,108 to 3,237", "3,059 to 3,177", "136 to 171", "622 to 647"),
    ("512", "3,759 to 3,973", "3,707 to 3,931", "82 to 92", "225 to 398"),
    ("512, threshold 128", "4,066 to 4,554", "30 to 38", "30 to 35", "71 to 82"),
    ("16384, not chunked", "3,777 to 4,513", "3,712 to 4,489", "183 to 270", "3,737 to 4,440"),
)


def contention() -> Section:
    rows = [(c.flags, ms(c.long_ttft), ms(c.short_ttft), ms(c.gap_mean), ms(c.gap_max)) for c in e.contention()]
    headers = ("max-num-batched-tokens", "long TTFT, ms", "short ones' TTFT, ms", "mean gap, ms", "largest gap, ms")
    return Section(
        "The same flags have the same effects on a real vLLM",
        "not a seed's: four requests decode, a prompt of 10,000 tokens arrives, 50 ms later four short ones",
        "the same order of the gaps and of the short ones' TTFT",
        "Simulated:\n\n"
        + table(headers, rows)
        + "\n\nMeasured on vLLM 0.32.0 (2026-11-20; a CPU, a tiny model with random weights, 2 cores with other work on "
        "them, three runs, lowest to highest; times are not to be compared with the H100's, only their order):\n\n"
        + table(headers, REAL)
        + "\n\nThe long prompt's own TTFT cannot be compared over the last row: the machine was busier then (the decodes' "
        "gaps before it came were 4.4 to 4.7 ms, 2.9 to 3.0 in the first row). An earlier pair of runs on a quieter "
        "machine had 1,435 ms there and 1,462 in the first.",
        {},
    )


SECTIONS = (
    saturation, order_of_policies, pauses, chunking_throughput, chunk_size, tails, partial_prefills, prefill_limits,
    disaggregated, goodput, contention,
)  # fmt: skip

HEAD = """\
# What the seeds say, in the simulator

The project was made from a few documents on how LLM servers schedule prefill and decode. Here is each of their claims, run
in the simulator's virtual time, with what came out; where one does not reproduce, why. `make seeds` makes this page anew;
the numbers are the same on every machine. Every claim is a test too: `tests/seeds/test_seeds.py`.

**SIMULATED**: Llama-3.1-8B on an H100 (partial prefills: an A40), a cost model fitted to one set of measurements of other
lengths (`make calibration`). HTTP, tokenizer and network are not in these times. What a claim's order or
shape says may be trusted further than any number.

Where a claim is about who waits for whom, a timeline shows it, drawn as `locust-llm figure` draws one of any run: a line a
request, a bar to its first token, a dot a token. What a seed says stands above it in our words, where to look below.
"""


def page(sections: Sequence[Section]) -> str:
    parts = [
        HEAD.rstrip(),
        table(("", "claim", "result"), [(n, s.claim, s.verdict) for n, s in enumerate(sections, 1)], "left"),
    ]
    for number, section in enumerate(sections, 1):
        figures = "\n".join(f"![{name.removesuffix('.svg')}]({name})" for name in section.figures)
        parts += [
            f"## {number}. {section.claim}",
            f"{section.source}. **Result: {section.verdict}.**",
            section.text,
            *(f"{p.words}\n\n![{p.title}]({p.name})\n\n{p.look}" for p in section.pictures),
            section.closing,
            figures,
        ]
    return "\n\n".join(filter(None, parts)).rstrip() + "\n"

"""The glossary on request concurrency: tails, the early slope, and goodput beyond the knee."""

from itertools import pairwise

import experiments as e
from chart import Line, chart
from section import Check, Section, ms, table, verdict

from locust_llm.report.sections.sweep.sweep_findings import MAX_FLAT, MIN_STEEP


def tails() -> Section:
    seed = {8: 90, 32: 280, 64: 480}
    burst, steady, full = e.synchronised(), e.steady(), e.near_saturation()
    off = [b.p99 * 1e3 / seed[b.users] - 1 for b in burst]
    rows = [
        (b.users, seed[b.users], ms(b.p99), f"{apart:+.0%}", ms(s.p99))
        for b, s, apart in zip(burst, steady, off, strict=True)
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
        verdict(
            Check(
                "the figures within 20 % for 256-token prompts that arrive at the same moment",
                max(map(abs, off)) < 0.2,
                ", ".join(f"{one:+.0%}" for one in off),
            ),
            Check(
                "P99 grows faster than the concurrency in the seed's own figures",
                480 / 90 > 64 / 8,
                f"{480 / 90:.1f}-fold, 8 to 64",
            ),
            Check(
                "it does in closed loops up to saturation",
                calm > 64 / 8,
                f"{calm:.1f}-fold, 8 to 64",
            ),
            Check(
                "it does in closed loops beyond saturation",
                over > 128 / 64,
                f"{over:.1f}-fold, 64 to 128",
            ),
        ),
        table(
            ("requests at once", "seed, ms", "simulated, ms", "off by", "one after the other, ms"),
            rows,
        )
        + "\n\nThe seed's own figures grow 5.3-fold over eightfold concurrency: slower than it. "
        "Users who send one request "
        "after the other do not arrive together, and see far less (last column). With long prompts "
        "among short ones (of "
        "ten, nine of 500 tokens and one of 12,000; 100 out; 64 places):\n\n"
        + table(("users", "TTFT p50, ms", "TTFT p99, ms"), more)
        + f"\n\nFrom 8 to 64 users P99 grows {calm:.1f}-fold, slower than the concurrency. When "
        f"the 64 places are taken "
        f"it grows {over:.1f}-fold from 64 to 128: there the words hold.",
        {"tails.svg": chart("TTFT with long and short prompts, 64 places", "users", "s", lines)},
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
    best = max(found, key=lambda g: g.goodput_per_s)
    beyond = min(g.utilisation for g in found if g.rate >= best.rate)
    lines = [
        Line("utilisation", rates, [g.utilisation * 100 for g in found]),
        Line("attainment", rates, [g.attainment * 100 for g in found]),
    ]
    return Section(
        "Beyond the knee goodput falls while the GPU stays busy",
        "second seed; 2,000 to 4,000 in, 100 out; targets: TTFT 3 s (TNG), 100 ms a token",
        verdict(
            Check(
                "goodput falls",
                found[-1].goodput_per_s < 0.5 * best.goodput_per_s,
                f"from {best.goodput_per_s:.1f}/s at {best.rate:g}/s offered to "
                f"{found[-1].goodput_per_s:.1f} at "
                f"{found[-1].rate:g}",
            ),
            Check("the GPU stays busy", beyond > 0.95, f"at least {beyond:.0%} of the time"),
        ),
        table(("offered/s", "utilisation", "completed/s", "attainment", "goodput/s"), rows)
        + "\n\nUtilisation is the share of the time with a step under way, as nvidia-smi counts "
        "it, not the share of its "
        "FLOP/s.",
        {
            "goodput.svg": chart(
                "Attainment and utilisation by offered rate", "requests/s offered", "%", lines
            )
        },
    )


def early_slope() -> Section:
    found = e.early_slopes(
        ((16_000, 60), (8000, 100), (3000, 100), (1500, 100), (550, 128), (200, 64))
    )
    one_place = e.early_slopes(((200, 64),), max_num_seqs=1)[0]
    long_answers = e.early_slopes(((8000, 1500),))[0]
    rows = [
        (
            f"{s.prompt_tokens:,} / {s.output_tokens}",
            *(f"{value:.2f}" for value in s.p50_s),
            f"{s.slope:.2f}",
        )
        for s in (*found, one_place, long_answers)
    ]
    rows[-2] = (f"{rows[-2][0]}, one place", *rows[-2][1:])
    return Section(
        "A steep early slope of latency means long prompts, a gradual one short prompts and "
            "headroom",
        "second seed; closed loops of 1 to 8 users; the slope is that of log request latency (p50) "
            "over log concurrency, "
        f"steep from {MIN_STEEP:g} and flat below {MAX_FLAT:g}, as in the report of a sweep",
        verdict(
            Check("longer prompts, steeper slope",
                all(a.slope > b.slope for a, b in pairwise(found))),
            Check("long prompts: steep", found[0].slope >= MIN_STEEP,
                f"{found[0].slope:.2f} with 16,000 in, 60 out"),
            Check("short prompts: flat", found[-1].slope < MAX_FLAT,
                f"{found[-1].slope:.2f} with 200 in, 64 out"),
            Check("a steep slope means long prompts", one_place.slope < MIN_STEEP,
                  f"{one_place.slope:.2f} with 200 in on a server with one place"),
            Check("a slope that is not steep means short prompts", long_answers.slope >= MIN_STEEP,
                  f"{long_answers.slope:.2f} with 8,000 in, 1,500 out"),
        ),
        table(("in / out", "1 user, s", "2", "4", "8", "slope"), rows)
        + "\n\nThe slope says how much of a request's time others take from it: prompts in "
            "proportion to answers, and "
        "places on the server. The length of prompts is one cause among others.",
        {},
    )  # fmt: skip

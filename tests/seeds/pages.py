"""The page of the seeds: each claim, its experiment in the simulator, and what came out."""

from collections.abc import Sequence

from section import Section, short, table
from seed_aiperf import commands, disaggregated, omission, prefill_limits, sample_outputs
from seed_concurrency import early_slope, goodput, tails
from seed_partial import contention, equal_prompts, partial_prefills, threshold
from seed_tng import chunk_size, chunking_throughput, order_of_policies, pauses, saturation

SECTIONS = (
    saturation, order_of_policies, pauses, chunking_throughput, chunk_size, tails, partial_prefills,
    prefill_limits,
    disaggregated, goodput, contention, equal_prompts, threshold, early_slope, omission,
    sample_outputs, commands,
)  # fmt: skip

HEAD = """\
# What the seeds say, in the simulator

The project was made from a few documents on how LLM servers schedule prefill and decode. Here is each of their claims, run
in the simulator's virtual time, with what came out; where one does not reproduce, why. `make seeds` makes this page anew;
the numbers are the same on every machine. Each result is computed from the runs: *in part* names what holds and what does
not. Every claim is a test too: `tests/seeds/test_seeds.py`.

**SIMULATED**: Llama-3.1-8B on an H100 (partial prefills: an A40), a cost model fitted to one set of measurements of other
lengths (`make calibration`). HTTP, tokenizer and network are not in these times. What a claim's order or
shape says may be trusted further than any number.

Where a claim is about who waits for whom, a timeline shows it, drawn as `locust-llm figure` draws one of any run: a line a
request, a bar to its first token, a dot a token. What a seed says stands above it in our words, where to look below.
"""


def page(sections: Sequence[Section]) -> str:
    parts = [
        HEAD.rstrip(),
        table(
            ("", "claim", "result"),
            [(n, s.claim, short(s.verdict)) for n, s in enumerate(sections, 1)],
            "left",
        ),
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

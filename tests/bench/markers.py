"""Markers: what the search for session markers costs for each word of an answer, and what a marker
costs to make."""

import random
import time
from collections.abc import Callable

from locust_llm.answers.session_markers import MarkerKey, load_marker_words
from locust_llm.workload.local_tokenizer import load_corpus

WORDS = 20_000
ROUNDS = 30


def measure_cpu_us(work: Callable[[], object], count: int) -> float:
    """The best of several rounds, in µs for each of ``count`` parts."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        best_s = min(best_s, time.process_time() - began)
    return best_s / count * 1e6


def main() -> None:
    key = MarkerKey(b"0123456789abcdef")
    prose = " ".join(load_corpus()[0].split()[:WORDS])
    listed = " ".join(random.Random(1).choices(load_marker_words()[0], k=WORDS))
    print(f"prose: {measure_cpu_us(lambda: key.find(prose), WORDS):.3f} µs a word")
    print(
        f"only words of the list: {measure_cpu_us(lambda: key.find(listed), WORDS):.3f} µs a word"
    )
    made = measure_cpu_us(lambda: [key.make() for _ in range(1_000)], 1_000)
    print(f"a marker: {made:.1f} µs")


if __name__ == "__main__":
    main()

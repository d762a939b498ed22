"""Response time: how long the server takes for one request of the load while it has no other.

It is measured before the load. The users of a closed loop start over so much time.
"""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Final

from locust_llm.records.run_facts import ResponseTime
from locust_llm.server.http_get import FetchFailed
from locust_llm.server.length_control import make_length_fields
from locust_llm.settings.run_options import Settings
from locust_llm.workload.access_log import parse_column_names
from locust_llm.workload.conversation import ConversationRequest, ConversationSource
from locust_llm.workload.dataset import Dataset
from locust_llm.workload.dataset_formats import DatasetSession
from locust_llm.workload.generated_images_and_audio import MediaGenerator
from locust_llm.workload.images_and_audio import MediaStore
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts, format_prompt_number

from .preflight_requests import ProbeRequests
from .refusals import PROBE_TIMEOUT_S, list_lengths

MAX_COLD_S: Final = 10.0
"""Of a response that takes longer, what a cold server adds is small."""
SAMPLED_ROWS: Final = 21
"""The first sessions of a dataset, of which the middle one by length is typical."""


def measure_response_time(
    probes: ProbeRequests,
    lengths: PromptLengthModel,
    length_way: tuple[str, ...] = (),
    clock: Callable[[], float] = time.monotonic,
) -> ResponseTime | None:
    """Send a typical request of the load, and wait for its answer at most as long as its users may
    take to start; to its end where the length of blocks depends on it. None: it failed.

    The server may have been cold, so a second one follows, and the faster of the two counts. Their
    words are their own, so that no cache is warmer for the load.
    """
    s = probes.settings
    longest_s = min(PROBE_TIMEOUT_S, s.longest_start_s or PROBE_TIMEOUT_S)
    if (s.compares and s.shortens_blocks) or s.swept_limits:
        longest_s = PROBE_TIMEOUT_S
    first = _time_request(probes, lengths, length_way, longest_s, clock)
    if first is None or first.cut or first.seconds > MAX_COLD_S:
        return first
    second = _time_request(probes, lengths, length_way, longest_s, clock)
    return first if second is None or second.seconds > first.seconds else second


def _time_request(
    probes: ProbeRequests,
    lengths: PromptLengthModel,
    length_way: tuple[str, ...],
    longest_s: float,
    clock: Callable[[], float],
) -> ResponseTime | None:
    s = probes.settings
    ask = choose_typical_request(s, lengths)
    from_settings = not s.input_file
    fields = make_length_fields(length_way, ask.output_tokens) if from_settings else {}
    began = clock()
    try:
        answered = probes.send_as_load(
            ask.messages, ask.output_tokens, longest_s, **fields, **ask.body
        )
    except FetchFailed as error:
        return ResponseTime(seconds=longest_s, cut=True) if error.outcome == "timeout" else None
    return ResponseTime(seconds=clock() - began) if answered else None


def choose_typical_request(s: Settings, lengths: PromptLengthModel) -> ConversationRequest:
    """The middle one by length of the load's first requests."""
    sizes = sorted(list_lengths(s), key=lambda pair: (pair[1], pair[0]))
    typical = sizes[len(sizes) // 2]
    salt = format_prompt_number(Random().getrandbits(30))
    prompts = Prompts(
        lengths,
        lambda random: typical,
        batch=s.texts,
        media=MediaGenerator(s.media, None),
        salt=salt,
    )
    parts = MediaStore(s.input_file).parts if s.input_file else None
    source = ConversationSource(prompts, parts=parts)
    asked = [source.begin(item).next() for item in _list_first_sessions(s)]
    known = sorted((request for request in asked if request is not None), key=_request_size)
    return known[len(known) // 2]


def _request_size(ask: ConversationRequest) -> tuple[int, int]:
    return ask.output_tokens, sum(len(str(message)) for message in ask.messages)


def _list_first_sessions(s: Settings) -> Iterator[DatasetSession | None]:
    """None: a synthetic session."""
    if not s.input_file:
        return iter([None])
    columns = parse_column_names(s.dataset_columns) if s.dataset_columns else None
    dataset = Dataset(
        s.input_file,
        kind=s.custom_dataset_type,
        columns=columns,
        skip_broken=s.skip_broken_rows,
    )
    return islice(dataset, SAMPLED_ROWS)

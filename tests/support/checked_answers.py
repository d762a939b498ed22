"""Checked answers: sessions with markers against the direct simulator, and what the checks find."""

from collections import Counter
from random import Random
from typing import NamedTuple

from locust_llm.answers.answer_integrity import ModelNames, find_answer_faults
from locust_llm.answers.fault_names import DUPLICATE_ID, FOREIGN_MARKER
from locust_llm.answers.received_answer import AnswerRequested, EventReader, ReceivedAnswer
from locust_llm.answers.session_markers import MarkerKey
from locust_llm.client.chat_answer import join_deltas
from locust_llm.simulator.simulated_text import ASKS_FOR_CODE
from support.direct_simulator import DirectSimulator

ASKED_SHARE = 0.2
"""The share of requests that ask for the session marker."""
KEY = b"a key of sixteen"
CROWD = 20
"""So many requests are open at a time."""
TOKENS = 12
"""More than a marker has, so that each answer can hold one."""
TOPICS = ("rivers", "boats", "mills", "lamps", "roads")


CROWDED = (CROWD - 1) / CROWD
"""The first request of a crowd comes while no other one is open."""
LOGPROBS = {"logprobs": True, "top_logprobs": 2}
RESPONSES = {"kind": "responses"}
COUNTED = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


class PlantedCase(NamedTuple):
    quirk: str
    setting: dict
    """How the requests ask."""
    share: float
    """How many answers with this fault are found, for each one that draws it."""
    name: str
    """As what it is found."""


PLANTED_CASES = (
    # both answers of a pair, and whoever got the answer of one who asked shows it
    PlantedCase("swap", {}, 2 * ASKED_SHARE, "foreign_marker"),
    # it obeys its own prompt, with the code of another
    PlantedCase("prefix_leak", {}, CROWDED * ASKED_SHARE, "foreign_marker"),
    # the begin of an answer to one who asked
    PlantedCase("late_block", {}, CROWDED * ASKED_SHARE, "foreign_marker"),
    PlantedCase("drop_delta", LOGPROBS, 1, "lost_delta"),
    PlantedCase("double_delta", LOGPROBS, 1, "doubled_delta"),
    PlantedCase("drop_delta", RESPONSES, 1, "lost_delta"),
    PlantedCase("double_delta", RESPONSES, 1, "doubled_delta"),
    PlantedCase("reorder_delta", RESPONSES, 1, "reordered_delta"),
    PlantedCase("double_delta", COUNTED, 1, "doubled_delta"),
    PlantedCase("reorder_delta", COUNTED, 1, "reordered_delta"),
    PlantedCase("wrong_usage", {}, 1, "wrong_usage"),
    PlantedCase("wrong_usage", LOGPROBS, 1, "wrong_usage"),
    PlantedCase("wrong_usage", {"stream": False}, 1, "wrong_usage"),
    PlantedCase("duplicate_id", {}, 1, "duplicate_id"),
    PlantedCase("duplicate_id", {"stream": False}, 1, "duplicate_id"),
    PlantedCase("wrong_id", {}, 1, "id_switched"),
    PlantedCase("wrong_id", RESPONSES, 1, "id_switched"),
    PlantedCase("wrong_model", {}, 1, "wrong_model"),
    PlantedCase("wrong_model", {"stream": False}, 1, "wrong_model"),
    PlantedCase("broken_text", {}, 1, "broken_text"),
    # what cannot be seen: the stream of a chat has no numbers, and other words are no fault
    PlantedCase("drop_delta", {}, 0, "lost_delta"),
    PlantedCase("reorder_delta", {}, 0, "reordered_delta"),
    PlantedCase("reorder_delta", LOGPROBS, 0, "reordered_delta"),
    PlantedCase("near_tie", {"temperature": 0, **LOGPROBS}, 0, "logprobs_text"),
    PlantedCase("wide_flip", {"temperature": 0, **LOGPROBS}, 0, "logprobs_text"),
)
"""Each planted fault, and what a chat stream cannot show."""


class CheckedAnswer(NamedTuple):
    faults: tuple[str, ...]
    planted: tuple[str, ...]
    is_repeated: bool
    """It has its own marker."""


class CheckedLoad:
    """A load in virtual time: crowds of requests, each a session of its own."""

    def __init__(self, quirks, *, kind="chat", seed=0, **body):
        self.simulator = DirectSimulator(quirks, seed=seed)
        self.kind = kind
        self.body = body
        self.markers = MarkerKey(KEY)
        self.models = ModelNames()
        self._random = Random(seed)
        self.num_asked = 0
        self.answers = []
        self._id_hashes = []
        self._number = 0

    def run(self, num_answers, num_cancelled=0):
        """Each crowd begins with so many requests whose clients leave before the first token."""
        while len(self.answers) < num_answers:
            for _ in range(num_cancelled):
                self._send()[0].cancel()
            sent = [self._send() for _ in range(CROWD)]
            self.simulator.run()
            for request, row, marker in sent:
                self._check(request, row, marker)
        return self

    def _send(self):
        marker = self.markers.make()
        asked = self._random.random() < ASKED_SHARE
        self.num_asked += asked
        end = f"Session code: {marker.text}." + f" {ASKS_FOR_CODE}" * asked
        self._number += 1
        topic = TOPICS[self._number % len(TOPICS)]
        prompt = f"Write about {topic}, in the words of {self._number} people. {end}"
        body = {"max_tokens": TOKENS, **self.body}
        request = self.simulator.send(prompt, self.kind, **body)
        return request, request.row, marker

    def _check(self, request, row, marker):
        reader = EventReader()
        completion = request.parse(reader.add)
        received = received_answer(completion, reader)
        asked = AnswerRequested(model="small", max_tokens=TOKENS)
        faults = find_answer_faults(received, asked, self.models)
        found = self.markers.find(received.text)
        if any(number != marker.number for number in found):
            faults = (FOREIGN_MARKER, *faults)
        if reader.ids:
            self._id_hashes.append(hash(reader.ids[0]))
        self.answers.append(CheckedAnswer(faults, tuple(row.planted), marker.number in found))

    @property
    def faults(self):
        """How many answers have each fault."""
        counts = Counter(name for answer in self.answers for name in answer.faults)
        repeats = len(self._id_hashes) - len(set(self._id_hashes))
        return counts + Counter({DUPLICATE_ID: repeats})

    @property
    def planted(self):
        return Counter(name for answer in self.answers for name in answer.planted)


def received_answer(completion, reader):
    message = join_deltas(completion.deltas)
    counts = completion.counts
    return ReceivedAnswer(
        text=message["content"] or "",
        reasoning=message.get("reasoning", ""),
        tool_arguments=tuple(c["function"]["arguments"] for c in message.get("tool_calls", ())),
        finish_reason=completion.finish_reason,
        choices=completion.choices,
        prompt_tokens=counts.input,
        completion_tokens=counts.output,
        total_tokens=counts.total,
        chunk_texts=tuple(delta.content for delta in completion.deltas if delta.content),
        tokens_so_far=tuple(completion.counted_by),
        events=reader,
    )

"""Whose work a sequence's time went to, counted the slow way: all steps are kept, each sequence
walks through them."""

from dataclasses import dataclass

from locust_llm.simulator.scheduling.cost import step_duration_s
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.time_parts import LatencyParts


@dataclass(frozen=True)
class Step:
    began: float
    ended: float
    prefills: dict[Sequence, tuple[int, int]]
    """Tokens computed before, and in this step."""
    decoding: frozenset[Sequence]
    contexts: int | None
    """Tokens of all that decode; None: no round."""


class LoggedEngine(BatchEngine):
    def _begin_step(self) -> None:
        if not hasattr(self, "steps"):
            self.steps: list[Step] = []
        began = self._due
        super()._begin_step()
        if self._idle:
            return
        batch = self._batch
        prefills = {
            sequence: (sequence.computed_then, new) for sequence, new in batch.prefills.items()
        }
        decoding = frozenset(self.scheduler.decoding.sequences)
        contexts = sum(sequence.num_tokens for sequence in decoding) if batch.num_decodes else None
        self.steps.append(Step(began, self._due, prefills, decoding, contexts))

    def parts(self, sequence: Sequence) -> LatencyParts:
        """Of one that has finished: each step of its life goes, with its seconds, to what it was to
        this sequence."""
        arrived, cost = sequence.arrived_at, self.cost
        assert arrived is not None
        queue = own = others = pace = stalls = preemption = 0.0
        began, had_token = False, False
        mine = [
            step
            for step in self.steps
            if step.ended > arrived and step.began < (sequence.last_at or 0.0)
        ]
        for step in mine:
            took = step.ended - step.began
            segment = step.prefills.get(sequence)
            if not began and segment is None:
                queue += step.ended - max(arrived, step.began)
                continue
            if not began:
                queue += max(0.0, step.began - arrived) if step is mine[0] else 0.0
                began = True
            if not had_token:
                alone = self.time_scale * step_duration_s(cost, [segment]) if segment else 0.0
                own, others = own + alone, others + took - alone
                had_token = segment is not None and sum(segment) == sequence.num_prompt_tokens
            elif sequence in step.decoding:
                count = len(step.decoding)
                alone = 0.0
                if step.contexts is not None:
                    alone = self.time_scale * step_duration_s(cost, [], count, step.contexts)
                pace, stalls = pace + alone, stalls + took - alone
            else:
                preemption += took
        return LatencyParts(queue, own, others, pace, stalls, preemption)

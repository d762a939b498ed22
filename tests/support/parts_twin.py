"""Parts twin: computes the latency parts of a sequence the slow way. It keeps all steps, and each
sequence walks through them."""

from dataclasses import dataclass

from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.step_cost import step_duration_s
from locust_llm.simulator.scheduling.time_parts import LatencyParts


@dataclass(frozen=True)
class Step:
    began: float
    ended: float
    prefills: dict[Sequence, tuple[int, int]]
    """Each entry has the tokens computed before and in this step."""
    decoding: frozenset[Sequence]
    contexts: int | None
    """The decodes have this many tokens. None: no round."""


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
        """Returns the parts of a finished sequence: each step of its life adds its seconds to one
        part."""
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
                own = own + alone
                others = others + took - alone
                had_token = segment is not None and sum(segment) == sequence.num_prompt_tokens
            elif sequence in step.decoding:
                count = len(step.decoding)
                alone = 0.0
                if step.contexts is not None:
                    alone = self.time_scale * step_duration_s(cost, [], count, step.contexts)
                pace = pace + alone
                stalls = stalls + took - alone
            else:
                preemption += took
        return LatencyParts(queue, own, others, pace, stalls, preemption)

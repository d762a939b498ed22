"""Truth: what prefills cost decodes, by the engine's own steps; the report sees only the client's
stamps."""

from locust_llm.simulator.scheduling.cost import StepCostConstants, step_duration_s
from locust_llm.simulator.scheduling.engine import BatchEngine


class TruthEngine(BatchEngine):
    """Counts, for each step and each stream that decodes meanwhile, how much longer the step was
    than it would have been without its prompts. A step that gives those who decode nothing is lost
    to them as a whole."""

    decode_true_s = 0.0
    """The sum of the steps over the streams."""
    lost_true_s = 0.0
    """Of that, for the prompts."""

    def _begin_step(self) -> None:
        began = self._due
        super()._begin_step()
        streams = len(self.scheduler.decoding.sequences)
        took, batch = self._due - began, self._batch
        if self._idle or not streams:
            return
        self.decode_true_s += streams * took
        if batch.prefills:
            alone = self._without_prompts(self.cost) if batch.num_decodes else 0.0
            self.lost_true_s += streams * (took - alone)

    def _without_prompts(self, cost: StepCostConstants) -> float:
        return step_duration_s(cost, (), self._batch.num_decodes, self._batch.num_context_tokens)

"""Engine truth: measures the cost of prefills for decodes by the engine's own steps. The report
sees only the client's stamps."""

from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.step_cost import StepCostConstants, step_duration_s


class TruthEngine(BatchEngine):
    """Sums the extra time of each step for each decoding stream, compared with the step without its
    prompts. A step without decodes is lost as a whole."""

    decode_true_s = 0.0
    """This sums the steps over the streams."""
    lost_true_s = 0.0
    """Prompts took this part of it."""

    def _begin_step(self) -> None:
        began = self._due
        super()._begin_step()
        streams = len(self.scheduler.decoding.sequences)
        took = self._due - began
        batch = self._batch
        if self._idle or not streams:
            return
        self.decode_true_s += streams * took
        if batch.prefills:
            alone = self._without_prompts(self.cost) if batch.num_decodes else 0.0
            self.lost_true_s += streams * (took - alone)

    def _without_prompts(self, cost: StepCostConstants) -> float:
        return step_duration_s(cost, (), self._batch.num_decodes, self._batch.num_context_tokens)

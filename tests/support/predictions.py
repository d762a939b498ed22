"""Predictions: predicts each figure in seconds, whatever the verdict on the twin."""

from collections.abc import Mapping, Sequence

from locust_llm.lab.twin.server_observations import FIGURES
from locust_llm.lab.twin.twin_model import ServerModel
from locust_llm.lab.twin.twin_prediction import (
    PredictedValue,
    WhatIf,
    interval_of_logarithms,
    simulate_logarithms,
)
from locust_llm.lab.twin.virtual_replay import Lengths


def predict_figures(
    models: Sequence[ServerModel], asked: WhatIf, lengths: Lengths, errors: Mapping[str, float]
) -> dict[str, PredictedValue]:
    """``errors`` are of the model itself, as shares."""
    found = simulate_logarithms(models, asked, lengths, FIGURES)
    return {
        figure: interval_of_logarithms(logs, errors.get(figure, 0.0))
        for figure, logs in found.items()
    }

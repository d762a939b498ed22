"""Energy: what the GPUs of the server drew while a run was measured, and per output token."""

import msgspec


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Of the GPUs whose power the metrics pages had (DCGM), whatever else ran on them."""

    gpus: int
    watts: float
    """All of them, time-weighted mean."""
    joules_per_output_token: float | None
    """None: no output tokens."""

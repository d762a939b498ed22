"""The locustfile of ``locust-llm probe``: what prefills do to decodes, and which scheduler the
server has."""

from locust_llm import ProbeUser


class Interference(ProbeUser):
    """Sends the requests of the probe's schedule, then ends the run."""

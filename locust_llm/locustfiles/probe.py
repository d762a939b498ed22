"""The locustfile of ``locust-llm probe``: what prefills do to decodes, and which scheduler the
server has."""

from locust_llm import ProbeUser


class Interference(ProbeUser):
    """Sends what the timetable of the probe says, and ends the run when it is through."""

"""The interference probe finds the server's scheduler in one to six minutes.

locust -f locustfiles/interference.py --host localhost:8000 --headless
"""

from locust_llm import ProbeUser


class Interference(ProbeUser):
    """Sends the requests of the probe's schedule, then ends the run."""

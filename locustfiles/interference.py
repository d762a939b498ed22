"""The interference probe: what prefills do to decodes, and which scheduler the server has; one to six minutes.

locust -f locustfiles/interference.py --host localhost:8000 --headless
"""

from locust_llm import ProbeUser


class Interference(ProbeUser):
    """Sends what the timetable of the probe says, and ends the run when it is through."""

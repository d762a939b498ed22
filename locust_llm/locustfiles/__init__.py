"""Locustfiles: those that ``locust-llm run`` and ``locust-llm probe`` hand to Locust."""

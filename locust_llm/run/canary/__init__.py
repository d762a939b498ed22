"""``locust-llm canary``: one slow stream on a shared server, and what others do to it.

``watch.py``: a round after the other, its line, file and series; ``command.py``: the options, and how a round is asked for.
The arithmetic is in ``probe/canary.py``.
"""

"""Results: what any load tester wrote of a run, read into one shape, and looked at.

``figures.py`` is the shape, ``formats/`` has a reader for each tool, ``records/`` makes a run folder of those that have
their requests, ``exports/`` writes a run for other tools, ``audit/`` says which figures cannot be true together.
"""

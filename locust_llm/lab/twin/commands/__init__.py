"""Commands of the twin: ``fit``, ``predict`` and ``drift``; command.py chooses between them."""

"""Runs the simulator by `python -m locust_llm.simulator`."""

import sys

from .simulate_command import main

sys.exit(main(sys.argv[1:]))

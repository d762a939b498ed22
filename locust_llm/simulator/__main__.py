"""`python -m locust_llm.simulator`."""

import sys

from locust_llm.simulator.command import main

sys.exit(main(sys.argv[1:]))

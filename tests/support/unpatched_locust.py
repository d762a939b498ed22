"""Unpatched Locust: imports Locust without its patches, which would replace sockets, threads and
selectors of the whole test process. Import this before anything that imports Locust.

The real command, in a process of its own, is patched as always.
"""

import os

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
try:
    from locust.argument_parser import get_empty_argument_parser, setup_parser_arguments
finally:
    del os.environ["LOCUST_SKIP_MONKEY_PATCH"]

__all__ = ["get_empty_argument_parser", "setup_parser_arguments"]

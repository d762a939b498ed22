"""Command line: parses words with Locust's parser and ours, without a run."""

from argparse import Namespace
from functools import cache
from typing import Any

from locust_llm.locust_adapter.command_line_parser import add_options
from support.unpatched_locust import get_empty_argument_parser, setup_parser_arguments


@cache
def _parser() -> Any:
    """Makes Locust's parser with our flags once, as that takes longer than parsing."""
    parser = get_empty_argument_parser(default_config_files=[])
    setup_parser_arguments(parser)
    add_options(parser, before_load=lambda options: None)
    return parser


def parse(*words: str, headless: bool = True) -> Namespace:
    """Parses these words and the environment."""
    host = [] if any(word.startswith("--host") for word in words) else ["--host", "localhost:1"]
    return _parser().parse_args(["-f", "my/chat.py", *host, *["--headless"] * headless, *words])

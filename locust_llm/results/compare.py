"""Command: ``locust-llm compare A B``, runs and results of other tools beside the first of them."""

from locust_llm.exit_status import fail

from . import beside
from .history import choice


def run_compare(words: list[str]) -> int:
    """Compare runs with the first of them; results of other tools, without records, as a table of what they say."""
    try:
        words = choice.put_in_front(words)
    except (OSError, ValueError) as error:
        return fail(str(error))
    if beside.of_files(words):
        return beside.compare_results(words)
    from locust_llm.report import commands  # late: numpy and pandas take a second

    from . import runs

    return commands.run_compare_command(words, runs.render_comparison_page)

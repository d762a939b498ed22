"""Command ``locust-llm compare A B``: compares runs, and results of other tools, with the first of
them."""

from locust_llm.exit_status import fail

from .history import select_runs
from .interop import side_by_side


def run_compare(words: list[str]) -> int:
    """Compares runs with the first of them. Results of other tools, which have no records, become
    one table."""
    try:
        words = select_runs.put_in_front(words)
    except (OSError, ValueError) as error:
        return fail(str(error))
    if side_by_side.names_result_files(words):
        return side_by_side.compare_results(words)
    from locust_llm.report import cli as commands  # late: numpy and pandas take a second

    from .history.between_runs import add_run_spread
    from .interop import runs_page

    return commands.run_compare_command(words, runs_page.render_comparison_page, add_run_spread)

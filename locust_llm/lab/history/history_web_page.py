"""History web page: renders the history of all runs of a folder for the web UI."""

from pathlib import Path
from urllib.parse import quote

from .history_entry import HistoryEntry
from .history_index import index_runs
from .history_page import render_history_page
from .run_series import group_series


def make_page(reports: Path) -> str:
    """Renders the page of these runs with links to their reports in the web UI. Raises OSError."""
    return render_history_page(
        group_series(index_runs(reports).entries), reports.name, _address_of_report
    )


def _address_of_report(run: HistoryEntry) -> str:
    """Returns the address relative to the history. It is empty for a run that the web UI does not
    show."""
    return f"runs/{quote(run.folder, safe='')}/report.html" if "/" not in run.folder else ""

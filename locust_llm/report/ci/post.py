"""A comment that stays one: found again by its mark and replaced, through the API of GitHub or of GitLab.

Only a comment of the token's own user is replaced: anybody may write one that begins with the mark.
"""

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

TIMEOUT_S: Final = 30.0
MAX_BYTES: Final = 10**7
A_PAGE: Final = 100
MAX_PAGES: Final = 30
BOT: Final = "github-actions[bot]"
"""Who comments with a workflow's own token, which may not ask who it is."""


class NotPosted(Exception):
    """Why, in one sentence."""


class Place(NamedTuple):
    """Where comments are, by an API."""

    comments: str
    """URL of all of them; one of GitLab's is below it."""
    one: str
    """URL of one, without its number."""
    me: str
    """URL that says whose the token is."""
    headers: dict[str, str]
    update: str
    """The method that replaces one."""
    author: str
    """The field of a comment that has its author ..."""
    name: str
    """... and the field of an author that has the name."""


def place_of(environ: Mapping[str, str]) -> Place:
    """Of the pull request, or merge request, that this job is of. Raises ValueError of one sentence, OSError."""
    if environ.get("CI_API_V4_URL"):
        number, token = environ.get("CI_MERGE_REQUEST_IID"), environ.get("GITLAB_TOKEN")
        if not number:
            raise ValueError("--post: this pipeline is of no merge request (CI_MERGE_REQUEST_IID is not set)")
        if not token:
            raise ValueError("--post needs a token in GITLAB_TOKEN: a project access token with the scope api")
        api = environ["CI_API_V4_URL"]
        notes = f"{api}/projects/{environ.get('CI_PROJECT_ID', '')}/merge_requests/{number}/notes"
        return Place(notes, notes, f"{api}/user", {"PRIVATE-TOKEN": token}, "PUT", "author", "username")
    number, token = _pull_request(environ.get("GITHUB_EVENT_PATH", "")), environ.get("GITHUB_TOKEN")
    if not number:
        raise ValueError("--post: this workflow is of no pull request")
    if not token:
        raise ValueError("--post needs a token in GITHUB_TOKEN, with the permission pull-requests: write")
    api = environ.get("GITHUB_API_URL") or "https://api.github.com"
    issues = f"{api}/repos/{environ.get('GITHUB_REPOSITORY', '')}/issues"
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    return Place(f"{issues}/{number}/comments", f"{issues}/comments", f"{api}/user", headers, "PATCH", "user", "login")


def _pull_request(event: str) -> str:
    """Its number, of the file that tells what a workflow is about; empty: none."""
    if not event:
        return ""
    with open(event, encoding="utf-8") as file:
        told = json.load(file)
    issue = told.get("issue") or {}
    found = told.get("pull_request") or (issue if issue.get("pull_request") else {})
    return str(found.get("number") or "")


def post(place: Place, mark: str, text: str) -> str:
    """Replace the comment that begins with ``mark``, or write the first; a line that says so. Raises NotPosted."""
    known = _known(place, mark)
    url, method = (place.comments, "POST") if known is None else (f"{place.one}/{known}", place.update)
    said = _ask(place, url, method, {"body": text})
    where = said.get("html_url", "") if isinstance(said, dict) else ""
    return f"{'posted' if known is None else 'replaced'}: {where or url}"


def _known(place: Place, mark: str) -> int | None:
    """The number of the last comment of ours; None: there is none."""
    me, found = _me(place), None
    for page in range(1, MAX_PAGES + 1):
        comments = _ask(place, f"{place.comments}?per_page={A_PAGE}&page={page}")
        if not isinstance(comments, list):
            raise NotPosted(f"{place.comments} did not answer with a list")
        for one in comments:
            author = (one.get(place.author) or {}).get(place.name)
            if author == me and str(one.get("body") or "").startswith(mark):
                found = int(one["id"])
        if len(comments) < A_PAGE:
            break
    return found


def _me(place: Place) -> str:
    try:
        return str(_ask(place, place.me)[place.name])
    except (NotPosted, KeyError, TypeError):
        return BOT


class _NoRedirect(HTTPRedirectHandler):
    """The token would go along."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _ask(place: Place, url: str, method: str = "GET", body: Mapping[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {**place.headers, "Content-Type": "application/json", "User-Agent": "locust-llm"}
    try:
        with build_opener(_NoRedirect).open(Request(url, data, headers, method=method), timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read(MAX_BYTES))
    except HTTPError as error:
        hint = "; may the token write to pull requests?" * (error.code in (401, 403, 404))
        raise NotPosted(f"{method} {url}: HTTP {error.code}{hint}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise NotPosted(f"{method} {url}: {error}") from None

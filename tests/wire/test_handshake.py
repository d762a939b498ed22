"""The handshake: a worker with another version or another locustfile is refused, both named."""

import pytest
from support.records import answered

from locust_llm.wire.handshake import explain_worker_refusal, make_hello
from locust_llm.wire.worker_messages import Hello

OURS = Hello("1.2", "chat.py (0123abcd)")


class Here:
    """A class of this file."""


def test_it_names_the_files_of_the_users_by_what_is_in_them() -> None:
    said = make_hello([Here, Here])
    assert said.version
    assert said.locustfile.startswith("test_handshake.py (")
    both = make_hello([Here, type(answered(1.0))]).locustfile
    assert both.startswith("record.py (")
    assert " and test_handshake.py (" in both
    assert make_hello([int]).locustfile == "int"  # without a file


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (OURS, ""),
        (Hello("1.3", "chat.py (0123abcd)"), "its locust-llm is 1.3, the master's is 1.2"),
        (
            Hello("1.2", "mixed.py (99999999)"),
            "its locustfile is mixed.py (99999999), the master's is chat.py (0123abcd)",
        ),
        # Locust names it anew where the master sent it
        (Hello("1.2", "renamed.py (0123abcd)"), ""),
        (Hello(), "its locust-llm is an older one, the master's is 1.2"),
    ],
)
def test_what_does_not_belong_is_named(theirs: Hello, why: str) -> None:
    assert explain_worker_refusal("gpu7_4f", theirs, OURS) == why


@pytest.mark.parametrize(
    "worker", ["/etc/passwd", "../run.json", "..", "a/b", "a\x1b[31m", "", "a" * 201, "a\\b"]
)
def test_a_name_that_files_cannot_be_named_after_is_refused(worker: str) -> None:
    """What a lost worker leaves is read in a file of its name, which is removed then."""
    assert "files are named after workers" in explain_worker_refusal(worker, OURS, OURS)
    assert explain_worker_refusal("gpu-7.example.com_0123456789abcdef", OURS, OURS) == ""

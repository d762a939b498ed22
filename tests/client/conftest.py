"""Which stream reader the tests of this room have."""

from collections.abc import Iterator

import pytest

from locust_llm.client.reader import native_reader, reader_choice
from locust_llm.client.reader.python_reader import PythonReader


@pytest.fixture(scope="module", params=["python", "native"])
def each_reader(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both, one after the other."""
    if request.param == "native" and native_reader.Reader is None:
        pytest.skip("the native reader was not compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            reader_choice,
            "kind",
            native_reader.Reader if request.param == "native" else PythonReader,
        )
        patch.setattr(reader_choice, "_reader", None)
        yield request.param

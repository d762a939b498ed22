"""Text for Prometheus, as its own client library reads it."""

from prometheus_client.parser import text_string_to_metric_families

Read = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Read:
    """Name and labels of each sample, and its value; each may be there once."""
    samples = [sample for found in text_string_to_metric_families(text) for sample in found.samples]
    values = {
        (sample.name.removeprefix("locust_llm_"), frozenset(sample.labels.items())): sample.value
        for sample in samples
    }
    assert len(values) == len(samples)
    return values


def value(found: Read, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]

"""Prometheus text: reads it with Prometheus' own client library."""

from itertools import chain

from prometheus_client.parser import text_string_to_metric_families

Read = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Read:
    """Returns the value of each sample by name and labels. Each may occur once."""
    families = text_string_to_metric_families(text)
    samples = list(chain.from_iterable(family.samples for family in families))
    values = {
        (sample.name.removeprefix("locust_llm_"), frozenset(sample.labels.items())): sample.value
        for sample in samples
    }
    assert len(values) == len(samples)
    return values


def value(found: Read, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]

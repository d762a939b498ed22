"""Integrations: other systems that a run writes to: an OpenTelemetry collector, an object store."""

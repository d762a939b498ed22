"""Support: servers, records, runs and stages for several test files. This folder has no tests."""

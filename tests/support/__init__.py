"""Support: servers, records, runs and stages made for tests; what more than one test file uses. No
test is here."""

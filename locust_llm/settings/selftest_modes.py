"""Selftest modes: the values of ``--selftest``."""

from typing import Final

AUTO: Final = "auto"
OFF: Final = "off"
REQUIRE: Final = "require"

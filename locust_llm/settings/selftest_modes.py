"""Selftest modes: what ``--selftest`` takes."""

from typing import Final

AUTO: Final = "auto"
OFF: Final = "off"
REQUIRE: Final = "require"

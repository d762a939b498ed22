"""Message: the base of what the control and its processes say to each other."""

import msgspec


class ControlMessage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Tagged with the name of its class."""

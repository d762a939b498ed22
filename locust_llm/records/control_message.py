"""Control message: what all messages between the controller and its processes are made of."""

import msgspec


class ControlMessage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A message that is tagged with the name of its class."""

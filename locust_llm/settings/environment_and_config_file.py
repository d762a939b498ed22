"""Environment and config file: the options of a run that are not on its command line.

The command line wins over the environment, the environment over the config file, the file over the
scenario (locust_adapter/scenario_defaults.py), and the scenario over the default. The values of an
option that may be repeated add up: those of the environment come behind those of the command line.

Locust's parser (configargparse) reads both: for each option the variable that its declaration
names, and its flag without the dashes in ``~/.locust.conf``, ``locust.conf``, ``pyproject.toml``
and the file of ``--config``. Here is what it does not do by itself.
"""

import os
from functools import partial
from typing import Any


def name_variable(flag: str) -> str:
    """The environment variable of an option."""
    return "LOCUST_LLM_" + flag.lstrip("-").replace("-", "_").upper()


def read_variable_lines(variable: str) -> list[str]:
    """The values of an option that may be repeated: its variable has one on each line."""
    lines = os.environ.get(variable, "").splitlines()
    return [line.strip() for line in lines if line.strip()]


def accept_byte_order_mark(parser: Any) -> None:
    """Let config files begin with a byte order mark, which would begin the first option."""
    parser._config_file_open_func = partial(open, encoding="utf-8-sig")

"""``locust-llm manifest kubernetes``: a command line of ``run`` becomes a manifest on stdout. Nothing is sent anywhere.

A key never gets into it: options that hold one are refused, with the Secret to use instead.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from locust.argument_parser import LocustArgumentParser, get_empty_argument_parser, setup_parser_arguments

from locust_llm.core.text import say
from locust_llm.exit_status import ExitStatus
from locust_llm.run.address import is_address
from locust_llm.run.flags import OPTIONS, Refused, add_groups, refuse, unknown_options

from .kubernetes import FILES, IMAGE, JOB, KINDS, V1, Plan, documents
from .yaml import text_of

FILE_BYTES: Final = 900_000
"""Of all files together: a ConfigMap holds 1 MiB."""
SECRET: Final = {
    "header": "LOCUST_LLM_HEADERS", "tenant_header": "LOCUST_LLM_TENANT_HEADER", "candidate_set": "LOCUST_LLM_CANDIDATE_SET",
    "api_key_command": "LOCUST_LLM_API_KEY_COMMAND",
}  # fmt: skip
"""By option: the variable, in the Secret, that takes its place."""
OURS: Final = frozenset(
    ("headless", "autostart", "autoquit", "master", "worker", "expect_workers", "master_host", "master_port",
     "master_bind_host", "master_bind_port", "processes", "config", "help", "version")
)  # fmt: skip
"""What the manifest itself decides, or what makes no sense in one."""
MOUNTED: Final = ("client_cert", "client_key")
"""Options that name files of a pod, out of a Secret: a private key is in no ConfigMap."""
PATHS: Final = frozenset(
    (
        *(option.dest for option in OPTIONS if option.unit == "FILE" and option.dest not in MOUNTED),
        "locustfile",
        "scenario",
    )
)
"""Options that name files."""
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_LOGIN: Final = re.compile(r"://[^/\s,]*@")

DESCRIPTION: Final = """\
Write a manifest for Kubernetes to stdout, of the options of a run: those below, and every one of locust-llm run. Nothing is
sent: kubectl apply -f run.yaml does that.
"""


def command(words: list[str]) -> int:
    """The exit status; the manifest goes to stdout."""
    if words[:1] == ["kubernetes"]:
        words = words[1:]
    elif not {"-h", "--help"} & {*words}:
        print("locust-llm: error: manifest takes kubernetes, and the options of a run", file=sys.stderr)
        return ExitStatus.REFUSED
    try:
        say(manifest(words))
    except Refused as refused:
        print(f"locust-llm: error: {refused}", file=sys.stderr)
        return ExitStatus.REFUSED
    return ExitStatus.OK


def manifest(words: Sequence[str]) -> str:
    """The YAML. Raises Refused."""
    own, rest = _own().parse_known_args(words)
    if not _NAME.fullmatch(own.name):
        refuse(f"--name {own.name!r}: small letters, digits and dashes, at most 40, a letter first")
    if own.workers < (own.kind != JOB):
        refuse(f"--kind {own.kind} takes --workers N, at least 1" if own.kind != JOB else "--workers cannot be below 0")
    plan = Plan(own.kind, own.name, own.image, own.namespace, own.workers)
    pairs = list(_pairs(rest, _parser()))
    key_file = next(
        (value for action, _, value in pairs if action and action.dest == "api_key_file" and value), "key.txt"
    )
    plan = _with_options(plan, pairs)
    return _heading(plan, key_file) + text_of(documents(plan))


def _own() -> argparse.ArgumentParser:
    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            refuse(message)

    parser = Parser(
        prog="locust-llm manifest kubernetes", description=DESCRIPTION, allow_abbrev=False,
        usage="locust-llm manifest kubernetes --host URL [--workers N] [options of run] > run.yaml",
    )  # fmt: skip
    add = parser.add_argument
    add("--kind", choices=KINDS, default=JOB, help="Jobs, or a LocustTest of an operator (default: %(default)s)")
    add("--workers", type=int, default=0, metavar="N", help="pods that send (default: one, without a master)")
    add("--name", default="locust-llm", help="of what is made (default: %(default)s)")
    add("--image", default=IMAGE, help="made by deploy/Dockerfile (default: %(default)s)")
    add("--namespace", default="", help="(default: that of kubectl)")
    return parser


def _parser() -> LocustArgumentParser:
    """Of the options of a run; it reads no files."""
    parser = get_empty_argument_parser(default_config_files=[])
    setup_parser_arguments(parser)
    add_groups(parser, OPTIONS)
    return parser


def _pairs(words: Sequence[str], parser: Any) -> Iterator[tuple[Any, str, str | None]]:
    """(action, long flag, value; None: a switch) of each option; a word that is none has no action. Raises Refused."""
    known = parser._option_string_actions
    for wrong in unknown_options(words, known):
        refuse(f"{wrong}: locust-llm run --help has all of them")
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if word.startswith("-") and not word.startswith("--"):
            flag, value = word[:2], word[2:].removeprefix("=")
            equals = value
        if not word.startswith("-"):
            yield (known["--host"], "--host", word) if is_address(word) else (None, "", word)
            continue
        if flag not in known:
            flag = next((one for one in known if one.startswith(flag) and len(flag) > 2), flag)
        if flag not in known:
            refuse(f"there is no option {flag}: locust-llm run --help has all of them")
        action = known[flag]
        long = flag if flag.startswith("--") else max(action.option_strings, key=len)
        if action.nargs == 0 or (action.nargs == "?" and not equals):
            yield action, long, None
            continue
        if not equals and (given := next(rest, None)) is None:
            refuse(f"{long} takes a value")
        yield action, long, value if equals else given


def _with_options(plan: Plan, pairs: list[tuple[Any, str, str | None]]) -> Plan:
    """With what the options of the run come to. Raises Refused."""
    args: list[str] = []
    files: dict[str, str] = {}
    more: dict[str, Any] = {}
    for action, flag, value in pairs:
        name = "" if action is None else action.dest
        _look_at(name, flag, value, action)
        if name in ("api_key_file", "headless"):
            continue  # the key is in the Secret; all but an operator's runs are headless
        if name in PATHS and value:
            value = _taken_along(flag, value, files, FILES[plan.kind])
        if name == "locustfile":
            more["locustfile"] = value
        elif name == "upload":
            more["uploads"] = True
        elif name == "stop_timeout" and value:
            more["grace_s"] = float(action.type(value))
        elif name == "metrics_port" and value:
            port = value.rpartition(":")[2]
            if not port.isdecimal():
                refuse(f"{flag} takes PORT or ADDRESS:PORT, got {value!r}")
            more["metrics_port"], value = int(port), f"0.0.0.0:{port}"  # in a pod nobody is on the loopback
        word = flag or value or "" if value is None or not flag else f"{flag}={value}"
        args.append(word.replace("$(", "$$("))
    if sum(len(text.encode()) for text in files.values()) > FILE_BYTES:
        refuse(f"the files have more than {FILE_BYTES} bytes together: put them into the image or a volume")
    return plan._replace(args=tuple(args), files=files, **more)


def _taken_along(flag: str, paths: str, files: dict[str, str], folder: str) -> str:
    """The places of the files in a pod; those that are here are added to ``files``. Raises Refused."""
    places = []
    for path in paths.split(",") if flag == "--locustfile" else [paths]:
        name = Path(path).name
        if text := _text_of(flag, path):
            if files.setdefault(name, text) != text or not _KEY.fullmatch(name):
                refuse(f"{flag} {path}: a ConfigMap cannot hold a file of that name, or holds another one of it")
            path = f"{folder}/{name}"
        places.append(path)
    return ",".join(places)


def _look_at(name: str, flag: str, value: str | None, action: Any) -> None:
    """Raises Refused for a key, for what a manifest decides, and for a value that is none."""
    if name in SECRET and not (name == "candidate_set" and not (value or "").startswith("header:")):
        refuse(f"{flag} may hold a key, and no manifest does: put it into the Secret, as {SECRET[name]}, a line each")
    if getattr(action, "is_secret", False) or _LOGIN.search(value or ""):
        refuse(f"{flag} holds a secret, and no manifest does")
    if name in OURS and name != "headless":
        refuse(f"{flag}: a manifest decides that itself (--workers N makes a master and N workers)")
    if value is not None and action is not None:
        try:
            read = action.type(value) if action.type else value
        except (ValueError, argparse.ArgumentTypeError) as error:
            refuse(f"{flag}: {error}")
        if action.choices and read not in action.choices:
            refuse(f"{flag} must be one of {', '.join(map(str, action.choices))}, got {value!r}")


def _text_of(flag: str, given: str) -> str:
    """Of a file here; empty: it is one of the pods. Raises Refused."""
    path = Path(given)
    if path.is_dir():
        refuse(f"{flag} {given} is a folder: put it into the image, and name the place there")
    if not path.exists():
        if path.is_absolute() or flag == "--scenario":
            return ""
        refuse(f"{flag} {given}: there is no such file here (a path that begins with / is one of the pods)")
    try:
        text = path.read_text("utf-8") if path.stat().st_size <= FILE_BYTES else ""
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"{flag} {given} cannot be read as text: {error}")
    if not text:
        refuse(f"{flag} {given} is empty, or too large for a ConfigMap: put it into an image or a volume")
    return text


def _heading(plan: Plan, key_file: str) -> str:
    """What has to be there first."""
    key = f"A key: kubectl create secret generic {plan.secret} --from-file=OPENAI_API_KEY={shlex.quote(key_file)}"
    if plan.kind == V1:
        key = "This operator passes no Secrets and no volumes: the result is in the master's log alone."
    return f"# Made by locust-llm manifest kubernetes; docs/kubernetes.md explains it.\n# {key}\n"

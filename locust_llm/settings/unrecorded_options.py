"""Unrecorded options: the options that no record of a run may hold, such as keys, certificates,
pages and where to copy. All other options are in ``run_options.py``."""

from typing import Annotated

import msgspec

from .option_declaration import Option


class UnrecordedOptions(msgspec.Struct):
    """No option here is a setting, as a run's records hold neither keys nor paths to them."""

    api_key_file: Annotated[
        str | None,
        Option(
            "server",
            "File with the API key",
            "key.txt",
            "FILE",
            otherwise="$OPENAI_API_KEY",
            in_form=False,
        ),
    ] = None
    api_key_command: Annotated[
        str | None,
        Option(
            "server",
            "Command that prints the API key, run at the start, and again when the server refuses "
            "the key (HTTP 401); words "
            "as a shell reads them, without a shell",
            "gcloud auth print-access-token",
            "COMMAND",
            in_form=False,
        ),
    ] = None
    client_cert: Annotated[
        str | None,
        Option(
            "server",
            "Certificate of this client, for a server that asks for one",
            "client.pem",
            "FILE",
            in_form=False,
        ),
    ] = None
    client_key: Annotated[
        str | None,
        Option(
            "server",
            "Its private key, not encrypted",
            "client.key",
            "FILE",
            otherwise="in the file of the certificate",
            in_form=False,
        ),
    ] = None
    ca_cert: Annotated[
        str | None,
        Option(
            "server",
            "Certificates to trust, also of a proxy that looks into TLS",
            "company-ca.pem",
            "FILE",
            otherwise="$REQUESTS_CA_BUNDLE, else certifi's",
            in_form=False,
        ),
    ] = None
    source_ip: Annotated[
        tuple[str, ...],
        Option(
            "server",
            "Addresses of this machine that connections leave from in turn, each with all ports to "
            "itself; commas between, "
            "networks too. Each host of a distributed run has its own",
            "10.0.0.2,10.0.0.8/29",
            "ADDRESSES",
            in_form=False,
            repeated=True,
        ),
    ] = ()
    header: Annotated[
        tuple[str, ...],
        Option(
            "server",
            "Header of every request; the environment variable has one per line, and is in no list "
            "of processes",
            "X-Team: search",
            "NAME: VALUE",
            in_form=False,
            repeated=True,
            variable="LOCUST_LLM_HEADERS",
        ),
    ] = ()
    candidate_set: Annotated[
        tuple[str, ...],
        Option(
            "ab",
            "In what the candidate differs: header:NAME=VALUE, model=NAME, prefill-concurrency=N "
            "or body.FIELD=VALUE; the "
            "environment variable has one per line",
            "body.temperature=0.5",
            "KEY=VALUE",
            in_form=False,
            repeated=True,
        ),
    ] = ()
    tenant_header: Annotated[
        tuple[str, ...],
        Option(
            "load",
            "Header of the requests of one tenant; the environment variable has one per line",
            "gold:x-gateway-inference-objective=interactive",
            "TENANT:NAME=VALUE",
            in_form=False,
            repeated=True,
        ),
    ] = ()
    slo_file: Annotated[
        str | None,
        Option(
            "rules",
            "File with a rule per line; # begins a comment",
            "slo.txt",
            "FILE",
            in_form=False,
        ),
    ] = None
    upload: Annotated[
        str | None,
        Option(
            "report",
            "Copy the report folder to this place after the run, by fsspec (extra upload)",
            "s3://bucket/load-tests",
            "URL",
            in_form=False,
        ),
    ] = None
    verbose: Annotated[
        bool,
        Option(
            "report",
            "Print all tables at the end, and Locust's too, not the verdict alone",
            in_form=False,
        ),
    ] = False
    web_allowed_host: Annotated[
        str | None,
        Option(
            "report",
            "More host names of the web page, also of a proxy before it; commas between",
            "load.example.com,locust:8089",
            "NAMES",
            in_form=False,
        ),
    ] = None
    web_datasets: Annotated[
        str | None,
        Option(
            "report",
            "Folder whose files the web form offers as datasets",
            "datasets/",
            "FOLDER",
            otherwise="the working directory, if only this machine or a login reaches the page",
            in_form=False,
        ),
    ] = None

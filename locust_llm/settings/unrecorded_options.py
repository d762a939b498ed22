"""Unrecorded options: the options that no record of a run may hold, such as keys, certificates,
pages, processes and where to copy. All other options are in ``run_options.py``."""

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
            "Command that prints the API key, without a shell, at the start and after HTTP 401",
            "gcloud auth print-access-token",
            "COMMAND",
            in_form=False,
        ),
    ] = None
    client_cert: Annotated[
        str | None,
        Option(
            "server",
            "TLS certificate of this client (PEM)",
            "client.pem",
            "FILE",
            in_form=False,
        ),
    ] = None
    client_key: Annotated[
        str | None,
        Option(
            "server",
            "Private key of --client-cert, not encrypted (PEM)",
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
            "Certificate authorities to trust (PEM)",
            "company-ca.pem",
            "FILE",
            otherwise="$REQUESTS_CA_BUNDLE, $CURL_CA_BUNDLE, $SSL_CERT_FILE, else certifi's",
            in_form=False,
        ),
    ] = None
    source_ip: Annotated[
        tuple[str, ...],
        Option(
            "server",
            "Source addresses or networks, used in turn (repeatable). Each has its range of ports",
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
            "Header of every request (repeatable). In LOCUST_LLM_HEADERS other users of the "
            "machine cannot see it",
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
            "Setting changed for the candidate (repeatable): header:NAME=VALUE, model=NAME, "
            "prefill-concurrency=N or body.FIELD=VALUE",
            "body.temperature=0.5",
            "KEY=VALUE",
            in_form=False,
            repeated=True,
        ),
    ] = ()
    tenant_header: Annotated[
        tuple[str, ...],
        Option(
            "tenants",
            "Header of one tenant's requests (repeatable)",
            "gold:x-gateway-inference-objective=interactive",
            "TENANT:NAME=VALUE",
            in_form=False,
            repeated=True,
        ),
    ] = ()
    disrupt: Annotated[
        tuple[str, ...],
        Option(
            "load",
            "Command that runs during the load: at or every TIME (repeatable; only on the command "
            "line)",
            "at 60s: docker restart vllm",
            "TIME: COMMAND",
            in_form=False,
            repeated=True,
        ),
    ] = ()
    pid: Annotated[
        str | None,
        Option(
            "load",
            "Process of the server, for --soak",
            "4711",
            "PID",
            otherwise="the server's metrics page",
            in_form=False,
        ),
    ] = None
    memory_command: Annotated[
        str | None,
        Option(
            "load",
            "Program that prints the server's memory (only on the command line)",
            "ssh gpu7 cat memory.txt",
            "COMMAND",
            in_form=False,
        ),
    ] = None
    slo_file: Annotated[
        str | None,
        Option(
            "rules",
            "File with one SLO per line. # starts a comment",
            "slo.txt",
            "FILE",
            in_form=False,
        ),
    ] = None
    upload: Annotated[
        str | None,
        Option(
            "report",
            "Copy the report folder to this URL. Needs the extra locust-llm[upload]",
            "s3://bucket/load-tests",
            "URL",
            in_form=False,
        ),
    ] = None
    verbose: Annotated[
        bool,
        Option(
            "report",
            "Print all tables at the end, including Locust's",
            in_form=False,
        ),
    ] = False
    web_allowed_host: Annotated[
        str | None,
        Option(
            "report",
            "Additional host names of the web page",
            "load.example.com,locust:8089",
            "NAMES",
            in_form=False,
        ),
    ] = None
    web_datasets: Annotated[
        str | None,
        Option(
            "report",
            "Folder of the datasets that the web form offers",
            "datasets/",
            "FOLDER",
            otherwise="the working directory, if only this machine or a login reaches the page",
            in_form=False,
        ),
    ] = None

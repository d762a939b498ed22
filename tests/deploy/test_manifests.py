"""Manifests: against the schemas of Kubernetes and of both operators, beside the command line that they were made of."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support import unpatched_locust  # noqa: F401  before the rest

from locust_llm.run.deploy.command import manifest
from locust_llm.run.deploy.kubernetes import Plan, documents
from locust_llm.run.deploy.yaml import Value, text_of
from locust_llm.run.flags import Refused

CHECKOUT: Final = Path(__file__).parents[2]
KUBERNETES: Final = CHECKOUT / "deploy" / "kubernetes"
LOAD: Final = ("--host", "http://my-server:8000", "-u", "400", "-t", "5m", "--slo", "ttft p95 < 500ms")
MADE: Final = {
    "job.yaml": (),
    "distributed.yaml": ("--workers", "4"),
    "locusttest-v1.yaml": ("--kind", "locusttest-v1", "--workers", "4", *LOAD),
    "locusttest-v2.yaml": ("--kind", "locusttest-v2", "--workers", "4", *LOAD),
}
PARSED: Final = ["--host=http://my-server:8000", "--users=400", "--run-time=5m", "--slo=ttft p95 < 500ms"]
KEY: Final = "sk-0123456789"


def read(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def strict(schema: Any) -> Any:
    """No field beside those that the schema has: a cluster would drop it without a word."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema and "additionalProperties" not in schema else {}
    return {name: strict(inner) for name, inner in schema.items()} | closed


def validate(document: dict[str, Any]) -> None:
    """By Kubernetes 1.37, or by the operator's own definition. Raises."""
    if document["kind"] != "LocustTest":
        kubernetes_validate.validate(document, "1.37", strict=True)
        return
    version = document["apiVersion"].removeprefix("locust.io/")
    definition = json.loads((Path(__file__).with_name(f"locusttest-{version}.json")).read_text())
    assert (document["apiVersion"], document["kind"]) == (f"{definition['group']}/{version}", definition["kind"])
    schema = strict(definition["spec"])
    if version == "v1":  # its oneOf says which of two fields, by their names alone
        schema["properties"]["locustfile"].pop("oneOf")
    jsonschema.Draft202012Validator(schema).validate(document["spec"])


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


# -- the files of the checkout -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_the_files_are_what_the_command_writes_and_the_schemas_take(name: str) -> None:
    text = (KUBERNETES / name).read_text()
    assert text == manifest(MADE[name])
    for document in read(text):
        validate(document)


@pytest.mark.parametrize("broken", [{"backofLimit": 0}, {"template": {"spec": {"containers": [{"name": 3}]}}}])
def test_the_schemas_refuse_what_is_wrong(broken: dict[str, Any]) -> None:
    job = read((KUBERNETES / "job.yaml").read_text())[-1]
    job["spec"] |= broken
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(job)
    for version in ("v1", "v2"):
        test = read((KUBERNETES / f"locusttest-{version}.yaml").read_text())[-1]
        test["spec"]["worker"]["replica"] = 4
        with pytest.raises(jsonschema.ValidationError):
            validate(test)


def test_a_kustomization_and_its_overlay_are_built() -> None:
    """By kubectl, where there is one; else what they name is there."""
    for folder in (KUBERNETES, KUBERNETES.parent / "overlay"):
        found = yaml.safe_load((folder / "kustomization.yaml").read_text())
        assert all((folder / resource).exists() for resource in found["resources"])
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl, which builds kustomizations without a cluster")
    built = subprocess.run(
        ["kubectl", "kustomize", KUBERNETES.parent / "overlay"], capture_output=True, text=True, check=True
    )
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in read(built.stdout)}
    for document in by_name.values():
        validate(document)
    config = by_name["ConfigMap", "locust-llm"]["data"]
    assert config["LOCUST_USERS"] == "400"
    assert config["LOCUST_LLM_SLO"].splitlines() == ["ttft p99 < 2s", "itl p95 < 50ms"]
    assert by_name["Job", "locust-llm-worker"]["spec"]["parallelism"] == 8
    (master,) = pod_of(by_name["Job", "locust-llm-master"])["containers"]
    assert {"name": "LOCUST_EXPECT_WORKERS", "value": "8"} in master["env"]


# -- of a command line -------------------------------------------------------------------------------------------------


def test_options_become_args_and_pods_are_restricted() -> None:
    *_, service, master, worker = read(manifest(["--workers", "8", *LOAD, "-s1m", "--name", "nightly"]))
    assert service["spec"]["selector"].items() <= master["spec"]["template"]["metadata"]["labels"].items()
    (one,) = pod_of(master)["containers"]
    assert one["args"] == ["run", "--headless", "--master", *PARSED, "--stop-timeout=1m"]
    assert {"name": "LOCUST_EXPECT_WORKERS", "value": "8"} in one["env"]
    (other,) = pod_of(worker)["containers"]
    assert other["args"] == [
        "run",
        "--worker",
        f"--master-host={service['metadata']['name']}",
        "--exit-code-on-error=0",
    ]
    assert (worker["spec"]["parallelism"], worker["spec"]["completions"], master["spec"]["backoffLimit"]) == (8, 8, 0)
    for pod in map(pod_of, (master, worker)):
        assert pod["terminationGracePeriodSeconds"] > 60
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert "limits" not in container["resources"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_operators_get_the_same_options() -> None:
    (v1,) = read(manifest([*MADE["locusttest-v1.yaml"], "--extra-inputs", "a:$(HOME)"]))
    words = shlex.split(v1["spec"]["args"])  # as the operator does
    assert words[-5:] == [*PARSED, "--extra-inputs=a:$$(HOME)"]  # which Kubernetes turns into a single $
    assert words[:2] == ["--autostart", "--autoquit=5"]
    *_, v2 = read(manifest(MADE["locusttest-v2.yaml"]))
    assert v2["spec"]["master"]["command"].split() == ["run"]
    assert v2["spec"]["master"]["extraArgs"] == PARSED
    (key,) = [one for one in v2["spec"]["env"]["variables"] if one["name"] == "OPENAI_API_KEY"]
    assert key["valueFrom"]["secretKeyRef"] == {"name": "locust-llm-key", "key": "OPENAI_API_KEY", "optional": True}


@pytest.mark.parametrize("kind", ["job", "locusttest-v1", "locusttest-v2"])
def test_files_travel_in_a_config_map(kind: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from locust_llm import LLMUser\n\n\nclass Mine(LLMUser):\n    pass\n")
    (tmp_path / "slo.txt").write_text("ttft p95 < 500ms\n")
    words = [
        "-f",
        str(tmp_path / "mine.py"),
        "--slo-file",
        str(tmp_path / "slo.txt"),
        "--tokenizer",
        "/models/tokenizer.json",
    ]
    text = manifest(["--kind", kind, "--workers", "2", *words])
    config, *rest = read(text)
    assert config["data"] == {path.name: path.read_text() for path in tmp_path.iterdir()}
    for document in (config, *rest):
        validate(document)
    folder = "/home/locust" if kind == "locusttest-v1" else "/files"
    assert text.count(f"--locustfile={folder}/mine.py") == (1 if kind == "locusttest-v1" else 2)  # master and worker
    assert f"--slo-file={folder}/slo.txt" in text
    assert "--tokenizer=/models/tokenizer.json" in text


def test_what_is_uploaded_needs_no_volume_and_metrics_are_scraped() -> None:
    (job,) = documents(Plan(uploads=True, metrics_port=9646))
    validate(job)
    assert {"name": "reports", "emptyDir": {}} in pod_of(job)["volumes"]
    assert job["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == "9646"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["--header", f"Authorization: Bearer {KEY}"],
            "--header may hold a key, and no manifest does: put it into the Secret",
        ),
        ([f"--tenant-header=gold:x-key={KEY}"], "--tenant-header may hold a key"),
        (["--candidate-set", f"header:x-key={KEY}"], "--candidate-set may hold a key"),
        (["--host", f"https://me:{KEY}@server"], "--host holds a secret"),
        (["--api-key", KEY], "there is no --api-key: it is --api-key-file"),
        (["--workers", "2", "--processes", "4"], "--processes: a manifest decides that itself"),
        (["--request-rate", "many"], "--request-rate takes a number, got 'many'"),
        (["--endpoint-type"], "--endpoint-type takes a value"),
        (["--kind", "locusttest-v2"], "--kind locusttest-v2 takes --workers N, at least 1"),
        (["--name", "Load_Test"], "--name 'Load_Test': small letters"),
        (["--input-file", "nowhere.jsonl"], "--input-file nowhere.jsonl: there is no such file here"),
        (["--tokenizer", "."], "--tokenizer . is a folder"),
    ],
)
def test_what_no_manifest_can_hold_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(Refused) as refused:
        manifest(words)
    assert str(refused.value).startswith(why)
    assert KEY not in str(refused.value)


def test_a_key_file_becomes_the_secret_and_no_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "LOCUST_LLM_HEADERS", "LOCUST_HOST", "LOCUST_LLM_MODEL"):
        monkeypatch.setenv(name, KEY)
    text = manifest(["--api-key-file", "my key.txt", "--candidate-set", "model=other"])
    assert "\n# A key: kubectl create secret generic locust-llm-key --from-file=OPENAI_API_KEY='my key.txt'\n" in text
    assert KEY not in text
    (container,) = pod_of(read(text)[-1])["containers"]
    assert {"secretRef": {"name": "locust-llm-key", "optional": True}} in container["envFrom"]
    assert container["args"] == ["run", "--headless", "--candidate-set=model=other"]


# -- YAML --------------------------------------------------------------------------------------------------------------

TEXTS: Final = st.one_of(
    st.text(),
    st.text(alphabet="ab \n:#-'\"\t|>"),
    st.sampled_from(
        ["no", "Yes", "null", "~", "1e3", "0x1f", "12:30", "2026-11-22", "=", "<<", "---", "a: b", "a:", "- a"]
    ),
)
VALUES: Final = st.recursive(
    st.one_of(TEXTS, st.integers(), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=20,
)


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_what_is_written_is_what_another_reader_reads(values: list[Value]) -> None:
    assert read(text_of(values)) == values

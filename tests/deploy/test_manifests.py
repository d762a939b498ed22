"""Manifests: against the schemas of Kubernetes and of both operators; the documented patches fit to
them."""

import json
import re
import shlex
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest
import yaml
from support.command_line import parse

CHECKOUT: Final = Path(__file__).parents[2]
KUBERNETES: Final = CHECKOUT / "deploy" / "kubernetes"
OVERLAYS: Final = CHECKOUT / "deploy" / "overlays"
V1: Final = "locusttest-v1/locusttest.yaml"
V2: Final = "locusttest-v2/locusttest.yaml"
NAMES: Final = ("job.yaml", "distributed.yaml", V1, V2)
KUSTOMIZED: Final = sorted(
    path.parent for path in (CHECKOUT / "deploy").rglob("kustomization.yaml")
)
OPTIONS: Final = [
    "--host=http://my-server:8000",
    "--users=400",
    "--run-time=5m",
    "--slo=ttft p95 < 500ms",
]


def read(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def documents(name: str) -> list[dict[str, Any]]:
    return read((KUBERNETES / name).read_text())


def strict(schema: Any) -> Any:
    """No field beside those that the schema has: a cluster would drop it without a word."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = (
        {"additionalProperties": False}
        if "properties" in schema and "additionalProperties" not in schema
        else {}
    )
    return {name: strict(inner) for name, inner in schema.items()} | closed


def validate(document: dict[str, Any]) -> None:
    """By Kubernetes 1.37, or by the operator's own definition. Raises."""
    if document["kind"] != "LocustTest":
        kubernetes_validate.validate(document, "1.37", strict=True)
        return
    version = document["apiVersion"].removeprefix("locust.io/")
    definition = json.loads((Path(__file__).with_name(f"locusttest-{version}.json")).read_text())
    assert (document["apiVersion"], document["kind"]) == (
        f"{definition['group']}/{version}",
        definition["kind"],
    )
    schema = strict(definition["spec"])
    if version == "v1":  # its oneOf says which of two fields, by their names alone
        schema["properties"]["locustfile"].pop("oneOf")
    jsonschema.Draft202012Validator(schema).validate(document["spec"])


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_schemas_take_the_files(name: str) -> None:
    for document in documents(name):
        validate(document)


@pytest.mark.parametrize(
    "broken", [{"backofLimit": 0}, {"template": {"spec": {"containers": [{"name": 3}]}}}]
)
def test_the_schemas_refuse_what_is_wrong(broken: dict[str, Any]) -> None:
    job = documents("job.yaml")[-1]
    job["spec"] |= broken
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(job)
    for version in ("v1", "v2"):
        test = documents(f"locusttest-{version}/locusttest.yaml")[-1]
        test["spec"]["worker"]["replica"] = 4
        with pytest.raises(jsonschema.ValidationError):
            validate(test)


def kustomize(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What kubectl builds without a cluster, by kind and name."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl, which builds kustomizations without a cluster")
    built = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=True
    )
    return {(one["kind"], one["metadata"]["name"]): one for one in read(built.stdout)}


@pytest.mark.parametrize("folder", KUSTOMIZED, ids=lambda folder: folder.name)
def test_what_is_kustomized_is_there_and_valid(folder: Path) -> None:
    found = yaml.safe_load((folder / "kustomization.yaml").read_text())
    for name in found["resources"] + found.get("configurations", []):
        assert (folder / name).exists()
    for document in kustomize(folder).values():
        validate(document)


def test_the_overlay_of_jobs_changes_them() -> None:
    built = kustomize(OVERLAYS / "jobs")
    config = built["ConfigMap", "locust-llm"]["data"]
    assert config["LOCUST_USERS"] == "400"  # as in the base
    assert config["LOCUST_LLM_SLO"].splitlines() == ["ttft p99 < 2s", "itl p95 < 50ms"]
    assert config["LOCUST_LLM_UPLOAD"] == "s3://load-tests/nightly"
    worker = built["Job", "locust-llm-worker"]
    assert (worker["spec"]["parallelism"], worker["spec"]["completions"]) == (8, 8)
    (master,) = pod_of(built["Job", "locust-llm-master"])["containers"]
    (other,) = pod_of(worker)["containers"]
    assert master["image"] == other["image"] == "registry.example.com/locust-llm:1.0"
    assert {"name": "LOCUST_EXPECT_WORKERS", "value": "8"} in master["env"]
    assert master["args"] == ["run", "--headless", "--master", "--prefill-concurrency=16"]
    assert parse(*master["args"][3:]).prefill_concurrency == 16
    secrets = [
        [one["secretRef"]["name"] for one in container["envFrom"] if "secretRef" in one]
        for container in (master, other)
    ]
    assert secrets == [["locust-llm-key", "locust-llm-store"], ["locust-llm-key"]]


def test_overlays_of_operators_change_their_tests() -> None:
    specs = {}
    for version in ("v1", "v2"):
        built = kustomize(OVERLAYS / f"locusttest-{version}")
        test = built["LocustTest", "locust-llm"]
        assert test["metadata"]["namespace"] == "load-tests"
        specs[version] = test["spec"]
    assert {spec["image"] for spec in specs.values()} == {"registry.example.com/locust-llm:1.0"}
    assert specs["v1"]["workers"] == specs["v2"]["worker"]["replicas"] == 8
    words = shlex.split(specs["v1"]["args"])
    assert ("--expect-workers=8" in words, words[0]) == (True, "--autostart")
    assert ".load-tests.svc" in next(one for one in words if one.startswith("--web-allowed-host="))
    v2 = specs["v2"]["master"]["extraArgs"]
    for options in (parse(*words, headless=False), parse(*v2)):
        assert (options.prefill_concurrency, options.num_users) == (16, 400)
        assert options.slo == ["ttft p99 < 2s", "itl p95 < 50ms"]
    assert parse(*v2).upload == "s3://load-tests/nightly"
    assert specs["v2"]["env"]["secretRefs"] == [{"name": "locust-llm-store"}]
    names = {one["name"] for one in specs["v2"]["env"]["variables"]}
    assert names == {"LOCUST_LLM_REPORT_DIR", "OPENAI_API_KEY"}  # of the base


def test_pods_are_restricted_and_workers_find_their_master() -> None:
    *_, service, master, worker = documents("distributed.yaml")
    assert (
        service["spec"]["selector"].items()
        <= master["spec"]["template"]["metadata"]["labels"].items()
    )
    (one,), (other,) = pod_of(master)["containers"], pod_of(worker)["containers"]
    assert one["args"] == ["run", "--headless", "--master"]
    assert {"name": "LOCUST_EXPECT_WORKERS", "value": "4"} in one["env"]
    assert {"secretRef": {"name": "locust-llm-key", "optional": True}} in one["envFrom"]
    assert other["args"] == [
        "run",
        "--worker",
        f"--master-host={service['metadata']['name']}",
        "--exit-code-on-error=0",
    ]
    assert (
        worker["spec"]["parallelism"],
        worker["spec"]["completions"],
        master["spec"]["backoffLimit"],
    ) == (4, 4, 0)
    for pod in map(pod_of, (master, worker, documents("job.yaml")[-1])):
        assert pod["terminationGracePeriodSeconds"] > 60
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert "limits" not in container["resources"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in pod["volumes"]
        }


def test_operators_get_the_same_options() -> None:
    (v1,) = documents(V1)
    words = shlex.split(v1["spec"]["args"])  # as the operator does
    assert words[-4:] == OPTIONS
    assert words[:2] == ["--autostart", "--autoquit=5"]
    *_, v2 = documents(V2)
    assert v2["spec"]["master"]["command"].split() == ["run"]
    assert v2["spec"]["master"]["extraArgs"] == OPTIONS
    (key,) = [one for one in v2["spec"]["env"]["variables"] if one["name"] == "OPENAI_API_KEY"]
    assert key["valueFrom"]["secretKeyRef"] == {
        "name": "locust-llm-key",
        "key": "OPENAI_API_KEY",
        "optional": True,
    }


# -- the documented patch --------------------------------------------------------------------------


def patched(document: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """By JSON Patch (RFC 6902), as far as it appends to lists."""
    document = deepcopy(document)
    for step in patch:
        *path, last = step["path"].strip("/").split("/")
        assert (step["op"], last) == ("add", "-")
        place: Any = document
        for key in path:
            place = place[int(key) if isinstance(place, list) else key]
        place.append(step["value"])
    return document


def test_the_documented_patch_puts_a_command_line_and_files_into_the_jobs() -> None:
    text = (CHECKOUT / "docs" / "how-to" / "kubernetes.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    overlay = yaml.safe_load(block)
    jobs = {
        one["metadata"]["name"]: one
        for one in documents("distributed.yaml")
        if one["kind"] == "Job"
    }
    for patch in overlay["patches"]:
        wanted = patch["target"].get("name")
        for name in jobs:
            if wanted in (name, None):
                jobs[name] = patched(jobs[name], yaml.safe_load(patch["patch"]))
    (generated,) = overlay["configMapGenerator"]
    for job in jobs.values():
        validate(job)
        assert {"name": "files", "configMap": {"name": generated["name"]}} in pod_of(job)["volumes"]
        (container,) = pod_of(job)["containers"]
        assert container["args"][-1] == "--locustfile=/files/locustfile.py"
    (master,) = pod_of(jobs["locust-llm-master"])["containers"]
    assert master["args"][3:6] == [
        "--users=40",
        "--slo=ttft p95 < 500ms",
        "--input-file=/files/prompts.jsonl",
    ]
    assert (KUBERNETES.parent / "mine" / overlay["resources"][0]).resolve().is_dir()


def merge_by_name(base: Any, patch: Any) -> Any:
    """Merge as Kustomize does: maps by key, lists of named things by name, all else is replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        common = {key: merge_by_name(base[key], patch[key]) for key in base.keys() & patch.keys()}
        return base | patch | common
    named = isinstance(base, list) and all(isinstance(one, dict) and "name" in one for one in base)
    if not named:
        return patch
    by_name = {one["name"]: one for one in base}
    for one in patch:
        by_name[one["name"]] = merge_by_name(by_name.get(one["name"], {}), one)
    return list(by_name.values())


def test_the_overlay_of_the_tutorial_fits_to_the_manifests() -> None:
    text = (CHECKOUT / "docs" / "tutorials" / "kubernetes.md").read_text()
    ((title, block),) = re.findall(r"```yaml title=\"(.*?)\"\n(.*?)```", text, re.DOTALL)
    overlay = yaml.safe_load(block)
    folder = (CHECKOUT / title).parent
    assert [(folder / name).resolve() for name in overlay["resources"]] == [KUBERNETES]
    base = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    assert overlay["images"][0]["name"] == base["images"][0]["name"]
    (generated,), (changed,) = base["configMapGenerator"], overlay["configMapGenerator"]
    assert (changed["name"], changed["behavior"]) == (generated["name"], "merge")
    jobs = {(one["kind"], one["metadata"]["name"]): one for one in documents("distributed.yaml")}
    for patch in overlay["patches"]:
        change = yaml.safe_load(patch["patch"])
        place = change["kind"], change["metadata"]["name"]
        jobs[place] = merge_by_name(jobs[place], change)
    for document in jobs.values():
        validate(document)
    worker, master = (jobs["Job", f"locust-llm-{role}"] for role in ("worker", "master"))
    (container,) = pod_of(master)["containers"]
    assert container["args"] == ["run", "--headless", "--master"]
    assert {"name": "LOCUST_EXPECT_WORKERS", "value": "8"} in container["env"]
    assert (worker["spec"]["parallelism"], worker["spec"]["completions"]) == (8, 8)

"""What a cluster is told of a run: Jobs, or a LocustTest for an operator, as plain values; command.py makes them of words.

Pods are what Pod Security calls restricted. There are no probes: one that kills a pod whose event loop is late would take
the run with it, and nothing waits for a pod to be ready. No CPU limit: a process that is stopped for a part of each 100 ms
reads late.
"""

import shlex
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

JOB, V1, V2 = "job", "locusttest-v1", "locusttest-v2"
KINDS: Final = (JOB, V1, V2)
IMAGE: Final = "registry.example.com/locust-llm:latest"
REPORTS: Final = "/reports"
FILES: Final = {JOB: "/files", V1: "/home/locust", V2: "/files"}
"""Where files of the command line are mounted. The operator of v1 has one place for them."""
MASTER_PORT: Final = 5557
WEB_PORT: Final = 8089
REPORT_S: Final = 60
"""Of the grace period of a pod, beyond that of its requests: the report, and its upload."""
STORE_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL")
"""Of the Secret, for ``--upload``."""
EXIT_S: Final = 5
"""Of the operators' web page, after the end of a run."""

Document = dict[str, Any]


class Plan(NamedTuple):
    """A run, as a command line has it."""

    kind: str = JOB
    name: str = "locust-llm"
    image: str = IMAGE
    namespace: str = ""
    """Empty: that of ``kubectl``."""
    workers: int = 0
    """0: one pod sends, without a master."""
    args: tuple[str, ...] = ()
    """Options of the run; no key among them, and no ``$(``, which Kubernetes would expand."""
    files: Mapping[str, str] = {}
    """By name: text of the files that ``args`` have below ``FILES``."""
    locustfile: str = ""
    """Of ``args``, which workers need too."""
    grace_s: float = 30.0
    """``--stop-timeout``."""
    uploads: bool = False
    """The report goes to a store: no volume is claimed."""
    metrics_port: int = 0
    """0: no metrics for Prometheus."""

    @property
    def secret(self) -> str:
        """The name of the Secret with the key."""
        return f"{self.name}-key"


def documents(plan: Plan) -> list[Document]:
    """In the order in which a cluster needs them."""
    found = []
    if plan.files:
        found.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(plan, "files"), "data": {**plan.files}}
        )
    if not plan.uploads and plan.kind != V1:
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        found.append(_document("v1", "PersistentVolumeClaim", _meta(plan, "reports"), claim))
    if plan.kind == V1:
        return [*found, _document("locust.io/v1", "LocustTest", _meta(plan), _of_v1(plan))]
    if plan.kind == V2:
        return [*found, _document("locust.io/v2", "LocustTest", _meta(plan), _of_v2(plan))]
    if not plan.workers:
        return [*found, _job(plan, "run", ["run", "--headless", *plan.args])]
    service = {
        "selector": _labels(plan, "master"),
        "publishNotReadyAddresses": True,
        "ports": [{"name": "workers", "port": MASTER_PORT}],
    }
    expected = {"name": "LOCUST_EXPECT_WORKERS", "value": str(plan.workers)}
    master = ["run", "--headless", "--master", *plan.args]
    # a request that failed is in the master's verdict; a worker that ends with it would be started again
    worker = ["run", "--worker", f"--master-host={plan.name}-master", "--exit-code-on-error=0", *_locustfile(plan)]
    return [
        *found,
        _document("v1", "Service", _meta(plan, "master"), service),
        _job(plan, "master", master, expected),
        _job(plan, "worker", worker),
    ]


def _document(version: str, kind: str, meta: Document, spec: Document) -> Document:
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def _meta(plan: Plan, part: str = "") -> Document:
    name = f"{plan.name}-{part}" if part not in ("", "run") else plan.name
    place = {"namespace": plan.namespace} if plan.namespace else {}
    return {"name": name, **place, "labels": _labels(plan)}


def _labels(plan: Plan, part: str = "") -> Document:
    component = {"app.kubernetes.io/component": part} if part else {}
    return {"app.kubernetes.io/name": "locust-llm", "app.kubernetes.io/instance": plan.name, **component}


def _locustfile(plan: Plan) -> list[str]:
    return [f"--locustfile={plan.locustfile}"] if plan.locustfile else []


def _annotations(plan: Plan, port: int) -> Document:
    """So that a Prometheus that goes by them reads the metrics of the run; empty where nobody serves them."""
    return (
        {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/llm/metrics"}
        if port
        else {}
    )


# -- Jobs --------------------------------------------------------------------------------------------------------------


def _job(plan: Plan, part: str, args: list[str], *env: Document) -> Document:
    """``part``: run, master or worker. The exit status of a run is that of its container: a verdict is not tried again."""
    sends = part != "worker"
    spec: Document = {"backoffLimit": 0}
    if not sends:
        # a worker has no verdict: one that broke is replaced, and so is one whose node was drained, which is no failure
        ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        spec = {
            "parallelism": plan.workers, "completions": plan.workers, "backoffLimit": plan.workers,
            "podFailurePolicy": {"rules": [ignored]},
        }  # fmt: skip
    annotations = _annotations(plan, plan.metrics_port) if sends else {}
    meta = {"labels": _labels(plan, part), **({"annotations": annotations} if annotations else {})}
    spec["template"] = {"metadata": meta, "spec": _pod(plan, part, args, env)}
    return _document("batch/v1", "Job", _meta(plan, part), spec)


def _pod(plan: Plan, part: str, args: list[str], env: tuple[Document, ...]) -> Document:
    reports = [{"name": "LOCUST_LLM_REPORT_DIR", "value": f"{REPORTS}/{plan.name}"}] if part != "worker" else []
    ports = [{"name": "workers", "containerPort": MASTER_PORT}] if part == "master" else []
    if plan.metrics_port and part != "worker":
        ports.append({"name": "metrics", "containerPort": plan.metrics_port})
    volumes, mounts = _volumes(plan, part)
    container = {
        "name": part,
        "image": plan.image,
        "args": args,
        **({"env": [*env, *reports]} if env or reports else {}),
        "envFrom": [
            {"configMapRef": {"name": plan.name, "optional": True}},
            {"secretRef": {"name": plan.secret, "optional": True}},
        ],
        **({"ports": ports} if ports else {}),
        "resources": _resources(part),
        "securityContext": _container_security(),
        "volumeMounts": mounts,
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named locust-llm... would set variables that look like options
        "terminationGracePeriodSeconds": round(plan.grace_s) + REPORT_S,
        "securityContext": _pod_security(),
        "containers": [container],
        "volumes": volumes,
    }


def _volumes(plan: Plan, part: str) -> tuple[list[Document], list[Document]]:
    """(volumes, mounts): the root file system is read-only."""
    volumes: list[Document] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[Document] = [{"name": "tmp", "mountPath": "/tmp"}]
    if part != "worker":
        claim = {"emptyDir": {}} if plan.uploads else {"persistentVolumeClaim": {"claimName": f"{plan.name}-reports"}}
        volumes.append({"name": "reports", **claim})
        mounts.append({"name": "reports", "mountPath": REPORTS})
    if plan.files and plan.kind == JOB:
        volumes.append({"name": "files", "configMap": {"name": f"{plan.name}-files"}})
        mounts.append({"name": "files", "mountPath": FILES[plan.kind], "readOnly": True})
    return volumes, mounts


def _pod_security() -> Document:
    return {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


def _container_security() -> Document:
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def _resources(part: str) -> Document:
    return {"requests": {"cpu": "1", "memory": "512Mi" if part == "worker" else "1Gi"}}


# -- LocustTest of the two operators -------------------------------------------------------------------------------------


def _of_v1(plan: Plan) -> Document:
    """Of Locust's own operator (k8s-operator): the same words to master and workers, plain variables, no volumes; master and
    workers are its Jobs. It reads its status from the web page, so there is one."""
    page = f"{plan.name}-webui.{plan.namespace or 'default'}.svc.cluster.local"
    managed = ["--autostart", f"--autoquit={EXIT_S}", f"--expect-workers={plan.workers}", f"--web-allowed-host={page}"]
    return {
        "image": plan.image,
        "workers": plan.workers,
        "args": shlex.join([*managed, *plan.args]),
        **({"locustfile": {"configMap": {"name": f"{plan.name}-files"}}} if plan.files else {}),
        "master": {"annotations": _annotations(plan, WEB_PORT), "resources": _resources("master")},
        "worker": {"resources": _resources("worker")},
    }


def _of_v2(plan: Plan) -> Document:
    """Of locust-k8s-operator. It splits ``command`` at each blank, so options are ``extraArgs``."""
    master, mounts = _volumes(plan, "master")
    secrets = [  # its secretRefs cannot be optional
        {"name": name, "valueFrom": {"secretKeyRef": {"name": plan.secret, "key": name, "optional": True}}}
        for name in ("OPENAI_API_KEY", *(STORE_KEYS if plan.uploads else ()))
    ]
    reports = [mount | {"target": "master" if mount["name"] == "reports" else "both"} for mount in mounts]
    return {
        "image": plan.image,
        "master": {
            "command": "run",
            "autostart": True,
            "autoquit": {"enabled": True, "timeout": EXIT_S},
            "extraArgs": list(plan.args),
            "annotations": _annotations(plan, WEB_PORT),
            "resources": _resources("master"),
        },
        "worker": {
            "command": "run",
            "replicas": plan.workers,
            "extraArgs": ["--exit-code-on-error=0", *_locustfile(plan)],
            "resources": _resources("worker"),
        },
        **({"testFiles": {"configMapRef": f"{plan.name}-files", "srcMountPath": FILES[V2]}} if plan.files else {}),
        "env": {"variables": [{"name": "LOCUST_LLM_REPORT_DIR", "value": f"{REPORTS}/{plan.name}"}, *secrets]},
        "security": {"podSecurityContext": _pod_security(), "containerSecurityContext": _container_security()},
        "volumes": master,
        "volumeMounts": reports,
    }

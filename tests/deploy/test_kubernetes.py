"""The manifests fit Kubernetes' schemas, fit each other, and give consumers the time to stop."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import queries
from tests.deploy.checkers import DEPLOY, run
from tests.deploy.surface import FLAGS

KUBERNETES = DEPLOY / "kubernetes"
FILES = sorted(p for p in KUBERNETES.rglob("*.yaml") if p.name != "kustomization.yaml")
# What the validator has no schema for; it only warns there, so tests below look by hand.
CUSTOM = {"ServiceMonitor", "ScaledObject"}


@cache
def _parsed() -> list[dict[str, Any]]:
    """All documents; to parse them takes longer than any test that looks at them."""
    return [document for path in FILES for document in yaml.safe_load_all(path.read_text())]


def documents() -> list[dict[str, Any]]:
    return deepcopy(_parsed())


def the(kind: str, name: str) -> dict[str, Any]:
    """Return the one manifest of that kind and name."""
    matching = [d for d in documents() if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    assert len(matching) == 1
    return matching[0]


def pod(deployment: str) -> dict[str, Any]:
    return dict(the("Deployment", deployment)["spec"]["template"]["spec"])


def container(deployment: str) -> dict[str, Any]:
    (only,) = pod(deployment)["containers"]
    return dict(only)


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def flags(deployment: str) -> dict[str, str]:
    """Read --name=value arguments as a mapping."""
    pairs = [arg.partition("=") for arg in container(deployment)["args"] if arg.startswith("--")]
    return {name: value for name, _, value in pairs}


each_role = pytest.mark.parametrize("deployment", ["qworker-consumers", "qworker-daemon"])
each_pod = pytest.mark.parametrize(
    "deployment", ["qworker-consumers", "qworker-daemon", "qworker-web"]
)


@pytest.mark.slow
def test_manifests_fit_their_schemas() -> None:
    """No unknown field, no wrong type; only custom resources may go unchecked."""
    done = run("kubernetes-validate", "--strict", *FILES)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert [str(path) for path in FILES if str(path) not in said] == []
    warned = [line for line in said.splitlines() if line.startswith("WARN")]
    assert all(any(f"kind {kind} " in line for kind in CUSTOM) for line in warned), said


@each_pod
def test_pod_has_no_rights(deployment: str) -> None:
    """It meets the restricted Pod Security Standard, and writes nowhere but to /tmp."""
    of_pod = pod(deployment)["securityContext"]
    assert of_pod["runAsNonRoot"] is True
    assert of_pod["runAsUser"] > 0
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(deployment)["automountServiceAccountToken"] is False
    assert container(deployment)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [mount["mountPath"] for mount in container(deployment)["volumeMounts"]] == ["/tmp"]


@each_pod
def test_pod_runs_as_the_user_of_the_image(deployment: str) -> None:
    """The number is the one that the Dockerfile creates, with a home and a name."""
    user = pod(deployment)["securityContext"]["runAsUser"]
    assert f"--uid {user} " in (DEPLOY / "docker" / "Dockerfile").read_text()


@each_pod
def test_services_set_no_option_of_the_pod(deployment: str) -> None:
    """A Service qworker-metrics would set QWORKER_METRICS_PORT=tcp://…, and those variables are options."""
    services = [d["metadata"]["name"] for d in documents() if d["kind"] == "Service"]
    assert any(name.startswith("qworker-") for name in services)
    assert pod(deployment)["enableServiceLinks"] is False


@each_role
def test_probes_ask_the_port_that_is_opened(deployment: str) -> None:
    """All three go to the metrics port, which listens on more than the loopback address."""
    have = container(deployment)
    assert flags(deployment)["--metrics-host"] != "127.0.0.1"
    (port,) = have["ports"]
    assert port == {"name": "metrics", "containerPort": int(flags(deployment)["--metrics-port"])}
    # One port in every container, which the Service names as well.
    assert the("Service", "qworker-metrics")["spec"]["ports"][0]["port"] == port["containerPort"]
    probes = {
        name: have[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")
    }
    assert probes == {
        "startup": {"path": "/healthz", "port": "metrics"},
        "liveness": {"path": "/healthz", "port": "metrics"},
        "readiness": {"path": "/readyz", "port": "metrics"},
    }


@each_pod
def test_flags_exist(deployment: str) -> None:
    """Arguments are a command and flags that the command line has."""
    command, *_ = container(deployment)["args"]
    assert set(flags(deployment)) <= FLAGS[command]


@each_pod
def test_url_comes_from_the_secret(deployment: str) -> None:
    """No password stands in a manifest that is kept in version control."""
    env = {entry["name"]: entry for entry in container(deployment)["env"]}
    reference = env["QWORKER_URL"]["valueFrom"]["secretKeyRef"]
    secret = the("Secret", reference["name"])
    assert reference["key"] in secret["stringData"]


@pytest.mark.slow
def test_the_dashboard_is_reached_by_the_ingress_alone_and_restarts_for_no_outage() -> None:
    """Service, policy and probes name one port; probes ask the process, not the server of the queues."""
    have, policy = container("qworker-web"), the("NetworkPolicy", "qworker-web")["spec"]
    assert have["ports"] == [{"name": "web", "containerPort": int(flags("qworker-web")["--port"])}]
    assert flags("qworker-web")["--host"] != "127.0.0.1"
    assert flags("qworker-web")["--authorize"]
    for name in ("startup", "liveness", "readiness"):
        assert have[f"{name}Probe"]["tcpSocket"] == {"port": "web"}
    labels = the("Deployment", "qworker-web")["spec"]["template"]["metadata"]["labels"]
    service = the("Service", "qworker-web")["spec"]
    assert selects(service["selector"], labels)
    assert [port["targetPort"] for port in service["ports"]] == ["web"]
    assert selects(policy["podSelector"]["matchLabels"], labels)
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": "web", "protocol": "TCP"}]]
    # No other policy opens or closes it.
    others = [
        d["spec"]["podSelector"]["matchLabels"] for d in documents() if d["kind"] == "NetworkPolicy"
    ]
    assert sum(selects(other, labels) for other in others) == 1


def test_consumers_may_finish_before_they_are_killed() -> None:
    """The grace period of the pod leaves the grace time and a margin for what comes after it."""
    grace = int(flags("qworker-consumers")["--grace"].removesuffix("s"))
    assert pod("qworker-consumers")["terminationGracePeriodSeconds"] >= grace + 10


def test_children_are_recycled_before_the_kernel_kills_them() -> None:
    """All children together at --max-rss stay below the memory limit."""
    have = flags("qworker-consumers")
    most = int(have["--procs"]) * int(have["--max-rss"].removesuffix("MiB"))
    assert container("qworker-consumers")["resources"]["limits"]["memory"] == "1Gi"
    assert most < 1024


def test_daemon_has_a_second_one() -> None:
    """Losing a node costs no reaping, and drains take one at a time."""
    assert the("Deployment", "qworker-daemon")["spec"]["replicas"] == 2
    assert the("PodDisruptionBudget", "qworker-daemon")["spec"]["maxUnavailable"] == 1


@each_role
def test_selectors_find_their_pods(deployment: str) -> None:
    """Deployment, budget, Service and policy select the pods of this role; budgets no others."""
    spec = the("Deployment", deployment)["spec"]
    labels = spec["template"]["metadata"]["labels"]
    budget = the("PodDisruptionBudget", deployment)["spec"]["selector"]["matchLabels"]
    service = the("Service", "qworker-metrics")["spec"]["selector"]
    policy = the("NetworkPolicy", "qworker-ingress")["spec"]["podSelector"]["matchLabels"]
    assert spec["selector"]["matchLabels"] == budget == labels
    assert selects(service, labels)
    assert selects(policy, labels)


def test_only_the_daemon_is_kept_from_connecting_elsewhere() -> None:
    """What handlers connect to is not ours to know."""
    policy = the("NetworkPolicy", "qworker-daemon-egress")["spec"]["podSelector"]["matchLabels"]
    template = "spec", "template", "metadata", "labels"
    matching = []
    for name in ("qworker-consumers", "qworker-daemon"):
        labels: Any = the("Deployment", name)
        for key in template:
            labels = labels[key]
        if selects(policy, labels):
            matching.append(name)
    assert matching == ["qworker-daemon"]


def test_service_monitor_finds_the_service() -> None:
    """Required fields are there, its selector fits the Service, its port is one of the Service's."""
    monitor = the("ServiceMonitor", "qworker")
    service = the("Service", "qworker-metrics")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert selects(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])
    names = {port["name"] for port in service["spec"]["ports"]}
    for endpoint in monitor["spec"]["endpoints"]:
        assert set(endpoint) <= {"port", "path", "interval", "scrapeTimeout"}
        assert endpoint["port"] in names
        assert endpoint["path"] == "/metrics"
    assert set(monitor["spec"]) <= {"selector", "endpoints", "podTargetLabels"}


def test_scaled_object_is_well_formed() -> None:
    """Required fields are there, the target exists, and a trigger's values are strings."""
    scaled = the("ScaledObject", "qworker-consumers")
    spec = scaled["spec"]
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    assert set(spec) <= {
        *("scaleTargetRef", "pollingInterval", "minReplicaCount", "maxReplicaCount"),
        *("fallback", "advanced", "triggers"),
    }
    assert the("Deployment", spec["scaleTargetRef"]["name"])
    assert 0 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
    assert set(spec["fallback"]) == {"failureThreshold", "replicas"}
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "prometheus"
    assert {"serverAddress", "query", "threshold"} <= set(trigger["metadata"])
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_scaling_counts_waiting_and_running(tmp_path: Path) -> None:
    """The query adds ready and unacked, once each however many reapers there are, to one number."""
    (trigger,) = the("ScaledObject", "qworker-consumers")["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert "qworker_messages_ready" in query
    assert "qworker_messages_unacked" in query
    assert queries.strangers(query) == []
    assert queries.unknown_labels(query) == []
    assert queries.summed_truths(query) == []
    # Two queues with one ready and one unacked message each, told by two reapers.
    code, text = queries.finds_data([f"({query}) == 4"], tmp_path)
    assert code == 0, text


def test_kustomization_lists_every_manifest_but_the_secret() -> None:
    """Applying the folder never overwrites the real Secret with the example."""
    listed: set[Path] = set()
    for path in KUBERNETES.rglob("kustomization.yaml"):
        listed |= {path.parent / name for name in yaml.safe_load(path.read_text())["resources"]}
    assert set(FILES) - listed == {KUBERNETES / "secret.example.yaml"}
    assert listed <= set(FILES)


@pytest.mark.slow
def test_kustomization_builds() -> None:
    """The components apply: with KEDA the Deployment no longer fixes the number of consumers."""
    done = run("kubectl", "kustomize", KUBERNETES)
    assert done.returncode == 0, done.stderr
    built = {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(done.stdout)}
    assert len(built) == len(documents()) - 1
    assert "replicas" not in built["Deployment", "qworker-consumers"]["spec"]
    assert built["Deployment", "qworker-daemon"]["spec"]["replicas"] == 2

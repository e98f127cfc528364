"""helm against the embedded API server: a small chart, and the one of a driver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.apiserver.programs import User

pytestmark = pytest.mark.processes

DRIVER_CHART = Path(__file__).parents[3] / "charts" / "dra-driver"
CHART = {
    "Chart.yaml": "{apiVersion: v2, name: kitchen, version: 0.1.0}",
    "values.yaml": "{heat: '200', window: true}",
    "templates/settings.yaml": """
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-settings}
data: {heat: {{ .Values.heat | quote }}}
""",
    "templates/window.yaml": """
{{- if .Values.window }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: {{ .Release.Name }}-window}
spec: {podSelector: {}, policyTypes: [Ingress]}
{{- end }}
""",
}


@pytest.fixture
def chart(tmp_path: Path) -> str:
    folder = tmp_path / "kitchen"
    for name, text in CHART.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def names(user: User, kinds: str, namespace: str = "default") -> list[str]:
    return user.kubectl("get", kinds, "-n", namespace, "-o", "name").split()


def test_a_release_is_installed_upgraded_rolled_back_and_uninstalled(user: User, chart: str) -> None:
    user.run("helm", "install", "our", chart)
    installed = names(user, "configmaps,networkpolicies")
    user.run("helm", "upgrade", "our", chart, "--set", "heat=300,window=false")
    settings: Any = json.loads(user.kubectl("get", "configmap", "our-settings", "-o", "json"))
    upgraded = names(user, "networkpolicies")
    user.run("helm", "rollback", "our", "1")
    revisions: Any = json.loads(user.run("helm", "history", "our", "-o", "json"))
    user.run("helm", "uninstall", "our")

    assert installed == ["configmap/our-settings", "networkpolicy.networking.k8s.io/our-window"]
    assert settings["data"] == {"heat": "300"}
    assert settings["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "Helm"}
    assert upgraded == []
    assert [item["status"] for item in revisions] == ["superseded", "superseded", "deployed"]
    assert names(user, "configmaps,networkpolicies,secrets") == []


def test_the_chart_of_a_driver(user: User) -> None:
    values = {
        "driverName": "dra.pizza", "target": "pizza:driver", "image.repository": "example.com/pizza",
        "image.tag": "v1", "webhook.enabled": "true", "webhook.certificate.secretName": "certificate",
    }  # fmt: skip
    arguments = [str(DRIVER_CHART), "-n", "drivers", *(f"--set={name}={value}" for name, value in values.items())]

    user.run("helm", "install", "pizza", *arguments, "--create-namespace")
    user.run("helm", "upgrade", "pizza", *arguments, "--set=image.tag=v2")

    node: Any = json.loads(user.kubectl("get", "daemonset", "pizza-node", "-n", "drivers", "-o", "json"))
    assert node["spec"]["template"]["spec"]["containers"][0]["image"] == "example.com/pizza:v2"
    assert node["metadata"]["generation"] == 2
    policies = "validatingadmissionpolicies,validatingadmissionpolicybindings"
    assert names(user, policies, "drivers") == [
        "validatingadmissionpolicy.admissionregistration.k8s.io/pizza-controller",
        "validatingadmissionpolicy.admissionregistration.k8s.io/pizza-node",
        "validatingadmissionpolicy.admissionregistration.k8s.io/pizza-node-status",
        "validatingadmissionpolicybinding.admissionregistration.k8s.io/pizza-controller",
        "validatingadmissionpolicybinding.admissionregistration.k8s.io/pizza-node",
        "validatingadmissionpolicybinding.admissionregistration.k8s.io/pizza-node-status",
    ]
    assert names(user, "deployments,services", "drivers") == [
        "deployment.apps/pizza-controller", "deployment.apps/pizza-webhook", "service/pizza-webhook"
    ]  # fmt: skip
    assert names(user, "networkpolicies,poddisruptionbudgets", "drivers") == [
        *(f"networkpolicy.networking.k8s.io/pizza-{role}" for role in ("controller", "node", "webhook")),
        "poddisruptionbudget.policy/pizza-controller",
        "poddisruptionbudget.policy/pizza-webhook",
    ]

    # who asks before it is a Job, which runs an image: the sandbox has neither
    user.run("helm", "uninstall", "pizza", "-n", "drivers", "--no-hooks")
    left = (
        "daemonsets,deployments,services,secrets,clusterroles,clusterrolebindings,validatingwebhookconfigurations,"
        "networkpolicies,poddisruptionbudgets"
    )
    assert [name for name in names(user, f"{left},{policies}", "drivers") if "pizza" in name] == []

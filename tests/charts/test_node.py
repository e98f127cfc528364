"""The node role's DaemonSet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.node.agent import DRAIN
from tests.charts.rendering import ALL_ROLES, DEPLOYED, DRIVER, Helm, Manifests, target


@pytest.fixture
def deployed(helm: Helm) -> Manifests:
    return helm.render(DEPLOYED)


def test_pods_of_two_versions_overlap_and_the_old_one_ends_last(deployed: Manifests) -> None:
    spec = deployed.named("DaemonSet")["spec"]

    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert spec["minReadySeconds"] > 0
    assert deployed.environment("node")["DRA_POD_UID"] == "metadata.uid"


def test_the_pod_has_time_to_drain(deployed: Manifests) -> None:
    assert deployed.pod("node")["terminationGracePeriodSeconds"] > DRAIN


def test_node_gets_its_name(deployed: Manifests) -> None:
    assert deployed.environment("node")["DRA_NODE_NAME"] == "spec.nodeName"


def test_every_variable_is_one_that_the_command_reads(helm: Helm, tmp_path: Path) -> None:
    manifests = helm.render({**DEPLOYED, "node": {"stateDir": "/state", "settings": {"menu": "/menu"}}})

    text = CliRunner().invoke(cli, ["node", str(target(tmp_path, "    menu: str = ''\n")), "--help"]).output

    assert [name for name in manifests.environment("node") if name not in text] == []


@pytest.mark.parametrize("role", ["node", "controller"])
def test_each_role_is_an_argument_of_the_image(role: str, deployed: Manifests) -> None:
    assert deployed.container(role)["args"] == [role, "pizza_driver.driver:driver"]


def test_it_is_root_without_any_of_its_powers(deployed: Manifests) -> None:
    context = deployed.container("node")["securityContext"]

    assert context["runAsUser"] == 0
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "privileged" not in context


def test_hardware_may_need_a_capability(helm: Helm) -> None:
    manifests = helm.render({**DEPLOYED, "node": {"capabilities": ["SYS_ADMIN"]}})

    assert manifests.container("node")["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}


def test_it_is_privileged_where_a_value_says_so(helm: Helm) -> None:
    context = helm.render({**DEPLOYED, "node": {"privileged": True}}).container("node")["securityContext"]

    assert context["privileged"] is True
    # the API server refuses a privileged container that may not escalate
    assert "allowPrivilegeEscalation" not in context


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {f"/var/lib/kubelet/plugins/{DRIVER}", "/var/lib/kubelet/plugins_registry", "/var/run/cdi"}),
        (
            {"kubeletDir": "/k", "cdiDir": "/etc/cdi", "stateDir": "/state"},
            {f"/k/plugins/{DRIVER}", "/k/plugins_registry", "/etc/cdi", "/state"},
        ),
        (
            {"nriSocket": "/run/nri/nri.sock", "kubeletDir": "/k", "cdiDir": "/etc/cdi"},
            {f"/k/plugins/{DRIVER}", "/k/plugins_registry", "/etc/cdi", "/run/nri"},
        ),
    ],
    ids=["defaults", "other-directories", "pod-hooks"],
)
def test_it_sees_no_more_of_the_host_than_it_needs_at_the_same_paths(
    values: dict[str, str], expected: set[str], helm: Helm
) -> None:
    manifests = helm.render({**DEPLOYED, "node": values})
    environment = manifests.environment("node")
    paths = {item["name"]: item["hostPath"]["path"] for item in manifests.pod("node")["volumes"]}
    mounts = {item["name"]: item["mountPath"] for item in manifests.container("node")["volumeMounts"]}

    assert paths == mounts
    assert set(mounts.values()) == expected
    assert environment["DRA_CDI_DIR"] in expected
    assert f"{environment['DRA_KUBELET_DIR']}/plugins_registry" in expected
    assert environment.get("DRA_STATE_DIR") == values.get("stateDir")
    assert environment.get("DRA_NRI_SOCKET") == values.get("nriSocket")


@pytest.mark.parametrize("role", ["node", "webhook"])
def test_settings_of_the_driver_become_the_variables_it_reads(role: str, helm: Helm) -> None:
    settings = {"menu": "/etc/menu.yaml", "ovens": 1_000_000, "vegan": True, "heat": 0.5}

    environment = helm.render({**ALL_ROLES, "node": {"settings": settings}}).environment(role)

    assert {name: value for name, value in environment.items() if name.startswith("DRIVER_")} == {
        "DRIVER_MENU": "/etc/menu.yaml",
        "DRIVER_OVENS": "1000000",
        "DRIVER_VEGAN": "true",
        "DRIVER_HEAT": "0.5",
    }


@pytest.mark.parametrize("role", ["node", "controller", "webhook"])
def test_what_an_author_adds_is_there(role: str, helm: Helm) -> None:
    more: dict[str, Any] = {
        "extraArgs": ["--log-level=debug"],
        "extraEnv": [{"name": "KITCHEN", "value": "hot"}],
        "extraVolumes": [{"name": "hardware", "hostPath": {"path": "/dev/oven"}}],
        "extraVolumeMounts": [{"name": "hardware", "mountPath": "/dev/oven"}],
        "podLabels": {"kitchen": "hot"},
        "podAnnotations": {"oven": "on"},
        "nodeSelector": {"kitchen": "true"},
    }

    manifests = helm.render({**ALL_ROLES, role: {**ALL_ROLES.get(role, {}), **more}})

    pod, container = manifests.pod(role), manifests.container(role)
    template = manifests.named("DaemonSet" if role == "node" else "Deployment", f"pizza-{role}")["spec"]["template"]
    assert container["args"][-1] == "--log-level=debug"
    assert manifests.environment(role)["KITCHEN"] == "hot"
    assert more["extraVolumes"][0] in pod["volumes"]
    assert more["extraVolumeMounts"][0] in container["volumeMounts"]
    assert template["metadata"]["labels"]["kitchen"] == "hot"
    assert template["metadata"]["annotations"] == {"oven": "on"}
    assert pod["nodeSelector"] == {"kitchen": "true"}


def test_it_runs_before_and_after_everything_else_of_the_node(deployed: Manifests) -> None:
    assert deployed.pod("node")["priorityClassName"] == "system-node-critical"
    assert deployed.pod("node")["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.parametrize("role", ["node", "controller"])
def test_the_kubelet_asks_where_the_process_answers(role: str, deployed: Manifests) -> None:
    container = deployed.container(role)

    [port] = [item["containerPort"] for item in container["ports"] if item["name"] == "probes"]
    assert deployed.environment(role)["DRA_PROBE_ADDRESS"] == f":{port}"
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "probes"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probes"}


@pytest.mark.parametrize("role", ["node", "controller"])
def test_zero_port_disables_probes(role: str, helm: Helm) -> None:
    manifests = helm.render({**DEPLOYED, role: {"probePort": 0}})

    assert not {"ports", "livenessProbe", "readinessProbe"} & manifests.container(role).keys()
    assert "DRA_PROBE_ADDRESS" not in manifests.environment(role)


def test_in_the_network_of_the_host_no_two_pods_want_one_port(helm: Helm) -> None:
    manifests = helm.render({**DEPLOYED, "node": {"hostNetwork": True}})

    assert not {"ports", "livenessProbe", "readinessProbe"} & manifests.container("node").keys()
    assert "DRA_PROBE_ADDRESS" not in manifests.environment("node")


def test_device_files_are_looked_for_only_where_the_pod_has_the_nodes_dev(helm: Helm) -> None:
    assert helm.render(DEPLOYED).environment("node")["DRA_CHECK_DEVICE_NODES"] == "false"
    mounted = helm.render({**DEPLOYED, "node": {"checkDeviceNodes": True}})
    assert mounted.environment("node")["DRA_CHECK_DEVICE_NODES"] == "true"

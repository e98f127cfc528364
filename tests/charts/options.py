"""Values for the chart that together set every option, each to something that is not its default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from dra_kit.admission.policy.manifest import manifest, policy_objects
from dra_kit.author.target import load_driver
from tests.charts.rendering import CHART, DEPLOYED, DRIVER

EXAMPLES: Final = CHART.parents[1] / "examples"
_RULE: Final = {"apiGroups": ["kitchen.example"], "resources": ["menus"], "verbs": ["get"]}
_POD: Final = {
    "nodeSelector": {"kitchen": "true"},
    "tolerations": [{"key": "kitchen", "operator": "Exists"}],
    "resources": {"requests": {"cpu": "30m"}},
}
_INGRESS: Final = [{"from": [{"namespaceSelector": {}}], "ports": [{"port": 9400}]}]
_EGRESS: Final = [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 6443}]}]
_AFFINITY: Final = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "oven", "operator": "Exists"}]}]
        }
    }
}
_ROLE: Final[Mapping[str, Any]] = {
    **_POD,
    "serviceAccount": {"annotations": {"kitchen.example/account": "yes"}},
    "probePort": 9001,
    "extraArgs": ["--log-level=debug"],
    "extraEnv": [{"name": "KITCHEN", "value": "hot"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/var/more"}],
    "terminationGracePeriodSeconds": 50,
    "priorityClassName": "system-cluster-critical",
    "affinity": _AFFINITY,
    "networkPolicy": {"ingress": _INGRESS, "egress": _EGRESS},
    "podAnnotations": {"oven": "on"},
    "podLabels": {"oven": "electric"},
}
_REPLICATED: Final[Mapping[str, Any]] = {
    **_ROLE,
    "replicas": 3,
    "topologySpreadConstraints": [
        {
            "topologyKey": "topology.kubernetes.io/zone",
            "maxSkew": 1,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"oven": "electric"}},
        }
    ],
}
_PEM: Final = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
_GLOBS: Final = "driver: serial.example.com\ndevices:\n- paths: /dev/ttyUSB*\n"
_EVERYTHING: Final[Mapping[str, Any]] = {
    "driverName": DRIVER,
    "fullnameOverride": "oven",
    "image": {
        "repository": "images.example/pizza-driver",
        "tag": "1.2.3",
        "digest": f"sha256:{'0' * 64}",
        "pullPolicy": "Always",
    },
    "imagePullSecrets": [{"name": "registry"}],
    "target": "pizza_driver.driver:driver",
    "deviceClasses": (EXAMPLES / "pizza-driver" / "deviceclasses.yaml").read_text(encoding="utf-8"),
    "logging": {"level": "debug", "format": "text"},
    "monitoring": {
        "podMonitor": {"enabled": True, "interval": "15s", "labels": {"prometheus": "main"}},
        "prometheusRule": {"enabled": True, "labels": {"prometheus": "main"}},
        "dashboard": {"enabled": True, "labels": {"grafana": "main"}, "annotations": {"folder": "drivers"}},
    },
    "drainGuard": {**_POD, "wait": 60, "decommissionWait": 120, "skipNodes": ["node-b"]},
    "node": {
        **_ROLE,
        "kubeletDir": "/data/kubelet",
        "cdiDir": "/etc/cdi",
        "nriSocket": "/run/nri/runtime.sock",
        "stateDir": "/data/state",
        "checkDeviceNodes": True,
        "podResources": True,
        "settings": {"menu": "{{ .Release.Namespace }}", "ovens": 2, "vegan": True},
        "extraRules": [_RULE],
        "namespacedRules": {"{{ .Release.Namespace }}": [_RULE], "other": [_RULE]},
        "effectPods": {
            "labels": {"app.kubernetes.io/component": "chef"},
            "allowed": {
                "serviceAccounts": ["chef"],
                "secrets": ["{{ .Release.Name }}-recipe"],
                "configMaps": ["menu"],
                "imagePullSecrets": ["mirror"],
                "hostPaths": ["/run/oven"],
                "hostNamespaces": ["hostPID"],
                "privileged": True,
                "metadata": ["team"],
            },
            "networkPolicy": {"ingress": _INGRESS, "egress": _EGRESS},
        },
        "capabilities": ["SYS_ADMIN"],
        "seLinuxOptions": {"type": "spc_t"},
        "updateStrategy": {"rollingUpdate": {"maxSurge": "10%"}},
        "minReadySeconds": 20,
    },
    "controller": {
        **_REPLICATED,
        "clusterPools": True,
        "poolNames": ["warehouse"],
        "binding": True,
        "taintRules": True,
        "extraRules": [_RULE],
    },
    "networkPolicy": {"apiServerCIDRs": ["10.0.0.4/32"]},
    "webhook": {**_REPLICATED, "port": 10443, "certificate": {"selfMade": True, "job": _POD}},
}
_BARE: Final[Mapping[str, Any]] = {
    **DEPLOYED,
    "monitoring": {"serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"prometheus": "main"}}},
    "networkPolicy": {"enabled": False},
    "drainGuard": {"enabled": False},
    "node": {
        "decommission": True,
        "extraRules": [{**_RULE, "verbs": ["patch"]}],
        "ownObjectsOnly": False,
        "poolNames": "any",
        "privileged": True,
        "hostNetwork": True,
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": None},
        "effectPods": {"labels": {"app.kubernetes.io/component": "chef"}, "podDisruptionBudget": False},
    },
    "controller": {"enabled": False},
    "webhook": {
        "podDisruptionBudget": False,
        "certificate": {"secretName": "webhook", "caBundle": _PEM},
        "configurationAnnotations": {"injector.example/from": "pizza-system/webhook"},
    },
}


def _example(name: str) -> Mapping[str, Any]:
    """What ``helm install NAME charts/dra-driver -f examples/NAME/values.yaml`` installs."""
    values: Mapping[str, Any] = yaml.safe_load((EXAMPLES / name / "values.yaml").read_text(encoding="utf-8"))
    return values


def _config_policy() -> str:
    return manifest(policy_objects(load_driver(str(EXAMPLES / "pizza-driver"))), DRIVER)


ROWS: Final[Mapping[str, Mapping[str, Any]]] = {
    "default": DEPLOYED,
    "rights-only": {"driverName": DRIVER, "webhook": {"enabled": False}, "controller": {"podDisruptionBudget": False}},
    "everything": {**_EVERYTHING, "configPolicy": _config_policy()},
    "bare": _BARE,
    "controller-only": {**DEPLOYED, "node": {"enabled": False}, "controller": {"clusterPools": True}},
    "globs": {"image": DEPLOYED["image"], "globs": _GLOBS},
    "pizza-driver": _example("pizza-driver"),
    "gpu-driver": _example("gpu-driver"),
    "nic-driver": _example("nic-driver"),
    "cpu-driver": _example("cpu-driver"),
}


def set_paths(
    values: Any, schema: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each option that values set, with the value."""
    part: Any = schema
    for name in path:
        part = part["properties"][name]
    if isinstance(values, dict) and "properties" in part:
        for name, value in values.items():
            yield from set_paths(value, schema, (*path, name))
    else:
        yield path, values


def snapshot(row: str) -> Path:
    """Where what is rendered for a row is kept."""
    return CHART.parents[1] / "tests" / "data" / "charts" / f"{row}.yaml"

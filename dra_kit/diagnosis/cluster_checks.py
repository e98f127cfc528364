"""Checks of the cluster: versions, feature gates, kubelets, driver; the result of a check."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

from msgspec import Struct

from dra_kit.client.api import Client, discover_release
from dra_kit.client.resources import DEVICE_CLASSES, PODS, RESOURCE_SLICES
from dra_kit.diagnosis.explain.drivers import NODE_PODS, driver_label
from dra_kit.errors import ConfigurationError, Forbidden, KubeError
from dra_kit.kubernetes.release import NEWEST, OLDEST
from dra_kit.text import counted, escape_unprintable

_DRIVER: Final = "gates.check.dra-kit.example"
_NODE: Final = "dra-kit-check"
_GATES_CHECK: Final = "feature gates"
_WHOLE: Final[dict[str, dict[str, Any]]] = {
    "DRADeviceTaints": {"taints": [{"key": "dra-kit.example/check", "effect": "NoSchedule"}]},
    "DRADeviceBindingConditions": {
        "bindingConditions": ["dra-kit.example/check"],
        "bindingFailureConditions": ["dra-kit.example/failed"],
    },
    "DRAConsumableCapacity": {"allowMultipleAllocations": True},
}
"""Fields of a device that are stored if the gate is on (Kubernetes 1.37, resourceslice/strategy.go)."""


async def check_gates(client: Client, *, separate_counters: bool) -> CheckResult:
    """Return which feature gates are on and off; whether a driver needs them depends on its slices."""
    on: list[str] = []
    off: list[str] = []
    unknown: list[str] = []
    for gate, body in _probes(separate_counters=separate_counters).items():
        resource = RESOURCE_SLICES if body["kind"] == RESOURCE_SLICES.kind else DEVICE_CLASSES
        try:
            stored = await client.create(resource, body, dry_run=True)
        except Forbidden as error:
            if resource is DEVICE_CLASSES:  # accounts of drivers publish slices, and create no classes
                unknown.append(gate)
                continue
            remedy = "run this with an account that may create ResourceSlices (a dry run)"
            return warn(_GATES_CHECK, f"not known: {error}", remedy)
        except KubeError as error:
            remedy = "an admission policy may reject the probe"
            return warn(_GATES_CHECK, f"{gate} is not known: {error}", remedy)
        (on if _is_stored(body["spec"], stored.get("spec") or {}) else off).append(gate)
    states = (("on", on), ("off", off), ("not known, as you may not create DeviceClasses", unknown))
    text = "; ".join(f"{state}: {', '.join(gates)}" for state, gates in states if gates)
    if off:
        remedy = "drivers report which of them they need; kube-apiserver silently drops their fields"
        return warn(_GATES_CHECK, text, remedy)
    return ok(_GATES_CHECK, text)


def _probes(*, separate_counters: bool) -> dict[str, dict[str, Any]]:
    probes = {gate: _slice({"devices": [{"name": "check", **field}]}) for gate, field in _WHOLE.items()}
    counters = {"sharedCounters": [{"name": "set", "counters": {"slots": {"value": "1"}}}]}
    devices = {} if separate_counters else {"devices": [{"name": "check"}]}
    device_class = {
        "apiVersion": DEVICE_CLASSES.api_version,
        "kind": DEVICE_CLASSES.kind,
        "metadata": {"generateName": "dra-kit-check-"},
        "spec": {"extendedResourceName": "dra-kit.example/check"},
    }
    return {
        **probes,
        "DRAPartitionableDevices": _slice({**counters, **devices}),
        "DRAExtendedResource": device_class,
    }


def _slice(spec: dict[str, Any]) -> dict[str, Any]:
    pool = {"name": _NODE, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"generateName": "dra-kit-check-"},
        "spec": {"driver": _DRIVER, "nodeName": _NODE, "pool": pool, **spec},
    }


def _is_stored(sent: dict[str, Any], stored: dict[str, Any]) -> bool:
    if "extendedResourceName" in sent:
        return bool(stored.get("extendedResourceName"))
    if "sharedCounters" in sent:
        return bool(stored.get("sharedCounters"))
    [device], [found] = sent["devices"], stored.get("devices") or [{}]
    return all(found.get(key) for key in device)


Verdict = Literal["ok", "warn", "FAIL"]


class CheckResult(Struct, frozen=True):
    """The result of a check, in one line.

    Attributes:
        verdict: ``warn`` if a driver may work anyway, or the result is unknown.
        what: the checked object, in a word or two.
        remedy: what to do; empty for ``ok``.
    """

    verdict: Verdict
    what: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return escape_unprintable(f"{self.verdict:<4} {self.what}: {self.text}{remedy}")


def ok(what: str, text: str) -> CheckResult:
    """Return a success."""
    return CheckResult("ok", what, text)


def warn(what: str, text: str, remedy: str) -> CheckResult:
    """Return a warning."""
    return CheckResult("warn", what, text, remedy)


def fail(what: str, text: str, remedy: str) -> CheckResult:
    """Return a failure: a driver will not work."""
    return CheckResult("FAIL", what, text, remedy)


def has_failed(findings: Sequence[CheckResult]) -> bool:
    """Return whether one of them is a FAIL."""
    return any(item.verdict == "FAIL" for item in findings)


async def check_server(client: Client) -> CheckResult:
    """Check that the API server's release is supported and serves resource.k8s.io/v1."""
    what = "API server"
    try:
        version = await discover_release(client)
    except ConfigurationError as error:
        return fail(what, error.problem, error.remedy)
    except KubeError as error:
        return fail(what, str(error), "correct --kubeconfig or --context, and check the network")
    if version > NEWEST:
        text = f"Kubernetes {version} is newer than the newest release that dra-kit supports ({NEWEST})"
        return warn(what, text, "new fields are ignored; update dra-kit")
    return ok(what, f"Kubernetes {version}, resource.k8s.io/v1")


def kubelet_version_findings(nodes: Iterable[Mapping[str, Any]]) -> list[CheckResult]:
    """Check the kubelets of Node objects; return one line for all that are supported."""
    found: list[CheckResult] = []
    supported: Counter[str] = Counter()
    for node in nodes:
        name, version = node["metadata"]["name"], node["status"]["nodeInfo"].get("kubeletVersion", "")
        if _number(version.removeprefix("v")) < OLDEST:
            remedy = f"upgrade it to Kubernetes {OLDEST} or newer: older kubelets use another interface to drivers"
            found.append(fail("kubelet", f"node {name} has kubelet {version}", remedy))
        else:
            supported[version] += 1
    return [*found, *version_counts("kubelet", supported)]


def version_counts(what: str, versions: Mapping[str, int]) -> Iterator[CheckResult]:
    """Yield one line for all supported versions, if any, with the number of nodes that have each."""
    if versions:
        yield ok(what, ", ".join(f"{count} x {version}" for version, count in sorted(versions.items())))


def _number(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


_DRIVER_CHECK: Final = "driver"


async def check_driver(client: Client, driver: str) -> list[CheckResult]:
    """Check the slices and DeviceClasses of a driver."""
    try:
        slices = (await client.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")).items
        classes = (await client.list(DEVICE_CLASSES)).items
    except KubeError as error:
        return [warn(_DRIVER_CHECK, f"{driver} is not known: {error}", "run this with an account that may list them")]
    return driver_findings(driver, slices, classes, [] if slices else await _node_pods(client, driver))


async def _node_pods(client: Client, driver: str) -> Sequence[Mapping[str, Any]]:
    """Return the pods of the driver's node role; none if they may not be listed."""
    try:
        return (await client.list(PODS, label_selector=f"{driver_label(driver)},{NODE_PODS}")).items
    except KubeError:
        return []


def driver_findings(
    driver: str,
    slices: Sequence[Mapping[str, Any]],
    classes: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]] = (),
) -> list[CheckResult]:
    """Check a driver's slices and all classes; ``pods`` of its node role show why it has no slices."""
    if not slices:
        for pod, exit_code, reason in _failures(pods):
            metadata = pod["metadata"]
            text = f"{driver} has published no slice: pod {metadata.get('namespace')}/{metadata['name']} "
            remedy = "see the log of that pod (kubectl logs --previous)"
            return [fail(_DRIVER_CHECK, f"{text}exited with code {exit_code}{reason and f': {reason}'}", remedy)]
        remedy = f"does its node role run (dra-kit status on the node), and is {driver} its name?"
        return [fail(_DRIVER_CHECK, f"{driver} has published no slice", remedy)]
    devices = sum(len(item["spec"].get("devices") or ()) for item in slices)
    found = [ok(_DRIVER_CHECK, f"{driver}: {counted(devices, 'device')}{_where(slices)}")]
    naming = [item["metadata"]["name"] for item in classes if driver in str((item.get("spec") or {}).get("selectors"))]
    if naming:
        found.append(ok("DeviceClass", f"{', '.join(sorted(naming))} for {driver}"))
    else:
        remedy = "a class may select by attributes only; otherwise, apply the driver's DeviceClasses"
        found.append(warn("DeviceClass", f"no selector names {driver}", remedy))
    return found


def _failures(pods: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], int, str]]:
    """Yield pods with a failed container, its exit code, and the cause; it may just be starting again."""
    for pod in pods:
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            state = status.get("state") or {}
            ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated")
            if not status.get("ready") and ended and ended.get("exitCode"):
                yield pod, ended["exitCode"], _reason(str(ended.get("message") or ""))


def _reason(message: str) -> str:
    """Return the error in a termination message: the last line of the log, which may be JSON."""
    lines = message.strip().splitlines()
    if not lines:
        return ""
    try:
        error = json.loads(lines[-1])["error"]
    except (ValueError, KeyError, TypeError):
        error = lines[-1]
    return " ".join(str(error).split()).removeprefix("error: ")


def _where(slices: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of nodes, and of pools that belong to no node."""
    nodes = {item["spec"]["nodeName"] for item in slices if item["spec"].get("nodeName")}
    pools = {item["spec"]["pool"]["name"] for item in slices if not item["spec"].get("nodeName")}
    parts = [f"on {counted(len(nodes), 'node')}"] if nodes else []
    parts += [f"in {counted(len(pools), 'pool')} of no node"] if pools else []
    return f" {' and '.join(parts)}"


_KUBELET_CHECK: Final = "kubelet configuration"


async def check_kubelets(client: Client, nodes: Sequence[str]) -> list[CheckResult]:
    """Check the kubelets of nodes; stop at the first that may not be read."""
    found: list[CheckResult] = []
    for node in nodes:
        try:
            answer = await client.get_path(f"/api/v1/nodes/{quote(node, safe='')}/proxy/configz")
        except Forbidden:
            remedy = "run this with an account that may get nodes/proxy, or see cpuManagerPolicy in the kubelet's file"
            return [*found, warn(_KUBELET_CHECK, f"that of node {node} may not be read", remedy)]
        except KubeError as error:
            found.append(warn(_KUBELET_CHECK, f"that of node {node} cannot be read: {error}", "check the kubelet"))
        else:
            found += kubelet_configuration_findings(node, answer.get("kubeletconfig") or {})
    return found


def kubelet_configuration_findings(node: str, config: Mapping[str, Any]) -> list[CheckResult]:
    """Check the KubeletConfiguration of a node."""
    found: list[CheckResult] = []
    gates = config.get("featureGates") or {}
    if gates.get("DynamicResourceAllocation") is False:
        text = f"node {node} has DynamicResourceAllocation=false"
        found.append(fail(_KUBELET_CHECK, text, "remove that from its featureGates"))
    policy = config.get("cpuManagerPolicy") or "none"
    if policy == "static":
        remedy = (
            "it conflicts with drivers that assign CPUs, since the kubelet assigns the same ones; "
            "other drivers are not affected"
        )
        found.append(warn(_KUBELET_CHECK, f"node {node} has cpuManagerPolicy: static", remedy))
    if gates.get("KubeletPodResourcesDynamicResources") is False:
        text = f"node {node} has KubeletPodResourcesDynamicResources=false"
        remedy = "dra-kit who and exporters cannot see there which container has a device; remove it"
        found.append(warn(_KUBELET_CHECK, text, remedy))
    return found or [ok(_KUBELET_CHECK, f"node {node}: cpuManagerPolicy {policy}")]

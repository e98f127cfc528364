"""Checks of what drivers and administrators publish: pools of slices, taint rules, names of classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from dra_kit.diagnosis.lint.devices import LintContext, written_choices
from dra_kit.diagnosis.lint.objects import LintedObject
from dra_kit.diagnosis.lint.structure import FieldProblem
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.values.json import value_at


def published_problems(
    manifests: Sequence[LintedObject], surroundings: LintContext
) -> Iterator[tuple[LintedObject, FieldProblem]]:
    """Yield problems that slices, classes and taint rules of the files have together or with the known ones."""
    yield from _pool_problems(manifests)
    yield from _extended_names(manifests, surroundings)
    yield from _admin_access(manifests)
    for manifest in manifests:
        if isinstance(manifest.obj, v1.DeviceTaintRule):
            written = value_at(manifest.document.body, ("spec", "deviceSelector"))
            yield from ((manifest, problem) for problem in _taint_rule_problems(manifest.obj, written))


def _pool_problems(manifests: Sequence[LintedObject]) -> Iterator[tuple[LintedObject, FieldProblem]]:
    """Yield slices of pools that several nodes publish, each as its own, with devices of the same names."""
    pools: dict[tuple[str, str], list[tuple[LintedObject, v1.ResourceSliceSpec]]] = {}
    for manifest in manifests:
        if isinstance(manifest.obj, v1.ResourceSlice) and manifest.obj.spec.pool.name:
            spec = manifest.obj.spec
            pools.setdefault((spec.driver, spec.pool.name), []).append((manifest, spec))
    for (driver, pool), slices in pools.items():
        newest = max(spec.pool.generation for _, spec in slices)
        current = [(manifest, spec) for manifest, spec in slices if spec.pool.generation == newest]
        nodes = sorted({spec.node_name for _, spec in current if spec.node_name})
        names = Counter(device.name for _, spec in current for device in spec.devices)
        repeated = sorted(name for name, number in names.items() if number > 1)
        if len(nodes) > 1 and repeated:
            shown = ", ".join([*nodes[:4], "…"] if len(nodes) > 4 else nodes)
            text = (
                f"{len(nodes)} nodes publish pool {pool} of driver {driver}: {shown}; their devices of one name, such "
                f"as {repeated[0]}, are one device, which only one claim can get"
            )
            problem = FieldProblem("spec.pool.name", "shared-pool", text, "name the pool after its node")
            yield from ((manifest, problem) for manifest, _ in current)


def _extended_names(
    manifests: Sequence[LintedObject], surroundings: LintContext
) -> Iterator[tuple[LintedObject, FieldProblem]]:
    """Yield classes that have the extended resource name of another class."""
    owners: dict[str, set[str]] = {}
    for name, device_class in surroundings.classes.items():
        if device_class is not None and device_class.spec.extended_resource_name:
            owners.setdefault(device_class.spec.extended_resource_name, set()).add(name)
    for manifest in manifests:
        if not isinstance(manifest.obj, v1.DeviceClass):
            continue
        extended = manifest.obj.spec.extended_resource_name
        others = sorted(owners.get(extended or "", set()) - {manifest.name})
        if extended and others:
            text = f"DeviceClass {others[0]} has this extendedResourceName too: the scheduler uses only the newer class"
            wish = "give each class its own name"
            yield manifest, FieldProblem("spec.extendedResourceName", "extended-name-twice", text, wish)


def _taint_rule_problems(rule: v1.DeviceTaintRule, written: object) -> Iterator[FieldProblem]:
    if written is None:
        text = "the rule taints no device: it has no deviceSelector"
        yield FieldProblem("spec", "taints-no-device", text, "name the driver, pool or device in deviceSelector")
    elif rule.spec.taint.effect == "NoExecute" and written == {}:
        text = "an empty deviceSelector selects all devices of the cluster: NoExecute evicts the pods that use them"
        wish = (
            "name the driver, pool or device; with effect: None, the status of the rule shows how many pods it affects"
        )
        yield FieldProblem("spec.deviceSelector", "taints-all-devices", text, wish, key=True)


def evicting_taints(manifests: Sequence[LintedObject]) -> Sequence[v1.DeviceTaint]:
    """Return the taints of taint rules in the files that evict pods."""
    rules = [manifest.obj for manifest in manifests if isinstance(manifest.obj, v1.DeviceTaintRule)]
    return [rule.spec.taint for rule in rules if rule.spec.taint.effect == "NoExecute"]


_ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"


def _admin_access(manifests: Sequence[LintedObject]) -> Iterator[tuple[LintedObject, FieldProblem]]:
    """Yield requests with admin access in namespaces of the files that do not allow it."""
    labels: dict[str, list[object]] = {}
    for manifest in manifests:
        if manifest.kind == "Namespace" and manifest.api_version == "v1" and manifest.name:
            found = value_at(manifest.document.body, ("metadata", "labels", _ADMIN_LABEL))
            labels.setdefault(manifest.name, []).append(found)
    for manifest in manifests:
        found_in_files = labels.get(manifest.namespace)
        if not found_in_files or "true" in found_in_files:
            continue  # several files may be alternatives
        for body in written_choices(manifest):
            if getattr(body.asked, "admin_access", None):
                text = f"the API server rejects admin access in namespace {manifest.namespace}, which lacks a label"
                wish = f'label the Namespace: {_ADMIN_LABEL}: "true"'
                yield manifest, FieldProblem(f"{body.path}.adminAccess", "admin-access", text, wish)

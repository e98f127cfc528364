"""Pod templates in objects of any kind, found by their shape.

Controllers of many API groups create pods: JobSet, LeaderWorkerSet, RayCluster, PyTorchJob, Volcano's Job and others
contain a PodTemplateSpec at some path. Two others describe a pod in their own shape: KubeVirt's virtual machines
(VirtualMachineInstanceSpec, GPU and Network of kubevirt.io/v1) and Argo's workflows (WorkflowSpec and Template of
argoproj.io/v1alpha1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dra_kit.kubernetes.manifests.documents import parse_documents
from dra_kit.kubernetes.manifests.files import MANIFESTS, UnreadableText

_Spec: TypeAlias = Mapping[str, Any]
_POD_SPEC_KEYS: Final = frozenset({"podSpec", "spec"})
_REFERENCES: Final = frozenset({"resourceClaimName", "resourceClaimTemplateName", "source"})
"""Fields of an entry of ``resourceClaims`` of a pod; ``source`` until Kubernetes 1.30."""
_MACHINE_DEVICES: Final = ("gpus", "hostDevices")
"""Lists of ``domain.devices`` of a virtual machine whose items may name a claim of the pod."""
_PATCH: Final = "podSpecPatch"


class PodTemplate(Struct, frozen=True):
    """A pod that an object contains or describes.

    Attributes:
        path: the path of its spec in the object, as :class:`~dra_kit.kubernetes.manifests.positions.Positions` has it.
        spec: its spec in the shape of a pod's, with the fields of the object.
        metadata: metadata for the pods; empty if there is none.
        is_embedded: whether the spec is written in the object; otherwise it is made from an object of another shape,
            and has only the containers and claims.
        places: paths of parts of the spec (``containers[0]``) that are not below ``path``; longer ones first.
    """

    path: str
    spec: _Spec
    metadata: _Spec = {}
    is_embedded: bool = True
    places: tuple[tuple[str, str], ...] = ()

    def place(self, field: str) -> str:
        """Return the path in the object of a field of the spec, such as ``containers[0].resources``."""
        for part, path in self.places:
            if field == part or field.startswith((f"{part}.", f"{part}[")):
                return path + field[len(part) :]
        return f"{self.path}.{field}" if field else self.path


def pod_templates(obj: Any) -> Iterator[PodTemplate]:
    """Yield the pods that a Kubernetes object contains or describes, in order: of a Pod, its own spec.

    A part of an object is a pod template if it has a ``spec`` or ``podSpec`` with containers, and a pod spec if it
    has containers and the ``resourceClaims`` of a pod. Objects in other objects, such as Jobs in an AppWrapper, count.
    ``metadata`` and ``status`` are skipped. Below the lists of containers and claims, values may have any type.
    """
    if not isinstance(obj, Mapping):
        return
    if obj.get("kind") == "Pod" and isinstance(obj.get("spec"), Mapping):
        yield PodTemplate("spec", obj["spec"], _mapping(obj.get("metadata")))
        return
    for key, value in obj.items():
        if key not in {"metadata", "status"}:
            yield from _found(value, key, obj, is_top=True)


def _found(value: Any, path: str, holder: _Spec, *, is_top: bool = False) -> Iterator[PodTemplate]:
    """Yield the pods in a field of an object; ``holder`` is the object that has the field, not the list in it."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _found(item, f"{path}[{index}]", holder)
        return
    if not isinstance(value, Mapping):
        return
    name = path.rpartition(".")[2]
    has_claims = _are_pod_claims(value.get("resourceClaims"))
    if isinstance(value.get("domain"), Mapping) and (has_claims or _machine_claims(value)):
        yield _of_machine(value, path, holder)
    elif _has_containers(value) and (has_claims or (not is_top and name in _POD_SPEC_KEYS)):
        yield PodTemplate(path, value, _mapping(holder.get("metadata")) if name == "spec" and not is_top else {})
    elif templates := _workflow_templates(value):
        yield from (_of_workflow(value, index, path) for index in templates)
    else:
        for key, item in value.items():
            yield from _found(item, f"{path}.{key}" if key.isidentifier() else f"{path}[{key}]", value)


def _mapping(value: Any) -> _Spec:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[_Spec]:
    """Return a list of objects; empty for any other value."""
    return value if isinstance(value, list) and all(isinstance(item, Mapping) for item in value) else []


def _has_containers(spec: _Spec) -> bool:
    containers = _mappings(spec.get("containers"))
    return bool(containers) and all("name" in each or "image" in each for each in containers)


def _are_pod_claims(value: Any) -> bool:
    """Return whether a list has the shape of ``resourceClaims`` of a pod."""
    return any("name" in entry and not _REFERENCES.isdisjoint(entry) for entry in _mappings(value))


def _machine_claims(spec: _Spec) -> list[tuple[str, _Spec]]:
    """Return the devices and networks of a virtual machine that name a claim, with their paths."""
    devices = _mapping(_mapping(spec.get("domain")).get("devices"))
    found = [
        (f"domain.devices.{kind}[{index}]", device)
        for kind in _MACHINE_DEVICES
        for index, device in enumerate(_mappings(devices.get(kind)))
    ]
    found += [
        (f"networks[{index}].resourceClaim", _mapping(network.get("resourceClaim")))
        for index, network in enumerate(_mappings(spec.get("networks")))
    ]
    return [(place, named) for place, named in found if "claimName" in named]


def _of_machine(spec: _Spec, path: str, holder: _Spec) -> PodTemplate:
    """Return the pod of a virtual machine: its container ``compute`` uses the claims of the devices."""
    claims: list[dict[str, Any]] = []
    places: list[tuple[str, str]] = []
    for index, (place, device) in enumerate(_machine_claims(spec)):
        use = {"name": device["claimName"]}
        if device.get("requestName") is not None:
            use["request"] = device["requestName"]
        claims.append(use)
        part = f"containers[0].resources.claims[{index}]"
        places += [
            (f"{part}.name", f"{path}.{place}.claimName"),
            (f"{part}.request", f"{path}.{place}.requestName"),
            (part, f"{path}.{place}"),
        ]
    compute = {"name": "compute", "resources": {"claims": claims}}
    made = {"containers": [compute], "resourceClaims": spec.get("resourceClaims") or []}
    return PodTemplate(path, made, _mapping(holder.get("metadata")), is_embedded=False, places=tuple(places))


def _workflow_templates(spec: _Spec) -> list[int]:
    """Return the indexes of the templates of a workflow that become pods."""
    templates = _mappings(spec.get("templates"))
    return [index for index, each in enumerate(templates) if "name" in each and _workflow_containers(each)]


def _workflow_containers(template: _Spec) -> list[tuple[str, _Spec]]:
    """Return the containers of a template of a workflow with their paths in it, ordered as in the pod."""
    single = [(key, template[key]) for key in ("container", "script") if isinstance(template.get(key), Mapping)]
    if single:
        return [*single, *_listed(template, "sidecars")]
    several = _listed(_mapping(template.get("containerSet")), "containers")
    return [(f"containerSet.{place}", each) for place, each in several]


def _listed(holder: _Spec, key: str) -> list[tuple[str, _Spec]]:
    return [(f"{key}[{index}]", each) for index, each in enumerate(_mappings(holder.get(key)))]


def _of_workflow(workflow: _Spec, index: int, path: str) -> PodTemplate:
    """Return the pod of a template of a workflow; claims of the template replace those of the workflow."""
    template: _Spec = workflow["templates"][index]
    own = f"{path}.templates[{index}]"
    containers = _workflow_containers(template)
    places = [(f"containers[{number}]", f"{own}.{place}") for number, (place, _) in enumerate(containers)]
    where, holder = (own, template) if template.get("resourceClaims") else (path, workflow)
    claims = [(f"{where}.{place}", entry) for place, entry in _listed(holder, "resourceClaims")]
    for where, holder in ((path, workflow), (own, template)):
        for entry in _mappings(_patch(holder).get("resourceClaims")):
            same = [number for number, (_, each) in enumerate(claims) if each.get("name") == entry.get("name")]
            if same:
                claims[same[0]] = (f"{where}.{_PATCH}", entry)
            else:
                claims.append((f"{where}.{_PATCH}", entry))
    places += [(f"resourceClaims[{number}]", place) for number, (place, _) in enumerate(claims)]
    made = {
        "containers": [{"name": "main", **each} for _, each in containers],
        "initContainers": [each for _, each in _listed(template, "initContainers")],
        "resourceClaims": [entry for _, entry in claims],
    }
    return PodTemplate(own, made, _mapping(template.get("metadata")), is_embedded=False, places=tuple(places))


def _patch(holder: _Spec) -> _Spec:
    """Return the strategic merge patch of the pod spec; empty if it is not valid."""
    text = holder.get(_PATCH)
    try:
        documents = list(parse_documents(text, MANIFESTS, places=False)) if isinstance(text, str) else []
    except UnreadableText:
        return {}
    return _mapping(documents[0].value) if documents else {}

"""Facts about a node, and the environment of a container: variables, references to fields and resources."""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct, field

from dra_kit.errors import ConfigurationError, KubeletError, NotFound
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.objects import containers, init_containers
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.kubernetes.values.quantity import InvalidQuantity, Quantity
from dra_kit.text import did_you_mean

Fetch = Callable[[str, str, str], Awaitable[dict[str, Any]]]
"""Gets an object by kind (``ConfigMap``, ``Secret``), namespace and name; NotFound when there is none."""
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")


class NodeFacts(Struct, frozen=True):
    """What a container may learn of its node.

    Attributes:
        version: the release of its kubelet.
        services: variables that lead to the API server.
    """

    name: str
    address: str
    allocatable: Mapping[str, str]
    version: KubernetesVersion
    services: Mapping[str, str] = field(default_factory=dict)


OWN_SERVICE = ("default", "kubernetes")
"""The Service of the API server, which pods reach by its own address."""


def service_variables(service: ObjectView) -> dict[str, str]:
    """Return the variables of a Service; none if it has no address (Kubernetes 1.37 ``pkg/kubelet/envvars``)."""
    prefix, spec = service["metadata"]["name"].upper().replace("-", "_"), service["spec"]
    host, ports = spec.get("clusterIP") or "None", spec.get("ports") or ()
    if host == "None" or not ports:
        return {}
    found = {f"{prefix}_SERVICE_HOST": host, f"{prefix}_SERVICE_PORT": str(ports[0]["port"])}
    for port in ports:
        if name := port.get("name"):
            found[f"{prefix}_SERVICE_PORT_{name.upper().replace('-', '_')}"] = str(port["port"])
    for i, port in enumerate(ports):
        number, protocol = port["port"], port.get("protocol", "TCP")
        link, linked = f"{protocol.lower()}://{host}:{number}", f"{prefix}_PORT_{number}_{protocol}"
        if not i:
            found[f"{prefix}_PORT"] = link
        found |= {linked: link, f"{linked}_PROTO": protocol.lower(), f"{linked}_PORT": str(number),
                  f"{linked}_ADDR": host}  # fmt: skip
    return found


def api_server_variables(server: str) -> dict[str, str]:
    """Return the variables of the Service ``kubernetes``; nothing listens at its address: they lead to the server."""
    url = urlsplit(server)
    ports = [{"name": "https", "port": url.port or 443}]
    return service_variables({"metadata": {"name": "kubernetes"}, "spec": {"clusterIP": url.hostname, "ports": ports}})


async def container_environment(
    pod: ObjectView, container: ObjectView, node: NodeFacts, fetch: Fetch
) -> dict[str, str]:
    """Return the variables of a container, in the order of the pod, each a text; those of the API server follow.

    Raises:
        KubeletError: a reference leads nowhere; the container waits with ``CreateContainerConfigError``.
    """
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        for name, value in (await _keys(pod, source, fetch)).items():
            found[f"{source.get('prefix') or ''}{name}"] = value
    for entry in container.get("env") or ():
        if "valueFrom" not in entry:
            found[entry["name"]] = expand_variables(entry.get("value") or "", {**node.services, **found})
            continue
        referenced = await _referenced(pod, container, entry["valueFrom"], node, fetch)
        if referenced is not None:
            found[entry["name"]] = referenced
    return {**found, **{name: value for name, value in node.services.items() if name not in found}}


def field_value(pod: ObjectView, path: str, node: NodeFacts) -> str:
    """Return the value of a ``fieldRef``.

    Raises:
        KubeletError: the kubelet knows no such field.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if subscript := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(subscript[1]) or {}).get(subscript[2], ""))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata.get("namespace", ""),
        "metadata.uid": metadata["uid"],
        "spec.nodeName": node.name,
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": node.address,
        "status.hostIPs": node.address,
        "status.podIP": node.address,
        "status.podIPs": node.address,
    }
    if path not in known:
        raise KubeletError(f"unsupported fieldPath: {path}")
    return str(known[path])


def resource_value(container: ObjectView, reference: Mapping[str, Any], node: NodeFacts) -> str:
    """Return the value of a ``resourceFieldRef``: a whole number of divisors, rounded up.

    Raises:
        KubeletError: the kubelet knows no such resource.
    """
    kind, _, resource = str(reference["resource"]).partition(".")
    if kind not in {"limits", "requests"} or not resource:
        raise KubeletError(f"unsupported container resource : {reference['resource']}")
    given = (container.get("resources") or {}).get(kind) or {}
    default = node.allocatable.get(resource, "0") if kind == "limits" else "0"
    amount, divisor = (
        quantity.milli_value if resource == "cpu" else quantity.value
        for text in (given.get(resource, default), reference.get("divisor") or "1")
        for quantity in (Quantity(text, node.version),)
    )
    return str(-(-amount // (divisor or (1000 if resource == "cpu" else 1))))


async def _referenced(
    pod: ObjectView, container: ObjectView, source: Mapping[str, Any], node: NodeFacts, fetch: Fetch
) -> str | None:
    """Return the value of ``valueFrom``; None where there is none and need be none."""
    if reference := source.get("fieldRef"):
        return field_value(pod, reference["fieldPath"], node)
    if resource := source.get("resourceFieldRef"):
        named = resource.get("containerName") or container["name"]
        every = (*containers(pod), *init_containers(pod))
        return resource_value(next((item for item in every if item["name"] == named), container), resource, node)
    for name, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if reference := source.get(name):
            data = await _data(pod, kind, reference, fetch)
            if reference["key"] in data:
                return data[reference["key"]]
            if reference.get("optional"):
                return None
            where = f"{pod['metadata'].get('namespace', '')}/{reference.get('name', '')}"
            raise KubeletError(f"couldn't find key {reference['key']} in {kind} {where}")
    raise KubeletError(f"environment source {', '.join(sorted(source))} is not known to this kubelet")


async def _keys(pod: ObjectView, source: Mapping[str, Any], fetch: Fetch) -> dict[str, str]:
    for name, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if reference := source.get(name):
            return await _data(pod, kind, reference, fetch)
    return {}


async def _data(pod: ObjectView, kind: str, reference: Mapping[str, Any], fetch: Fetch) -> dict[str, str]:
    name = reference.get("name", "")
    try:
        found = await fetch(kind, pod["metadata"].get("namespace", ""), name)
    except NotFound as error:
        if reference.get("optional"):
            return {}
        raise KubeletError(f'{kind.lower()} "{name}" not found') from error
    data = found.get("data") or {}
    if kind == "Secret":
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}
    return dict(data)


_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")


def expand_variables(text: str, variables: Mapping[str, str]) -> str:
    """Return the text with its references replaced.

    ``$(NAME)`` is replaced by the variable's value; a reference to an unknown variable is unchanged. ``$$`` becomes
    ``$``, so that ``$$(NAME)`` results in a literal ``$(NAME)``. Replaced text is not expanded again.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else variables.get(name, match[0])

    return _REFERENCE.sub(value, text)


EVERY_NODE: Final = "*"
"""Stands for every node where shapes are given by the name of the node."""
_STANDARD: Final = ("cpu", "memory", "ephemeral-storage", "pods")  # resources of a Node without a domain


class NodeShape(Struct, frozen=True, kw_only=True):
    """What a Node has in addition to what its kubelet finds on this machine, or instead of it.

    Attributes:
        capacity: quantities by resource: ``cpu``, ``memory``, ``example.com/widgets``.
        labels: labels of the Node.
    """

    capacity: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def overridden_by(self, other: NodeShape) -> NodeShape:
        """Return a shape that has everything of both, and that of the other one where both have it."""
        return NodeShape(
            capacity={**self.capacity, **other.capacity},
            labels={**self.labels, **other.labels},
        )


def node_shape(shapes: Mapping[str, NodeShape], node: str) -> NodeShape:
    """Return the shape of a node: that of every node, overridden by its own."""
    return shapes.get(EVERY_NODE, NodeShape()).overridden_by(shapes.get(node, NodeShape()))


def check_shapes(shapes: Mapping[str, NodeShape], nodes: Sequence[str], version: KubernetesVersion) -> None:
    """Check the shapes of nodes of a release, which are given by name.

    Raises:
        ConfigurationError: a node does not exist, or a resource, quantity or label is invalid.
    """
    for node, shape in shapes.items():
        if node != EVERY_NODE and node not in nodes:
            hint = did_you_mean(node, nodes) or ";"
            raise ConfigurationError(
                f"unknown node {node!r}{hint} nodes of the sandbox: {', '.join(nodes)}; --nodes gives it more"
            )
        for resource, quantity in shape.capacity.items():
            where = f"capacity {resource}={quantity} of {_title(node)} is invalid"
            if problems := names.label_key(resource):
                raise ConfigurationError(f"{where}: {problems[0]}")
            if "/" not in resource and resource not in _STANDARD and not resource.startswith("hugepages-"):
                hint = did_you_mean(resource, _STANDARD) or ";"
                raise ConfigurationError(
                    f"{where}: Kubernetes has no resource {resource}{hint} use {', '.join(_STANDARD)}, hugepages-2Mi, "
                    "or a name with a domain, such as example.com/widgets"
                )
            try:
                amount = Quantity(quantity, version)
            except InvalidQuantity:
                raise ConfigurationError(f"{where}: use a quantity such as 8, 500m or 32Gi") from None
            if amount.sign < 0:
                raise ConfigurationError(f"{where}: it must not be negative")
            if ("/" in resource or resource == "pods") and not amount.is_whole:
                raise ConfigurationError(f"{where}: it must be an integer")
        for key, value in shape.labels.items():
            if problems := [*names.label_key(key), *names.label_value(value)]:
                raise ConfigurationError(f"label {key}={value} of {_title(node)} is invalid: {problems[0]}")


def _title(node: str) -> str:
    return "every node" if node == EVERY_NODE else f"node {node}"

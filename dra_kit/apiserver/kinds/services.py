"""Services: addresses and node ports are allocated. The addresses are of the loopback network: nothing is routed.

Sources: Kubernetes 1.37 ``pkg/apis/core/v1/defaults.go`` and ``pkg/registry/core/service``; measured on kube-apiserver
1.37.1.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Final

from typing_extensions import override

from dra_kit.apiserver.kinds.kind import Kind, StatusStrategy, StrategyContext, readers
from dra_kit.apiserver.status_errors import internal
from dra_kit.apiserver.tables import AGE, NAME, NONE, Column, labels_cell, text_cell
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden, invalid, required
from dra_kit.kubernetes.values.json import Object

_NODE_PORTS: Final = range(30_000, 32_768)
_SESSION_SECONDS: Final = 10_800
_HEADLESS: Final = "None"
_NETWORK: Final = "127.96"
"""The first half of addresses: every process of this machine reaches them, and it can listen at each."""
_ADDRESS: Final = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
_PORT_FIELD: Final = "healthCheckNodePort"


class ServiceStrategy(StatusStrategy):
    """Service."""

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set what follows from the type of the service, and the targets of its ports."""
        spec = obj.get("spec") or {}
        for port in spec.get("ports") or ():
            port["targetPort"] = port.get("targetPort") or port.get("port", 0)
        if spec.get("sessionAffinity") == "ClientIP":
            client = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
            client.setdefault("timeoutSeconds", _SESSION_SECONDS)
        else:
            spec.pop("sessionAffinityConfig", None)
        if spec.get("type") != "ExternalName":
            spec.setdefault("internalTrafficPolicy", "Cluster")
        if _is_external(spec):
            spec["externalTrafficPolicy"] = spec.get("externalTrafficPolicy") or "Cluster"
        if spec.get("type") == "LoadBalancer":
            spec.setdefault("allocateLoadBalancerNodePorts", True)

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        super().prepare_for_create(obj, context)
        services = list(context.listed("services"))
        _allocate(obj.setdefault("spec", {}), _taken_ports(services, None), _taken_addresses(services))

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        """Keep addresses and ports that the client does not mention, and remove what the type does not have."""
        super().prepare_for_update(obj, old, context)
        spec, before = obj.setdefault("spec", {}), old.get("spec") or {}
        if spec.get("type") != "ExternalName":
            for name in _ADDRESS:
                if name in before and not spec.get(name):
                    spec[name] = before[name]
        _keep_node_ports(spec, before)
        _drop_unsuitable(spec, before)
        services = list(context.listed("services"))
        _allocate(spec, _taken_ports(services, old), _taken_addresses(services))

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check that there are ports, and their names and node ports."""
        return list(_port_errors(obj["spec"], _taken_ports(context.listed("services"), obj)))


def _port_errors(spec: Object, taken: set[tuple[str, int]]) -> Iterator[FieldError]:
    ports = spec.get("ports") or ()
    if not ports and spec.get("clusterIP") != _HEADLESS and spec.get("type") != "ExternalName":
        yield required("spec.ports")
    for i, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield required(f"spec.ports[{i}].name")
        path, number = f"spec.ports[{i}].nodePort", port.get("nodePort")
        if not number:
            continue
        if not _has_node_ports(spec):
            yield forbidden(path, f"may not be used when `type` is '{spec.get('type', '')}'")
        elif number not in _NODE_PORTS:
            text = f"The range of valid ports is {_NODE_PORTS[0]}-{_NODE_PORTS[-1]}"
            yield invalid(path, number, f"provided port is not in the valid range. {text}")
        elif (port.get("protocol"), number) in taken:
            yield invalid(path, number, "provided port is already allocated")


def _is_external(spec: Object) -> bool:
    """Return whether clients outside of the cluster reach a service."""
    is_internal = spec.get("type", "ClusterIP") == "ClusterIP"
    return _has_node_ports(spec) or bool(is_internal and spec.get("externalIPs"))


def _has_node_ports(spec: Object) -> bool:
    return spec.get("type") in {"NodePort", "LoadBalancer"}


def _needs_health_port(spec: Object) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def _taken_ports(services: Iterable[Object], own: Object | None) -> set[tuple[str, int]]:
    """Return protocol and number of the node ports of all services but one."""
    key = None if own is None else (own["metadata"].get("namespace"), own["metadata"].get("name"))
    taken: set[tuple[str, int]] = set()
    for service in services:
        spec = service.get("spec") or {}
        if (service["metadata"].get("namespace"), service["metadata"].get("name")) != key:
            taken |= {(port.get("protocol", ""), port.get("nodePort", 0)) for port in spec.get("ports") or ()}
            taken.add(("TCP", spec.get(_PORT_FIELD, 0)))
    return taken


def _taken_addresses(services: Iterable[Object]) -> set[str]:
    return {(service.get("spec") or {}).get("clusterIP", "") for service in services}


def _free_address(taken: set[str]) -> str:
    while (address := f"{_NETWORK}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}") in taken:
        pass
    return address


def _allocate(spec: Object, taken: set[tuple[str, int]], addresses: set[str]) -> None:
    """Set the missing addresses and node ports; ports of one number share a node port if their protocols differ."""
    if spec.get("type") == "ExternalName":
        return
    address = spec.get("clusterIP") or _free_address(addresses)
    spec |= {"clusterIP": address, "clusterIPs": spec.get("clusterIPs") or [address]}
    without_selector = address == _HEADLESS and not spec.get("selector")
    spec.setdefault("ipFamilies", ["IPv4", "IPv6"] if without_selector else ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "RequireDualStack" if without_selector else "SingleStack")
    if _needs_health_port(spec) and not spec.get(_PORT_FIELD):
        spec[_PORT_FIELD] = _free_port(taken, "TCP")
    if not _has_node_ports(spec) or not spec.get("allocateLoadBalancerNodePorts", True):
        return
    given: dict[int, tuple[int, set[str]]] = {}
    ports = spec.get("ports") or ()
    for port in sorted(ports, key=lambda port: not port.get("nodePort")):
        protocol = port.get("protocol", "")
        number, protocols = given.get(port.get("port", 0), (0, set()))
        if not port.get("nodePort"):
            is_shared = number and protocol not in protocols and (protocol, number) not in taken
            port["nodePort"] = number if is_shared else _free_port(taken, protocol)
        taken.add((protocol, port["nodePort"]))
        given[port.get("port", 0)] = port["nodePort"], {*protocols, protocol}


def _free_port(taken: set[tuple[str, int]], protocol: str) -> int:
    start = secrets.randbelow(len(_NODE_PORTS))
    for offset in range(len(_NODE_PORTS)):
        number: int = _NODE_PORTS[(start + offset) % len(_NODE_PORTS)]
        if (protocol, number) not in taken:
            return number
    raise internal("failed to allocate a nodePort: range is full")


def _keep_node_ports(spec: Object, before: Object) -> None:
    if not _has_node_ports(spec) or not _has_node_ports(before):
        return
    former = {_port_key(port): port["nodePort"] for port in before.get("ports") or () if port.get("nodePort")}
    for port in spec.get("ports") or ():
        if not port.get("nodePort") and (number := former.get(_port_key(port))):
            port["nodePort"] = number
    if _needs_health_port(spec) and before.get(_PORT_FIELD):
        spec[_PORT_FIELD] = spec.get(_PORT_FIELD) or before[_PORT_FIELD]


def _port_key(port: Object) -> tuple[Any, ...]:
    return port.get("name") or "", port.get("protocol"), port.get("port")


def _drop_unsuitable(spec: Object, before: Object) -> None:
    """Remove values that a change of the type leaves without meaning, unless the client changed them, too."""
    if _has_node_ports(before) and not _has_node_ports(spec):
        former = {port.get("nodePort") for port in before.get("ports") or ()}
        if all(port.get("nodePort") in {None, 0, *former} for port in spec.get("ports") or ()):
            for port in spec.get("ports") or ():
                port.pop("nodePort", None)
    suitable = {
        "allocateLoadBalancerNodePorts": spec.get("type") == "LoadBalancer",
        "loadBalancerClass": spec.get("type") == "LoadBalancer",
        "externalTrafficPolicy": _is_external(spec),
        _PORT_FIELD: _needs_health_port(spec),
    }
    for name, has_meaning in suitable.items():
        if not has_meaning and spec.get(name) == before.get(name):
            spec.pop(name, None)
    if spec.get("type") == "ExternalName":
        for name in (*_ADDRESS, "internalTrafficPolicy"):
            if spec.get(name) == before.get(name):
                spec.pop(name, None)


def _external(service: Object) -> str:
    spec = service["spec"]
    if spec.get("type") == "ExternalName":
        return str(spec.get("externalName", ""))
    if spec.get("externalIPs"):
        return ",".join(spec["externalIPs"])
    return "<pending>" if spec.get("type") == "LoadBalancer" else NONE


def _ports(service: Object) -> str:
    written = []
    for port in service["spec"].get("ports") or ():
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        written.append(f"{port.get('port')}{node_port}/{port.get('protocol')}")
    return ",".join(written)


SERVICE_KINDS: Final = (
    Kind("", "services", "Service", True, {"v1": "core/v1.Service"}, ServiceStrategy(), short_names=("svc",),
         categories=("all",), status=True, create_on_update=True, fields=readers("spec.clusterIP", "spec.type"),
         columns=(NAME, Column("Type", text_cell("spec.type")), Column("Cluster-IP", text_cell("spec.clusterIP")),
                  Column("External-IP", _external),
                  Column("Port(s)", _ports),
                  AGE, Column("Selector", labels_cell("spec.selector"), priority=1))),
)  # fmt: skip

"""Which rights an account needs: those of its role, and those of what the driver's code does there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.author.cluster_object import ClusterObject, node_rbac_values
from dra_kit.author.driver import Driver

Account: TypeAlias = Literal["node", "undertaker", "controller", "webhook", "user"]

_RESOURCE: Final = "resource.k8s.io"
_OWN_ENTRIES: Final = (1, 36)
"""From this release on kube-apiserver asks who writes status.devices for the driver's name, too (KEP-4817)."""


class Right(Struct, frozen=True):
    """One that is needed, as in RBAC rules.

    Attributes:
        verb: such as ``get``.
        group: API group, empty for the core group.
        resource: with its subresource: ``resourceclaims/status``.
        needed_for: what does not work without it.
        name: of the only object; empty for all.
        namespace: of the only objects; empty for all.
    """

    verb: str
    group: str
    resource: str
    needed_for: str
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        text = f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"
        return f"{text}{f' {self.name}' if self.name else ''}{f' in {self.namespace}' if self.namespace else ''}"


class Driven(Struct, frozen=True, kw_only=True):
    """The driver whose account it is, as far as it is known.

    Attributes:
        name: its name; empty where it is not known.
        code: of it; None where it is not at hand: then only what every driver needs is known.
        settings: its own settings, already filled.
        namespace: where its processes run.
        release: of the API server, major and minor.
        certificate: Secret of a certificate that the webhook makes itself; empty where it is given one.
    """

    name: str = ""
    code: Driver[Any, Any] | None = None
    settings: Any = None
    namespace: str = "default"
    release: tuple[int, int] = _OWN_ENTRIES
    certificate: str = ""


def needed(account: Account, driven: Driven) -> list[Right]:
    """Return the rights, each once, in the order of what they are for.

    Args:
        account: what it is for.
        driven: whose it is.
    """
    of = {
        "node": _of_node,
        "undertaker": _of_undertaker,
        "controller": _of_controller,
        "webhook": _of_webhook,
        "user": _of_user,
    }
    first: dict[Right, Right] = {}
    for right in of[account](driven):
        first.setdefault(replace(right, needed_for=""), right)
    return list(first.values())


def _rights(
    group: str, resource: str, verbs: str, needed_for: str, *, name: str = "", namespace: str = ""
) -> list[Right]:
    return [Right(verb, group, resource, needed_for, name, namespace) for verb in verbs.split()]


def _of_node(driven: Driven) -> Iterator[Right]:
    yield from _rights(_RESOURCE, "resourceclaims", "get", "preparing claims")
    yield from _rights(_RESOURCE, "resourceslices", "list watch create update delete", "publishing devices")
    yield from _rights("", "nodes", "get", "publishing devices")
    yield from _status("associated-node:patch", "the status of devices", driven)
    yield from _events()
    code = driven.code
    if code is None:
        return
    if code.policy is not None and code.policy.watches is not None:
        yield from _of_rules(code.policy.watches.rules(), f"policy {type(code.policy).__name__}")
    yield from _effects(code, driven.settings)


def _of_undertaker(driven: Driven) -> Iterator[Right]:
    yield from _rights(_RESOURCE, "resourceclaims", "get", "knowing which claims are over")
    yield from _rights(_RESOURCE, "resourceslices", "list delete", "withdrawing devices")
    yield from _rights("", "nodes", "get", "withdrawing devices")
    yield from _status("associated-node:patch", "the status of devices", driven)
    yield from _events()
    yield from _rights("", "pods/status", "patch", "confirming that nothing is left", namespace=driven.namespace)
    if driven.code is not None:
        yield from _effects(driven.code, driven.settings)


def _effects(code: Driver[Any, Any], settings: Any) -> Iterator[Right]:
    effects = [effect for effect in code.effects.values() if issubclass(effect, ClusterObject)]
    rules = node_rbac_values(effects, settings)
    what = f"effects {', '.join(effect.__name__ for effect in effects)}"
    yield from _of_rules(rules["extraRules"], what)
    for namespace, inside in rules.get("namespacedRules", {}).items():
        yield from _of_rules(inside, what, namespace=namespace)


def _of_controller(driven: Driven) -> Iterator[Right]:
    yield from _rights(_RESOURCE, "resourceclaims", "list watch", "following claims")
    yield from _events()
    yield from _rights(_RESOURCE, "resourceslices", "list delete", "removing slices of nodes that are gone")
    yield from _rights("", "nodes", "list", "removing slices of nodes that are gone")
    if driven.name:
        # not to create it: the chart brings it along
        election, lease = "the election of the active replica", f"{driven.name}-controller"
        group, namespace = "coordination.k8s.io", driven.namespace
        yield from _rights(group, "leases", "get update", election, name=lease, namespace=namespace)
    code = driven.code
    if code is None:
        return
    if code.cluster_provider is not None:
        what = f"cluster provider {type(code.cluster_provider).__name__}"
        yield from _rights(_RESOURCE, "resourceslices", "list watch create update delete", what)
    if code.binder is not None:
        what = f"binder {type(code.binder).__name__}"
        yield from _rights(_RESOURCE, "resourceclaims", "get", what)
        yield from _status("arbitrary-node:patch", what, driven)
    if code.taint_rules is not None:
        what = f"taint rules {type(code.taint_rules).__name__}"
        yield from _rights(_RESOURCE, "devicetaintrules", "list watch create update delete", what)


def _of_webhook(driven: Driven) -> Iterator[Right]:
    if not driven.certificate:
        return
    # never to change its ValidatingWebhookConfiguration: with that one can read all objects of the cluster
    verbs, what = "get update create patch", "its own certificate"
    yield from _rights("", "secrets", verbs, what, name=driven.certificate, namespace=driven.namespace)


def _of_user(driven: Driven) -> Iterator[Right]:
    del driven
    yield from _rights(_RESOURCE, "resourceslices", "list", "dra-kit explain")
    yield from _rights(_RESOURCE, "deviceclasses", "list", "dra-kit explain")
    yield from _rights(_RESOURCE, "resourceclaims", "list", "dra-kit explain and who")
    yield from _rights("", "pods", "list", "dra-kit explain and who")
    yield from _rights("", "nodes", "list", "dra-kit explain and check")


def _events() -> list[Right]:
    return _rights("events.k8s.io", "events", "create patch", "Events")


def _status(verb: str, what: str, driven: Driven) -> Iterator[Right]:
    """Yield the right to write a driver's entries of ``status.devices``."""
    yield from _rights(_RESOURCE, "resourceclaims/status", "patch", what)
    if driven.name and driven.release >= _OWN_ENTRIES:
        yield from _rights(_RESOURCE, "resourceclaims/driver", verb, what, name=driven.name)


def _of_rules(rules: Iterable[Mapping[str, Any]], what: str, *, namespace: str = "") -> Iterator[Right]:
    for rule in rules:
        kinds = product(rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames") or ("",))
        for group, resource, verb, name in kinds:
            yield Right(verb, group, resource, what, name, namespace)

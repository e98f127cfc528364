"""``DeviceProvider``: finds the devices that exist. ``DevicePolicy``: which of them are advertised, and how."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeAlias, get_args

from typing_extensions import TypeVar

from dra_kit.author.context import Context, NodeComponent, NotAvailableYet
from dra_kit.author.device import Device
from dra_kit.author.inventory import DeviceT_co, Inventory, Pool
from dra_kit.author.model import AuthorSettingsT, HardwareT, short_repr, type_arguments
from dra_kit.author.reads import CLUSTER_SCOPED, declared_namespace
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.names import label_errors

ProviderScope: TypeAlias = Literal["node", "cluster"]
"""Where a provider runs and which devices it finds: those of one node, or those that belong to no node."""


class DeviceProvider(NodeComponent[HardwareT, AuthorSettingsT], ABC, Generic[DeviceT_co, HardwareT, AuthorSettingsT]):
    """Finds the devices on this node. ``DeviceProvider[Gpu]`` if you have your own device class.

    ``DeviceProvider[Gpu, Nvml, Settings]`` also gives ``self.hardware`` and ``self.context.settings`` their types.

    With ``class Warehouse(dra.DeviceProvider, scope="cluster")`` it finds devices that belong to no node, such as
    those on a network, and is passed to ``Driver(cluster_provider=…)``. It runs in the controller, has no hardware,
    and yields an :class:`Inventory` whose pools have names and define which nodes may use them. A node sees only the
    published part of such a device, so its class must not have its own fields.

    Raises:
        ConfigurationError: the scope is invalid.
    """

    provider_scope: ClassVar[ProviderScope] = "node"

    def __init_subclass__(cls, *, scope: ProviderScope | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if scope is None:
            return
        if scope not in get_args(ProviderScope):
            raise ConfigurationError(
                f'{cls.__name__}: scope={short_repr(scope)} is not valid; write scope="cluster", or "node"'
            )
        cls.provider_scope = scope

    if not TYPE_CHECKING:  # type checkers must see only the attributes of NodeComponent

        def __getattr__(self, name: str) -> Any:
            if name == "hardware" and self.provider_scope == "cluster":
                raise NotAvailableYet(
                    f'{type(self).__name__}.hardware is not there: a provider with scope="cluster" runs in the '
                    "controller, which has none; read what it needs from context.settings"
                )
            return super().__getattr__(name)

    @abstractmethod
    def discover(
        self,
    ) -> (
        AsyncIterable[Sequence[DeviceT_co] | Inventory[DeviceT_co]]
        | Iterable[Sequence[DeviceT_co] | Inventory[DeviceT_co]]
    ):
        """Yield *complete* inventories; write it as an ``async def`` or ``def`` generator.

        For static hardware, yield once and return. For hot-plug hardware, wait for the next event and yield again; the
        framework computes the changes. It runs in its own thread, so it may block. A sequence of devices is
        one pool named after the node; yield an :class:`Inventory` if there are pools or counters.

        ``context.rescan()`` and ``Driver(rescan_every=…)`` restart it from the beginning. If it raises, the error is
        logged, the published devices stay, and it is restarted after a delay.
        """

    def startup(self, context: Context[Any]) -> Awaitable[None] | None:
        """Initialize, once, before ``discover``. May be ``def`` or ``async def``."""
        del context
        return None


class EmptyProvider(DeviceProvider):
    """The provider for nodes on which the driver has no devices."""

    def discover(self) -> Iterable[Inventory]:
        """Yield no inventory."""
        yield Inventory()


_OF_OTHER_NODES: Final = (
    "the node role publishes what belongs to its own node only; leave it out, or yield the pool from a provider with "
    'scope="cluster" (Driver(cluster_provider=…))'
)
_POOL_SCOPES: Final = ("node_selector", "all_nodes", "per_device_node_selection")
_CONDITIONS: Final = ("binding_conditions", "binding_failure_conditions")
_UNBOUND: Final = (
    "no controller sets these conditions, and the scheduler would wait; write Driver(…, binder=<your "
    "dra_kit.DeviceBinder>), binder=dra_kit.BoundElsewhere() if another controller sets them, or leave it out"
)
_NO_NODES: Final = "it has no nodes; write all_nodes=True, node_selector=… or per_device_node_selection=True"


@dataclass(frozen=True, slots=True)
class ProviderCapabilities:
    """The features that can be served for a provider of this scope; ``binds``: binding conditions are made true."""

    scope: ProviderScope
    binds: bool = False

    def problem(self, item: Device | Pool[Any]) -> str:
        """Return why a feature of a device or pool cannot be served, with the remedy; empty if it can."""
        if self.scope == "cluster" and isinstance(item, Pool) and not any(getattr(item, each) for each in _POOL_SCOPES):
            return _NO_NODES
        asked = (f"{field}: {why}" for field, why in self._unserved().items() if getattr(item, field, None))
        return next(asked, "")

    def check_device_class(self, driver: str, provider: DeviceProvider[Any, Any, Any]) -> None:
        """Reject a device class whose defaults request an unsupported feature for all its devices.

        Raises:
            ConfigurationError: naming class and field.
        """
        cls = provider_device_class(provider)
        for field, why in self._unserved().items():
            if field in cls.model_fields and cls.model_fields[field].get_default():
                raise ConfigurationError(f"driver {driver}: {cls.__name__}: {field}: {why}")

    def _unserved(self) -> dict[str, str]:
        """Return the fields that cannot be served, each with the reason and the remedy."""
        unserved: dict[str, str] = {}
        if self.scope == "node":
            unserved |= dict.fromkeys((*_POOL_SCOPES, "node_name"), _OF_OTHER_NODES)
        if not self.binds:
            unserved |= dict.fromkeys(_CONDITIONS, _UNBOUND)
        return unserved


def provider_device_class(provider: DeviceProvider[Any, Any, Any]) -> type[Device]:
    """Return the device class of a provider: that of ``DeviceProvider[Gpu]``, else ``Device``."""
    cls = next(iter(type_arguments(type(provider), DeviceProvider)), None)
    return cls if isinstance(cls, type) and issubclass(cls, Device) else Device


DeviceT_contra = TypeVar("DeviceT_contra", bound=Device, default=Device, contravariant=True)
_GROUP: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?").fullmatch
_VERSION: Final = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?").fullmatch
_PLURAL: Final = re.compile(r"[a-z][a-z0-9-]*").fullmatch
_FIELD: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(\.[A-Za-z][A-Za-z0-9]*)*").fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedObject:
    """An object of the cluster that each node watches; or, with ``node_selector``, all objects that select the node.

    By default it is the object with the node's name, of a cluster-scoped kind. The API server filters by
    ``metadata.name``, so a node receives no other objects and sends no requests while idle. With ``node_selector``,
    each node receives and keeps all objects of the kind.

    Attributes:
        group: API group, such as ``kitchen.pizza.example``; empty for core kinds.
        version: such as ``v1``.
        plural: of its kind, as in paths and RBAC rules, such as ``nodemenus``.
        namespace: of the object; None for a cluster-scoped kind, or with ``node_selector`` for all namespaces. A
            function gets the driver's settings and returns it.
        name: of the object, in which ``{node}`` stands for the node's name.
        node_selector: the path of the field that says which nodes an object is for, such as ``spec.nodeSelector``:
            labels that the Node must have, a ``metav1.LabelSelector`` or a ``core/v1 NodeSelector``. An object without
            it is for all nodes. The policy then receives a mapping whose ``items`` are the objects for this node, in
            the order of namespace and name.

    Raises:
        ConfigurationError: one of them cannot be part of an API path or a field's path, or they cannot be combined.
    """

    group: str
    version: str
    plural: str
    namespace: str | Callable[[Any], str] | None = None
    name: str = "{node}"
    node_selector: str | None = None

    def __post_init__(self) -> None:
        for name, value, fits in (
            ("group", self.group or "core", _GROUP), ("version", self.version, _VERSION),
            ("plural", self.plural, _PLURAL), ("node_selector", self.node_selector or "spec", _FIELD),
            ("name", self.name.replace("{node}", "node") if isinstance(self.name, str) else self.name, _GROUP),
        ):  # fmt: skip
            if not isinstance(value, str) or not fits(value):
                raise ConfigurationError(
                    f"WatchedObject: {name} {short_repr(getattr(self, name))} is not valid; "
                    "write WatchedObject(group='kitchen.pizza.example', "
                    "version='v1', plural='nodemenus')"
                )
        if isinstance(self.namespace, str) and label_errors(self.namespace, "namespace"):
            raise ConfigurationError(
                f"WatchedObject: namespace {short_repr(self.namespace)} is not the name of a namespace; correct it"
            )
        if self.node_selector is not None and self.name != "{node}":
            raise ConfigurationError(
                f"WatchedObject: name {self.name!r} cannot be combined with node_selector {self.node_selector!r}: one "
                "object is watched by name, or all objects that select the node; omit one of them"
            )
        if not self.group and self.namespace is None and self.plural not in CLUSTER_SCOPED:
            if self.node_selector is None:
                raise ConfigurationError(
                    f"WatchedObject: {self.plural} are in namespaces, and objects of several namespaces may have the "
                    "same name; write namespace=…"
                )
            if self.plural == "secrets":
                raise ConfigurationError(
                    "WatchedObject: secrets of all namespaces would be readable with the token of any node; write "
                    "namespace=…"
                )

    def namespace_for(self, settings: Any) -> str | None:
        """Return the namespace, for a driver with these settings; None for a cluster-scoped kind or all namespaces.

        Raises:
            ConfigurationError: the function of the settings fails, or does not return the name of a namespace.
        """
        return declared_namespace("WatchedObject", self.namespace, settings)

    def name_on(self, node: str) -> str:
        """Return the name of the object that a node watches."""
        return self.name.replace("{node}", node)

    def rules(self) -> list[dict[str, list[str]]]:
        """Return the permissions the node's ServiceAccount needs, as PolicyRules of rbac.authorization.k8s.io/v1."""
        rule = {"apiGroups": [self.group], "resources": [self.plural], "verbs": ["list", "watch"]}
        # a right for one name also allows its list and its watch, if they are limited to it by metadata.name
        return [rule if "{node}" in self.name else {**rule, "resourceNames": [self.name]}]


class DevicePolicy(NodeComponent[HardwareT, AuthorSettingsT], ABC, Generic[DeviceT_contra, HardwareT, AuthorSettingsT]):
    """Filters and enriches what a node advertises; ``DevicePolicy[Gpu]`` if you have your own device class.

    ``class Menu(dra.DevicePolicy, watches=dra.WatchedObject(…))`` also receives an object of the cluster, by default
    the one with the node's name, and is called again whenever that object changes.

    It affects only what is published: a claim that has a device keeps it, and its preparer sees the device as
    ``discover`` yielded it. Taints of a health source are added to the result of the policy.

    Attributes:
        watches: the class keyword argument; None: no object.
    """

    watches: ClassVar[WatchedObject | None] = None

    def __init_subclass__(cls, *, watches: WatchedObject | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if watches is None:
            return
        if not isinstance(watches, WatchedObject):
            raise ConfigurationError(
                f"{cls.__name__}: watches {short_repr(watches)} is not a dra_kit.WatchedObject; write "
                f"class {cls.__name__}(dra.DevicePolicy, watches=dra.WatchedObject(group=…, version=…, plural=…))"
            )
        cls.watches = watches

    @abstractmethod
    def advertise(
        self, device: DeviceT_contra, watched: Mapping[str, Any] | None, /
    ) -> Device | Awaitable[Device | None] | None:
        """Return what is published of a device: the device itself, a copy with the same name, or None.

        May be ``def``, which runs in a thread, or ``async def``. It is called for every device when the inventory or
        the watched object changes; if the driver follows the Node, also when its labels change. If it raises, a device
        that is already advertised stays unchanged, a new one is withheld, the error is logged, and it is called again
        after a delay.

        Args:
            device: as ``discover`` yielded it. Do not modify it; return ``device.model_copy(update={…})``.
            watched: the object as the API server sent it; do not modify it. None if it, or its kind, does not exist in
                the cluster. With ``node_selector``, a mapping with ``items``. While it cannot be read, nothing new is
                published.
        """

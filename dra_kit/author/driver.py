"""``Driver``: the composition root that every role and the sandbox load, and the rights that its code declares.

The rights are for a node's account, as PolicyRules of rbac.authorization.k8s.io/v1.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeAlias, cast, get_args

from msgspec import Struct
from pydantic import BaseModel
from typing_extensions import TypeVar

from dra_kit.author.cluster_object import ClusterObject
from dra_kit.author.config import ConfigDecoder, NoConfig, OpaqueConfig
from dra_kit.author.context import Context, ControllerComponent, NodeComponent
from dra_kit.author.controller import BoundElsewhere, ClaimObserver, DeviceBinder, TaintRuleSource
from dra_kit.author.device import Device, author_fields
from dra_kit.author.effect import Effect
from dra_kit.author.health import HealthSource, check_health
from dra_kit.author.model import AuthorSettingsT, HardwareT, short_repr
from dra_kit.author.pod_hooks import PodHooks, check_pod_hooks
from dra_kit.author.preparer import NoPreparer, Preparer, check_preparer, config_kinds
from dra_kit.author.provider import (
    DevicePolicy,
    DeviceProvider,
    EmptyProvider,
    ProviderCapabilities,
    provider_device_class,
)
from dra_kit.author.reads import Reads
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.names import driver_name

if TYPE_CHECKING:
    import kopf


ConfigT = TypeVar("ConfigT", bound=OpaqueConfig, default=NoConfig)
DeviceT = TypeVar("DeviceT", bound=Device, default=Device)
Concurrency: TypeAlias = Literal["claim", "device", "driver"]
InvalidDevices: TypeAlias = Literal["refuse", "drop"]


class Driver(Generic[ConfigT, DeviceT]):
    """A whole DRA driver.

    Args:
        name: the driver's name, a DNS subdomain of at most 63 bytes; DeviceClasses select it by ``device.driver``.
        provider: finds the devices on a node; optional if there is a ``cluster_provider``.
        preparer: decides what a container gets; accepts the devices that the provider yields. Without it, the driver
            only has a controller, and nothing of it runs on nodes: its devices need no node operations
            (``Pool(skip_node_operations=…)``), or another driver of this name prepares them.
        effects: every Effect class that the preparer ensures; the node refuses to start if the stored state contains
            effects it does not know.
        settings: a pydantic model of the driver's own settings, filled from flags and the environment.
        hardware: makes the node's handle to the hardware, called once per node before ``startup`` with its Context;
            ``def`` (in a thread) or ``async def``. Provider, preparer and effects have it as ``self.hardware``.
        concurrency: which prepares may overlap: those of different claims (the default), only those of different
            devices, or none in the whole driver.
        rescan_every: seconds after which ``discover`` is restarted; None means never.
        invalid_devices: how to handle a device that violates a rule of the API: "refuse" the inventory and retain the
            last good one, or "drop" that device and publish the rest. A Pool or Inventory that ``discover`` constructs
            from invalid devices is rejected by its constructor.
        health: reports the health of devices; without it, no health is reported.
        observer: hooks for the life cycle of claims, run in the controller.
        policy: which of the devices are advertised, and how.
        handlers: name of a module with the author's own kopf handlers; only the controller imports it.
        cluster_provider: finds devices without a node, such as those on a network; the controller publishes them.
        binder: makes the binding conditions of devices true; run by the controller. ``BoundElsewhere()``: another
            controller does.
        taint_rules: decides which of this driver's devices are tainted; run by the controller.
        pod_hooks: acts when the container runtime starts and stops pods with devices of this driver.
        reads: every kind of object that the code on a node reads with ``self.context.api``; the node's account gets the
            rights for these and no others.
        follow_node: keep ``context.node.labels`` up to date. When a label of the Node changes, ``discover`` is
            restarted and the policy is applied again. The node's account then needs the right to watch nodes. False:
            the labels are those at the start.

    Raises:
        ConfigurationError: naming the arguments that cannot be combined.
    """

    def __init__(
        self,
        name: str,
        *,
        provider: DeviceProvider[DeviceT, HardwareT, AuthorSettingsT] | None = None,
        preparer: Preparer[ConfigT, DeviceT, HardwareT, AuthorSettingsT] | None = None,
        effects: Sequence[type[Effect[Any, Any]]] = (),
        settings: type[BaseModel] | None = None,
        hardware: Callable[[Context[AuthorSettingsT]], HardwareT | Awaitable[HardwareT]] | None = None,
        concurrency: Concurrency = "claim",
        rescan_every: float | None = None,
        invalid_devices: InvalidDevices = "refuse",
        health: HealthSource[DeviceT, HardwareT, AuthorSettingsT] | None = None,
        observer: ClaimObserver[AuthorSettingsT] | None = None,
        handlers: str | None = None,
        policy: DevicePolicy[DeviceT, HardwareT, AuthorSettingsT] | None = None,
        cluster_provider: DeviceProvider[DeviceT, Any, AuthorSettingsT] | None = None,
        binder: DeviceBinder[AuthorSettingsT] | BoundElsewhere | None = None,
        taint_rules: TaintRuleSource[AuthorSettingsT] | None = None,
        pod_hooks: PodHooks[DeviceT, HardwareT, AuthorSettingsT] | None = None,
        reads: Sequence[Reads] = (),
        follow_node: bool = False,
    ) -> None:
        problems = [str(error) for error in driver_name(name, "name")]
        if not problems and name != name.lower():
            problems.append("name: upper case is only warned about by the API server; use lower case")
        if problems:
            raise ConfigurationError(f"driver {short_repr(name)}: {'; '.join(problems)}")
        on_node = {
            "provider": provider, "effects": effects, "hardware": hardware, "health": health, "policy": policy,
            "reads": reads, "follow_node": follow_node,
        }  # fmt: skip
        self.on_nodes: bool = _has_preparer(name, preparer, [argument for argument, value in on_node.items() if value])
        of_node = _checked_providers(name, provider, cluster_provider, binds=binder is not None)
        optional: tuple[tuple[str, object, type], ...] = (
            ("binder", None if isinstance(binder, BoundElsewhere) else binder, DeviceBinder),
            ("taint_rules", taint_rules, TaintRuleSource),
            ("health", health, HealthSource),
            ("policy", policy, DevicePolicy),
            ("pod_hooks", pod_hooks, PodHooks),
            ("observer", observer, ClaimObserver),
        )
        for argument, value, base in optional:
            if value is not None:
                _check_instance(name, argument, value, base)
        _check_choice(name, "concurrency", concurrency, get_args(Concurrency))
        _check_choice(name, "invalid_devices", invalid_devices, get_args(InvalidDevices))
        if rescan_every is not None and not (isinstance(rescan_every, int | float) and 0 < rescan_every < math.inf):
            raise ConfigurationError(
                f"driver {name}: rescan_every {rescan_every!r} is not a positive number of seconds; leave it out to "
                "rescan only when asked"
            )
        if health is not None:
            check_health(name, health)
        if pod_hooks is not None:
            check_pod_hooks(name, pod_hooks)
        if settings is not None and not (isinstance(settings, type) and issubclass(settings, BaseModel)):
            raise ConfigurationError(
                f"driver {name}: settings {short_repr(settings)} is not a pydantic model class; "
                "give the class, not an instance"
            )
        if hardware is not None and not callable(hardware):
            raise ConfigurationError(
                f"driver {name}: hardware {short_repr(hardware)} cannot be called; "
                "give a function or class that makes it"
            )
        for item in reads:
            if not isinstance(item, Reads):
                raise ConfigurationError(
                    f"driver {name}: reads: {short_repr(item)} is not a dra_kit.Reads; write "
                    "reads=[dra_kit.Reads('v1', 'configmaps', namespace=…)]"
                )
        self.name = name
        self.provider = of_node
        self.preparer: Preparer[Any, Any, Any, Any] = preparer if preparer is not None else NoPreparer()
        self.effects: dict[str, type[Effect[Any, Any]]] = _by_id(effects)
        self.settings = settings
        self.hardware: Callable[[Context[Any]], Any] | None = hardware
        self.concurrency: Concurrency = concurrency
        self.rescan_every = rescan_every
        self.invalid_devices: InvalidDevices = invalid_devices
        self.health: HealthSource[Any, Any, Any] | None = health
        self.policy: DevicePolicy[Any, Any, Any] | None = policy
        self.observer: ClaimObserver[Any] | None = observer
        self.handler_module: HandlerModule = HandlerModule(name, handlers)
        self.cluster_provider: DeviceProvider[Any, Any, Any] | None = cluster_provider
        self.binder: DeviceBinder[Any] | None = None if isinstance(binder, BoundElsewhere) else binder
        self.binds: bool = binder is not None
        self.taint_rules: TaintRuleSource[Any] | None = taint_rules
        self.pod_hooks: PodHooks[Any, Any, Any] | None = pod_hooks
        self.reads: tuple[Reads, ...] = tuple(reads)
        self.follow_node: bool = follow_node
        self.configs: ConfigDecoder[ConfigT] = ConfigDecoder(config_kinds(type(self.preparer)))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"Driver({self.name!r})"

    @property
    def handlers(self) -> kopf.OperatorRegistry:
        """The registry of the author's own kopf handlers, which run in the active replica of the controller.

        In the module of ``Driver(handlers=…)`` it is kopf's default: ``@kopf.on.event(…)`` needs no ``registry=``.
        """
        return self.handler_module.registry

    @property
    def node_bound(self) -> tuple[NodeComponent[Any, Any], ...]:
        """The objects that receive the node's hardware and context."""
        parts = (self.provider, self.preparer, self.health, self.policy, self.pod_hooks)
        return tuple(part for part in parts if part is not None)

    @property
    def controller_bound(self) -> tuple[ControllerComponent[Any] | DeviceProvider[Any, Any, Any], ...]:
        """The objects that run in the controller and receive its context."""
        parts = (self.cluster_provider, self.binder, self.taint_rules, self.observer)
        return tuple(part for part in parts if part is not None)

    @property
    def follows_node(self) -> bool:
        """Whether the labels of the Node are watched: for ``follow_node``, or because objects select nodes by them."""
        watched = self.policy.watches if self.policy is not None else None
        return self.follow_node or (watched is not None and watched.node_selector is not None)

    @property
    def has_controller_code(self) -> bool:
        """Whether any of the author's code runs in the controller."""
        return bool(self.controller_bound) or self.handler_module.used

    def for_another_node(self) -> Driver[ConfigT, DeviceT]:
        """Return a copy for another node in the same process, without shared state or hardware.

        Raises:
            Exception: any exception raised by an author's object that cannot be copied.
        """
        bound = [part for part in (*self.node_bound, *self.controller_bound) if part is not self.observer]
        # what a node or the controller has set on these objects is not copied: each sets its own
        given = [vars(part).get(name) for part in bound for name in _SET_BY_NODE]
        # the observer belongs to no node: all copies share it
        copied = copy.deepcopy(self, {id(item): item for item in (*given, self.observer) if item is not None})
        for part in (*copied.node_bound, *copied.controller_bound):
            if part is not self.observer:
                for name in _SET_BY_NODE:
                    vars(part).pop(name, None)
        return copied


_SET_BY_NODE: Final = ("hardware", "context", "runtime")
"""Attributes of the author's objects that the node or the controller sets."""


def _check_instance(driver: str, argument: str, value: object, base: type) -> None:
    if isinstance(value, base):
        return
    if isinstance(value, type) and issubclass(value, base):
        raise ConfigurationError(f"driver {driver}: {argument} {value.__name__} is a class; write {value.__name__}()")
    raise ConfigurationError(
        f"driver {driver}: {argument} {short_repr(value)} is not a dra_kit.{base.__name__}; derive its class from that"
    )


def _has_preparer(driver: str, preparer: object, on_node: Sequence[str]) -> bool:
    """Return whether the driver runs on nodes; ``on_node``: the arguments that are only of use there."""
    if preparer is None:
        if on_node:
            raise ConfigurationError(
                f"driver {driver}: it has no preparer, so nothing of it runs on nodes; give it preparer=…, or omit "
                f"{', '.join(on_node)}"
            )
        return False
    _check_instance(driver, "preparer", preparer, Preparer)
    check_preparer(cast("Preparer[Any, Any, Any, Any]", preparer))
    return True


def _checked_providers(
    driver: str,
    provider: DeviceProvider[Any, Any, Any] | None,
    cluster_provider: DeviceProvider[Any, Any, Any] | None,
    *,
    binds: bool,
) -> DeviceProvider[Any, Any, Any]:
    """Return the provider for nodes; it finds no devices if the driver has none."""
    if provider is None and cluster_provider is None:
        raise ConfigurationError(f"driver {driver}: it has no devices; give it provider=…, or cluster_provider=…")
    of_node: DeviceProvider[Any, Any, Any] = EmptyProvider() if provider is None else provider
    _check_instance(driver, "provider", of_node, DeviceProvider)
    if of_node.provider_scope != "node":
        title = type(of_node).__name__
        raise ConfigurationError(
            f'driver {driver}: provider {title} has scope="cluster"; write cluster_provider={title}()'
        )
    ProviderCapabilities("node", binds=binds).check_device_class(driver, of_node)
    if cluster_provider is not None:
        _check_cluster_provider(driver, cluster_provider, binds=binds)
    return of_node


def _check_cluster_provider(driver: str, provider: DeviceProvider[Any, Any, Any], *, binds: bool) -> None:
    _check_instance(driver, "cluster_provider", provider, DeviceProvider)
    title = type(provider).__name__
    if provider.provider_scope != "cluster":
        raise ConfigurationError(
            f"driver {driver}: cluster_provider {title} finds devices of a node; write class "
            f'{title}(dra_kit.DeviceProvider, scope="cluster")'
        )
    cls = provider_device_class(provider)
    if own := author_fields(cls):
        raise ConfigurationError(
            f"driver {driver}: cluster_provider {title}: {cls.__name__} has its own fields ({', '.join(own)}), and "
            "a node sees only what is published; make attributes of them"
        )
    ProviderCapabilities("cluster", binds=binds).check_device_class(driver, provider)


def _check_choice(driver: str, argument: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"driver {driver}: {argument} {value!r} is not one of {', '.join(map(repr, choices))}")


def _by_id(effects: Sequence[type[Effect[Any, Any]]]) -> dict[str, type[Effect[Any, Any]]]:
    known: dict[str, type[Effect[Any, Any]]] = {}
    for effect in effects:
        if not (isinstance(effect, type) and issubclass(effect, Effect)):
            raise ConfigurationError(
                f"effects: {short_repr(effect)} is not a dra_kit.Effect class; give the class itself"
            )
        if inspect.isabstract(effect):
            missing = ", ".join(sorted(effect.__abstractmethods__))
            raise ConfigurationError(f"effect {effect.__name__} lacks {missing}; write what it still needs")
        if not effect.effect_id:
            raise ConfigurationError(
                f"effect {effect.__name__} has no id; write class {effect.__name__}"
                f'(dra_kit.Effect[<outcome>], id="<a name that will never change>")'
            )
        if known.setdefault(effect.effect_id, effect) is not effect:
            raise ConfigurationError(
                f"effects {known[effect.effect_id].__name__} and {effect.__name__} have one id {effect.effect_id!r}; "
                "ids are stored and must differ"
            )
        effect.outcome_adapter()
    return known


class HandlerModule:
    """The registry shared by all copies of a driver, because a module is imported once per process.

    Raises:
        ConfigurationError: ``module`` is not a module name.
    """

    def __init__(self, driver: str, module: str | None) -> None:
        if module is not None and not (
            isinstance(module, str) and all(part.isidentifier() for part in module.split("."))
        ):
            raise ConfigurationError(
                f"driver {driver}: handlers {module!r} is not a module name; write it as in an import, such as "
                "'pizza_driver.handlers': only the controller imports it"
            )
        self.module = module
        self._registry: kopf.OperatorRegistry | None = None

    def __deepcopy__(self, _: object) -> Self:
        return self

    def rename(self, full_name: Callable[[str], str]) -> None:
        """Replace the name by the one that the module has in ``sys.modules``, next to modules of other drivers."""
        self.module = None if self.module is None else full_name(self.module)

    @property
    def used(self) -> bool:
        """Whether there may be handlers."""
        return self.module is not None or self._registry is not None

    @property
    def registry(self) -> kopf.OperatorRegistry:
        """The registry, created on first use: kopf takes memory that no node needs."""
        if self._registry is None:
            # in a higher layer, because importing kopf there avoids the Kubernetes clients that it would otherwise load
            found = importlib.import_module("dra_kit.client.operator").kopf
            self._registry = cast("kopf.OperatorRegistry", found.OperatorRegistry())
        return self._registry


Rule: TypeAlias = dict[str, list[str]]


class DeclaredRight(Struct, frozen=True):
    """Rules that a part of the driver's code needs.

    Attributes:
        needed_for: that part, such as ``policy Menu``.
        namespace: the only namespace in which they are needed; None for the whole cluster.
    """

    needed_for: str
    namespace: str | None
    rules: Sequence[Rule]


def needs_settings(driver: Driver[Any, Any]) -> bool:
    """Return whether the rights may depend on the driver's settings."""
    effects = any(issubclass(effect, ClusterObject) for effect in driver.effects.values())
    watched = driver.policy.watches if driver.policy is not None else None
    namespaces = [item.namespace for item in driver.reads] + ([watched.namespace] if watched is not None else [])
    return effects or any(map(callable, namespaces))


def node_rights(driver: Driver[Any, Any], settings: Any) -> Iterator[DeclaredRight]:
    """Yield the rights of the driver's policy, of its ``reads``, and of its effects that are objects.

    Args:
        driver: the driver.
        settings: an instance of its settings; None if it has none, or nothing depends on them.
    """
    policy = driver.policy
    if policy is not None and policy.watches is not None:
        title = f"policy {type(policy).__name__}"
        yield DeclaredRight(title, policy.watches.namespace_for(settings), policy.watches.rules())
    if driver.follows_node:
        rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}
        yield DeclaredRight("Driver(follow_node=True)", None, [rule])
    yield from release_rights(driver, settings)


def release_rights(driver: Driver[Any, Any], settings: Any) -> Iterator[DeclaredRight]:
    """Yield the rights that the code needs also where it only releases claims: of its ``reads``, and of effects."""
    for item in driver.reads:
        yield DeclaredRight("Driver(reads=…)", item.namespace_for(settings), [item.rule()])
    yield from effect_rights(driver.effects.values(), settings)


def effect_rights(effects: Iterable[type[Effect[Any, Any]]], settings: Any) -> Iterator[DeclaredRight]:
    """Yield the rights of effects that are objects."""
    for effect in effects:
        if not issubclass(effect, ClusterObject):
            continue
        title = f"effect {effect.__name__}"
        namespaces = effect.namespaces(settings)
        if namespaces is None:
            yield DeclaredRight(title, None, effect.rules())
        for namespace in namespaces or ():
            # list permission, to find objects that no record contains
            rules = [{**rule, "verbs": [*rule["verbs"], "list"]} for rule in effect.rules()]
            yield DeclaredRight(title, namespace, rules)


def rbac_values(rights: Iterable[DeclaredRight]) -> dict[str, Any]:
    """Return the rights as ``node`` in the chart's values: ``extraRules``, and ``namespacedRules`` if there are any."""
    anywhere: list[Rule] = []
    namespaced: dict[str, list[Rule]] = {}
    for right in rights:
        rules = anywhere if right.namespace is None else namespaced.setdefault(right.namespace, [])
        rules += [rule for rule in right.rules if rule not in rules]
    return {"extraRules": anywhere} | ({"namespacedRules": namespaced} if namespaced else {})

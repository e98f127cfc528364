"""``DevicePolicy``: which of the existing devices are advertised, and how."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic

from typing_extensions import TypeVar

from dra_kit.author.context import NodeComponent
from dra_kit.author.device import Device
from dra_kit.author.model import AuthorSettingsT, HardwareT, short_repr
from dra_kit.errors import ConfigurationError

DeviceT_contra = TypeVar("DeviceT_contra", bound=Device, default=Device, contravariant=True)
_GROUP: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?").fullmatch
_VERSION: Final = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?").fullmatch
_PLURAL: Final = re.compile(r"[a-z][a-z0-9-]*").fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedObject:
    """A cluster-scoped kind. Each node watches one object of it: the object with the node's name.

    The API server filters by ``metadata.name``, so a node receives no other objects and sends no requests while idle.

    Attributes:
        group: API group, such as ``kitchen.pizza.example``.
        version: such as ``v1``.
        plural: of its kind, as in paths and RBAC rules, such as ``nodemenus``.

    Raises:
        ConfigurationError: one of them cannot be part of an API path.
    """

    group: str
    version: str
    plural: str

    def __post_init__(self) -> None:
        for name, value, fits in (
            ("group", self.group, _GROUP), ("version", self.version, _VERSION), ("plural", self.plural, _PLURAL),
        ):  # fmt: skip
            if not isinstance(value, str) or not fits(value):
                raise ConfigurationError(
                    f"WatchedObject: {name} {short_repr(value)} is not valid; "
                    "write WatchedObject(group='kitchen.pizza.example', "
                    "version='v1', plural='nodemenus')"
                )

    def rules(self) -> list[dict[str, list[str]]]:
        """Return the permissions the node's ServiceAccount needs, as PolicyRules of rbac.authorization.k8s.io/v1."""
        return [{"apiGroups": [self.group], "resources": [self.plural], "verbs": ["list", "watch"]}]


class DevicePolicy(NodeComponent[HardwareT, AuthorSettingsT], ABC, Generic[DeviceT_contra, HardwareT, AuthorSettingsT]):
    """Filters and enriches what a node advertises; ``DevicePolicy[Gpu]`` if you have your own device class.

    ``class Menu(dra.DevicePolicy, watches=dra.WatchedObject(…))`` also receives the cluster object with the
    node's name, and is called again whenever that object changes.

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
        the watched object changes. If it raises, a device that is already advertised stays unchanged, a new one is
        withheld, the error is logged, and it is called again after a delay.

        Args:
            device: as ``discover`` yielded it. Do not modify it; return ``device.model_copy(update={…})``.
            watched: the object as the API server sent it; do not modify it. None if it, or its kind, does not exist in
                the cluster. While it cannot be read, nothing new is published.
        """

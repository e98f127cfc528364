"""How the node role runs at the end of a driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec import Struct

from dra_kit.node.effects.understanding import EffectClasses
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.store import Store
from dra_kit.node.undertaking.confirmation import Confirmation
from dra_kit.node.undertaking.devices import KnownDevices
from dra_kit.node.undertaking.remaining import Remaining
from dra_kit.node.undertaking.service import LastCalls, WithoutCode
from dra_kit.plugin.service import NodeService


class Undertaking(Struct, frozen=True, kw_only=True):
    """What is different from an ordinary node, and the parts that this takes: no other node loads them.

    Attributes:
        classes: undo what is in force; None for the driver's own effect classes.
        stays: the process goes on when nothing is left, as a DaemonSet's must. Another process of the driver, such as
            the pod of before an update, is waited for: it might write state again.
        confirmation: gets what is left; None where nothing waits for it.
        devices: the part that takes the place of a discovery.
        remaining: the part that watches what is left.
    """

    classes: EffectClasses | None = None
    stays: bool = False
    confirmation: Confirmation | None = None
    devices: ClassVar[type[KnownDevices]] = KnownDevices
    remaining: ClassVar[type[Remaining]] = Remaining

    @property
    def has_code(self) -> bool:
        """Whether the driver's own code is here."""
        return self.classes is None

    def calls(
        self,
        service: NodeService,
        store: Store,
        driver: str,
        boot_id: str,
        *,
        is_in_force: Callable[[EffectRecord], bool],
        title: Callable[[EffectRecord], str],
    ) -> LastCalls:
        """Return what takes the place of a service; see :class:`LastCalls` and :class:`WithoutCode`."""
        without_code = None if self.has_code else WithoutCode(is_in_force, title)
        return LastCalls(service, store, driver, boot_id, without_code=without_code)

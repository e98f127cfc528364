"""The node's handle to the hardware: what ``Driver(hardware=…)`` makes, once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from dra_kit.author.calling import call
from dra_kit.author.context import Context
from dra_kit.author.driver import Driver
from dra_kit.author.effects.effect import Effect
from dra_kit.errors import ConfigurationError

if TYPE_CHECKING:
    from dra_kit.author.effects.child_process import ChildRunner
    from dra_kit.author.effects.cluster_object import ObjectKeeper

EffectT = TypeVar("EffectT", bound="Effect[Any, Any]")


class Hardware:
    """Made before the author's startup; who needs it waits for it.

    Args:
        driver: whose handle it is.
        runner: runs the programs of effects; None where the driver has no such effect.
        keeper: keeps the objects of effects.
    """

    def __init__(
        self, driver: Driver[Any, Any], runner: ChildRunner | None = None, keeper: ObjectKeeper | None = None
    ) -> None:
        self._driver = driver
        self._runner = runner
        self._keeper = keeper
        self._made = asyncio.Event()
        self._handle: Any = None

    @property
    def lacking(self) -> bool:
        """Whether it is still being made."""
        return self._driver.hardware is not None and not self._made.is_set()

    async def make(self, context: Context[Any]) -> None:
        """Call the author's factory, and give what it made to all of the driver that is bound to a node.

        Raises:
            ConfigurationError: the factory returned nothing.
        """
        factory = self._driver.hardware
        if factory is None:
            return
        handle = await call(factory, context)
        if handle is None:
            raise ConfigurationError(
                f"driver {self._driver.name}: {getattr(factory, '__qualname__', 'hardware')} returned None; return the "
                "handle to the hardware, or leave out hardware=…",
                code="no-hardware",
            )
        for part in self._driver.node_bound:
            part.hardware = handle
        self._handle = handle
        self._made.set()

    async def bound(self, effect: EffectT) -> EffectT:
        """Return the effect as it may be called: with the handle, if the driver has one, and what runs or keeps it."""
        if self._driver.hardware is not None:
            await self._made.wait()
        return self.bound_now(effect)

    def bound_now(self, effect: EffectT) -> EffectT:
        """Return the same for whoever only looks at it, from any thread; without the handle before that is there."""
        if self._handle is not None:
            effect = effect.with_hardware(self._handle)
        from dra_kit.author.effects.child_process import ChildProcess  # few drivers have effects, and so come here
        from dra_kit.author.effects.cluster_object import ClusterObject

        if isinstance(effect, ChildProcess) and self._runner is not None:
            return effect.with_runner(self._runner)
        if isinstance(effect, ClusterObject) and self._keeper is not None:
            return effect.with_keeper(self._keeper)
        return effect

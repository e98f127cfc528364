"""The example project pizza-driver, loaded as ``dra-kit node`` loads it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import dra_kit as dra
from dra_kit.author.claim import EffectRequests
from dra_kit.author.target import load_driver

PROJECT = Path(__file__).resolve().parents[3] / "examples" / "pizza-driver"
STORIES = PROJECT / "stories"
ResultT = TypeVar("ResultT")

driver = load_driver(str(PROJECT))
# loaded by path, so type checkers do not know the project's modules
pizza: Any = importlib.import_module("pizza_driver.driver")
kitchen: Any = importlib.import_module("pizza_driver.kitchen")
bake: Any = kitchen.bake
read_menu: Any = kitchen.read_menu
PizzaConfig: Any = importlib.import_module("pizza_driver.config").PizzaConfig


class KitchenContext(dra.Context[Any]):
    """What the framework would tell the driver."""

    def __init__(self, menu: Path, hardware_dir: Path) -> None:
        self.driver = "kitchen.pizza.example"
        self.node = dra.NodeInfo("node-a")
        self.state_dir = hardware_dir
        self.settings = pizza.KitchenSettings(menu=menu, hardware_dir=hardware_dir)
        self._stopping = dra.Stopping()

    @property
    def stopping(self) -> dra.Stopping:
        return self._stopping

    def rescan(self) -> None: ...

    def prepared(self) -> Mapping[str, dra.PreparedClaim]:
        return {}

    def update(
        self,
        device: str,
        *,
        pool: str | None = None,
        claim: dra.ClaimReference | dra.PreparedClaim | str | None = None,
        share: str | None = None,
        status: dra.DeviceStatus | None = None,
        metadata: dra.DeviceMetadata | None = None,
        wait: bool = False,
    ) -> None: ...


class ApplyAtOnce:
    """An effect scope that applies, and remembers."""

    def __init__(self) -> None:
        self.ensured: list[Any] = []

    def ensure(self, effect: dra.Effect[ResultT, Any]) -> Coroutine[Any, Any, ResultT]:
        async def apply() -> ResultT:
            self.ensured.append(effect)
            return effect.apply(None)  # type: ignore[return-value]

        return apply()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()


def allocated(name: str, scope: ApplyAtOnce, *, admin_access: bool = False, **config: object) -> Any:
    """A pizza of the default menu, allocated with this config."""
    menu = read_menu((PROJECT / "menu.yaml").read_text())
    (advertised,) = [device for device in bake(menu) if device.name == name]
    return dra.AllocatedDevice(
        name=name,
        pool="node-a",
        request="pizza",
        config=PizzaConfig(**config),
        advertised=advertised,
        admin_access=admin_access,
        effects=EffectRequests(scope),
    )

"""The parts that effects take, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dra_kit.author.driver import Driver
from dra_kit.kube.client import Client
from dra_kit.node.effects.engine import EffectEngine, Replaced
from dra_kit.node.effects.holding import Holding
from dra_kit.node.effects.understanding import EffectClasses
from dra_kit.node.effects.undoing import Undoing
from dra_kit.node.effects.unrecorded import Unrecorded
from dra_kit.node.hardware import Hardware
from dra_kit.node.locks.named import NodeLocks
from dra_kit.node.server_facts import ServerFacts
from dra_kit.node.settings import NodeSettings
from dra_kit.node.state.store import Store

if TYPE_CHECKING:  # programs and objects are of effects, and few drivers have any
    from dra_kit.node.children.children import Children
    from dra_kit.node.effects.marks import Finder
    from dra_kit.node.objects.keeper import ClusterObjects


class NodeEffects(Struct, frozen=True):
    """What a node has for its effects.

    Attributes:
        classes: what is understood of stored effects.
        runner: of programs; None where no effect is one.
        hardware: the author's handle.
        engine: makes effects true.
        holding: asks whether they still are.
        unrecorded: finds what they have made and no record knows.
    """

    classes: EffectClasses
    runner: Children | None
    hardware: Hardware
    engine: EffectEngine
    holding: Holding
    unrecorded: Unrecorded


def wire_effects(
    driver: Driver[Any, Any],
    settings: NodeSettings,
    classes: EffectClasses | None,
    *,
    store: Store,
    client: Client,
    facts: ServerFacts,
    locks: NodeLocks,
    boot_id: str,
    replaced: Replaced,
) -> NodeEffects:
    """Put them together.

    Args:
        driver: whose effects these are.
        settings: of the node.
        classes: what is understood; None for the driver's own.
        store: the records.
        client: for objects in the cluster.
        facts: of the API server.
        locks: hold across the driver's processes.
        boot_id: of this boot.
        replaced: is notified of an effect whose outcome is another one now.
    """
    classes, runner = classes or EffectClasses(driver.effects), None
    if classes.runs_programs:
        from dra_kit.node.children.children import Children

        directory = settings.state(driver.name) / "children"
        runner = Children(
            directory, locks.children, environment=settings.child_environment, records=store.effects
        )  # fmt: skip
    keeper: ClusterObjects | None = None
    finders: list[Finder] = [] if runner is None else [runner]
    if driver.effects or store.effects():
        from dra_kit.node.objects.keeper import ClusterObjects, FoundObjects

        keeper = ClusterObjects(client, driver.name, facts, records=store.effects)
        finders.insert(0, FoundObjects(keeper, driver.effects.values(), settings.author))
    hardware = Hardware(driver, runner, keeper)
    undoing = Undoing(store, classes, hardware, locks.effects)
    engine = EffectEngine(
        store, classes, hardware, undoing, boot_id=boot_id, locks=locks.effects, replaced=replaced
    )  # fmt: skip
    holding = Holding(store, driver.effects, classes, hardware, engine, boot_id=boot_id, locks=locks.effects)
    unrecorded = Unrecorded(
        store, classes, finders, locks.effects, claims=locks.claims, every=settings.orphan_after
    )  # fmt: skip
    return NodeEffects(classes, runner, hardware, engine, holding, unrecorded)

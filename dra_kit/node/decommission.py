"""The undertaker: the node role at the end of a driver, with its code or without.

A kubelet cannot end a pod whose driver is gone: it has nobody to ask for NodeUnprepareResources, and asks again for
ever. The undertaker registers in the driver's place, releases each claim that the kubelet gives back, undoes what is in
force for it, withdraws the node's devices, removes the state, and ends when nothing is left. In a DaemonSet it stays:
without state it answers late calls of the kubelet, and its pod has the condition that nothing is left.
"""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from dra_kit import __version__
from dra_kit.author.driver import Driver
from dra_kit.errors import ConfigurationError, StoreError
from dra_kit.kube.client import Client
from dra_kit.kube.connection.credentials import load_credentials
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.agent import Agent
from dra_kit.node.effects.without_class import title_without_class, without_class
from dra_kit.node.settings import NodeSettings
from dra_kit.node.state.salvage import needs_salvage
from dra_kit.node.state.store import Store
from dra_kit.node.undertaking.confirmation import Confirmation, PodName
from dra_kit.node.undertaking.driver import driver_without_code
from dra_kit.node.undertaking.effects import REMEDY, EffectsWithoutCode
from dra_kit.node.undertaking.mode import Undertaking
from dra_kit.node.undertaking.remaining import has_ended, is_emptied, remove_state
from dra_kit.node.undertaking.removed import StopRequest, answer_late_calls
from dra_kit.plugin.kubelet_checkpoint import KubeletCheckpoint

logger: logging.Logger = logging.getLogger(__name__)


class Estate(Struct, frozen=True, kw_only=True):
    """What a driver has left that is not to be undone without its code.

    Attributes:
        claims: that only its ``unprepare`` can release, by UID, as people read them.
        effects: that only their class can undo, as people read them.
    """

    claims: dict[str, str]
    effects: list[str]


async def run_undertaker(
    name: str,
    settings: NodeSettings,
    driver: Driver[Any, Any] | None,
    *,
    abandon: bool = False,
    stays: bool = False,
    pod: PodName | None = None,
) -> int:
    """Run until nothing is left of a driver on this node, or until SIGTERM; see :func:`undertaker`.

    Args:
        name: of the driver.
        settings: of its node role.
        driver: its code; None where that is gone.
        abandon: without code, forget what only the code could undo.
        stays: answer late calls of the kubelet when nothing is left, until SIGTERM.
        pod: that it runs in: gets the condition that nothing is left, once the state is removed.

    Returns:
        The exit code of the process: 0 when nothing is left, also of an earlier end, or it was asked to end, else 1.

    Raises:
        ConfigurationError: as of :func:`undertaker`.
        StoreError: likewise.
    """
    directory = settings.state(name)
    if not stays and has_ended(directory) and not _of_kubelet(settings, name):
        logger.info(
            "nothing is left to undo: there is no state, and no claim that the kubelet has to release",
            extra={"driver": name, "path": str(directory), "remedy": "if there should be, correct STATE_DIR"},
        )
        if is_emptied(directory):
            _remove_state(settings, name)
        return 0
    stop = StopRequest()
    async with AsyncExitStack() as stack:
        stack.enter_context(stop.noted())
        confirmation = None
        if pod is not None:
            credentials = await load_credentials(settings.kubeconfig)
            client = await stack.enter_async_context(Client(credentials, user_agent=f"dra-kit/{__version__} undertake"))
            confirmation = Confirmation(client, pod)
        agent = await undertaker(name, settings, driver, abandon=abandon, stays=stays, confirmation=confirmation)
        code = await agent.run()
        if not (agent.nothing_left and _remove_state(settings, name)):
            return code
        try:
            if code == 0 and stays and not agent.supervisor.signalled:
                code = await answer_late_calls(name, settings, confirmation, stop=stop)
        finally:
            _remove_folder(settings.kubelet_dir / "plugins" / name)
        return code


async def undertaker(
    name: str,
    settings: NodeSettings,
    driver: Driver[Any, Any] | None,
    *,
    abandon: bool = False,
    stays: bool = False,
    confirmation: Confirmation | None = None,
) -> Agent:
    """Return the node role at the end of a driver; it does not run yet.

    Args:
        name: of the driver.
        settings: of its node role.
        driver: its code; None where that is gone.
        abandon: without code, forget what only the code could undo.
        stays: the process goes on afterwards, see :class:`dra_kit.node.undertaking.mode.Undertaking`.
        confirmation: gets what is left.

    Raises:
        ConfigurationError: there is no state, the driver has another name, or a setting does not fit.
        StoreError: the durable state cannot be opened.
    """
    if driver is not None and driver.name != name:
        raise ConfigurationError(f"TARGET is driver {driver.name}, --driver says {name}; correct one of them")
    database = settings.database(name)
    is_there = database.exists() or needs_salvage(database)
    if not (is_there or stays or _of_kubelet(settings, name)):
        raise ConfigurationError(
            f"{database.parent} is no directory of a driver's state, and the kubelet has no claim of {name} to "
            "release; correct STATE_DIR"
        )
    classes = None
    if driver is None:
        left = estate(settings, name) if is_there else Estate(claims={}, effects=[])
        if left.claims or left.effects:
            fields = {"claims": list(left.claims.values()), "effects": left.effects}
            if abandon:
                logger.warning("abandoned when their claims are released: their hardware stays as it is", extra=fields)
            else:
                logger.warning("only the driver's code can undo these", extra=fields | {"remedy": REMEDY})
        driver = driver_without_code(name, left.claims, abandon=abandon)
        classes = EffectsWithoutCode(abandon=abandon)
    undertaking = Undertaking(classes=classes, stays=stays, confirmation=confirmation)
    return Agent(driver, settings, await load_credentials(settings.kubeconfig), undertaking=undertaking)


def estate(settings: NodeSettings, name: str) -> Estate:
    """Return the part of a driver's state that needs its code.

    Raises:
        StoreError: it cannot be read.
    """
    with closing(Store(settings.database(name))) as store:
        return Estate(
            claims={record.uid: str(record.reference) for record in store.claims() if record.imperative},
            effects=[title_without_class(effect) for effect in store.effects() if without_class(effect) is None],
        )


def _of_kubelet(settings: NodeSettings, name: str) -> AbstractSet[ClaimReference]:
    """Return claims that the kubelet will ask for: it may not have had an answer, or the state was lost."""
    return KubeletCheckpoint(settings.kubelet_dir).claims(name)


def _remove_state(settings: NodeSettings, name: str) -> bool:
    """Remove the state, and return whether nothing of it is left."""
    directory = settings.state(name)
    try:
        others = remove_state(directory)
    except OSError as error:
        failed = StoreError(f"state {directory} is not removed: {error}; remove it by hand")
        logger.error("state not removed", extra={"error": str(failed), "code": failed.code})
        return False
    if others:
        fields = {"path": str(directory), "kept": others}
        logger.warning("state removed, but what is not the framework's", extra=fields)
    else:
        logger.info("state removed", extra={"path": str(directory)})
    return True


def _remove_folder(directory: Path) -> None:
    """Remove the folder of the sockets; another process may have some in it."""
    with suppress(OSError):
        directory.rmdir()

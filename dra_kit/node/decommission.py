"""Decommission: the node role when a driver is removed, with its code or without.

The kubelet cannot terminate a pod whose driver is gone: no process answers its NodeUnprepareResources, and it retries
forever. This mode registers in the driver's place, releases each claim that the kubelet unprepares, reverts its
effects, withdraws the node's devices, removes the state, and exits when nothing is left. In a DaemonSet it keeps
running without state: it answers late calls of the kubelet, and a condition of its pod shows that nothing is left.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec import Struct, field, to_builtins

from dra_kit import __version__
from dra_kit.author.claim import AllocatedDevice, Claim, PreparedDevice
from dra_kit.author.device import Device
from dra_kit.author.driver import Driver
from dra_kit.author.prepared import Prepared
from dra_kit.author.preparer import Preparer
from dra_kit.author.provider import DeviceProvider
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.errors import ConfigurationError, DraKitError, PermanentError, StoreError, TransientError
from dra_kit.kubelet.device_use import KubeletCheckpoint
from dra_kit.kubelet.plugin_server import KubeletDevice, NodeService
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.agent import NodeAgent
from dra_kit.node.effects.classes import (
    REMEDY,
    EffectClasses,
    EffectsWithoutCode,
    effect_without_class,
    title_without_class,
)
from dra_kit.node.removal_confirmation import (
    PodName,
    RemovalConfirmation,
    StopRequest,
    answer_late_calls,
    removed_error,
)
from dra_kit.node.settings import NodeSettings
from dra_kit.node.state.records import EffectRecord
from dra_kit.node.state.salvage import needs_salvage
from dra_kit.node.state.store import StateStore
from dra_kit.slices.discovery import Discovery
from dra_kit.slices.publisher import Publisher

logger: logging.Logger = logging.getLogger(__name__)


async def run_decommission(
    name: str,
    settings: NodeSettings,
    driver: Driver[Any, Any] | None,
    *,
    abandon: bool = False,
    keep_running: bool = False,
    pod: PodName | None = None,
) -> int:
    """Run until nothing is left of a driver on this node, or until SIGTERM.

    Args:
        name: of the driver.
        settings: of its node role.
        driver: its code; None if that is gone.
        abandon: without code, forget what only the code could undo.
        keep_running: keep running when nothing is left, and answer late calls of the kubelet until SIGTERM.
        pod: the pod of this process; gets the condition that nothing is left, once the state is removed.

    Returns:
        The exit code: 0 if nothing is left, now or from an earlier run, or if the process was asked to stop; else 1.

    Raises:
        ConfigurationError: as for :func:`decommission_agent`.
        StoreError: likewise.
    """
    directory = settings.state(name)
    if not keep_running and is_decommissioned(directory) and not _claims_of_kubelet(settings, name):
        logger.info(
            "nothing is left to undo: the state is removed, and the kubelet has no claim to release",
            extra={"driver": name, "path": str(directory), "remedy": "if that is unexpected, correct STATE_DIR"},
        )
        if _is_emptied(directory):
            _remove_state(settings, name)
        return 0
    stop = StopRequest()
    async with AsyncExitStack() as stack:
        stack.enter_context(stop.recorded())
        confirmation = None
        if pod is not None:
            credentials = await load_credentials(settings.kubeconfig)
            client = await stack.enter_async_context(
                Client(credentials, user_agent=f"dra-kit/{__version__} decommission")
            )
            confirmation = RemovalConfirmation(client, pod)
        agent = await decommission_agent(
            name, settings, driver, abandon=abandon, keep_running=keep_running, confirmation=confirmation
        )
        code = await agent.run()
        if not (agent.nothing_left and _remove_state(settings, name)):
            return code
        try:
            if code == 0 and keep_running and not agent.supervisor.signalled:
                code = await answer_late_calls(name, settings, confirmation, stop=stop)
        finally:
            with suppress(OSError):  # another process has sockets there
                (settings.kubelet_dir / "plugins" / name).rmdir()
        return code


async def decommission_agent(
    name: str,
    settings: NodeSettings,
    driver: Driver[Any, Any] | None,
    *,
    abandon: bool = False,
    keep_running: bool = False,
    confirmation: RemovalConfirmation | None = None,
) -> NodeAgent:
    """Return the node role that decommissions a driver; it is not running yet.

    See :func:`run_decommission` for the arguments. The ``confirmation`` gets what is left.

    Raises:
        ConfigurationError: no state exists, the driver has another name, or a setting is invalid.
        StoreError: the durable state cannot be opened.
    """
    if driver is not None and driver.name != name:
        raise ConfigurationError(f"TARGET is driver {driver.name}, but --driver is {name}; correct one of them")
    database = settings.database(name)
    has_state = database.exists() or needs_salvage(database)
    if not (has_state or keep_running or _claims_of_kubelet(settings, name)):
        raise ConfigurationError(
            f"{database.parent} is not the state directory of a driver, and the kubelet has no claim of {name} to "
            "release; correct STATE_DIR"
        )
    classes = None
    if driver is None:
        claims: dict[str, str] = {}  # by UID: those that only the driver's unprepare can release
        effects: list[str] = []
        if has_state:
            with closing(StateStore(database)) as store:
                claims = {record.uid: str(record.reference) for record in store.claims() if record.imperative}
                effects = [title_without_class(item) for item in store.effects() if effect_without_class(item) is None]
        if claims or effects:
            fields = {"claims": list(claims.values()), "effects": effects}
            if abandon:
                logger.warning("abandoned when their claims are released; their hardware stays unchanged", extra=fields)
            else:
                logger.warning("only the driver's code can undo these", extra=fields | {"remedy": REMEDY})
        driver = Driver(name, provider=_NoDevices(), preparer=_NoCode(claims, abandon=abandon))
        classes = EffectsWithoutCode(abandon=abandon)
    decommission = Decommission(classes=classes, keep_running=keep_running, confirmation=confirmation)
    return NodeAgent(driver, settings, await load_credentials(settings.kubeconfig), decommission=decommission)


def _claims_of_kubelet(settings: NodeSettings, name: str) -> AbstractSet[ClaimReference]:
    """Return the claims that the kubelet will still ask for: an answer may have been lost, or the state."""
    return KubeletCheckpoint(settings.kubelet_dir).claims(name)


def _remove_state(settings: NodeSettings, name: str) -> bool:
    """Remove the state, and return whether all of it is gone."""
    directory = settings.state(name)
    try:
        others = remove_state(directory)
    except OSError as error:
        failed = StoreError(
            f"state {error.filename or directory} cannot be removed: {error.strerror or error}; remove it manually"
        )
        logger.error("state cannot be removed", extra={"error": str(failed), "code": failed.code})
        return False
    if others:
        fields = {"path": str(directory), "kept": others}
        logger.warning("state removed, except files of the author and corrupt files", extra=fields)
    else:
        logger.info("state removed", extra={"path": str(directory)})
    return True


LOOK_EVERY: Final = 0.5
"""Seconds between two checks of the state, which is a file."""
_DATABASE: Final = "state.sqlite"
_OTHER_FILES: Final = (*(f"{_DATABASE}-{of}" for of in ("lock", "transactions")), "health.json")
_CORRUPT: Final = (f"{_DATABASE}.corrupt-", "health.json.corrupt")
_LOGS: Final = tuple(f"{_DATABASE}-{of}" for of in ("wal", "shm"))
_UNFINISHED: Final = tuple(f"{_DATABASE}.{of}-*" for of in ("new", "rebuilt"))
_OUR_FOLDERS: Final = ("locks", "children", "device-metadata", "pod-hooks")
_AUTHORS: Final = "author"


class Remainder(Struct, frozen=True):
    """What is left of a driver; nothing by default.

    Attributes:
        claims: not released yet, or still known to the kubelet, which may not have received an answer.
        effects: needed by no claim, and not reverted yet.
        processes: other processes of the driver run on this node, and might write state again.
        slices: slices still have to be withdrawn, and no attempt has failed. The kubelet removes remaining ones 30 s
            after it has lost the driver (``wipingDelay`` of its DRA manager).
    """

    claims: list[str] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    slices: bool = False
    processes: bool = False

    def __str__(self) -> str:
        parts = [
            f"{what} {', '.join(names)}"
            for what, names in (("claims", self.claims), ("effects", self.effects))
            if names
        ]
        parts += ["its slices"] if self.slices else []
        parts += ["another process of the driver"] if self.processes else []
        return f"not removed yet: {'; '.join(parts)}" if parts else "nothing is left"


class RemainderWatch:
    """A part of the process: reports what is left, and calls ``finished`` once when nothing is left.

    ``all_known`` returns whether effects without a record were searched for; until then, some may be left. ``others``
    returns whether other processes of the driver run on this node, which must stop first.
    """

    name = "remaining"

    def __init__(
        self,
        driver: str,
        store: StateStore,
        checkpoint: KubeletCheckpoint,
        publisher: Publisher,
        *,
        title: Callable[[EffectRecord], str],
        all_known: Callable[[], bool],
        others: Callable[[], bool],
        confirmation: RemovalConfirmation | None,
        finished: Callable[[], None],
    ) -> None:
        self._driver = driver
        self._store = store
        self._checkpoint = checkpoint
        self._publisher = publisher
        self._title = title
        self._all_known = all_known
        self._others = others
        self._confirmation = confirmation
        self._finished = finished
        self._logged: Remainder | None = None

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`."""
        ready.set()
        writing = None if self._confirmation is None else asyncio.create_task(self._confirmation.run(asyncio.Event()))
        try:
            await self._watch()
        finally:
            if writing is not None:
                writing.cancel()

    async def _watch(self) -> None:
        while True:
            try:
                left = self.left()
            except DraKitError as error:  # a failing disk must not stop the process
                logger.error("state cannot be read", extra={"error": str(error), "code": error.code})
            else:
                if left != Remainder():
                    self._log(left)
                elif self._all_known():
                    logger.info("nothing is left")
                    self._finished()
                    await asyncio.Event().wait()
            await asyncio.sleep(LOOK_EVERY)

    def left(self) -> Remainder:
        """Return what is left now.

        Raises:
            StoreError: the state cannot be read.
        """
        store = self._store
        claims = {*(record.reference for record in store.claims()), *store.lost(), *store.needing()}
        claims |= self._checkpoint.claims(self._driver)
        effects = [self._title(effect) for effect in store.effects() if not effect.claims]
        slices = not (self._publisher.up_to_date.is_set() or self._publisher.last_error)
        return Remainder(sorted(set(map(str, claims))), effects, slices=slices, processes=self._others())

    def _log(self, left: Remainder) -> None:
        if self._logged == left:
            return
        self._logged = left
        logger.info("not removed yet", extra=to_builtins(left))
        if self._confirmation is not None:
            self._confirmation.set(False, str(left))


def is_decommissioned(directory: Path) -> bool:
    """Return whether a driver's state is removed: its directory is gone, or has only what :func:`remove_state` leaves.

    A directory whose parent does not exist, or that contains anything else, never belonged to a driver.
    """
    if not directory.exists():
        return directory.parent.is_dir()
    return directory.is_dir() and all(
        path.name == _AUTHORS or path.name.startswith(_CORRUPT) for path in directory.iterdir()
    )


def _is_emptied(directory: Path) -> bool:
    """Return whether the state directory has no files left: the last decommission was killed at its very end."""
    return (
        directory.is_dir()
        and all(path.name == _AUTHORS for path in directory.iterdir())
        and not any(path.is_symlink() or not path.is_dir() for path in directory.rglob("*"))
    )


def remove_state(directory: Path) -> list[str]:
    """Remove the state of a decommissioned driver: the framework's own files, and nothing else.

    The database is removed last: after a crash it shows the next decommission that there is something to remove.
    Without it, the files beside it would make the driver's next release believe that its state was lost. The directory
    is removed too, unless it is a mount point: then it is left empty.

    Returns:
        The names of the files that stay: the author's own, and corrupt ones that were renamed.

    Raises:
        OSError: something cannot be removed.
    """
    for name in _OUR_FOLDERS:
        if (directory / name).is_dir():
            shutil.rmtree(directory / name)
    unfinished = (path.name for pattern in _UNFINISHED for path in directory.glob(pattern))
    for name in (*unfinished, *_OTHER_FILES, _DATABASE, *_LOGS):
        (directory / name).unlink(missing_ok=True)
    # directories without files, such as that of a journal without entries, are removed too
    for folder in (*_folders(directory / _AUTHORS), directory):
        if folder.is_dir() and not any(folder.iterdir()):
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def _folders(top: Path) -> list[Path]:
    """Return a directory and all directories below it, the innermost first, without following links."""
    if top.is_symlink():
        return []
    return [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]


class ReleaseOnlyService:
    """A :class:`dra_kit.kubelet.plugin_server.NodeService` that prepares no new claims, and none of another boot.

    ``is_in_force`` returns whether an effect is in force, as far as is known; it is None if the driver's code is
    available, and prepares again what does not hold any more.
    """

    def __init__(
        self,
        service: NodeService,
        store: StateStore,
        driver: str,
        boot_id: str,
        *,
        is_in_force: Callable[[EffectRecord], bool] | None,
        title: Callable[[EffectRecord], str],
    ) -> None:
        self._service = service
        self._store = store
        self._driver = driver
        self._boot_id = boot_id
        self._is_in_force = is_in_force
        self._title = title

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[KubeletDevice] | Exception]:
        """Answer for claims that are prepared; reject all others."""
        refused = {claim.uid: problem for claim in claims if (problem := self._refusal(claim)) is not None}
        prepared = [claim for claim in claims if claim.uid not in refused]
        return {**refused, **(await self._service.prepare(prepared) if prepared else {})}

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        """Release claims as usual."""
        return await self._service.unprepare(claims)

    def _refusal(self, claim: ClaimReference) -> PermanentError | StoreError | None:
        try:
            record, effects = self._store.claim(claim.uid), self._store.effects_of(claim.uid)
        except StoreError as error:  # it is unknown whether the claim is prepared
            return error
        if record is None or (record.phase, record.boot_id) != ("prepared", self._boot_id):
            return removed_error(claim, self._driver)
        if self._is_in_force is None:
            return None
        lost = [item for item in effects if not self._is_in_force(item)]
        if not (lost or record.outdated):
            return None
        what = f"{', '.join(map(self._title, lost))} not in force" if lost else "its device was replaced"
        return PermanentError(
            f"claim {claim} is not prepared again ({what}): driver {self._driver} is being removed from this node, and "
            "its code is not available; delete the pod, or run dra-kit decommission with the driver's TARGET, in the "
            "driver's image",
            code="no-driver-code",
        )


class _NoDevices(DeviceProvider[Device]):
    def discover(self) -> Iterator[Sequence[Device]]:
        yield []


class _NoCode(Preparer):
    """Releases claims, by UID; those in ``need_unprepare`` need the driver's own, unless they are abandoned."""

    def __init__(self, need_unprepare: Collection[str], *, abandon: bool) -> None:
        self._need_unprepare = frozenset(need_unprepare)
        self._abandon = abandon

    def prepare(self, claim: Claim, device: AllocatedDevice) -> Prepared:
        raise PermanentError(f"claim {claim} is not prepared with {device.name}: the driver's code is not available")

    def unprepare(self, claim: ClaimReference, devices: Sequence[PreparedDevice]) -> None:
        if claim.uid not in self._need_unprepare:
            return
        names = ", ".join(f"{item.pool}/{item.device}" for item in devices)
        if not self._abandon:
            raise TransientError(
                f"claim {claim} can only be released by the driver's unprepare (devices {names}); {REMEDY}",
                code="no-driver-code",
            )
        logger.warning("claim abandoned", extra={"claim": str(claim), "devices": names})


class DecommissionDiscovery:
    """A part of the process: discovers the devices, so that a claim whose effects do not hold can be prepared again."""

    name = "discovery"

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once: undoing needs no devices."""
        ready.set()
        await self._discovery.run(asyncio.Event())


class Decommission(Struct, frozen=True, kw_only=True):
    """What differs from an ordinary node, and the classes for it, which no ordinary node loads.

    The agent takes them from here: this module imports the agent, so the agent cannot import it.

    Attributes:
        classes: revert the effects in force; None for the driver's own effect classes.
        keep_running: the process keeps running when nothing is left, as a DaemonSet requires. It first waits for other
            processes of the driver, such as the pod before an update, which might write state again.
        confirmation: gets what is left; None if no client waits for it.
        service: wraps the service of claims.
        devices: the part that replaces the discovery.
        remaining: the part that watches what is left.
    """

    classes: EffectClasses | None = None
    keep_running: bool = False
    confirmation: RemovalConfirmation | None = None
    service: ClassVar[type[ReleaseOnlyService]] = ReleaseOnlyService
    devices: ClassVar[type[DecommissionDiscovery]] = DecommissionDiscovery
    remaining: ClassVar[type[RemainderWatch]] = RemainderWatch

    @property
    def has_code(self) -> bool:
        """Whether the driver's own code is available."""
        return self.classes is None

"""Health on a node: passes the source's reports on to slices, the kubelet, Events and the file for the next process."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import logging
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from dra_kit.author.calls import (
    GeneratorMessages,
    GeneratorThread,
    author_exc_info,
    call,
    call_threadsafe,
    describe_error,
)
from dra_kit.author.device import Device
from dra_kit.author.health import HealthReport, HealthSource, Healthy
from dra_kit.author.inventory import Inventory
from dra_kit.errors import ConfigurationError, DraKitError, StoreError
from dra_kit.kubelet.health import HealthService, ReportedHealth
from dra_kit.node.deadlines import run_in_thread_to_completion
from dra_kit.node.failpoints import Failpoint, hit
from dra_kit.node.health_ledger import (
    HealthLedger,
    HealthProblem,
    HealthTime,
    HealthVerdict,
    Key,
    StoredHealth,
    advertised_inventory,
    health_time_now,
)
from dra_kit.node.state.database_files import sync
from dra_kit.node.state.schema import checksum
from dra_kit.slices.inventory import CurrentInventory

logger: logging.Logger = logging.getLogger(__name__)
SETTLE: Final = 0.02
"""Seconds in which several reports are collected before their consequences are computed."""
STORE_AGAIN: Final = 5.0
"""Seconds until a failed store is retried."""
_LINES_MAX: Final = 64
"""Maximum number of different mistakes of a source that are logged."""


class DeviceChanged(Protocol):
    """Notified of each problem that takes effect or ends."""

    def __call__(self, pool: str, device: str, text: str, *, healthy: bool) -> None:
        """Report a device with a text for people; ``healthy`` is set if a problem has ended."""
        ...


class HealthMonitor:
    """A part of the node process; used in the main loop.

    It stores health in ``state_dir``, and restores what the previous process has stored there.

    Attributes:
        streams: report to the kubelet.
    """

    name = "health"

    def __init__(
        self,
        driver: str,
        source: HealthSource[Any, Any, Any],
        *,
        state_dir: Path,
        current: CurrentInventory,
        publish: Callable[[Inventory[Device]], None],
        changed: DeviceChanged,
    ) -> None:
        self._source = source
        self._file = HealthFile(state_dir / FILE)
        self._file.sweep()
        self._ledger = ledger = HealthLedger(driver, source)
        ledger.restore(self._file.read())
        self._current = current
        self._publish = publish
        self.streams: HealthService = HealthService()
        self._changed = changed
        self._news = asyncio.Event()
        self._reports = HealthReports(source, self._news.set)
        self._recovery = RecoveryPoller(source, ledger, self._news.set)
        self._inventory: Inventory[Device] | None = None
        self._known = asyncio.Event()  # set with the first inventory
        self._published: object = None  # the consequences for slices, as published last
        self._shown: list[ReportedHealth] = []  # as last reported to the kubelet
        self._problems = ledger.problems()
        self._stored = _worth_storing(ledger.to_store())
        self._store_at: float | None = None
        self._logged: set[str] = set()
        self._waiting: list[asyncio.Future[None]] = []  # done when the consequences are passed on

    def inventory_changed(self, inventory: Inventory[Device]) -> None:
        """Publish a new inventory with the known health of its devices."""
        self._inventory = inventory
        found = {(pool.name or "", device.name): device for pool in inventory.pools for device in pool.devices}
        self._ledger.inventory({key: (device, self._current.identity(*key).hashes) for key, device in found.items()})
        self._source.devices = tuple(found.values())
        self._known.set()
        self._advertise(inventory, self._ledger.verdicts())
        self._news.set()

    def shown(self) -> Sequence[ReportedHealth]:
        """Return what the kubelet got last for each device. Thread-safe."""
        return self._shown

    def process_ended(self) -> None:
        """React when another process of the driver stops, whose source may have reported more than this one's."""
        self._ledger.adopt(self._file.changes_of_other_process())
        self._news.set()

    async def inject(self, device: str, pool: str | None, reason: str, problem: tuple[str, str | None] | None) -> None:
        """Simulate a problem of a device, with message and value, or withdraw it; for drills and tests.

        When this returns, the consequences have been passed on.

        Raises:
            ConfigurationError: the device does not exist, or the policy has no such reason.
        """
        now = health_time_now()
        self._ledger.inject(device, pool, reason, problem, now)
        if problem is None:
            self._recovery.soon([(device, reason)], now)
        self._news.set()
        followed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(followed)
        await followed

    def hanging(self, patience: float) -> list[str]:
        """Return a line while the source hangs, as far as that can be detected. Thread-safe."""
        return self._reports.hanging(patience)

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once; the author's code may be called."""
        ready.set()
        await self._known.wait()
        watching = asyncio.create_task(self._reports.run())
        try:
            while True:
                self._news.clear()
                now = health_time_now()
                self._take(now)
                self._ledger.settle(now)
                if self._is_to_be_stored(now):  # do not overwrite what another process has stored
                    self._ledger.adopt(self._file.changes_of_other_process())
                self._recovery.ask(now)
                waiting, self._waiting = self._waiting, []
                await self._follow(now)
                for item in waiting:
                    if not item.done():
                        item.set_result(None)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._news.wait()
                        await asyncio.sleep(SETTLE)  # a source reports all devices in quick succession
        finally:
            watching.cancel()
            self._recovery.stop()

    def _pause(self) -> float | None:
        """Return the seconds until something is due without a report."""
        times = (self._ledger.due(), self._store_at, self._recovery.due())
        at = min((time for time in times if time is not None), default=None)
        return None if at is None else max(0.0, at - health_time_now().seconds)

    def _take(self, now: HealthTime) -> None:
        healthy = set()
        for report in self._reports.take():
            try:
                self._ledger.take(report, now)
            except ConfigurationError as error:
                if (text := str(error)) not in self._logged and len(self._logged) < _LINES_MAX:
                    self._logged.add(text)
                    logger.error("health report is invalid", extra={"error": text, "code": error.code})
            else:
                if isinstance(report, Healthy):
                    healthy.add((report.device.name, report.reason))
        if healthy:
            self._recovery.soon(healthy, now)

    # -- consequences

    async def _follow(self, now: HealthTime) -> None:
        """Store, publish and report the changes; they are stored first, so that a crash loses no taint."""
        before, self._problems = self._problems, self._ledger.problems()
        self._report(before, self._problems, now)
        await self._store(now)
        verdicts = self._ledger.verdicts()  # the inventory may have changed meanwhile
        if self._inventory is not None and self._published != _for_slices(verdicts):
            self._advertise(self._inventory, verdicts)
        shown = [
            ReportedHealth(pool, device, *verdict.reported)
            for (pool, device), verdict in verdicts.items()
            if verdict.reported is not None
        ]
        if shown != self._shown:
            self._shown = shown
            self.streams.report(shown, now.date)

    def _advertise(self, inventory: Inventory[Device], verdicts: Mapping[Key, HealthVerdict]) -> None:
        self._published = _for_slices(verdicts)
        self._publish(advertised_inventory(inventory, verdicts))

    def _report(
        self,
        before: Mapping[Key, Mapping[str, HealthProblem]],
        after: Mapping[Key, Mapping[str, HealthProblem]],
        now: HealthTime,
    ) -> None:
        for key in {**before, **after}:
            old, new = before.get(key, {}), after.get(key, {})
            for reason in {**old, **new}:
                if (reason in old) is (reason in new):
                    continue
                problem, over = (old[reason], True) if reason in old else (new[reason], False)
                logger.log(
                    logging.INFO if over else logging.WARNING,
                    "device has recovered" if over else "device is unhealthy",
                    extra={"pool": key[0], "device": key[1], "reason": reason, "error": problem.message},
                )
                if not over:
                    self._recovery.begun(key, reason, now)
                text = f"{reason}: {problem.message}" if problem.message else reason
                self._changed(*key, text, healthy=over)

    async def _store(self, now: HealthTime) -> None:
        if not self._is_to_be_stored(now):
            return
        known = self._ledger.to_store()
        try:
            await run_in_thread_to_completion(self._file.write, known)
        except StoreError as error:  # the consequences are more urgent than the next process's knowledge
            if self._store_at is None:
                logger.error("health of devices cannot be stored", extra={"error": str(error), "code": error.code})
            self._store_at = now.seconds + STORE_AGAIN
        else:
            self._stored, self._store_at = _worth_storing(known), None

    def _is_to_be_stored(self, now: HealthTime) -> bool:
        different = _worth_storing(self._ledger.to_store()) != self._stored
        return different and (self._store_at is None or now.seconds >= self._store_at)


def _for_slices(verdicts: Mapping[Key, HealthVerdict]) -> object:
    return {key: (item.taints, item.withdrawn) for key, item in verdicts.items() if item.taints or item.withdrawn}


def _worth_storing(known: Sequence[StoredHealth]) -> object:
    """Return the part of the health that is worth storing: everything except the message of a problem."""
    return [
        (item.key, dict(item.identity), [(one.reason, one.value, one.since) for one in item.problems]) for item in known
    ]


_WAITING_MAX: Final = 1024
"""Maximum number of reports that wait for the main loop; a source that has more of them blocks."""


class HealthReports:
    """Runs a health source in a thread and queues its reports.

    ``arrived`` is called in the main loop when there are reports to :meth:`take`.
    """

    def __init__(self, source: HealthSource[Any, Any, Any], arrived: Callable[[], None]) -> None:
        self._source = source
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._queue: deque[HealthReport] = deque()
        self._stopping = False
        self._title = f"{type(source).__name__}.watch"
        self._thread = GeneratorThread(
            source.watch,
            self._deliver,
            failed=lambda _: None,
            words=GeneratorMessages(
                title=self._title,
                failed="health source failed; the last reports stay in effect",
                again="health source failed again",
                returns="write 'yield dra_kit.Healthy(device)'",
                empty="",
                code="invalid-health-report",
            ),
            logger=logger,
        )

    async def run(self) -> None:
        """Run the source until cancelled."""
        try:
            await self._thread.run()
        finally:
            with self._changed:
                self._stopping = True
                self._changed.notify_all()

    def take(self) -> list[HealthReport]:
        """Return the reports that have arrived, in order."""
        with self._changed:
            reports = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        return reports

    def hanging(self, patience: float) -> list[str]:
        """Return a line while a source that declares regular reports (``stale_after``) has sent none for too long.

        Any other source may wait for the next event for any time. Thread-safe.

        Args:
            patience: seconds in addition to ``stale_after``.
        """
        asked, stale_after, now = self._thread.asked, self._source.stale_after, time.monotonic()
        if asked is None or stale_after is None or not self._source.devices or now - asked <= stale_after + patience:
            return []
        return [f"{self._title} has not reported anything for {now - asked:.0f} s"]

    def _deliver(self, report: Any) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or len(self._queue) < _WAITING_MAX)
            self._queue.append(report)
            first = len(self._queue) == 1
        if first:
            call_threadsafe(self._loop, self._arrived)
        self._thread.asked = time.monotonic()


FILE: Final = "health.json"
"""Name of the file, in the state directory."""
_FORM: Final = 1
"""Format version; a release ignores a file of another version: misreading it would be worse."""


class HealthFile:
    """The file :data:`FILE` of the state directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None  # which file was read or written last

    def sweep(self) -> None:
        """Remove temporary files of a process that was killed while it wrote; a running process retries."""
        for unfinished in self._path.parent.glob(f".{self._path.name}.*"):
            unfinished.unlink(missing_ok=True)

    def read(self) -> list[StoredHealth]:
        """Return what was written last; nothing if the file is missing, or is corrupt, which is reported."""
        self._seen = self._signature()
        try:
            return [_stored_health(item) for item in _stored(self._path)]
        except (OSError, ValueError, KeyError, TypeError) as cause:
            error = _unreadable(self._path, cause)
            logger.error("health of devices is lost", extra={"error": str(error), "code": error.code})
            with suppress(OSError):  # the next write replaces it
                self._path.replace(_corrupt_name(self._path))
            return []

    def changes_of_other_process(self) -> list[StoredHealth]:
        """Return what another process has written since the last read or write of this one; nothing if none has."""
        return self.read() if self._signature() != self._seen else []

    def _signature(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None

    def write(self, known: Sequence[StoredHealth]) -> None:
        """Replace the stored health, durably.

        Raises:
            StoreError: the file cannot be written.
        """
        text = json.dumps([_json(item) for item in known])
        document = json.dumps({"form": _FORM, "checksum": checksum([text]), "devices": text})
        # not the process ID: in containers, both processes of an update have the same one
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            temporary.write_text(document)
            temporary.chmod(0o600)
            sync(temporary)
            temporary.replace(self._path)
            sync(self._path.parent)
            self._seen = self._signature()
        except OSError as error:
            raise StoreError(
                f"health of devices cannot be written to {self._path}: {error.strerror or error}; check that the disk "
                "is writable and not full (--state-dir)"
            ) from error
        hit(Failpoint.HEALTH_STORED)


def dump_health(path: Path) -> list[dict[str, Any]]:
    """Return the file's content for ``dra-kit node --dump-state``: devices with their problems; change nothing.

    Raises:
        StoreError: the file is corrupt or cannot be read.
    """
    try:
        return [{name: item[name] for name in ("pool", "device", "problems")} for item in _stored(path)]
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise _unreadable(path, cause) from cause


def _stored(path: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    text = document["devices"]
    if document["form"] != _FORM or document["checksum"] != checksum([text]):
        msg = "its checksum does not match its content"
        raise ValueError(msg)
    stored: list[dict[str, Any]] = json.loads(text)
    return stored


def _unreadable(path: Path, cause: Exception) -> StoreError:
    why = getattr(cause, "strerror", None) or f"{type(cause).__name__}: {cause}"
    return StoreError(
        f"health of devices in {path} cannot be read: {why}; the node renames the file to "
        f"{_corrupt_name(path).name}, and the driver's health source has to report the problems again",
        code="corrupt-health",
    )


def _corrupt_name(path: Path) -> Path:
    return path.with_name(f"{path.name}.corrupt")


def _json(item: StoredHealth) -> dict[str, Any]:
    pool, device = item.key
    problems = [
        {"reason": one.reason, "message": one.message, "value": one.value, "since": one.since.isoformat()}
        for one in item.problems
    ]
    return {"pool": pool, "device": device, "identity": dict(item.identity), "problems": problems}


def _stored_health(item: dict[str, Any]) -> StoredHealth:
    problems = tuple(
        HealthProblem(one["reason"], one["message"], one["value"], dt.datetime.fromisoformat(one["since"]))
        for one in item["problems"]
    )
    return StoredHealth((item["pool"], item["device"]), item["identity"], problems)


ASK_EVERY: Final = 10.0
"""Seconds between two calls of ``recovered`` for a device."""
ASK_AT_MOST: Final = 1.0
"""Maximum seconds until ``recovered`` is called when the source reports the device healthy."""
_Question: TypeAlias = tuple[Key, str]


class RecoveryPoller:
    """Calls ``recovered`` for sticky problems, and ``answered`` after each answer; used in the main loop."""

    def __init__(
        self,
        source: HealthSource[Any, Any, Any],
        ledger: HealthLedger,
        answered: Callable[[], None],
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._answered = answered
        self._under_way: dict[_Question, asyncio.Task[None]] = {}
        self._due: dict[_Question, float] = {}  # missing: at once, for problems older than this process
        self._failure = ""

    def begun(self, key: Key, reason: str, now: HealthTime) -> None:
        """Note that a problem takes effect; it is not checked for recovery at once."""
        self._due[key, reason] = now.seconds + ASK_EVERY

    def soon(self, healthy: Collection[tuple[str, str]], now: HealthTime) -> None:
        """Ask soon about devices, by name and reason, that are reported healthy; an empty reason means all."""
        for key, _, one in self._open():
            if (key[1], "") in healthy or (key[1], one) in healthy:
                self._due[key, one] = min(self._due.get((key, one), 0.0), now.seconds + ASK_AT_MOST)

    def ask(self, now: HealthTime) -> None:
        """Call ``recovered`` for everything that is due."""
        for key, device, reason in self._open():
            if now.seconds >= self._due.get((key, reason), 0.0):
                self._under_way[key, reason] = asyncio.ensure_future(self._question(key, reason, device))

    def due(self) -> float | None:
        """Return when :meth:`ask` has something to do."""
        return min((self._due.get((key, reason), 0.0) for key, _, reason in self._open()), default=None)

    def stop(self) -> None:
        """Stop waiting for answers."""
        for question in self._under_way.values():
            question.cancel()

    def _open(self) -> list[tuple[Key, Device, str]]:
        return [item for item in self._ledger.to_ask() if (item[0], item[2]) not in self._under_way]

    async def _question(self, key: Key, reason: str, device: Device) -> None:
        recovered = False
        try:
            recovered = bool(await call(self._source.recovered, device, reason))
        except Exception as error:
            text = str(error) if isinstance(error, DraKitError) else describe_error(error)
            if text != self._failure:
                logger.error(
                    "recovered failed; the device stays unhealthy",
                    extra={"device": device.name, "reason": reason, "error": text},
                    exc_info=author_exc_info(error, type(self._source).__module__),
                )
            self._failure = text
        now = health_time_now()
        self._due[key, reason] = now.seconds + ASK_EVERY
        del self._under_way[key, reason]
        self._ledger.answered(key, reason, now, recovered=recovered)
        self._answered()

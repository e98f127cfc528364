"""A node whose driver is killed again and again: what the cluster and the kubelet do, and what they remember."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypeVar

from dra_kit.errors import KubeletError
from dra_kit.kubelet.device_use import FILE_NAME
from dra_kit.kubelet.plugin_client import DeviceAnswer, PluginClient
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.state.store import dump_state
from dra_kit.sandbox.kubelet.claim_manager import Checkpoint, ClaimInfo
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager
from tests.crash.launch import CrashPoint, NodeProcess
from tests.support.api import Api, eventually
from tests.support.files import files_below

T = TypeVar("T")
DRIVER = "dra.bakery"
NODE = "node-1"
BAKERY = Path(__file__).with_name("bakery.py")
EFFECTS_INTERVAL = 0.2
"""Seconds between two looks whether effects hold."""
ORPHAN_AFTER = 0.3
"""Seconds from the first look that finds a claim gone to its release."""
PATIENCE = 60.0
"""Seconds in which a process starts, exits or answers, on the slowest machine."""


@dataclass
class Claim:
    """A claim, and the answer that the kubelet received.

    Attributes:
        devices: what it is allocated.
        config: of the claim.
        answer: of the prepare call; None if it is not prepared.
    """

    reference: ClaimReference
    devices: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    answer: tuple[DeviceAnswer, ...] | None = None

    @property
    def uid(self) -> str:
        return self.reference.uid


@dataclass
class Counts:
    """What a run consisted of."""

    starts: int = 0
    calls: int = 0
    crashes: list[str] = field(default_factory=list)


Counted: TypeAlias = Callable[[Counts], None]
"""The fixture that takes what a run consisted of."""


class World:
    """An asynchronous context manager.

    Attributes:
        claims: those that are prepared, or that the kubelet is about to prepare, by UID.
        removed: which kind of `dra-kit decommission` the driver's processes run since it was removed.
        ended: `dra-kit decommission` has found that nothing is left, and is not started again.
        menu: pools, their devices and what each is made of.
        counts: what happened.
    """

    node = NODE

    def __init__(self, directory: Path, style: str = "full") -> None:
        self.directory = directory
        self.style = style
        self.smoking: set[str] = set()
        self.root = directory / "node" / "k"
        self.cdi = directory / "node" / "cdi"
        self.bakery = directory / "node" / "bakery"
        self.state = directory / "node" / "state"
        self._boot_id = directory / "node" / "boot-id"
        for path in (self.root, self.bakery / "hardware", self.bakery / "gates", directory / "processes"):
            path.mkdir(parents=True)
        self.api = Api()
        self.kubelet = PluginManager(self.root, get_info_timeout=60, call_timeout=60, release=UNMODIFIED)
        self._checkpoint = Checkpoint(self.root)
        self._remembered: dict[str, ClaimInfo] = {}
        self.claims: dict[str, Claim] = {}
        self.menu: dict[str, dict[str, str]] = {}
        self.counts = Counts()
        self.removed: Literal["", "ends", "stays"] = ""
        self.ended = False
        self.processes: list[NodeProcess] = []
        self.past: list[NodeProcess] = []
        self._names = itertools.count(1)
        self._pod = itertools.count(1)
        self._boot = itertools.count(1)
        self._starting = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._stack.enter_context(self.api)
        self.api.put("nodes", {"metadata": {"name": NODE}})
        self._kubeconfig = self.api.kubeconfig(self.directory / "kubeconfig")
        await self._stack.enter_async_context(self.kubelet)
        self.publish({NODE: {f"pan-{number}": "iron" for number in range(6)}})
        self.new_pod()
        self._new_boot()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for process in (*self.processes, *self.past):
            process.close()
        await self._stack.aclose()

    # -- the cluster

    def publish(self, menu: dict[str, dict[str, str]]) -> None:
        """The hardware is this from now on."""
        self.menu = menu
        self._write("menu.json", menu)

    def smell(self, *pans: str) -> None:
        """These pans smoke, and no others; those that did are bad until they are put out."""
        self.smoking |= set(pans)
        self._write("smoke.json", pans)

    def put_out(self, *pans: str) -> None:
        """These pans do not smoke any more."""
        self.smoking -= set(pans)
        self._write("put-out.json", pans)

    def tell(self, facts: dict[str, dict[str, str]]) -> None:
        """The author's code learns attributes of pans."""
        self._write("facts.json", facts)

    def _write(self, name: str, content: object) -> None:
        path = self.bakery / name
        path.with_suffix(".new").write_text(json.dumps(content))
        path.with_suffix(".new").replace(path)

    def allocate(self, devices: Sequence[str], claim: Claim | None = None, **config: Any) -> Claim:
        """Create a claim with these devices, or reallocate one."""
        if claim is None:
            name = f"claim-{next(self._names)}"
            claim = Claim(ClaimReference("default", name, f"uid-{name}"), ())
        claim.devices, claim.config = tuple(devices), config
        parameters = {"apiVersion": "bakery.example/v1", "kind": "BakeConfig", **config}
        results = [{"request": "pan", "driver": DRIVER, "pool": NODE, "device": item} for item in devices]
        entries = [
            {"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER, "parameters": parameters}},
        ]
        metadata = {"name": claim.reference.name, "namespace": "default", "uid": claim.uid}
        status = {"allocation": {"devices": {"results": results, "config": entries}}}
        self.api.put("resourceclaims", {"metadata": metadata, "spec": {}, "status": status})
        return claim

    def delete(self, claim: Claim) -> None:
        """The claim object goes, whatever the node has."""
        self.api.delete("resourceclaims", claim.reference.name, "default")

    def lose(self, switch: str) -> None:
        """Hardware is reset behind the driver's back."""
        (self.bakery / "hardware" / f"{switch}.json").unlink(missing_ok=True)

    def hold_up_discovery(self, *, closed: bool) -> None:
        """Whether processes that start from now on find no pans, and those that wait for them find none yet."""
        gate = self.bakery / "gates" / "discover.closed"
        if closed:
            gate.touch()
        else:
            gate.unlink()

    def open_gate(self, name: str) -> None:
        (self.bakery / "gates" / f"{name}.open").touch()

    def entered(self, name: str) -> bool:
        """Whether a prepare waits, or has waited, at that gate."""
        return (self.bakery / "gates" / f"{name}.entered").exists()

    # -- processes

    def new_pod(self) -> None:
        """What is started from now on is of a new pod: its sockets have other names."""
        self._pod_uid = f"pod-{next(self._pod)}"

    async def start(self, crash: CrashPoint | None = None, *, waits: bool = False) -> NodeProcess:
        """One more process, which the kubelet calls from now on, unless it ends before.

        Args:
            crash: where it kills itself.
            waits: it waits for an older one instead.
        """
        number = self.counts.starts
        self.counts.starts += 1
        process = NodeProcess(
            self.directory / "processes" / str(number),
            [
                *self._command(), "--node-name", NODE, "--kubeconfig", str(self._kubeconfig), "--kubelet-dir",
                str(self.root), "--cdi-dir", str(self.cdi), "--log-format", "json",
            ],
            {"BAKERY": str(self.bakery), "BAKERY_STYLE": self.style},
            pod_uid=self._pod_uid,
            watched=self.directory / "node",
            boot_id=self._boot_id,
            further={"effects_interval": EFFECTS_INTERVAL, "orphan_after": ORPHAN_AFTER},
        )  # fmt: skip
        before = set(self.kubelet.plugins(DRIVER))
        process.start(crash)
        self.processes.append(process)

        def called() -> bool:
            return any(client.connected for client in self.kubelet.plugins(DRIVER) if client not in before)

        def started() -> bool:
            return "registration is deferred" in process.log() if waits else called()

        await eventually(lambda: started() or not process.alive, PATIENCE)
        return process

    def _command(self) -> list[str]:
        if self.removed:
            return ["decommission", str(self.state), str(BAKERY), *(["--stay"] if self.removed == "stays" else [])]
        return ["node", str(BAKERY), "--state-dir", str(self.state)]

    async def running(self, crashes: Iterable[CrashPoint | None] = ()) -> None:
        """Start a process unless one runs, as the kubelet restarts a container; `decommission` may have exited.

        Args:
            crashes: of the processes that it starts, in their order; what is left of an iterator is for the next call.
        """
        planned = iter(crashes)
        async with self._starting:
            while not self.ended:
                # one look at each: a process that ends between two would be replaced before it is buried
                alive = [process for process in self.processes if process.alive]
                for process in [item for item in self.processes if item not in alive]:
                    self.bury(process)
                if alive or self.ended:
                    return
                await self.start(next(planned, None))

    def bury(self, process: NodeProcess) -> None:
        """It was killed; `dra-kit decommission` may also have exited because nothing is left."""
        self.processes.remove(process)
        self.past.append(process)
        has_ended = bool(self.removed) and process.exit_code == 0
        assert has_ended or process.exit_code == -signal.SIGKILL, f"ended with {process.exit_code}\n{process.log()}"
        self.ended = self.ended or has_ended
        if process.crashed_at:
            self.counts.crashes.append(process.crashed_at)

    def remove_driver(self, *, stays: bool) -> None:
        """From now on the driver's processes run `dra-kit decommission`; the kubelet's checkpoint has the claims.

        Args:
            stays: they go on when nothing is left, as the pod of a DaemonSet does.
        """
        self.removed = "stays" if stays else "ends"
        self.new_pod()
        for claim in self.claims.values():
            self._remembered[claim.uid] = ClaimInfo(claim.reference, {"uid-pod"}, {DRIVER: ()})
        self._checkpoint.store(self._remembered.values())

    async def stop(self, process: NodeProcess, crash: CrashPoint | None = None) -> None:
        """SIGTERM; with a crash on the way, perhaps."""
        if crash is not None:
            process.arm(crash)
        process.send(signal.SIGTERM)
        self.processes.remove(process)
        self.past.append(process)
        await exited(process)
        if process.crashed_at:
            self.counts.crashes.append(process.crashed_at)
        else:
            assert process.exit_code in {0, -signal.SIGKILL}, f"ended with {process.exit_code}\n{process.log()}"

    async def stop_all(self) -> None:
        """SIGTERM to each process, one after the other."""
        for process in list(self.processes):
            await self.stop(process)

    def reboot(self) -> None:
        """The power goes and comes back: no process, nothing in the hardware, and nothing in /run."""
        for process in self.processes:
            process.send(signal.SIGKILL)
            process.join()
        for directory in (self.bakery / "hardware", self.cdi):
            for path in directory.iterdir() if directory.exists() else ():
                path.unlink()
        self._new_boot()

    def _new_boot(self) -> None:
        self._boot_id.write_text(f"boot-{next(self._boot)}\n")

    def corrupt_state(self) -> None:
        """Corrupt the database so that sqlite rejects it although all rows are readable."""
        path = self.state / "state.sqlite"
        with closing(sqlite3.connect(path, timeout=30)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as file:
            file.seek(32)  # the list of free pages: where it begins, and how many there are
            file.write(b"\x00\x00\x00\x7f\x00\x00\x00\x05")

    # -- the kubelet, which asks until it is answered

    async def prepare(self, *claims: Claim) -> None:
        """One call for all, repeated until each is prepared; an answer given before is given again."""
        for claim in claims:
            self.claims[claim.uid] = claim
        references = [claim.reference for claim in claims]

        async def ask(client: PluginClient) -> str:
            answers = await client.prepare(references)
            for claim in claims:
                if not answers[claim.uid].error:
                    devices = answers[claim.uid].devices
                    assert claim.answer in {None, devices}, f"{claim} is answered {devices} now"
                    claim.answer = devices
            return "; ".join(answer.error for answer in answers.values() if answer.error)

        await self._until_answered(ask)

    @contextmanager
    def remembered(self, claim: Claim) -> Iterator[None]:
        """Meanwhile the kubelet's checkpoint lists a claim: then no time that passes makes it an orphan."""
        self._remembered[claim.uid] = ClaimInfo(claim.reference, {"uid-pod"}, {DRIVER: ()})
        self._checkpoint.store(self._remembered.values())
        try:
            yield
        finally:
            del self._remembered[claim.uid]
            self._checkpoint.store(self._remembered.values())
            if not self._remembered:
                (self.root / FILE_NAME).unlink()

    async def prepare_once(self, claim: Claim) -> bool:
        """One call, with no repetition; whether it was prepared."""
        try:
            answers = await _asked(self.kubelet.plugin(DRIVER).prepare([claim.reference]))
        except KubeletError:
            return False
        if answers[claim.uid].error:
            return False
        claim.answer = answers[claim.uid].devices
        return True

    async def unprepare_once(self, claim: Claim) -> bool:
        """One call, with no repetition; whether it was answered."""
        try:
            return not (await _asked(self.kubelet.plugin(DRIVER).unprepare([claim.reference])))[claim.uid]
        except KubeletError:
            return False

    async def unprepare(self, *claims: Claim) -> None:
        """One call for all, repeated until each is released."""
        references = [claim.reference for claim in claims]

        async def ask(client: PluginClient) -> str:
            return "; ".join(filter(None, (await client.unprepare(references)).values()))

        await self._until_answered(ask)
        for claim in claims:
            self.claims.pop(claim.uid, None)
            claim.answer = None
            if self.removed:
                self._remembered.pop(claim.uid, None)
                self._checkpoint.store(self._remembered.values())

    async def _until_answered(self, ask: Callable[[PluginClient], Coroutine[Any, Any, str]]) -> None:
        error = ""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    await self.running()
                    self.counts.calls += 1
                    try:
                        error = await _asked(ask(self.kubelet.plugin(DRIVER)))
                    except KubeletError as failure:
                        error = str(failure)
                    if not error:
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"the kubelet is still answered {error!r}\n{self.logs()}") from None

    # -- what is there

    @property
    def pods(self) -> list[str]:
        """UIDs of the pods whose processes run."""
        return [process.pod_uid for process in self.processes]

    def files(self) -> set[Path]:
        """All files and sockets of the node."""
        return files_below(self.root, self.cdi, self.state)

    def objects(self, plural: str) -> list[dict[str, Any]]:
        """What the API server has."""
        return self.api.objects(plural)

    def dump(self) -> dict[str, Any]:
        return dump_state(self.state / "state.sqlite")

    def logs(self) -> str:
        """The last lines of the last processes."""
        texts = ["\n".join(process.log().splitlines()[-40:]) for process in (*self.past, *self.processes)]
        return "\n---\n".join(texts[-4:])


async def exited(process: NodeProcess) -> None:
    """Wait until it has ended."""
    await eventually(lambda: not process.alive, PATIENCE)


async def _asked(call: Awaitable[T]) -> T:
    """The outcome of a call; one that the end of its connection cancels is an error like any other.

    Raises:
        KubeletError: in that case.
    """
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise KubeletError("the connection was closed") from None


@asynccontextmanager
async def world(style: str = "full") -> AsyncIterator[World]:
    """A world in a directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="w") as directory:
        async with World(Path(directory), style) as made:
            yield made

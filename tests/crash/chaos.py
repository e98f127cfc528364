"""Random histories of a node. The seed decides the events, but not how threads race."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from dra_kit.node.failpoints import Failpoint
from tests.crash.decommission import decommissioned
from tests.crash.invariants import check, check_decommissioned, check_stopped
from tests.crash.launch import FILE_CHANGE, CrashPoint, NodeProcess
from tests.crash.world import NODE, Claim, World
from tests.support.api import eventually

ROUNDS = 6
MAKES = ("iron", "steel", "clay")
STYLES = ("full", "effects", "plain")


class Chaos:
    """One life.

    Args:
        world: a fresh one.
        seed: decides what happens.
    """

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = random.Random(seed)  # noqa: S311 - to be repeated
        self._ovens: dict[str, int] = {}
        self._gates = 0
        self._busy: set[str] = set()

    async def live(self) -> None:
        """Start, run rounds of concurrent events, and stop with nothing left."""
        world = self._world
        await world.running([self._crash()])
        for _ in range(ROUNDS):
            self._arm()
            self._busy = set()
            await asyncio.gather(*(self._something() for _ in range(self._random.choice((1, 1, 2, 3)))))
            if self._random.random() < 0.2:
                await self._choose(
                    (
                        (3, self._restart),
                        (3, self._rolling_update),
                        (3, self._killed),
                        (2, self._rebooted),
                        (1, self._state_corrupted),
                    )
                )
            await self._settled()
        self._arm()
        if self._random.random() < 0.7:
            await world.unprepare(*world.claims.values())
            await self._settled()
            await world.running()  # the last one may have crashed while it was disarmed; its sockets need another one
            await world.stop_all()
            check_stopped(world)
        else:
            await self._removed()
            check_decommissioned(world)

    async def _settled(self) -> None:
        """Disarm all crashes and check the invariants."""
        for process in self._world.processes:
            process.arm(None)
        await check(self._world)

    async def _removed(self) -> None:
        """Uninstall the driver while pods run; then delete the pods."""
        world = self._world
        world.remove_driver(stays=self._random.random() < 0.5)
        for process in list(world.processes):
            if self._random.random() < 0.5:
                process.send(signal.SIGKILL)
            else:
                await world.stop(process, self._crash())
        await world.running([self._crash()])
        claims = list(world.claims.values())
        self._random.shuffle(claims)
        while claims:
            self._arm()
            number = self._random.randint(1, 3)
            await world.unprepare(*claims[:number])
            claims = claims[number:]
        self._arm()
        await decommissioned(world, iter([self._crash() for _ in range(3)]))

    # -- crashes

    def _crash(self) -> CrashPoint | None:
        kind = self._random.random()
        if kind < 0.25:
            return None
        if kind < 0.5:
            return CrashPoint(FILE_CHANGE, self._random.randint(1, 40))
        return CrashPoint(self._random.choice(list(Failpoint)).value, self._random.choice((1, 1, 1, 2, 2, 3, 5)))

    def _arm(self) -> None:
        for process in self._world.processes:
            process.arm(self._crash())

    # -- what happens

    async def _something(self) -> None:
        await self._choose(
            (
                (6, self._arrive),
                (4, self._leave),
                (1, self._asked_again),
                (2, self._reallocated),
                (1, self._deleted_first),
                (1, self._forgotten),
                (2, self._replugged),
                (2, self._lost),
                (1, self._pool_comes_or_goes),
                (2, self._released_meanwhile),
            )
        )

    def _choose(self, choices: tuple[tuple[int, Callable[[], Coroutine[Any, Any, None]]], ...]) -> Awaitable[None]:
        [chosen] = self._random.choices([do for _, do in choices], [weight for weight, _ in choices])
        return chosen()

    def _devices(self, limit: int = 2) -> list[str]:
        used = {device for claim in self._world.claims.values() for device in claim.devices} | self._busy
        free = [pan for pan in self._world.menu[NODE] if pan not in used]
        chosen = self._random.sample(free, min(len(free), self._random.randint(1, limit)))
        self._busy.update(chosen)
        return chosen

    def _claims(self, limit: int = 1) -> list[Claim]:
        free = [claim for claim in self._world.claims.values() if claim.uid not in self._busy and claim.answer]
        chosen = self._random.sample(free, min(len(free), self._random.randint(1, limit)))
        self._busy.update(claim.uid for claim in chosen)
        return chosen

    def _config(self) -> dict[str, Any]:
        """Use the temperature of an oven that other claims use, else any temperature."""
        oven = self._random.choice(("left", "right"))
        used = any(claim.config.get("oven") == oven for claim in self._world.claims.values()) or oven in self._busy
        if not used or oven not in self._ovens:
            self._ovens[oven] = self._random.choice((180, 220, 250))
        self._busy.add(oven)
        return {
            "oven": oven,
            "temperature": self._ovens[oven],
            "coating": self._random.choice(("none", "teflon", "enamel")),
        }

    async def _arrive(self) -> None:
        claims = []
        for _ in range(self._random.randint(1, 3)):
            if devices := self._devices():
                claims.append(self._world.allocate(devices, **self._config()))
                self._busy.add(claims[-1].uid)
        if claims:
            await self._world.prepare(*claims)

    async def _leave(self) -> None:
        if claims := self._claims(3):
            await self._world.unprepare(*claims)

    async def _asked_again(self) -> None:
        if claims := self._claims(3):
            await self._world.prepare(*claims)

    async def _reallocated(self) -> None:
        """Other devices, or another config, after the kubelet has released it; or its containers may still run."""
        for claim in self._claims():
            devices, config = self._devices() or list(claim.devices), self._config()
            if self._random.random() < 0.5 or (tuple(devices), config) == (claim.devices, claim.config):
                await self._world.unprepare(claim)
                self._world.allocate(devices, claim, **config)
            else:
                with self._world.remembered(claim):
                    self._world.allocate(devices, claim, **config)
                    claim.answer = None
                    await self._world.running()
                    assert not await self._world.prepare_once(claim), f"the containers of {claim} may run"
            await self._world.prepare(claim)

    async def _deleted_first(self) -> None:
        for claim in self._claims(2):
            self._world.delete(claim)
            await self._world.unprepare(claim)

    async def _forgotten(self) -> None:
        """A pod is deleted by force: its claim is gone at once, its devices stay until the kubelet has released it."""
        for claim in self._claims():
            with self._world.remembered(claim):
                self._world.delete(claim)
                other = self._world.allocate(claim.devices, **self._config())
                self._busy.add(other.uid)
                await self._world.running()
                assert not await self._world.prepare_once(other), f"the containers of {claim} may run"
                await self._world.unprepare(claim)
            await self._world.prepare(other)

    async def _replugged(self) -> None:
        pan = self._random.choice(list(self._world.menu[NODE]))
        pans = self._world.menu[NODE] | {pan: self._random.choice(MAKES)}
        self._world.publish(self._world.menu | {NODE: pans})

    async def _lost(self) -> None:
        """Turn off hardware that claims need."""
        switches = [path.stem for path in (self._world.bakery / "hardware").glob("*.json")]
        for switch in self._random.sample(sorted(switches), min(len(switches), 2)):
            self._world.lose(switch)

    async def _pool_comes_or_goes(self) -> None:
        menu = {NODE: self._world.menu[NODE]}
        if "cellar" not in self._world.menu:
            menu["cellar"] = {f"pan-{number}": "iron" for number in range(10, 10 + self._random.randint(1, 3))}
        self._world.publish(menu)

    async def _released_meanwhile(self) -> None:
        """Release a claim while it is being prepared; afterwards it must be released."""
        devices = self._devices()
        if not devices:
            return
        self._gates += 1
        gate = f"gate-{self._gates}"
        claim = self._world.allocate(devices, gate=gate, **self._config())
        self._busy.add(claim.uid)
        self._world.claims[claim.uid] = claim
        await self._world.running()
        asking = asyncio.create_task(self._world.prepare_once(claim))
        await eventually(lambda: asking.done() or self._world.entered(gate))
        releasing = asyncio.create_task(self._world.unprepare(claim))
        if self._random.random() < 0.5:
            await asyncio.sleep(self._random.random() * 0.02)
        self._world.open_gate(gate)
        await asyncio.gather(asking, releasing)
        claim.answer = None

    # -- processes come and go

    async def _restart(self) -> None:
        for process in list(self._world.processes):
            await self._world.stop(process, self._crash())
        if self._random.random() < 0.5:
            self._world.new_pod()
        await self._world.running([self._crash()])

    async def _killed(self) -> None:
        for process in self._world.processes:
            process.send(signal.SIGKILL)
        await self._world.running([self._crash()])

    async def _rebooted(self) -> None:
        """Reboot; the kubelet prepares the claims of its pods again."""
        self._world.reboot()
        await self._world.running([self._crash()])
        await self._world.prepare(*self._world.claims.values())

    async def _state_corrupted(self) -> None:
        """Corrupt the database; the next process repairs it without loss."""
        await self._world.stop_all()
        self._world.corrupt_state()
        await self._world.running([self._crash()])

    async def _rolling_update(self) -> None:
        """Start a second process; stop the first one cleanly, or kill it."""
        world = self._world
        await world.running()
        old = list(world.processes)
        self._busy = set()
        before = asyncio.gather(*(self._something() for _ in range(2)))
        world.new_pod()
        await world.start(self._crash())
        after = asyncio.gather(*(self._something() for _ in range(2)))
        await asyncio.gather(before, after, *(self._replaced(process) for process in old))

    async def _replaced(self, process: NodeProcess) -> None:
        if self._random.random() < 0.5:
            process.arm(self._crash())
        else:
            process.send(signal.SIGKILL)
        if process in self._world.processes:
            await self._world.stop(process)

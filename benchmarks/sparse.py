"""``python -m benchmarks.sparse``: how the time of a call is spent, in consecutive calls and after rest.

For each call: how long it took, processor time of the driver's process, how often its threads gave the processor up or
lost it, page faults; then what it ran through: functions and modules of Python, and characters of JSON that were read.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.calls import Caller, Side
from benchmarks.turns import REST
from benchmarks.world import DRIVER, World, world
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.cluster.find import NotFound, find
from tests.cluster.plane import PlaneError, start

_CLAIMS = 100
_NAMES = {"prepare": "prepare one claim", "prepare_again": "the same again", "unprepare": "unprepare"}
_SHOWN = 12


@dataclass
class Spent:
    """The sum of the costs of calls of one kind."""

    calls: list[float] = field(default_factory=list)  # milliseconds
    cpu: float = 0.0  # milliseconds
    faults: int = 0
    switches: Counter[str] = field(default_factory=Counter)  # by thread
    woken: Counter[str] = field(default_factory=Counter)  # calls in which the thread ran


@dataclass(frozen=True)
class _Thread:
    cpu: int  # nanoseconds
    switches: int


def _threads(pid: int) -> dict[str, _Thread]:
    found = {}
    for directory in Path(f"/proc/{pid}/task").iterdir():
        lines = (directory / "status").read_text().splitlines()
        switches = sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
        cpu = int((directory / "schedstat").read_text().split()[0])
        found[f"{(directory / 'comm').read_text().strip()} {directory.name}"] = _Thread(cpu, switches)
    return found


def _faults(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[7]) + int(fields[9])


def measure(pid: int, caller: Caller, claims: Sequence[ClaimReference], rest: float) -> dict[str, Spent]:
    """Prepare each claim twice and unprepare it; return the costs of each kind of call."""
    side = Side(caller, claims, rest=rest)
    figures = {"prepare": side.figures.one, "prepare_again": side.figures.again, "unprepare": side.figures.released}
    spent = {name: Spent(figures[name]) for name in figures}
    for number in range(len(claims)):
        for what in Side.ONE_BY_ONE:
            here = spent[what.__name__]
            threads, faults = _threads(pid), _faults(pid)
            what(side, slice(number, number + 1))
            here.faults += _faults(pid) - faults
            for name, after in _threads(pid).items():
                before = threads.get(name, _Thread(0, 0))
                here.cpu += (after.cpu - before.cpu) / 1e6
                if after.switches > before.switches:
                    here.switches[name] += after.switches - before.switches
                    here.woken[name] += 1
    return spent


async def ran_through(made: World, claim: ClaimReference) -> dict[str, tuple[list[str], int]]:
    """Return for each kind of call its functions and the characters of JSON that it reads."""
    file = made.directory / "touched.json"
    found = {}
    async with made.running(under=("benchmarks.touched", file)) as (kubelet, process):
        caller = Caller(kubelet, DRIVER)
        side = Side(caller, [claim])
        for _ in range(3):  # the first round imports modules and fills caches
            for what in Side.ONE_BY_ONE:
                _told(process, file)
                what(side, slice(None))
                await asyncio.sleep(REST)  # until woken threads have finished
                found[what.__name__] = _told(process, file)
        caller.close()
    return found


def _told(process: subprocess.Popen[bytes], file: Path) -> tuple[list[str], int]:
    file.unlink(missing_ok=True)
    process.send_signal(signal.SIGUSR1)
    while not file.exists():
        time.sleep(0.01)
    answer = json.loads(file.read_text())
    return answer["functions"], answer["json"]


def _show(by_rest: dict[float, dict[str, Spent]], through: dict[str, tuple[list[str], int]]) -> None:
    print(f"{'':28}{'ms, p50':>9}{'CPU ms':>9}{'switches':>10}{'threads':>9}{'faults':>8}")
    for kind, title in _NAMES.items():
        for rest, spent in by_rest.items():
            here = spent[kind]
            calls = len(here.calls)
            threads = sum(here.woken.values()) / calls
            print(
                f"{title + (', after rest' if rest else ', tight'):28}{statistics.median(here.calls):9.2f}"
                f"{here.cpu / calls:9.2f}{here.switches.total() / calls:10.1f}{threads:9.1f}{here.faults / calls:8.1f}"
            )
    for kind, title in _NAMES.items():
        functions, decoded = through[kind]
        modules = {name.rpartition(":")[0] for name in functions}
        print(f"\n{title}: {len(functions)} functions of {len(modules)} modules, {decoded} characters of JSON read")
        rooms: dict[str, int] = defaultdict(int)
        for name in functions:
            rooms[_room(name)] += 1
        for room, count in sorted(rooms.items(), key=lambda item: -item[1])[:_SHOWN]:
            print(f"  {count:4} functions in {room}")
        for name, count in by_rest[REST][kind].switches.most_common(_SHOWN):
            print(f"  {count / len(by_rest[REST][kind].calls):4.1f} times switched: thread {name}")


def _room(name: str) -> str:
    """Return the folder of dra_kit, the package, or the Python module of a function."""
    path = name.rpartition(":")[0]
    _, ours, below = path.rpartition("/dra_kit/")
    if ours:
        return "/".join(["dra_kit", *below.split("/")[:2]])
    return path.rpartition("site-packages/")[2].partition("/")[0] if "site-packages" in path else Path(path).name


async def _measured(kubeconfig: Path, directory: Path) -> None:
    async with (
        Client(await load_credentials(kubeconfig), user_agent="bench") as client,
        world(client, kubeconfig, directory) as made,
    ):
        by_rest = {}
        claims = await made.make_claims(_CLAIMS)
        async with made.running() as (kubelet, process):
            caller = Caller(kubelet, DRIVER)
            for rest in (0.0, REST):
                by_rest[rest] = measure(process.pid, caller, claims, rest)
            caller.close()
        through = await ran_through(made, claims[0])
        await made.delete_claims(claims)
    _show(by_rest, through)


def main() -> int:
    try:
        with start(replace(find(), node=False)) as plane:
            asyncio.run(_measured(plane.kubeconfig, plane.directory))
    except (NotFound, PlaneError) as error:
        print(f"nothing to measure without a real API server: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

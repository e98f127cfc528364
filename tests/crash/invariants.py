"""Invariants of an idle node, after any crashes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dra_kit.kubelet.cdi.store import spec_file_name
from dra_kit.kubelet.device_use import FILE_NAME
from dra_kit.kubelet.sockets import operation_link, operation_socket, plugin_socket, registration_socket
from tests.crash.world import DRIVER, Claim, World

_STATE = {f"state.sqlite{suffix}" for suffix in ("", "-wal", "-shm", "-lock", "-transactions")}
_STATE |= {"claims.lock", "devices.lock", "calls.lock", "effects.lock"}  # made once, and without content
_STATE |= {"health.json"}
PATIENCE = 60.0
"""Seconds until all invariants hold; shorter than the periodic check of the publisher (35 s)."""


class Observed(Protocol):
    """A node with the bakery on it, simulated or real."""

    @property
    def node(self) -> str:
        """Name of the Node."""

    @property
    def style(self) -> str:
        """``BAKERY_STYLE`` of the driver."""

    @property
    def menu(self) -> Mapping[str, Mapping[str, str]]:
        """Pools, their pans and what each is made of."""

    @property
    def smoking(self) -> Collection[str]:
        """Pans that must be tainted."""

    @property
    def claims(self) -> Mapping[str, Claim]:
        """By UID, what the kubelet prepared or is about to prepare."""

    @property
    def pods(self) -> Sequence[str]:
        """UIDs of the pods whose processes run, one for each process."""

    @property
    def root(self) -> Path:
        """The kubelet's root directory."""

    @property
    def cdi(self) -> Path:
        """Of the CDI specs."""

    @property
    def state(self) -> Path:
        """Of the durable state."""

    @property
    def bakery(self) -> Path:
        """The driver's hardware and its switches."""

    def files(self) -> Collection[Path]:
        """All files and sockets that the driver may have made in ``root``, ``cdi`` and ``state``."""

    def objects(self, plural: str) -> Sequence[Mapping[str, Any]]:
        """ResourceSlices of the driver, or ResourceClaims."""

    def dump(self) -> Mapping[str, Any]:
        """Records, effects and epochs."""


async def check(world: World) -> None:
    """Wait until all invariants hold.

    Raises:
        AssertionError: with the violated invariants and the logs of the last processes.
    """
    problems: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                await world.running()
                problems = problems_of(world)
                if not problems:
                    break
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError("\n".join([*problems, world.logs()])) from None
    for process in world.processes:
        assert "Traceback" not in process.log(), process.log()


async def check_end(world: World) -> None:
    """Release all claims and stop all processes, and check that nothing is left."""
    await world.unprepare(*world.claims.values())
    await check(world)
    await world.stop_all()
    check_stopped(world)


def check_stopped(world: World) -> None:
    """Everything was released and every process has ended in order: nothing is left but the state and the slices."""
    assert not world.claims
    assert not world.processes
    problems = [*_of_state(world, {}, {}), *_of_files(world, {}), *_of_slices(world), *_of_hardware(world, {})]
    problems += _of_dough(world, {})
    assert not problems, "\n".join([*problems, world.logs()])


def check_decommissioned(world: World) -> None:
    """After `dra-kit decommission` has exited, nothing of the driver is left on the node or in the cluster."""
    assert not world.claims
    assert not [process for process in world.processes if process.alive], world.logs()
    problems = [*_of_hardware(world, {}), *_of_dough(world, {})]
    found = {path for path in world.files() if ".corrupt-" not in path.name and path.name != FILE_NAME}
    problems += [f"left over {path}" for path in sorted(found)]
    if world.state.exists() and not any(world.state.iterdir()):
        problems.append(f"left over {world.state}, empty")
    problems += [f"left over ResourceSlice {item['metadata']['name']}" for item in world.objects("resourceslices")]
    assert not problems, "\n".join([*problems, world.logs()])


def problems_of(world: Observed) -> list[str]:
    """Return the invariants that are violated now."""
    live = {uid: claim for uid, claim in world.claims.items() if claim.answer is not None}
    wanted = _wanted_effects(world, live)
    problems = [*_of_hardware(world, wanted), *_of_state(world, live, wanted), *_of_files(world, live)]
    problems += [*_of_slices(world), *_of_dough(world, live)]
    if not problems:
        for claim in live.values():
            problems += _of_claim(world, claim)
    return problems


def _wanted_effects(world: Observed, live: dict[str, Claim]) -> dict[str, tuple[str, set[str]]]:
    """By name of the switch: what is on, and the claims that need it."""
    if world.style == "plain":
        return {}
    wanted: dict[str, tuple[str, set[str]]] = {}
    for claim in live.values():
        config = {"oven": "left", "temperature": 200, "coating": "none"} | claim.config
        needs = {f"oven-{config['oven']}": f"{config['temperature']}"}
        needs |= {f"pan-{pan}": f"{world.menu[world.node][pan]} {config['coating']}" for pan in claim.devices}
        for switch, what in needs.items():
            wanted.setdefault(switch, (what, set()))[1].add(claim.uid)
    return wanted


def _of_hardware(world: Observed, wanted: dict[str, tuple[str, set[str]]]) -> list[str]:
    found = {path.name: _json(path).get("what") for path in (world.bakery / "hardware").iterdir()}
    expected = {f"{switch}.json": what for switch, (what, _) in wanted.items()}
    problems = [] if found == expected else [f"hardware is {found}, live claims need {expected}"]
    violations = world.bakery / "violations"
    return [*problems, violations.read_text()] if violations.exists() else problems


def _of_dough(world: Observed, live: dict[str, Claim]) -> list[str]:
    """What only the driver's own ``unprepare`` undoes, also after a prepare that failed or was killed."""
    folder = world.bakery / "dough"
    found = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    expected = sorted(f"{uid}.{pan}" for uid, claim in live.items() for pan in claim.devices)
    if found == (expected if world.style == "full" else []):
        return []
    return [f"dough {found} lies about, live claims need {expected}"]


def _of_state(world: Observed, live: dict[str, Claim], wanted: dict[str, tuple[str, set[str]]]) -> list[str]:
    state = world.dump()
    problems = []
    records = {
        item["uid"]: (item["phase"], [device["device"] for device in item["devices"]]) for item in state["claims"]
    }
    expected = {uid: ("prepared", list(claim.devices)) for uid, claim in live.items()}
    if records != expected:
        problems.append(f"records are {records}, not {expected}")
    effects = {_switch(item): (item["phase"], {claim["uid"] for claim in item["claims"]}) for item in state["effects"]}
    needed = {(switch, what): ("applied", uids) for switch, (what, uids) in wanted.items()}
    if effects != needed or len(effects) != len(state["effects"]):
        problems.append(f"effects are {effects}, not {needed}")
    if state["epochs"]:
        problems.append(f"epochs {state['epochs']} are left")
    return problems


def _switch(effect: dict[str, Any]) -> tuple[str, str]:
    spec = json.loads(effect["spec"])
    if effect["effect"] == "heat":
        return f"oven-{spec['oven']}", f"{spec['temperature']}"
    return f"pan-{spec['pan']}", f"{spec['make']} {spec['coating']}"


def _of_files(world: Observed, live: dict[str, Claim]) -> list[str]:
    """Every file and socket below the node's directories, against what may be there."""
    expected = {world.cdi / spec_file_name(DRIVER, uid) for uid in live}
    if world.style != "plain":
        expected |= {world.state / "device-metadata" / f"claim-{uid}" / "pan" / "metadata.json" for uid in live}
    expected |= {plugin_socket(world.root, DRIVER, uid) for uid in world.pods}
    expected |= {registration_socket(world.root, DRIVER, uid) for uid in world.pods}
    expected |= {operation_socket(world.root, DRIVER, uid) for uid in world.pods}
    expected |= {operation_link(world.root, DRIVER)} if world.pods else set()
    # a corrupt database stays, for people to inspect
    found = {path for path in world.files() if path.name.partition(".corrupt-")[0] not in _STATE}
    present = {path for path in found if path.parent == world.state / "locks" / "processes"}
    if len(present) == len(world.pods):
        found -= present
    folders = {path for path in (world.state / "device-metadata").glob("*") if path.name[6:] not in live}
    missing, left = sorted(expected - found), sorted((found - expected) | folders)
    return [f"missing {path}" for path in missing] + [f"left over {path}" for path in left]


def _of_slices(world: Observed) -> list[str]:
    slices = [item["spec"] for item in world.objects("resourceslices")]
    found = {
        (item["pool"]["name"], device["name"], device["attributes"]["make"]["string"])
        for item in slices
        for device in item.get("devices", [])
    }
    expected = {(pool, pan, make) for pool, pans in world.menu.items() for pan, make in pans.items()}
    problems = [] if found == expected else [f"published {sorted(found)}, not {sorted(expected)}"]
    tainted = {device["name"] for item in slices for device in item.get("devices", []) if device.get("taints")}
    if tainted != set(world.smoking):
        problems.append(f"{sorted(tainted)} are tainted, not {sorted(world.smoking)}")
    if len(slices) != len(world.menu):
        problems.append(f"{len(slices)} slices for {len(world.menu)} pools")
    return problems


def _of_claim(world: Observed, claim: Claim) -> list[str]:
    spec = _json(world.cdi / spec_file_name(DRIVER, claim.uid))
    assert claim.answer is not None
    kind = spec.get("kind")
    names = [f"{kind}={device['name']}" for device in spec.get("devices", [])]
    answered = [name for device in claim.answer for name in device.cdi_device_ids]
    problems = [] if names == answered else [f"{claim.uid}: spec has {names}, the kubelet {answered}"]
    edits = [spec.get("containerEdits", {}), *(item["containerEdits"] for item in spec.get("devices", []))]
    env = {entry for item in edits for entry in item.get("env", [])}
    if env != (expected := _wanted_env(world, claim)):
        problems.append(f"{claim.uid}: containers get {sorted(env)}, not {sorted(expected)}")
    if world.style != "plain":
        makes = [(pan, world.menu[world.node][pan]) for pan in claim.devices]
        document = _json(world.state / "device-metadata" / f"claim-{claim.uid}" / "pan" / "metadata.json")
        devices = [item for request in document.get("requests", []) for item in request["devices"]]
        written = [(item["name"], item["attributes"]["make"]["string"]) for item in devices]
        if written != makes:
            problems.append(f"{claim.uid}: metadata says {written}, not {makes}")
        stored = next((item for item in world.objects("resourceclaims") if item["metadata"]["uid"] == claim.uid), None)
        if stored is not None:
            # the API of these tests keeps entries of devices that the claim had before
            status = {(item["device"], item["data"]["make"]) for item in stored["status"].get("devices", [])}
            if not status >= set(makes):
                problems.append(f"{claim.uid}: the status says {sorted(status)}, not {makes}")
    return problems


def _wanted_env(world: Observed, claim: Claim) -> set[str]:
    env = {f"{_variable(pan)}_MAKE={world.menu[world.node][pan]}" for pan in claim.devices}
    if world.style != "plain":
        hardware = world.bakery / "hardware"
        env |= {f"{_variable(pan)}_COAT={_json(hardware / f'pan-{pan}.json').get('serial')}" for pan in claim.devices}
        oven = claim.config.get("oven", "left")
        env.add(f"FLAME={_json(hardware / f'oven-{oven}.json').get('serial')}")
    return env


def _variable(pan: str) -> str:
    return pan.upper().replace("-", "_")


def _json(path: Path) -> dict[str, Any]:
    """The content, empty for what is gone or half written."""
    try:
        loaded: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return loaded

"""Group R: registration with the kubelet."""

from __future__ import annotations

import asyncio
import os
import re
import time
import uuid
from pathlib import Path
from typing import Final

from dra_kit.conformance.kubelet import POLL, STANDARD_ROOT, connects, missed_deadline
from dra_kit.conformance.workbench import CheckBlocked, CheckFailure, CheckFunction, CheckNotApplicable, Workbench
from dra_kit.errors import KubeletError
from dra_kit.kubelet.plugin_client import HEALTH_SERVICES, SUPPORTED_SERVICES, PluginInfo
from dra_kit.kubelet.plugin_server import PLUGIN_TYPE
from dra_kit.kubelet.sockets import SOCKET_PATH_MAX

_DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_MAX: Final = 63  # k8s.io/api resource/v1, DriverNameMaxLength
_REJECTION: Final = "rejected by the conformance check R5"
_NOTICE_SECONDS: Final = 10.0
_ATTEMPTS: Final = 5  # of a call that must be answered within a second; a busy machine misses it now and then


async def r1(bench: Workbench) -> None:
    """Check type, name, endpoint and versions in the answer of GetInfo."""
    info = bench.plugin.info
    problems = []
    if info.type != PLUGIN_TYPE:
        problems.append(f"type is {info.type!r}, expected {PLUGIN_TYPE!r}")
    if not _DNS_SUBDOMAIN.fullmatch(info.name) or len(info.name) > _NAME_MAX:
        problems.append(f"name {info.name!r} is not a DNS subdomain of at most {_NAME_MAX} characters")
    if bench.profile.driver is not None and info.name != bench.profile.driver:
        problems.append(f"name is {info.name!r}, the profile expects {bench.profile.driver!r}")
    if not Path(info.endpoint).is_absolute():
        problems.append(f"endpoint {info.endpoint!r} is not an absolute path")
    if not bench.plugin.versions:
        offered = ", ".join(info.supported_versions) or "none"
        problems.append(f"supported_versions: {offered}; the kubelet calls {' and '.join(SUPPORTED_SERVICES)}")
    if problems:
        raise CheckFailure(*problems, str(bench.kubelet.calls[0]))


async def r2(bench: Workbench) -> None:
    """Check that versions of a service are advertised newest first."""
    advertised = bench.plugin.info.supported_versions
    for services in (SUPPORTED_SERVICES, HEALTH_SERVICES):
        found = [version for version in advertised if version in services]
        if found != sorted(found, key=services.index):
            raise CheckFailure(
                f"supported_versions: {', '.join(advertised)}",
                f"the kubelet selects the first version that it knows: {found[0]}",
            )


async def r3(bench: Workbench) -> None:
    """Check that GetInfo answers while the API server is down, also of a driver that starts meanwhile."""
    async with bench.cluster.gate.closed():
        await _answers(bench, bench.plugin.socket, "while the API server was down")
        if not bench.subject.can_start:
            return
        await bench.subject.stop()
        await bench.kubelet.forget()
        await bench.subject.start()
        try:
            await bench.kubelet.register(bench.profile.start_within, driver=bench.driver, alive=bench.is_running)
        except KubeletError as error:
            raise CheckFailure(
                "the driver was started while the API server was down, and did not register", str(error),
                *bench.last_output(),
            ) from None  # fmt: skip
    if not await bench.devices():
        raise CheckFailure(
            "the driver was started while the API server was down, and published nothing after that",
            *bench.last_output(),
        )


async def _answers(bench: Workbench, socket: Path, when: str) -> PluginInfo:
    problem = ""
    for _ in range(_ATTEMPTS):
        try:
            return await bench.kubelet.get_info(socket)
        except KubeletError as error:
            problem = str(error)
            if not missed_deadline(error):
                break
    raise CheckFailure(f"GetInfo failed {when}", problem, *bench.last_output())


async def r4(bench: Workbench) -> None:
    """Call GetInfo and NotifyRegistrationStatus repeatedly."""
    socket, first = bench.plugin.socket, bench.plugin.info
    for _ in range(3):
        again = await _answers(bench, socket, "when it was called again")
        if again != first:
            raise CheckFailure(f"first answer: {first}", f"later answer: {again}")
        if problem := await bench.kubelet.notify(socket):
            raise CheckFailure("NotifyRegistrationStatus failed when it was called again", problem)


async def r5(bench: Workbench) -> None:
    """Reject the registration, and check that the driver shows it."""
    socket, instance = bench.plugin.socket, bench.subject.instance
    problem = await bench.kubelet.notify(socket, error=_REJECTION)
    if problem:
        return  # the helper of Go drivers answers so, and the kubelet logs it
    if instance is None:
        raise CheckNotApplicable("dra-kit does not see the driver's log")

    def visible() -> bool:
        return not instance.alive or _REJECTION in instance.output()

    if not await bench.until(visible, bench.patience(_NOTICE_SECONDS)):
        raise CheckFailure(
            f"sent: {bench.kubelet.calls[-1]}", "the driver neither logged the text, nor returned an error, nor exited",
            *bench.last_output(),
        )  # fmt: skip
    if instance.alive:
        await bench.kubelet.notify(socket)


async def r6(bench: Workbench) -> None:
    """Kill the driver, and start it again beside the sockets that it left."""
    bench.require_start()
    left = bench.kubelet.sockets()
    try:
        await bench.restart(kill=True)
    except CheckBlocked as error:
        raise CheckFailure(
            f"after kill -9 these sockets were left: {_names(left)}", "the driver did not register again", str(error)
        ) from None
    dead = [path for path in bench.kubelet.sockets() if not await connects(str(path))]
    if dead:
        raise CheckFailure(f"nothing listens any more at {_names(dead)}; the kubelet dials it again and again")


async def r7(bench: Workbench) -> None:
    """Stop the driver, and look for its sockets."""
    bench.require_start()
    await bench.subject.stop()
    await bench.kubelet.forget()
    left = [*bench.kubelet.sockets(), *bench.kubelet.service_sockets()]
    await bench.start()
    if left:
        raise CheckFailure(f"left after SIGTERM: {_names(list(dict.fromkeys(left)))}")


async def r8(bench: Workbench) -> None:
    """Measure the paths of sockets as they would be below /var/lib/kubelet."""
    _check_lengths(bench, "")
    if bench.subject.can_roll:
        await bench.subject.stop()
        await bench.kubelet.forget()
        pod_uid = str(uuid.uuid4())
        try:
            await bench.start(pod_uid=pod_uid)
        except CheckBlocked as error:
            raise CheckFailure(f"the driver did not register in a pod with UID {pod_uid}", str(error)) from None
        _check_lengths(bench, f" in a pod with UID {pod_uid}")


def _check_lengths(bench: Workbench, where: str) -> None:
    problems = []
    endpoint = Path(bench.kubelet.reachable(bench.plugin.info.endpoint))
    for path in dict.fromkeys([bench.plugin.socket, endpoint]):
        standard = (
            STANDARD_ROOT / path.relative_to(bench.places.root) if path.is_relative_to(bench.places.root) else path
        )
        if (size := len(os.fsencode(standard))) > SOCKET_PATH_MAX:
            problems.append(f"{standard} has {size} bytes{where}; a unix socket's path has at most {SOCKET_PATH_MAX}")
    if problems:
        raise CheckFailure(*problems)


async def r9(bench: Workbench) -> None:
    """Connect to the service socket as soon as GetInfo has answered."""
    bench.require_start()
    await bench.subject.stop()
    await bench.kubelet.forget()
    stale = set(bench.kubelet.sockets())
    await bench.subject.start()
    end = time.monotonic() + bench.profile.start_within
    while time.monotonic() < end and bench.is_running():
        for socket in set(bench.kubelet.sockets()) - stale:
            try:
                info = await bench.kubelet.get_info(socket)
            except KubeletError:
                continue  # it is bound and does not listen yet
            if not await connects(bench.kubelet.reachable(info.endpoint)):
                raise CheckFailure(
                    f"GetInfo at {socket.name} answered with endpoint {info.endpoint}",
                    "at once after that, the endpoint accepted no connection",
                )
            await bench.register()
            await bench.devices()
            return
        await asyncio.sleep(POLL)
    raise CheckBlocked("\n".join(["the driver did not register", *bench.last_output()]))


async def r10(bench: Workbench) -> None:
    """Call DRA at the registration socket of a plugin that names no endpoint."""
    if bench.plugin.info.endpoint != str(bench.plugin.socket):
        raise CheckNotApplicable("the driver has a service socket of its own")
    try:
        await bench.kubelet.unprepare([])
    except KubeletError as error:
        raise CheckFailure("GetInfo answered without an endpoint", str(error)) from None


def _names(paths: list[Path]) -> str:
    return ", ".join(path.name for path in paths) or "none"


CHECKS: Final[dict[str, CheckFunction]] = {
    "R1": r1, "R2": r2, "R3": r3, "R4": r4, "R5": r5, "R6": r6, "R7": r7, "R8": r8, "R9": r9, "R10": r10,
}  # fmt: skip
"""The checks of this group."""

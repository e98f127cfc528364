"""Groups H and M: the health of devices, and device metadata (KEP-5304)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct

from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.conformance.cluster import ConformanceClaim
from dra_kit.conformance.workbench import (
    SETTLE_SECONDS,
    CheckBlocked,
    CheckFailure,
    CheckFunction,
    CheckNotApplicable,
    Workbench,
    cdi_ids,
    shown,
)
from dra_kit.errors import KubeletError, UnresolvableDevices
from dra_kit.kubelet.plugin_client import (
    HEALTH_SERVICES,
    SUPPORTED_SERVICES,
    LeasedHealth,
    PluginClient,
    PoolDevice,
)

REPORT_SECONDS: Final = 30.0
"""Seconds until a stream has its first report: what a kubelet believes by default."""
_LEASE_MAX: Final = 120.0
_STREAMS: Final = 4  # of kubelets that read slowly, or of a rolling update
_QUIET_CALLS: Final = 5
_ROOT: Final = PurePosixPath("/var/run/kubernetes.io/dra-device-attributes")  # KEP-5304, dynamic-resource-allocation
_VERSION: Final = "metadata.resource.k8s.io/v1beta1"
_POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
_READS: Final = 10
_POLL: Final = 0.02


# --- health


def _services(bench: Workbench) -> list[str]:
    """Return the health services that the driver advertises.

    Raises:
        CheckNotApplicable: it advertises none.
    """
    advertised: list[str] = [service for service in HEALTH_SERVICES if service in bench.plugin.info.supported_versions]
    if not advertised:
        raise CheckNotApplicable("the driver advertises no health service")
    return advertised


class _HealthStream:
    """A stream of reports, on a connection of its own."""

    def __init__(self, client: PluginClient) -> None:
        self._client = client
        self._reports = client.health()

    async def report(self, timeout: float = REPORT_SECONDS) -> list[LeasedHealth]:
        """Return the next report.

        Raises:
            CheckFailure: there is none in time, or the stream ends.
        """
        call = f"NodeWatchResources of {self._client.health_service}"
        try:
            async with asyncio.timeout(timeout):
                async for found in self._reports:
                    return found
        except TimeoutError:
            raise CheckFailure(f"{call}: no report within {timeout:g} s") from None
        except KubeletError as error:
            raise CheckFailure(f"{call}: {error}") from None
        raise CheckFailure(f"{call}: the driver has ended the stream")


@asynccontextmanager
async def _stream(bench: Workbench, service: str) -> AsyncIterator[_HealthStream]:
    """Open a stream, and read nothing until :meth:`_HealthStream.report` is called."""
    client = PluginClient(
        bench.kubelet.reachable(bench.plugin.info.endpoint), SUPPORTED_SERVICES[0], health_service=service
    )
    try:
        yield _HealthStream(client)
    finally:
        await client.close()


async def _published(bench: Workbench) -> set[PoolDevice]:
    return {(device.pool, device.name) for device in await bench.devices(least=1)}


def _require_all(published: set[PoolDevice], report: Sequence[LeasedHealth], what: str) -> None:
    if missing := published - {item.device for item in report}:
        raise CheckFailure(
            f"{what} has {len(report)} devices",
            f"expected, and not in it: {shown('/'.join(device) for device in missing)}",
        )


async def _first(bench: Workbench, service: str) -> list[LeasedHealth]:
    async with _stream(bench, service) as stream:
        return await stream.report()


async def h1(bench: Workbench) -> None:
    """Compare the first report with the published devices."""
    service = _services(bench)[0]
    _require_all(await _published(bench), await _first(bench, service), "the first report")


async def h2(bench: Workbench) -> None:
    """Wait for the next report of each device, until the first one has expired."""
    service = _services(bench)[0]
    async with _stream(bench, service) as stream:
        first = await stream.report()
        started = time.monotonic()
        if not first:
            raise CheckBlocked("the first report has no devices: see H1")
        ends = {item.device: item.lease for item in first}
        if min(ends.values()) > _LEASE_MAX:
            raise CheckNotApplicable(f"reports are valid for more than {_LEASE_MAX:g} s, longer than this check waits")
        while ends:
            left = started + min(ends.values()) - time.monotonic()
            try:
                report = await stream.report(max(left, 0.001))
            except CheckFailure as failure:
                late = [f"{'/'.join(device)} after {lease:g} s" for device, lease in ends.items()]
                raise CheckFailure(*failure.evidence, f"reported once, and not again: {shown(late)}") from None
            for item in report:
                ends.pop(item.device, None)


async def h3(bench: Workbench) -> None:
    """Compare the first reports of all versions of the service."""
    services = _services(bench)
    if len(services) < len(HEALTH_SERVICES):
        raise CheckNotApplicable(f"the driver advertises {services[0]} only")
    reports = {service: await _first(bench, service) for service in services}
    states = {service: {item.device: item.status for item in report} for service, report in reports.items()}
    if len({frozenset(state.items()) for state in states.values()}) > 1:
        raise CheckFailure(*(
            f"{service}: {shown('/'.join(device) + ' ' + status for device, status in state.items())}"
            for service, state in states.items()
        ))  # fmt: skip


async def h4(bench: Workbench) -> None:
    """Call a health service that is not there, as a kubelet of 1.36 does, and read the log."""
    if any(service in bench.plugin.info.supported_versions for service in HEALTH_SERVICES):
        raise CheckNotApplicable("the driver has a health service")
    before = len(_lines(bench))
    for _ in range(_QUIET_CALLS):
        async with _stream(bench, HEALTH_SERVICES[-1]) as stream:
            try:
                await stream.report()
            except CheckFailure as failure:
                if "Unimplemented" not in failure.evidence[0]:
                    raise
            else:
                raise CheckFailure(f"{HEALTH_SERVICES[-1]} is not advertised, and answers with a report")

    def new_lines() -> list[str]:
        return [line for line in _lines(bench)[before:] if "NodeWatchResources" in line or "nimplemented" in line]

    if await bench.until(lambda: len(new_lines()) > 1, bench.patience(SETTLE_SECONDS)):
        new = new_lines()
        raise CheckFailure(f"{_QUIET_CALLS} calls were logged {len(new)} times", *new)


def _lines(bench: Workbench) -> list[str]:
    return bench.subject.instance.output().splitlines() if bench.subject.instance is not None else []


async def h5(bench: Workbench) -> None:
    """Leave streams unread, and call the driver meanwhile."""
    service = _services(bench)[0]
    async with bench.claims() as (claim,):
        async with AsyncExitStack() as stack:
            for _ in range(_STREAMS):
                stream = await stack.enter_async_context(_stream(bench, service))
                try:
                    await stream.report()  # and then it is not read any more
                except CheckFailure as failure:
                    raise CheckFailure(
                        f"{_STREAMS} streams were opened, and those that are open are not read", *failure.evidence
                    ) from None
            try:
                answers = await bench.kubelet.prepare([claim.reference], timeout=REPORT_SECONDS)
            except KubeletError as error:
                raise CheckFailure(
                    f"{_STREAMS} streams of {service} are open and not read", str(error),
                    *bench.last_output(),
                ) from None  # fmt: skip
        answer = answers.get(claim.uid)
        if answer is None or answer.error:
            cause = answer.error if answer else "the answer has no entry for it"
            raise CheckBlocked(f"claim {claim.reference.name} is not prepared: {cause}")


async def h6(bench: Workbench) -> None:
    """Open a stream again."""
    service = _services(bench)[0]
    async with _stream(bench, service) as stream:
        known = {item.device for item in await stream.report()}
        if not known:  # this stream was opened again as well: those of other checks came first
            with suppress(CheckFailure):  # H2 is about that
                known = {item.device for item in await stream.report()}
    if not known:
        raise CheckBlocked("the first reports of a stream have no devices: see H1")
    for _ in range(2):
        _require_all(known, await _first(bench, service), "the first report of a stream that was opened again")


# --- metadata


class _MetadataFile(Struct, frozen=True):
    """A metadata file of a prepared claim."""

    request: str
    host: Path
    container: PurePosixPath

    def text(self) -> str:
        """Return its content.

        Raises:
            OSError: it cannot be read.
        """
        return self.host.read_text(encoding="utf-8")

    def documents(self) -> list[dict[str, Any]]:
        """Return its documents.

        Raises:
            ValueError: it is not a stream of JSON objects.
            OSError: it cannot be read.
        """
        return _documents(self.text())


def _documents(text: str) -> list[dict[str, Any]]:
    """Return the documents of a metadata file.

    Raises:
        ValueError: it is not a stream of JSON objects.
    """
    decoder, found = json.JSONDecoder(), []
    while text := text.strip():
        document, end = decoder.raw_decode(text)
        if not isinstance(document, dict):
            raise ValueError(f"a document is {document!r:.80}, expected an object")  # noqa: TRY004 - of the text
        found.append(document)
        text = text[end:]
    return found


def _generation(text: str) -> int:
    """Return the generation of the first document of a metadata file; 0 without one or if it has none."""
    documents = _documents(text)
    return int((documents[0].get("metadata") or {}).get("generation") or 0) if documents else 0


async def _files(bench: Workbench, claim: ConformanceClaim) -> list[_MetadataFile]:
    """Prepare a claim, and return the metadata files of its containers.

    Raises:
        CheckNotApplicable: there are none.
    """
    answers = await bench.prepare(claim)
    try:
        edits = bench.cdi().resolve(cdi_ids(answers))
    except UnresolvableDevices as error:
        raise CheckBlocked(f"{error}: see P16") from None
    found = [
        _MetadataFile("device", Path(mount.host_path), PurePosixPath(mount.container_path))
        for mount in edits.mounts
        if mount.container_path.endswith("metadata.json")
    ]
    if not found:
        raise CheckNotApplicable("containers get no metadata file")
    return found


async def m1(bench: Workbench) -> None:
    """Compare the paths in containers, for a claim and for one that was made from a template."""
    await bench.devices(least=1)
    claim = await bench.claim()
    _require_path(bench, await _files(bench, claim), f"resourceclaims/{claim.reference.name}", "a claim")
    await bench.clean_up()
    claim = await bench.claim()
    await _make_generated(bench, claim)
    what = f"a claim of a pod with the annotation {_POD_CLAIM}: gpu"
    _require_path(bench, await _files(bench, claim), "resourceclaimtemplates/gpu", what)


async def _make_generated(bench: Workbench, claim: ConformanceClaim) -> None:
    """Give a claim what one has that the control plane has made from a template."""
    stored = await bench.cluster.client.get(RESOURCE_CLAIMS, claim.reference.name, claim.reference.namespace)
    pod = stored["status"]["reservedFor"][0]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"], "controller": True}
    stored["metadata"] |= {"annotations": {_POD_CLAIM: "gpu"}, "ownerReferences": [owner]}
    await bench.cluster.client.update(RESOURCE_CLAIMS, stored)


def _require_path(bench: Workbench, files: Sequence[_MetadataFile], origin: str, what: str) -> None:
    expected = _ROOT / origin / "device" / f"{bench.driver}-metadata.json"
    if expected not in [file.container for file in files]:
        raise CheckFailure(
            f"{what}, request device", f"expected a mount at {expected}",
            *(f"found {file.container}" for file in files),
        )  # fmt: skip


async def m2(bench: Workbench) -> None:
    """Read the documents of a metadata file."""
    async with bench.claims() as (claim,):
        for file in await _files(bench, claim):
            try:
                documents = file.documents()
            except (OSError, ValueError) as error:
                raise CheckFailure(f"{file.host} is not a stream of JSON objects: {error}") from None
            if not documents:
                raise CheckBlocked(f"{file.host} was empty when it was read: see M4")
            versions = {document.get("apiVersion"): document for document in documents}
            shown_versions = f"{file.host} has {shown(map(str, versions))}"
            if any(document.get("kind") != "DeviceMetadata" for document in documents):
                raise CheckFailure(shown_versions, "not every document is of kind DeviceMetadata")
            if _VERSION not in versions:
                raise CheckFailure(shown_versions, f"no document has apiVersion {_VERSION}")
            _check_document(versions[_VERSION], claim, file)


def _check_document(document: dict[str, Any], claim: ConformanceClaim, file: _MetadataFile) -> None:
    metadata = document.get("metadata") or {}
    found = [metadata.get(key) for key in ("namespace", "name", "uid")]
    reference = claim.reference
    if found != [reference.namespace, reference.name, reference.uid]:
        raise CheckFailure(
            f"{file.host}: metadata has namespace, name and uid {found}",
            f"claim {reference.namespace}/{reference.name} with UID {reference.uid}",
        )
    devices = {
        (device.get("pool"), device.get("name"))
        for request in document.get("requests") or ()
        for device in request.get("devices") or ()
    }
    allocated = {(result["pool"], result["device"]) for result in claim.results}
    if not devices <= allocated or not devices:
        raise CheckFailure(f"{file.host} has the devices {sorted(map(str, devices))}",
                           f"allocated: {sorted(map(str, allocated))}")  # fmt: skip


async def m3(bench: Workbench) -> None:
    """Wait for an update of metadata."""
    seconds = bench.profile.metadata_updated_within
    if seconds is None:
        raise CheckNotApplicable("the profile has no metadataUpdatedWithin")
    async with bench.claims() as (claim,):
        file = (await _files(bench, claim))[0]
        try:
            before = file.text()
            generation = _generation(before)
            if not await bench.until(lambda: file.text() != before, seconds):
                raise CheckFailure(f"{file.host} has not changed within {seconds:g} s after the prepare", before)
            after = _generation(file.text())
        except (OSError, ValueError) as error:
            raise CheckBlocked(f"{file.host}: {error}; see M2 and M4") from None
        if not (generation and after):
            raise CheckBlocked(f"{file.host} had no documents when it was read: see M2 and M4")
        if after <= generation:
            raise CheckFailure(f"{file.host} has changed", f"generation before {generation}, after {after}")


async def m4(bench: Workbench) -> None:
    """Read a metadata file again and again while the driver writes it."""
    async with bench.claims() as (claim,):
        file = (await _files(bench, claim))[0]
        problems: list[str] = []
        ended = asyncio.Event()

        def read() -> None:
            while not ended.is_set() and not problems:
                try:
                    if not file.documents():
                        problems.append("it was empty")
                except (OSError, ValueError) as error:
                    problems.append(str(error))
                time.sleep(_POLL / 10)

        reader = asyncio.create_task(asyncio.to_thread(read))
        try:
            for _ in range(_READS):
                await bench.prepare(claim)
            await asyncio.sleep(bench.patience(SETTLE_SECONDS / 2))  # updates without a call
        finally:
            ended.set()
            await reader
        if problems:
            raise CheckFailure(f"{file.host} was read while the claim was prepared again: {problems[0]}")


async def m5(bench: Workbench) -> None:
    """Unprepare a claim with metadata, and look for files."""
    async with bench.claims() as (claim,):
        before = bench.cdi_files()
        files = await _files(bench, claim)
        await bench.unprepare(claim)
        left = [str(file.host) for file in files if file.host.exists()]
        left += [str(bench.places.cdi / name) for name in sorted(bench.cdi_files() - before)]
        if left:
            raise CheckFailure(f"claim {claim.reference.name} was unprepared; left: {shown(left)}")


CHECKS: Final[dict[str, CheckFunction]] = {
    "H1": h1, "H2": h2, "H3": h3, "H4": h4, "H5": h5, "H6": h6, "M1": m1, "M2": m2, "M3": m3, "M4": m4, "M5": m5,
}  # fmt: skip
"""The checks of these groups."""

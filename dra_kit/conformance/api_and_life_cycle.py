"""Groups A and L: the Kubernetes API, and the life of the driver's processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from dra_kit.apiserver.api import RuntimeConfig
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import NAMESPACES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_kit.conformance.cluster import FOREIGN_DRIVER, USER_AGENT, ConformanceClaim, ConformanceCluster
from dra_kit.conformance.kubelet import POLL, RegisteredPlugin, shown_answers
from dra_kit.conformance.profile import DriverRights
from dra_kit.conformance.slices import (
    delete_slice,
    end_driver,
    foreign_slice,
    own_slices,
    published,
    require_same_slices,
    versions_of,
)
from dra_kit.conformance.subject import STOP_SECONDS
from dra_kit.conformance.workbench import (
    CheckBlocked,
    CheckFailure,
    CheckFunction,
    CheckNotApplicable,
    Workbench,
    cdi_ids,
    shown,
)
from dra_kit.errors import ConfigurationError, Conflict, Forbidden, Invalid, KubeError, KubeletError, NotFound
from dra_kit.kubelet.plugin_client import ClaimAnswer
from dra_kit.kubernetes.manifests.documents import read_objects, source_file
from dra_kit.sandbox.charts import Capabilities, find_helm, parse_charts, render

_GROUP: Final = "resource.k8s.io"
_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
_OTHER_NODE: Final = "conformance-foreign-node"
_STATUS_SECONDS: Final = 5.0  # between the answer of a prepare and what the driver writes about its devices
_EXIT_SECONDS: Final = 20.0
_RIGHTS: Final = frozenset({
    "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
})  # fmt: skip
"""Kinds of the objects that are about rights."""
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


# --- API


async def a1(bench: Workbench) -> None:
    """Run the driver against API servers that serve a single version of the group."""
    bench.require_start()
    for version in bench.profile.api_versions:
        if version != _VERSIONS[0]:
            await _require_version(bench, version)
            continue
        # the usual server serves v1 only, as that of Kubernetes 1.37 does
        if not await bench.devices():
            raise _unpublished(bench, version, bench.cluster)
        await published(bench)
        async with bench.claims() as (claim,):
            await bench.prepare(claim)


def _unpublished(bench: Workbench, version: str, cluster: ConformanceCluster) -> CheckFailure:
    requests = (f"{verb} {resource}" for verb, resource in cluster.driver_requests())
    return CheckFailure(
        f"the API server serves {_GROUP}/{version} only, and the driver publishes no devices",
        f"requests: {shown(requests)}", *bench.last_output(),
    )  # fmt: skip


async def _require_version(bench: Workbench, version: str) -> None:
    explicit = {f"{_GROUP}/{other}": other == version for other in _VERSIONS}
    profile = bench.profile.model_copy(update={"device_classes": [], "device_class": None, "shared_request": {}})
    await end_driver(bench)
    socket = bench.places.scratch / f"{version}.sock"
    try:
        async with ConformanceCluster(
            bench.places, profile, socket, runtime_config=RuntimeConfig(explicit=explicit)
        ) as older:
            await bench.subject.start()
            await bench.register()
            slices = Resource(_GROUP, version, RESOURCE_SLICES.plural, RESOURCE_SLICES.kind, namespaced=False)
            end = asyncio.get_running_loop().time() + bench.profile.start_within
            while not any(item["spec"]["driver"] == bench.driver for item in (await older.client.list(slices)).items):
                if asyncio.get_running_loop().time() > end:
                    raise _unpublished(bench, version, older)
                await asyncio.sleep(POLL)
            await end_driver(bench)
    finally:
        await end_driver(bench)
        bench.cluster.write_kubeconfig()


@asynccontextmanager
async def _own_rights(bench: Workbench) -> AsyncIterator[str]:
    """Run the driver with the rights of its manifests, as from the first day; yield its token."""
    bench.require_start()
    rights = bench.profile.rbac
    if rights is None:
        raise CheckNotApplicable("the profile has no rbac")
    namespace, account = rights.service_account.split("/")
    await end_driver(bench)
    for item in await own_slices(bench):
        await delete_slice(bench, item)
    created: list[tuple[Resource, Mapping[str, Any]]] = []
    try:
        with suppress(Conflict):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            await bench.cluster.client.create(NAMESPACES, body)
        for place, body in await _objects(bench, rights):
            await _create_object(bench, place, body, namespace, created)
        try:
            token = bench.cluster.server.token(namespace, account, node=bench.cluster.node)
        except KeyError as error:
            raise CheckBlocked(f"rbac.manifests do not have the service account: {error}") from None
        bench.cluster.write_kubeconfig(token)
        await bench.subject.start()
        await bench.register()
        yield token
    finally:
        await bench.clean_up()
        await end_driver(bench)
        bench.cluster.write_kubeconfig()
        for resource, body in reversed(created):
            with suppress(KubeError):
                metadata = body["metadata"]
                await bench.cluster.client.delete(resource, metadata["name"], metadata.get("namespace"))


async def _objects(bench: Workbench, rights: DriverRights) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of the manifests or of the chart, each with its position.

    Raises:
        CheckNotApplicable: helm is not installed.
        CheckBlocked: they cannot be read.
    """
    try:
        if rights.chart is None:
            return [found for path in rights.manifests for found in read_objects(source_file(path))]
        [chart] = parse_charts([(rights.chart, rights.values)])
    except ConfigurationError as error:
        raise CheckBlocked(str(error)) from None
    try:
        helm = find_helm()
    except ConfigurationError as error:
        raise CheckNotApplicable(str(error)) from None
    try:
        return await render(chart, helm, Capabilities.of(bench.cluster.server.api))
    except ConfigurationError as error:
        raise CheckBlocked(str(error)) from None


async def _create_object(
    bench: Workbench,
    place: str,
    body: dict[str, Any],
    namespace: str,
    created: list[tuple[Resource, Mapping[str, Any]]],
) -> None:
    """Create an object if it is about rights."""
    if body["kind"] not in _RIGHTS:
        return
    kind = bench.cluster.server.api.registry.by_kind(body["apiVersion"], body["kind"])
    if kind is None:
        raise CheckBlocked(f"{place}: {body['kind']} {body['apiVersion']} is not served")
    version = body["apiVersion"].rpartition("/")[2]
    resource = Resource(kind.group, version, kind.plural, kind.kind, namespaced=kind.namespaced)
    if kind.namespaced:
        body = {**body, "metadata": {"namespace": namespace, **body["metadata"]}}
    with suppress(Conflict):
        created.append((resource, await bench.cluster.client.create(resource, body)))


async def a2(bench: Workbench) -> None:
    """Run the driver with the rights of its manifests, and try to write slices of another node with them."""
    async with _own_rights(bench) as token:
        if not await bench.cluster.wait_for_devices(bench.driver, bench.profile.start_within):
            raise CheckFailure(
                "with the rights of its manifests, the driver publishes no devices", *bench.last_output()
            )
        claim = await bench.claim()
        answers = await bench.kubelet.prepare([claim.reference])
        if claim.uid not in answers or answers[claim.uid].error:
            raise CheckFailure("with the rights of its manifests:", shown_answers(answers), *bench.last_output())
        there = await bench.cluster.client.create(
            RESOURCE_SLICES, foreign_slice(_OTHER_NODE, bench.driver, _OTHER_NODE)
        )
        try:
            allowed = await _allowed(bench, token, there)
        finally:
            await delete_slice(bench, there)
        if allowed:
            raise CheckFailure(
                f"with the token of its service account on node {bench.cluster.node}, which its manifests give rights:",
                *allowed,
            )


async def _allowed(bench: Workbench, token: str, there: Mapping[str, Any]) -> list[str]:
    """Return which writes of another node's slices the API server accepts; admission policies answer with Invalid."""
    name, new = there["metadata"]["name"], f"{_OTHER_NODE}-new"
    found = []
    async with Client(
        Credentials(bench.cluster.server.connection(token)), user_agent=USER_AGENT, warnings=False
    ) as client:
        with suppress(Forbidden, Invalid):
            created = await client.create(RESOURCE_SLICES, foreign_slice(new, bench.driver, _OTHER_NODE))
            found.append(f"create of a slice with nodeName {_OTHER_NODE} was allowed")
            await delete_slice(bench, created)
        with suppress(Forbidden, Invalid, NotFound):
            await client.update(RESOURCE_SLICES, there)
            found.append(f"update of slice {name}, which has nodeName {_OTHER_NODE}, was allowed")
        with suppress(Forbidden, Invalid, NotFound):
            await client.delete(RESOURCE_SLICES, name)
            found.append(f"delete of slice {name}, which has nodeName {_OTHER_NODE}, was allowed")
    return found


async def _entries(bench: Workbench, claim: ConformanceClaim) -> list[dict[str, Any]]:
    stored = await bench.cluster.client.get(RESOURCE_CLAIMS, claim.reference.name, claim.reference.namespace)
    found: list[dict[str, Any]] = (stored.get("status") or {}).get("devices") or []
    return found


async def _reported(bench: Workbench, claim: ConformanceClaim) -> list[dict[str, Any]]:
    """Wait for the driver's entries in status.devices; return all entries, or nothing if it writes none in time."""
    end = asyncio.get_running_loop().time() + bench.patience(_STATUS_SECONDS)
    while asyncio.get_running_loop().time() < end:
        found = await _entries(bench, claim)
        if any(entry["driver"] == bench.driver for entry in found):
            return found
        await asyncio.sleep(POLL)
    return []


async def a3(bench: Workbench) -> None:
    """Put an entry of another driver beside those of the driver."""
    foreign = {"driver": FOREIGN_DRIVER, "pool": "other-pool", "device": "other-device"}

    def add(allocation: dict[str, Any]) -> None:
        result = {"request": allocation["devices"]["results"][0]["request"], **foreign}
        allocation["devices"] = {**allocation["devices"], "results": [*allocation["devices"]["results"], result]}

    await bench.devices(least=1)
    claim = await bench.claim(change=add)
    stored = await bench.cluster.client.get(RESOURCE_CLAIMS, claim.reference.name, claim.reference.namespace)
    stored["status"]["devices"] = [foreign | {"data": {"written": "by the other driver"}}]
    written = await bench.cluster.client.update(RESOURCE_CLAIMS, stored, subresource="status")
    before = written["status"]["devices"]
    await bench.prepare(claim)
    after = await _reported(bench, claim)
    if not after and await _entries(bench, claim) == before:
        raise CheckNotApplicable("the driver does not write status.devices")
    after = await _entries(bench, claim)
    if [entry for entry in after if entry["driver"] == FOREIGN_DRIVER] != before:
        raise CheckFailure(f"status.devices before the prepare: {before}", f"after it: {after}")


async def a4(bench: Workbench) -> None:
    """Compare status.devices with and without the rights of the manifests."""
    if bench.profile.rbac is None:
        raise CheckNotApplicable("the profile has no rbac")
    async with bench.claims() as (claim,):
        await bench.prepare(claim)
        if not await _reported(bench, claim):
            raise CheckNotApplicable("the driver does not write status.devices")
    async with _own_rights(bench):
        await bench.devices(least=1)
        claim = await bench.claim()
        await bench.prepare(claim)
        if not await _reported(bench, claim):
            raise CheckFailure(
                "as administrator, the driver writes status.devices; with the rights of its manifests, it does not",
                "Kubernetes 1.36 and newer want the verbs associated-node:update or associated-node:patch on "
                f"resourceclaims/driver, name {bench.driver}",
                *bench.last_output(),
            )


# --- life-cycle


async def l1(bench: Workbench) -> None:
    """Send SIGTERM."""
    bench.require_start()
    before = versions_of(await published(bench))
    instance = bench.subject.instance
    assert instance is not None  # noqa: S101 - started here
    if not await instance.stop():
        raise CheckFailure(f"the process runs {STOP_SECONDS:g} s after SIGTERM", *bench.last_output())
    require_same_slices(before, versions_of(await own_slices(bench)), "the process has exited after SIGTERM")


async def l2(bench: Workbench) -> None:
    """Start the driver where its registration socket cannot be, and make room later."""
    bench.require_start()
    socket = bench.plugin.socket
    await end_driver(bench)
    socket.unlink(missing_ok=True)
    (socket / "taken").mkdir(parents=True)
    seconds = bench.patience(_EXIT_SECONDS)
    try:
        instance = await bench.subject.start()
        if await instance.wait(seconds):
            return
        taken = len(bench.kubelet.sockets()) == 0
    finally:
        shutil.rmtree(socket)
    try:
        await bench.register()
    except CheckBlocked:
        if not instance.alive:
            return  # it has exited, later than others
        output = bench.last_output()
        await end_driver(bench)
        where = "the path of its registration socket was taken" if taken else "one of its paths was taken"
        raise CheckFailure(
            f"the driver started while {where}: {socket}",
            f"its process did not exit within {seconds:.0f} s, and did not register or exit in the "
            f"{bench.profile.start_within:g} s after the path was free",
            *output,
        ) from None


async def l3(bench: Workbench) -> None:
    """Start a second process, and stop the first one."""
    bench.require_rolling()
    await end_driver(bench)
    first = await bench.start(pod_uid=str(uuid.uuid4()))
    older, before = bench.plugin, {item["metadata"]["name"]: item["metadata"]["uid"] for item in await published(bench)}
    async with bench.claims() as (claim,):
        expected = (await bench.prepare(claim))[claim.uid]
        await bench.subject.start(str(uuid.uuid4()))
        registration = asyncio.create_task(
            bench.kubelet.register(
                bench.profile.start_within, driver=bench.driver, ignore=[older.socket], alive=bench.is_running
            )
        )
        try:
            while not registration.done():
                await _require_served(bench, claim, older, expected, "while a second process starts, the first one")
                await asyncio.sleep(0.1)
            newer = await registration
        except KubeletError as error:
            raise CheckFailure("the second process does not register", str(error), *bench.last_output()) from None
        finally:
            registration.cancel()
            await asyncio.wait([registration])
        await _require_served(bench, claim, newer, expected, "the second process, beside the first one,")
        await first.stop()
        await _require_served(bench, claim, newer, expected, "after the first process was stopped, the second one")
        if newer.socket not in bench.kubelet.sockets():
            raise CheckFailure(f"the process that was stopped removed {newer.socket}, which is the other one's")
        await bench.quiet()
        after = {item["metadata"]["name"]: item["metadata"]["uid"] for item in await own_slices(bench)}
        if changed := [name for name in before if after.get(name) != before[name]]:
            raise CheckFailure("slices were deleted or created again during the update: " + shown(changed))


async def _require_served(
    bench: Workbench, claim: ConformanceClaim, plugin: RegisteredPlugin, expected: ClaimAnswer, who: str
) -> None:
    try:
        answers = await bench.kubelet.prepare([claim.reference], plugin=plugin)
    except KubeletError as error:
        raise CheckFailure(f"{who} fails:", str(error), *bench.last_output()) from None
    if answers.get(claim.uid) != expected:
        raise CheckFailure(f"{who} answers {shown_answers(answers)}", f"before: {shown_answers({claim.uid: expected})}")


async def l4(bench: Workbench) -> None:
    """Let the driver believe that the machine was started again, without its CDI files."""
    bench.require_start()
    words = ["unshare", "-m" if os.geteuid() == 0 else "-rm"]
    identity = bench.places.scratch / "boot_id"
    identity.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
    script = f'mount --bind "$0" {_BOOT_ID} && exec "$@"'
    prefix = [*words, "sh", "-c", script, str(identity)]
    if not await _runs([*prefix, "true"]):
        raise CheckNotApplicable(f"{' '.join(words)} is not allowed here: the boot ID cannot be changed for the driver")
    async with bench.claims() as (claim,):
        await bench.prepare(claim)
        await end_driver(bench)
        for path in bench.places.cdi.iterdir():
            path.unlink()
        await bench.start(prefix=prefix)
        answers = await bench.kubelet.prepare([claim.reference])
        when = f"the driver was killed, files in {bench.places.cdi} deleted, and it started with another boot ID"
        if claim.uid not in answers or answers[claim.uid].error:
            raise CheckFailure(when, shown_answers(answers), *bench.last_output())
        if missing := set(cdi_ids(answers)) - bench.cdi_devices():
            raise CheckFailure(when, f"returned {shown_answers(answers)}", f"these do not resolve: {shown(missing)}")


async def _runs(words: list[str]) -> bool:
    if shutil.which(words[0]) is None:
        return False
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*words, stdin=quiet, stdout=quiet, stderr=quiet)
    return await process.wait() == 0


CHECKS: Final[dict[str, CheckFunction]] = {
    "A1": a1, "A2": a2, "A3": a3, "A4": a4, "L1": l1, "L2": l2, "L3": l3, "L4": l4,
}  # fmt: skip
"""The checks of these groups."""

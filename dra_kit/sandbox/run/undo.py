"""Changes of hardware are undone before a sandbox that a user runs is shut down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dra_kit.client.resources import PODS, REPLICA_SETS, Resource
from dra_kit.errors import DraKitError, NotFound
from dra_kit.kubernetes.resource.objects import object_key, pod_claims
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster import Sandbox
from dra_kit.sandbox.controllers.workloads import WORKLOADS
from dra_kit.sandbox.stories.completion import pods_of_workloads

_UNDO_SECONDS: Final = 10.0
_GRACE_SECONDS: Final = 1
_POLL: Final = 0.05


async def undo_effects(sandbox: Sandbox, begun: Callable[[int], None] = lambda _: None) -> list[str]:
    """Delete the pods whose claims keep changes of hardware in force; return the changes that remain.

    It takes at most ten seconds, and no time if there are none. ``begun`` is called with the number of changes.
    """
    found = await remaining_effects(sandbox)
    if found:
        begun(len(found))
        with suppress(DraKitError, TimeoutError):  # the cluster fails, or a driver cannot undo them
            async with asyncio.timeout(_UNDO_SECONDS):
                await sandbox.or_fail(_release(sandbox))
    return await remaining_effects(sandbox)


async def _release(sandbox: Sandbox) -> None:
    while await remaining_effects(sandbox):
        for resource, item in _holders(sandbox):
            namespace, name = object_key(item)
            grace = _GRACE_SECONDS if resource == PODS else None
            with suppress(NotFound):
                await sandbox.client.delete(resource, name, namespace, grace_period_seconds=grace)
        await asyncio.sleep(_POLL)


def _holders(sandbox: Sandbox) -> list[tuple[Resource, ObjectView]]:
    """Return the pods with claims and their workloads that are not being deleted; others may be drivers."""
    objects = sandbox.informers.objects
    pods = [pod for pod in objects(PODS).values() if any(pod_claims(pod))]
    sets = objects(REPLICA_SETS).values()
    found: list[tuple[Resource, ObjectView]] = [
        (resource, item)
        for resource in WORKLOADS
        for item in objects(resource).values()
        if pods_of_workloads({item["metadata"]["uid"]}, sets, pods)
    ]
    found += [(PODS, pod) for pod in pods]
    return [(resource, item) for resource, item in found if "deletionTimestamp" not in item["metadata"]]


async def remaining_effects(sandbox: Sandbox) -> list[str]:
    """Return the changes of hardware in force that would outlive the sandbox."""
    several = len(sandbox.nodes) > 1
    return [
        f"{text} on {node.name}" if several else text
        for node in sandbox.nodes
        for text in await asyncio.to_thread(node.effects)
    ]

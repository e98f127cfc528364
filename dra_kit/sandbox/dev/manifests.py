"""Manifests that are applied again whenever they change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from dra_kit.client.api import Client
from dra_kit.client.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_kit.errors import ConfigurationError, KubeError, NotFound
from dra_kit.kubernetes.resource.objects import finalizer_note
from dra_kit.sandbox.stories.manifests import AppliedManifest, KindDiscovery, apply_files, dry_run, read_manifests

_FIXED: Final = {PODS.kind, RESOURCE_CLAIMS.kind, RESOURCE_CLAIM_TEMPLATES.kind}
"""Kinds whose specs are immutable in the API server."""
_OF_CLAIMS: Final = {RESOURCE_CLAIMS.kind, RESOURCE_CLAIM_TEMPLATES.kind}
_GONE_SECONDS: Final = 45.0
_POLL: Final = 0.05
_Key: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name."""


class FollowedManifests:
    """The manifests of the project and those of ``-f``."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths: tuple[Path, ...] = tuple(paths)
        self._bodies: dict[_Key, Mapping[str, Any]] = {}
        self._applied: dict[_Key, AppliedManifest] = {}

    def of(self, changed: Iterable[Path]) -> list[Path]:
        """Return the changed files that are followed manifests."""
        given = {path.resolve() for path in self.paths}
        return [path for path in changed if given & {path.resolve(), path.resolve().parent}]

    async def apply(self, client: Client, *, recreate_pods: bool = False) -> str:
        """Make the objects match the files; return a summary of the changes, empty if there were none.

        ``recreate_pods`` deletes the pods and claims first, even those that already match the files.

        Raises:
            ConfigurationError: a file is invalid, or an object to recreate would be rejected (nothing is changed in
                both cases), or another object was rejected.
        """
        documents = self._read()
        bodies = {key: body for key, (_, body) in documents.items()}
        gone = self._applied.keys() - bodies.keys()
        changed = {key for key in self._applied.keys() & bodies.keys() if bodies[key] != self._bodies.get(key)}
        recreated = {key for key in changed if key[0] in _FIXED}
        if recreate_pods or any(kind in _OF_CLAIMS for kind, *_ in recreated):
            recreated |= {key for key in self._applied if key[0] == PODS.kind}
        if recreate_pods:
            recreated |= {key for key in self._applied if key[0] == RESOURCE_CLAIMS.kind}
        new = bodies.keys() - self._applied.keys()
        # before anything is deleted
        await dry_run(client, [documents[key] for key in sorted(recreated & documents.keys())])
        await self._delete(client, [*gone, *recreated])
        self._bodies = {key: body for key, body in bodies.items() if key in self._applied and key not in recreated}
        if gone or recreated or changed or new:
            try:
                applied = await apply_files(client, self.paths)
            except BaseException:
                await self._find(client, new | recreated, bodies)
                raise
            self._applied.update((_key(item.object), item) for item in applied)
            self._bodies = bodies
        parts = {"created": new, "changed": changed - recreated, "recreated": recreated - gone, "deleted": gone}
        return "; ".join(f"{what} {_names(keys)}" for what, keys in parts.items() if keys)

    async def _find(self, client: Client, keys: Iterable[_Key], bodies: Mapping[_Key, Mapping[str, Any]]) -> None:
        """Find the objects that were created before one was rejected, so that the next run treats them as changed."""
        kinds = KindDiscovery(client)
        for key in keys:
            with suppress(KubeError, ConfigurationError):
                resource = await kinds.resource("", bodies[key])
                found = await client.get(resource, key[2], key[1] if resource.namespaced else None)
                self._applied[key] = AppliedManifest(resource, found)

    def _read(self) -> dict[_Key, tuple[str, Mapping[str, Any]]]:
        """Return the objects with their files and positions."""
        found: dict[_Key, tuple[str, Mapping[str, Any]]] = {}
        for path in self.paths:
            if not path.exists():
                raise ConfigurationError(
                    f"-f {path} does not exist any more; create it again, or restart dra-kit dev without it"
                )
            for where, body in read_manifests(path):
                found[_key(body)] = where, body
        return found

    async def _delete(self, client: Client, keys: Iterable[_Key]) -> None:
        """Delete objects, pods first, and wait until they are gone."""
        for key in sorted(keys, key=lambda key: key[0] != PODS.kind):
            item = self._applied[key]
            uid = item.object["metadata"]["uid"]
            place = (item.resource, item.name, item.namespace or None)
            end = time.monotonic() + _GONE_SECONDS
            with suppress(NotFound):
                await client.delete(*place, uid=uid)
                while (found := await client.get(*place))["metadata"]["uid"] == uid:
                    if time.monotonic() > end:
                        raise ConfigurationError(
                            f"{key[0]} {item.name} still exists {_GONE_SECONDS:.0f} s after its deletion"
                            f"{finalizer_note(found)}; find out what blocks the deletion, or stop dra-kit dev"
                        )
                    await asyncio.sleep(_POLL)
            del self._applied[key]


def _key(body: Mapping[str, Any]) -> _Key:
    metadata = body["metadata"]
    return str(body.get("kind")), str(metadata.get("namespace") or "default"), str(metadata.get("name"))


def _names(keys: Iterable[_Key]) -> str:
    return ", ".join(f"{kind} {name}" for kind, _, name in sorted(keys))

"""Projected volumes of pods, as files: the token of the service account, ConfigMaps, Secrets and fields of the pod.

Volumes of other types are not set up. Sources: Kubernetes 1.37 ``pkg/volume/projected`` and ``pkg/kubelet/token``.
"""

from __future__ import annotations

import base64
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, Resource
from dra_kit.errors import KubeError, KubeletError, NotFound
from dra_kit.kubernetes.resource.objects import containers, pod_reference
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.images import ImageStore
from dra_kit.sandbox.kubelet.environment import NodeFacts, field_value, resource_value

_TOKEN_SECONDS: Final = 3600
_RENEW_AT: Final = 0.8  # of the lifetime of a token
_LONGEST_SECONDS: Final = 24 * 3600.0
_CACHE_SECONDS: Final = 60.0  # the kubelet's cache of ConfigMaps and Secrets
_MODE: Final = 0o644


class ProjectedVolumes:
    """Writes the volumes of one node's pods below the kubelet's directory.

    Args:
        root: the kubelet's directory.
        images: which containers have processes.
    """

    def __init__(self, client: Client, root: Path, node: NodeFacts, images: ImageStore) -> None:
        self._client = client
        self._images = images
        self._pods = root / "pods"
        self._node = node
        self._cache: dict[tuple[str, str, str], tuple[float, dict[str, Any]]] = {}

    async def write(self, pod: ObjectView) -> float:
        """Write the files; return the seconds after which tokens have to be renewed, infinity if there are none.

        A pod whose containers have no processes gets no files: nothing reads them.

        Raises:
            KubeletError: a token, an object or a key of it is missing; the text is that of the kubelet's Event.
        """
        renewal = math.inf
        if not self._images.has_processes(pod):
            return renewal
        for volume in _projected(pod):
            name, folder = volume["name"], self._folder(pod, volume["name"])
            files: dict[str, tuple[bytes, int]] = {}
            mode = volume["projected"].get("defaultMode", _MODE)
            try:
                for source in volume["projected"].get("sources") or ():
                    if token := source.get("serviceAccountToken"):
                        seconds = token.get("expirationSeconds") or _TOKEN_SECONDS
                        files[token["path"]] = (await self._token(pod, token, seconds), mode)
                        renewal = min(renewal, seconds * _RENEW_AT, _LONGEST_SECONDS)
                    else:
                        files |= await self._files(pod, source, mode)
                for path in (*files, name):
                    _check_path(path)
                _write_files(folder, files)
            except (KubeletError, OSError, ValueError) as error:  # files of one name, names that no file can have
                reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else error
                raise KubeletError(f'MountVolume.SetUp failed for volume "{name}" : {reason}') from error
        return renewal

    def mounts(self, pod: ObjectView, container: ObjectView) -> dict[str, str]:
        """Return the folders of a container's volumes by the path at which the container sees them."""
        names = {volume["name"] for volume in _projected(pod)}
        return {
            mount["mountPath"]: str(self._folder(pod, mount["name"]))
            for mount in container.get("volumeMounts") or ()
            if mount["name"] in names and not mount.get("subPath") and not mount.get("subPathExpr")
        }

    def remove(self, pod_uid: str) -> None:
        """Remove the volumes of a pod that is gone."""
        shutil.rmtree(self._pods / pod_uid, ignore_errors=True)

    def _folder(self, pod: ObjectView, volume: str) -> Path:
        return self._pods / str(pod["metadata"]["uid"]) / "volumes" / "kubernetes.io~projected" / volume

    async def _token(self, pod: ObjectView, projection: Mapping[str, Any], seconds: int) -> bytes:
        who = pod_reference(pod)
        audience = projection.get("audience")
        spec = {
            "expirationSeconds": seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": who.name, "uid": who.uid},
            **({"audiences": [audience]} if audience else {}),
        }
        body = {"metadata": {"name": pod["spec"].get("serviceAccountName") or "default"}, "spec": spec}
        try:
            answer = await self._client.create(SERVICE_ACCOUNTS, body, who.namespace, subresource="token")
        except KubeError as error:
            raise KubeletError(f"failed to fetch token: {error.text}") from error
        return str(answer["status"]["token"]).encode()

    async def _files(self, pod: ObjectView, source: Mapping[str, Any], mode: int) -> dict[str, tuple[bytes, int]]:
        """Return content and mode of the files of one source, by path."""
        if downward := source.get("downwardAPI"):
            return {
                item["path"]: (self._field(pod, item).encode(), item.get("mode", mode))
                for item in downward.get("items") or ()
            }
        for field, resource in (("configMap", CONFIG_MAPS), ("secret", SECRETS)):
            if given := source.get(field):
                data = await self._data(pod, resource, given)
                items: list[Mapping[str, Any]] = given.get("items") or [{"key": key, "path": key} for key in data]
                missing = [item["key"] for item in items if item["key"] not in data]
                if missing and not given.get("optional"):
                    raise KubeletError(f"references non-existent {_KEY_OF[field]} key: {missing[0]}")
                return {
                    item["path"]: (data[item["key"]], item.get("mode", mode)) for item in items if item["key"] in data
                }
        raise KubeletError(f"projected source {', '.join(sorted(source))} is not known to this kubelet")

    def _field(self, pod: ObjectView, item: Mapping[str, Any]) -> str:
        if reference := item.get("resourceFieldRef"):
            name = reference.get("containerName") or ""
            named = next((found for found in containers(pod) if found["name"] == name), None)
            if named is None:
                raise KubeletError(f"container {name} not found")
            return resource_value(named, reference, self._node)
        path = (item.get("fieldRef") or {}).get("fieldPath", "")
        if path in {"metadata.labels", "metadata.annotations"}:
            pairs = sorted((pod["metadata"].get(path.rpartition(".")[2]) or {}).items())
            return "\n".join(f'{key}="{value}"' for key, value in pairs)
        return field_value(pod, path, self._node)

    async def _data(self, pod: ObjectView, resource: Resource, given: Mapping[str, Any]) -> dict[str, bytes]:
        namespace, name = pod["metadata"].get("namespace", ""), given.get("name", "")
        key, now = (resource.plural, namespace, name), time.monotonic()
        known = self._cache.get(key)
        if known is None or known[0] < now:
            self._cache = {key: item for key, item in self._cache.items() if item[0] >= now}
            try:
                found = await self._client.get(resource, name, namespace)
            except NotFound as error:
                if given.get("optional"):
                    return {}
                raise KubeletError(f'{resource.kind.lower()} "{name}" not found') from error
            known = self._cache[key] = (now + _CACHE_SECONDS, found)
        texts, encoded = known[1].get("data") or {}, known[1].get("binaryData") or {}
        if resource is SECRETS:
            texts, encoded = {}, texts
        return {
            **{key: value.encode() for key, value in texts.items()},
            **{key: base64.b64decode(value) for key, value in encoded.items()},
        }


_KEY_OF: Final = {"configMap": "config", "secret": "secret"}


def _projected(pod: ObjectView) -> Iterator[ObjectView]:
    return (volume for volume in pod["spec"].get("volumes") or () if volume.get("projected"))


def _check_path(path: str) -> None:
    """Check that a file is inside its volume (Kubernetes 1.37 ``pkg/volume/util/atomic_writer.go``).

    Raises:
        KubeletError: it is not.
    """
    if not path:
        raise KubeletError("invalid path: must not be empty")
    if path.startswith("/"):
        raise KubeletError(f"invalid path: must be relative path: {path}")
    if ".." in path.split("/"):
        raise KubeletError(f"invalid path: must not contain '..': {path}")
    if path.startswith(".."):
        raise KubeletError(f"invalid path: must not start with '..': {path}")


def _write_files(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Write the files, each whole at any moment."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, (data, mode) in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f"..{target.name}.new")
        new.write_bytes(data)
        new.chmod(mode)
        new.replace(target)

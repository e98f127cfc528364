"""Volumes of pods: files of ConfigMaps, Secrets, tokens and fields of the pod, empty folders, and paths of the node.

Volumes of other types are not set up. Sources: Kubernetes 1.37 ``pkg/volume/projected``, ``configmap``, ``secret``,
``downwardapi``, ``emptydir``, ``hostpath``, ``util/atomic_writer.go``, ``pkg/kubelet/token`` and ``kubelet_pods.go``.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import math
import os
import secrets
import shutil
import stat
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dra_kit.client.api import Client
from dra_kit.client.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, Resource
from dra_kit.errors import KubeError, KubeletError, NotFound
from dra_kit.kubernetes.resource.objects import containers, pod_reference
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.images import ImageStore
from dra_kit.sandbox.containers.runtime import VolumeMount
from dra_kit.sandbox.kubelet.environment import NodeFacts, expand_variables, field_value, resource_value

_TOKEN_SECONDS: Final = 3600
_RENEW_AT: Final = 0.8  # of the lifetime of a token
_LONGEST_SECONDS: Final = 24 * 3600.0
_MODE: Final = 0o644
_FOLDERS: Final[Mapping[str, str]] = {
    "projected": "kubernetes.io~projected",
    "configMap": "kubernetes.io~configmap",
    "secret": "kubernetes.io~secret",
    "downwardAPI": "kubernetes.io~downward-api",
    "emptyDir": "kubernetes.io~empty-dir",
}
"""The folder of each type in that of a pod's volumes."""
_DATA: Final = "..data"
Look = Callable[[str, str, int], Awaitable[int]]
"""Returns the mode of a path of the node, which is created as a ``file`` or ``directory`` if it is missing."""


class NodePaths:
    """Paths of a node whose programs share the files of this machine.

    What has to be created is created below a folder of the node instead of on this machine.

    Args:
        root: that folder.
        outside: returns where a path of the node is on this machine.
    """

    def __init__(self, root: Path, outside: Callable[[str], Path]) -> None:
        self._root = root
        self._outside = outside

    def source(self, path: str) -> str:
        """Return where a path is."""
        found, made = self._outside(path), self._root / path.lstrip("/")
        return str(made if made.exists() and not found.exists() else found)

    async def look(self, path: str, create: str, mode: int) -> int:
        """See :data:`Look`."""
        return await asyncio.to_thread(self._look, path, create, mode)

    def _look(self, path: str, create: str, mode: int) -> int:
        found = Path(self.source(path))
        if create and not found.exists():
            parent = next(item for item in found.parents if item.exists())
            if not parent.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if str(found) == path:
                found = self._root / path.lstrip("/")
            found.parent.mkdir(parents=True, exist_ok=True)
            found.mkdir(mode) if create == "directory" else found.touch(mode)
        return found.stat().st_mode


class PodVolumes:
    """Sets up the volumes of one node's pods, below the kubelet's directory.

    Args:
        root: the kubelet's directory.
        images: which containers have processes.
        source: returns where a container runtime finds a path of the node.
        look: finds out about a path of the node.
        runs_images: containers without a command have processes, too.
    """

    def __init__(
        self,
        client: Client,
        root: Path,
        node: NodeFacts,
        *,
        images: ImageStore,
        source: Callable[[str], str],
        look: Look,
        runs_images: bool = False,
    ) -> None:
        self._client = client
        self._images = images
        self._pods = root / "pods"
        self._node = node
        self._source = source
        self._look = look
        self._runs_images = runs_images

    async def set_up(self, pod: ObjectView) -> float:
        """Set them up; return the seconds after which tokens have to be renewed, infinity if there are none.

        A pod whose containers have no processes gets no volumes: nothing uses them.

        Raises:
            KubeletError: a token, an object, a key of it or a path is missing; the text is that of the kubelet's Event.
        """
        renewal = math.inf
        if not self._runs_images and not self._images.has_processes(pod):
            return renewal
        for volume in pod["spec"].get("volumes") or ():
            name = volume["name"]
            try:
                if (path := volume.get("hostPath")) is not None:
                    await self._check_path_of_node(path)
                elif "emptyDir" in volume:
                    _check_path(name)
                    self._empty(pod, name)
                elif (kind := next((item for item in _FOLDERS if item in volume), None)) is not None:
                    files, seconds = await self._files_of(pod, kind, volume[kind] or {})
                    renewal = min(renewal, seconds)
                    for file in (*files, name):
                        _check_path(file)
                    _write_files(self._folder(pod, kind, name), files)
            except (KubeletError, OSError, ValueError) as error:  # files of one name, names that no file can have
                reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else error
                raise KubeletError(f'MountVolume.SetUp failed for volume "{name}" : {reason}') from error
        return renewal

    async def mounts(
        self, pod: ObjectView, container: ObjectView, variables: Mapping[str, str]
    ) -> tuple[VolumeMount, ...]:
        """Return what a container of a pod mounts; ``variables`` are its environment, for ``subPathExpr``.

        Raises:
            KubeletError: a ``subPath`` leads out of its volume, or cannot be created.
        """
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
        found = []
        for mount in container.get("volumeMounts") or ():
            volume = volumes.get(mount["name"]) or {}
            kind = next((item for item in (*_FOLDERS, "hostPath") if item in volume), None)
            if kind is None:
                continue
            if kind == "hostPath":
                source = _normal(volume["hostPath"]["path"])
            else:
                source = str(self._folder(pod, kind, mount["name"]))
            part = mount.get("subPath") or expand_variables(mount.get("subPathExpr") or "", variables)
            if part:
                _check_part(part)
                try:
                    if kind == "hostPath":
                        source = _normal(f"{source}/{part}")
                        await self._look(source, "directory", _PART_MODE)
                    else:
                        source = _part(Path(source), part)
                except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
                    of = f'volumeMount "{mount["name"]}" of container "{container["name"]}"'
                    raise KubeletError(f"failed to create subPath directory for {of}") from error
            if kind == "hostPath":
                source = self._source(source)
            found.append(
                VolumeMount(
                    path=mount["mountPath"] if mount["mountPath"].startswith("/") else f"/{mount['mountPath']}",
                    source=source,
                    # the kubelet mounts what it writes itself read-only
                    read_only=bool(mount.get("readOnly")) or kind not in {"hostPath", "emptyDir"},
                    shared=mount.get("mountPropagation") == "Bidirectional",
                )
            )
        return tuple(found)

    def remove(self, pod_uid: str) -> None:
        """Remove the volumes of a pod that is gone."""
        shutil.rmtree(self._pods / pod_uid, ignore_errors=True)

    def _folder(self, pod: ObjectView, kind: str, volume: str) -> Path:
        return self._pods / str(pod["metadata"]["uid"]) / "volumes" / _FOLDERS[kind] / volume

    def _empty(self, pod: ObjectView, name: str) -> None:
        folder = self._folder(pod, "emptyDir", name)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)

    async def _check_path_of_node(self, volume: Mapping[str, Any]) -> None:
        """Check or create the path of a ``hostPath`` (Kubernetes 1.37 ``pkg/volume/hostpath/host_path.go``).

        Raises:
            KubeletError: it is not what its type says.
        """
        path, kind = _normal(volume["path"]), volume.get("type") or ""
        # without a type, nothing is checked; the runtime creates a missing folder
        create = {"": "directory", "DirectoryOrCreate": "directory", "FileOrCreate": "file"}.get(kind, "")
        try:
            mode = await self._look(path, create, 0o755 if create == "directory" else 0o644)
        except FileNotFoundError:
            mode = 0
        if not kind:
            return
        if kind not in _TYPES:
            raise KubeletError(f"{kind} is an invalid volume type")
        is_right, name = _TYPES[kind]
        if not is_right(mode):
            raise KubeletError(f"hostPath type check failed: {path} is not a {name}")

    async def _files_of(
        self, pod: ObjectView, kind: str, volume: Mapping[str, Any]
    ) -> tuple[dict[str, tuple[bytes, int]], float]:
        """Return content and mode of the files of a volume, by path, and the seconds for which they are good."""
        mode, renewal = volume.get("defaultMode", _MODE), math.inf
        if kind == "secret":
            volume = {**volume, "name": volume.get("secretName", "")}
        sources = (volume.get("sources") or ()) if kind == "projected" else ({kind: volume},)
        files: dict[str, tuple[bytes, int]] = {}
        for source in sources:
            if token := source.get("serviceAccountToken"):
                seconds = token.get("expirationSeconds") or _TOKEN_SECONDS
                files[token["path"]] = (await self._token(pod, token, seconds), mode)
                renewal = min(renewal, seconds * _RENEW_AT, _LONGEST_SECONDS)
            else:
                files |= await self._files(pod, source, mode)
        return files, renewal

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
                    raise KubeletError(f"{_NO_KEY[field]}: {missing[0]}")
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
        try:
            found = await self._client.get(resource, name, namespace)
        except NotFound as error:
            if given.get("optional"):
                return {}
            raise KubeletError(f'{resource.kind.lower()} "{name}" not found') from error
        texts, encoded = found.get("data") or {}, found.get("binaryData") or {}
        if resource is SECRETS:
            texts, encoded = {}, texts
        return {
            **{key: value.encode() for key, value in texts.items()},
            **{key: base64.b64decode(value) for key, value in encoded.items()},
        }


_NO_KEY: Final = {
    "configMap": "configmap references non-existent config key",
    "secret": "references non-existent secret key",
}
_TYPES: Final[Mapping[str, tuple[Callable[[int], bool], str]]] = {
    "DirectoryOrCreate": (stat.S_ISDIR, "directory"),
    "Directory": (stat.S_ISDIR, "directory"),
    "FileOrCreate": (lambda mode: mode != 0 and not stat.S_ISDIR(mode), "file"),
    "File": (lambda mode: mode != 0 and not stat.S_ISDIR(mode), "file"),
    "Socket": (stat.S_ISSOCK, "socket file"),
    "CharDevice": (stat.S_ISCHR, "character device"),
    "BlockDevice": (stat.S_ISBLK, "block device"),
}
"""What the mode must be for each type of ``hostPath``, 0 if the path is missing, and what the kubelet calls it."""
_PART_MODE: Final = 0o750


def _normal(path: str) -> str:
    return os.path.normpath(path)


def _check_part(part: str) -> None:
    """Check a ``subPath``.

    Raises:
        KubeletError: it leads out of its volume.
    """
    if part.startswith("/"):
        raise KubeletError(f"unable to provision SubPath `{part}`: must be a relative path")
    if ".." in part.split("/"):
        raise KubeletError(f"unable to provision SubPath `{part}`: must not contain '..'")


def _part(source: Path, part: str) -> str:
    """Return the path of a part of a volume; a folder that is missing is created.

    Raises:
        OSError: it is a link that leads out of the volume, or cannot be created.
    """
    root = source.resolve()
    path = (root / part).resolve()
    if not path.is_relative_to(root):
        raise PermissionError(errno.EPERM, "leads out of its volume", str(path))
    if not path.exists():
        path.mkdir(_PART_MODE, parents=True, exist_ok=True)
    return str(path)


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
    """Write the files of a volume, all at one moment: links lead to a folder with them, which is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / _DATA
    former = folder / data.readlink() if data.is_symlink() else None
    if former is not None and _read_files(former) == files:
        return
    new = folder / f"..{time.strftime('%Y_%m_%d_%H_%M_%S', time.gmtime())}.{secrets.randbelow(10**9)}"
    new.mkdir()
    try:
        for path, (content, mode) in files.items():
            target = new / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(mode)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    link = folder / f"{_DATA}_tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(new.name)
    link.replace(data)
    shown = {path.split("/")[0] for path in files}
    for name in shown:
        with suppress(FileExistsError):
            (folder / name).symlink_to(f"{_DATA}/{name}")
    for entry in list(folder.iterdir()):
        if not entry.name.startswith("..") and entry.name not in shown:
            entry.unlink()
    if former is not None:
        shutil.rmtree(former, ignore_errors=True)


def _read_files(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = (Path(top, name) for top, _, names in os.walk(folder) for name in names)
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode & 0o7777) for path in files}

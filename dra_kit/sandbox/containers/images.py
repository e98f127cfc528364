"""Folders of this machine that stand for images: programs, entry point, environment; and which containers need one.

The settings of an image are those of the OCI image specification 1.1 (``config.md``, object ``config``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.resource.objects import containers, init_containers
from dra_kit.kubernetes.values.json import ObjectView

SETTINGS_FILE: Final = ".image.json"
"""File in the folder of an image with its settings."""
_DEFAULT_REGISTRY: Final = ("docker.io/library/", "docker.io/")
_PLUGINS: Final = Path("/var/lib/kubelet/plugins")
_PLUGINS_REGISTRY: Final = Path("/var/lib/kubelet/plugins_registry")
_WORKLOADS: Final = frozenset({"DaemonSet", "ReplicaSet", "StatefulSet", "Job"})
"""Kinds that own the pods of a chart."""


class ImageSettings(Struct, frozen=True, rename="pascal"):
    """The settings of an image; other fields of OCI's are ignored. ``null`` is as none, which docker writes.

    Attributes:
        entrypoint: program and first arguments.
        cmd: arguments, unless the pod has some; or the command, without an entry point.
        env: variables, as ``NAME=VALUE``.
        working_dir: the working directory.
    """

    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    env: tuple[str, ...] | None = None
    working_dir: str = ""


class LocalImage(Struct, frozen=True):
    """A folder that stands for an image.

    Attributes:
        name: repository of the image, with or without tag or digest.
        directory: has the files of the image at their paths.
        settings: those of the image; None if the folder does not say them, so that its entry point is unknown.
    """

    name: str
    directory: Path
    settings: ImageSettings | None = None

    def command(self, command: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
        """Return what a container runs, given the pod's command and arguments; empty if nothing is known."""
        if command:
            return (*command, *arguments)
        if self.settings is None:  # the entry point to which the arguments belong
            return ()
        return (*(self.settings.entrypoint or ()), *(arguments or self.settings.cmd or ()))

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the image."""
        entries = (self.settings.env if self.settings else None) or ()
        return {name: value for name, _, value in (entry.partition("=") for entry in entries)}

    def path(self, path: str) -> str:
        """Return a ``PATH`` in which the image's folders come first."""
        own = [str(place) for entry in path.split(":") if (place := self.file(entry)) is not None and place.is_dir()]
        return ":".join((*own, path))

    def file(self, path: str) -> Path | None:
        """Return the image's file at an absolute path; None if it has none."""
        found = self.directory / path.lstrip("/")
        return found if path.startswith("/") and found.exists() else None

    def program(self, name: str) -> str:
        """Return the path of a program that a container names by an absolute path; other names are unchanged."""
        found = self.file(name)
        return name if found is None else str(found)

    def working_directory(self, otherwise: Path) -> Path:
        """Return the working directory of the image, if it has one."""
        found = self.file(self.settings.working_dir) if self.settings else None
        return found if found is not None and found.is_dir() else otherwise


def parse_image(text: str) -> LocalImage:
    """Return the image of a ``NAME=DIR``.

    Raises:
        ConfigurationError: it has another form, the folder is missing, or its settings are invalid.
    """
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise ConfigurationError(
            f"--image {text} is invalid; use --image NAME=DIR, where NAME is the repository of the image and DIR has "
            "its files, such as registry.example/driver=./image with ./image/usr/bin/driver"
        )
    directory = Path(folder).absolute()
    if not directory.is_dir():
        raise ConfigurationError(f"--image {text}: {directory} is not a folder; create it with the files of the image")
    return LocalImage(name, directory, _settings(directory / SETTINGS_FILE))


def _settings(file: Path) -> ImageSettings | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=ImageSettings)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise ConfigurationError(
            f'{file} is invalid: {error}; write for example {{"Entrypoint": ["/usr/bin/driver"], "Env": ["MODE=test"]}}'
        ) from None


def repository(reference: str) -> str:
    """Return the repository of an image, without tag and digest, and without the default registry."""
    head, slash, last = _short(reference).partition("@")[0].rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"


def _short(reference: str) -> str:
    prefix = next((prefix for prefix in _DEFAULT_REGISTRY if reference.startswith(prefix)), "")
    return reference.removeprefix(prefix)


class ImageStore:
    """The images that this machine has.

    Args:
        images: folders that stand for images.
        charts: namespaces of charts, whose workloads are drivers.
    """

    def __init__(self, images: Iterable[LocalImage] = (), charts: Iterable[str] = ()) -> None:
        self._images = tuple(images)
        self._charts = frozenset(charts)

    def find(self, reference: str) -> LocalImage | None:
        """Return what stands for an image: what has its whole name, or else its repository."""
        names = (_short(reference), repository(reference))
        return next((image for name in names for image in self._images if _short(image.name) == name), None)

    def command(self, container: ObjectView) -> tuple[str, ...]:
        """Return what a container runs, with references to variables; empty if the image would say so."""
        command, arguments = container.get("command") or (), container.get("args") or ()
        image = self.find(container.get("image") or "")
        return image.command(command, arguments) if image else (*command, *(arguments if command else ()))

    def has_processes(self, pod: ObjectView) -> bool:
        """Return whether a container of a pod is a process."""
        return any(map(self.command, (*init_containers(pod), *containers(pod))))

    def lacking(self, pod: ObjectView, container: ObjectView) -> str:
        """Return why a container of a driver cannot run without its image; empty for all others."""
        if self.command(container) or not self._is_driver(pod):
            return ""
        name = container.get("image") or ""
        image = self.find(name)
        if image is None:
            return (
                f'Container image "{name}" is not present and no image is pulled here, so that the command of '
                f"container {container['name']} is not known; start the sandbox with --image {repository(name)}=DIR"
            )
        file = image.directory / SETTINGS_FILE
        lacks = "does not exist" if image.settings is None else "has neither Entrypoint nor Cmd"
        return (
            f"{image.directory} stands for the image, but {file} {lacks}, and container {container['name']} has no "
            'command; write {"Entrypoint": ["/usr/bin/driver"]} into it, or {"Entrypoint": []} if the image has none '
            "and its program is the first argument of the container"
        )

    def _is_driver(self, pod: ObjectView) -> bool:
        metadata = pod["metadata"]
        owners = {owner["kind"] for owner in metadata.get("ownerReferences") or ()}
        if metadata.get("namespace") in self._charts and owners & _WORKLOADS:
            return True
        return any(_is_for_plugins(volume) for volume in pod["spec"].get("volumes") or ())


def _is_for_plugins(volume: Mapping[str, Any]) -> bool:
    path = (volume.get("hostPath") or {}).get("path") or ""
    return any(Path(path).is_relative_to(place) for place in (_PLUGINS, _PLUGINS_REGISTRY))

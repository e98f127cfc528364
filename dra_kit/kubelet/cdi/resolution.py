"""Resolves CDI device names as a container runtime does: load all spec files, find the devices, collect their edits.

``edits_from_cdi`` returns the edits of a spec written by a vendor's tool, for use in a preparer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dra_kit.author import prepared as author
from dra_kit.errors import ConfigurationError, InvalidPrepared, TransientError, UnresolvableDevices
from dra_kit.kubelet.cdi import spec as cdi
from dra_kit.kubelet.cdi.spec import CDIDevice, Spec, SpecEdits, load_errors, merge_edits
from dra_kit.kubernetes.manifests.documents import decode_utf8, parse_documents
from dra_kit.kubernetes.manifests.files import MANIFESTS, UnreadableText, read_file
from dra_kit.text import did_you_mean

DEFAULT_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where runtimes look by default: static specs, then generated ones."""


class SpecFile(Struct, frozen=True):
    """A loaded spec; ``priority`` is the index of its directory in the list, and the highest wins."""

    path: Path
    priority: int
    spec: Spec


class SpecCache:
    """The CDI devices that a runtime knows at one time.

    Args:
        files: loaded spec files, in the order of loading.
        errors: why a file or directory could not be loaded or, with a conflict, not be used completely.
    """

    def __init__(self, files: Iterable[SpecFile], errors: Mapping[Path, Sequence[str]]) -> None:
        self.files: tuple[SpecFile, ...] = tuple(files)
        self.errors: dict[Path, list[str]] = {path: list(texts) for path, texts in errors.items()}
        self._devices: dict[str, tuple[SpecFile, CDIDevice]] = {}
        conflicts: set[str] = set()
        for file in self.files:
            for device in file.spec.devices:
                name = f"{file.spec.kind}={device.name}"
                other = self._devices.get(name)
                if other is not None and other[0].priority == file.priority:
                    # no container gets the device, not even from a directory of higher priority
                    conflicts.add(name)
                    text = f"conflicting device {name!r} in {other[0].path} and {file.path}"
                    for path in (other[0].path, file.path):
                        self.errors.setdefault(path, []).append(text)
                else:
                    self._devices[name] = file, device
        for name in conflicts:
            del self._devices[name]

    @property
    def devices(self) -> list[str]:
        """Qualified names of all devices a container can get, sorted."""
        return sorted(self._devices)

    def resolve(self, names: Iterable[str]) -> SpecEdits:
        """Return the edits of a container that requests these devices, in the order in which a runtime applies them.

        Devices are in the order of the names; a repeated name counts once. The edits of a spec as a whole
        come before its first device. If environment variables, device nodes or mounts collide, the last one wins.

        Raises:
            UnresolvableDevices: names of unknown devices; a runtime then applies nothing.
        """
        wanted = list(dict.fromkeys(names))
        unresolved = [name for name in wanted if name not in self._devices]
        if unresolved:
            raise UnresolvableDevices(self._explain(unresolved), names=unresolved)
        edits: list[SpecEdits] = []
        begun: set[Path] = set()
        for name in wanted:
            file, device = self._devices[name]
            if file.path not in begun:
                begun.add(file.path)
                edits.append(file.spec.container_edits)
            edits.append(device.container_edits)
        return merge_edits(edits)

    def _explain(self, unresolved: Sequence[str]) -> str:
        text = f"unresolvable CDI devices {', '.join(unresolved)}: no spec file defines them"
        if self.errors:
            unusable = "; ".join(f"{path}: {', '.join(texts)}" for path, texts in sorted(self.errors.items()))
            text = f"{text}, but some could not be used: {unusable}"
        return text


def load_specs(directories: Sequence[Path] = DEFAULT_DIRECTORIES) -> SpecCache:
    """Read all spec files as a runtime does: ``.json`` and ``.yaml``, no subdirectories; directories may be missing.

    A file that a runtime would reject is listed in the ``errors`` of the cache, and its devices do not exist.
    """
    files: list[SpecFile] = []
    errors: dict[Path, list[str]] = {}
    for priority, directory in enumerate(directories):
        try:
            paths = sorted(path for path in directory.iterdir() if path.name.endswith((".json", ".yaml")))
        except FileNotFoundError:
            continue
        except OSError as error:
            errors[directory] = [f"cannot be read: {error.strerror}"]
            continue
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                continue
            try:
                files.append(SpecFile(path, priority, _read(path)))
            except OSError as error:
                errors[path] = [f"cannot be read: {error.strerror}"]
            except ValueError as error:
                errors[path] = [str(error)]
    return SpecCache(files, errors)


def _read(path: Path) -> Spec:
    try:
        content = read_file(path, MANIFESTS)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    spec = parse_spec(content)
    problems = load_errors(spec)
    if problems:
        raise ValueError("; ".join(map(str, problems)))
    return spec


def parse_spec(content: bytes) -> Spec:
    """Return a spec from JSON or YAML; runtimes parse JSON as YAML too.

    Raises:
        ValueError: it is not a spec.
    """
    try:
        text = decode_utf8(content)
        found = list(parse_documents(text, MANIFESTS))
        repeated = [path for document in found for path, _ in document.repeated()]
        value = found[0].value if found else None
        spec = Spec.from_json(json.dumps(value))
    except UnreadableText as error:
        raise ValueError(f"no CDI spec: {error.within(content.decode(errors='replace'))}") from None
    except ValueError as error:
        raise ValueError(f"no CDI spec: {' '.join(str(error).split())}") from None
    if repeated:
        raise ValueError(f"no CDI spec: repeated key {repeated[0]}")
    return spec


def edits_from_cdi(spec: Path | str | bytes | Mapping[str, Any], *, device: str) -> author.ContainerEdits:
    """Return the edits of a container that requests one device of a CDI spec: the spec's edits, then the device's.

    For tools that know their hardware best, such as ``nvidia-ctk cdi generate``. A preparer returns these edits
    together with its own: ``dra.Prepared(**dict(edits))``, or as ``claim_edits``.

    Args:
        spec: the file, as a Path, or its content: JSON or YAML, as text, bytes or a mapping.
        device: one of the spec's devices, ``0`` or ``vendor.example/class=0``.

    Raises:
        TransientError: the file cannot be read.
        InvalidPrepared: it is not a CDI spec that a container runtime loads, or does not have the device.
    """
    where = f"CDI spec {spec}" if isinstance(spec, Path) else "CDI spec"
    found = _spec(spec, where)
    named = {item.name: item.container_edits for item in found.devices}
    kind, _, name = device.rpartition("=")
    if name not in named or kind not in {"", found.kind}:
        known = [f"{found.kind}={item}" if kind else item for item in named]
        wish = did_you_mean(device, known) or f"; it has {', '.join(known)}"
        raise InvalidPrepared(f"{where} of {found.kind} has no device {device}{wish}")
    edits = merge_edits([found.container_edits, named[name]])
    return author.ContainerEdits(
        env=dict(entry.split("=", 1) for entry in edits.env),
        mounts=[author.Mount(**_given(item)) for item in edits.mounts],
        device_nodes=[author.DeviceNode(**_given(item)) for item in edits.device_nodes],
        hooks=[author.Hook(**_given(item)) for item in edits.hooks],
        net_devices=[author.NetDevice(**_given(item)) for item in edits.net_devices],
        additional_gids=edits.additional_gids,
        intel_rdt=None if edits.intel_rdt is None else author.IntelRdt(**_given(edits.intel_rdt)),
    )


def _spec(source: Path | str | bytes | Mapping[str, Any], where: str) -> cdi.Spec:
    try:
        if isinstance(source, Path):
            content = source.read_bytes()
        elif isinstance(source, bytes):
            content = source
        else:
            content = (source if isinstance(source, str) else json.dumps(dict(source))).encode()
        spec = parse_spec(content)
    except OSError as error:
        raise TransientError(f"{where} cannot be read: {error.strerror}; write it before claims are prepared") from None
    except (TypeError, ValueError) as error:
        raise InvalidPrepared(f"{where}: {error}; give a Path for a file, else what is in it") from None
    problems = load_errors(spec)
    if problems:
        raise InvalidPrepared(f"{where}: {'; '.join(map(str, problems))}")
    return spec


def _given(item: cdi.DeviceNode | cdi.Mount | cdi.Hook | cdi.NetDevice | cdi.IntelRdt) -> dict[str, Any]:
    return item.model_dump(exclude_defaults=True)

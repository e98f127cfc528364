"""The Container Device Interface specification (CDI, up to 1.1.0): immutable models, and the rules of a spec."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Self

from msgspec import Struct
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dra_kit.errors import PermanentError

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Versions of the CDI specification that container runtimes load, oldest first."""
# Runtimes read spec files as YAML, including those named .json. YAML rejects these characters, or folds them as line
# breaks, unless they are escaped. Characters above U+FFFF must be unescaped, where JSON would write two escapes.
_NOT_PRINTABLE_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _alias(name: str) -> str:
    return "closID" if name == "clos_id" else to_camel(name)


def _sorted(annotations: Mapping[str, str]) -> Mapping[str, str]:
    return dict(sorted(annotations.items()))


Annotations = Annotated[Mapping[str, str], AfterValidator(_sorted)]


class _Model(BaseModel):
    # strict and without extra fields, because runtimes reject a file with a wrong type or an unknown field
    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", strict=True, populate_by_name=True, alias_generator=_alias
    )


class DeviceNode(_Model):
    """A device file for the container; omitted fields are taken from the host's file when a container starts.

    Args:
        path: in the container.
        host_path: on the host; empty means the same as ``path``. Since 0.5.0.
        type: ``b`` block, ``c`` or ``u`` character, ``p`` FIFO; empty means that of the host's file.
        major: device number; 0 means that of the host's file.
        minor: device number; only used together with ``major``.
        file_mode: permission bits of the file, a number up to 0o7777.
        permissions: what the device cgroup allows, of ``r``, ``w`` and ``m``; empty means ``rwm``. ``none`` allows
            nothing; runtimes with a CDI library older than 1.1.1 reject it.
        uid: owner in the container; None means the container's user.
        gid: group in the container; None means the container's group.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class NetDevice(_Model):
    """A network interface that moves from the host into the container, as ``name``. Since 1.1.0."""

    host_interface_name: str
    name: str


class Hook(_Model):
    """A program of the host that the runtime runs at the OCI hook point ``hook_name``; ``timeout`` in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class Mount(_Model):
    """A mount in the container; ``options`` as for mount(8), ``type`` the file system's (since 0.4.0)."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class IntelRdt(_Model):
    """Settings of Linux resctrl. Since 0.7.0; ``schemata`` and ``enable_monitoring`` since 1.1.0."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = False


class SpecEdits(_Model):
    """What a runtime changes in a container's OCI configuration.

    Args:
        env: ``NAME=value`` each; a later one replaces an earlier one and the container's own variable.
        device_nodes: device files.
        net_devices: network interfaces. Since 1.1.0.
        hooks: programs run at points of the container's life cycle.
        mounts: files and directories.
        intel_rdt: resctrl settings. Since 0.7.0.
        additional_gids: supplementary groups; 0 is ignored by runtimes. Since 0.7.0.
    """

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        lists = self.env or self.device_nodes or self.net_devices or self.hooks or self.mounts or self.additional_gids
        return not lists and self.intel_rdt is None


NO_EDITS: Final = SpecEdits()
"""Edits that change nothing."""


def merge_edits(edits: Iterable[SpecEdits]) -> SpecEdits:
    """Merge edits as a runtime applies them, one after another."""
    merged: dict[str, Any] = {}
    for edit in edits:
        for field, value in edit:
            if value:  # lists are joined; of the settings of resctrl, the last ones win
                merged[field] = (*merged.get(field, ()), *value) if isinstance(value, tuple) else value
    return SpecEdits.model_validate(merged)


class CDIDevice(_Model):
    """A device that containers can request by ``name``; ``annotations`` (since 0.6.0) never reach the container."""

    name: str
    annotations: Annotations = Field(default_factory=dict)  # pydantic copies a default that is given as a value
    container_edits: SpecEdits


class Spec(_Model):
    """One CDI spec file.

    Args:
        cdi_version: version of the specification; a runtime rejects the file if it uses a newer field.
        kind: ``vendor/class`` of all its devices.
        annotations: notes that never reach a container. Since 0.6.0.
        devices: at least one, with unique names.
        container_edits: applied once to each container that gets at least one of the devices.
    """

    cdi_version: str
    kind: str
    annotations: Annotations = Field(default_factory=dict)
    devices: tuple[CDIDevice, ...]
    container_edits: SpecEdits = NO_EDITS

    def to_json(self) -> str:
        """Compact JSON in the specification's field order, without unset fields: equal specs result in equal text."""
        text = self.model_dump_json(by_alias=True, exclude_defaults=True)
        return _NOT_PRINTABLE_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Parse a spec file as strictly as runtimes do.

        Raises:
            ValueError: invalid JSON, an unknown or repeated field, a wrong type, a missing required field.
        """
        spec = cls.model_validate_json(data)
        json.loads(data, object_pairs_hook=_refuse_repeated_fields)
        return spec


def _refuse_repeated_fields(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(names) != len(set(names)):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"repeated fields: {', '.join(repeated)}")


class VersionRequirement(Struct, frozen=True):
    """``path`` of a spec uses ``feature``, which the specification has since ``version``."""

    version: str
    path: str
    feature: str


_DIGITS: Final = frozenset("0123456789")


def version_requirements(spec: Spec) -> Iterator[VersionRequirement]:
    """Yield all features of a spec that are newer than CDI 0.3.0, by the specification's table of versions."""
    return _requirements(spec.kind, spec.annotations, spec.container_edits, spec.devices)


def _requirements(
    kind: str, annotations: Mapping[str, str], common: SpecEdits, devices: Iterable[CDIDevice]
) -> Iterator[VersionRequirement]:
    if annotations:
        yield VersionRequirement("0.6.0", "annotations", "annotations")
    if "." in kind.partition("/")[2]:
        yield VersionRequirement("0.6.0", "kind", "a dot in the class")
    yield from _edits_requirements(common, "containerEdits")
    for i, device in enumerate(devices):
        path = f"devices[{i}]"
        if device.name[:1] in _DIGITS:
            yield VersionRequirement("0.5.0", f"{path}.name", "a name that starts with a digit")
        if device.annotations:
            yield VersionRequirement("0.6.0", f"{path}.annotations", "annotations")
        yield from _edits_requirements(device.container_edits, f"{path}.containerEdits")


def _edits_requirements(edits: SpecEdits, path: str) -> Iterator[VersionRequirement]:
    for i, node in enumerate(edits.device_nodes):
        if node.host_path:
            yield VersionRequirement("0.5.0", f"{path}.deviceNodes[{i}].hostPath", "hostPath")
    for i, mount in enumerate(edits.mounts):
        if mount.type:
            yield VersionRequirement("0.4.0", f"{path}.mounts[{i}].type", "type of a mount")
    if edits.net_devices:
        yield VersionRequirement("1.1.0", f"{path}.netDevices", "netDevices")
    if edits.additional_gids:
        yield VersionRequirement("0.7.0", f"{path}.additionalGids", "additionalGids")
    if edits.intel_rdt is not None:
        yield VersionRequirement("0.7.0", f"{path}.intelRdt", "intelRdt")
        if edits.intel_rdt.schemata is not None:
            yield VersionRequirement("1.1.0", f"{path}.intelRdt.schemata", "schemata")
        if edits.intel_rdt.enable_monitoring:
            yield VersionRequirement("1.1.0", f"{path}.intelRdt.enableMonitoring", "enableMonitoring")


def minimum_version(spec: Spec) -> str:
    """Return the lowest ``cdiVersion`` that a spec may declare; the lower it is, the more runtimes load it."""
    return _lowest(version_requirements(spec))


def _lowest(needs: Iterable[VersionRequirement]) -> str:
    return max((need.version for need in needs), key=VERSIONS.index, default=VERSIONS[0])


def build_spec(
    kind: str,
    devices: tuple[CDIDevice, ...],
    *,
    container_edits: SpecEdits = NO_EDITS,
    annotations: Mapping[str, str] | None = None,
) -> Spec:
    """Return a spec that declares the lowest version that its content needs."""
    annotations = annotations or {}
    needed = _lowest(_requirements(kind, annotations, container_edits, devices))
    return Spec(
        cdi_version=needed, kind=kind, annotations=annotations, devices=devices, container_edits=container_edits
    )


HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
DEVICE_TYPES = ("b", "c", "u", "p")
_UINT32 = 2**32 - 1
_INT64 = 2**63 - 1
_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.IGNORECASE | re.ASCII)
_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_ANNOTATIONS_LIMIT = 256 * 1024


class SpecProblem(Struct, frozen=True):
    """A violated rule.

    Args:
        path: JSON path of the field, for example ``devices[0].containerEdits.env[1]``.
        text: the value and the rule.
        refused: a runtime does not load the file; otherwise it loads, but the device will not work as intended.
    """

    path: str
    text: str
    refused: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def validate_spec(spec: Spec) -> list[SpecProblem]:
    """Return the rules that a spec violates, in the order of its fields; none if it may be written."""
    problems = [*_version(spec), *_kind(spec.kind), *_annotations(spec.annotations, "annotations")]
    if not spec.devices:
        problems.append(_refused("devices", "a spec needs at least one device"))
    seen: dict[str, int] = {}
    for i, device in enumerate(spec.devices):
        path = f"devices[{i}]"
        if not valid_device_name(device.name):
            problems.append(_refused(f"{path}.name", f"{device.name!r}: {DEVICE_RULE}"))
        first = seen.setdefault(device.name, i)
        if first != i:
            problems.append(_refused(f"{path}.name", f"{device.name!r} is already the name of devices[{first}]"))
        problems += _annotations(device.annotations, f"{path}.annotations")
        if device.container_edits.is_empty:
            problems.append(_refused(f"{path}.containerEdits", "a device needs at least one edit"))
        problems += _edits(device.container_edits, f"{path}.containerEdits")
    if not spec.container_edits.is_empty:
        problems += _edits(spec.container_edits, "containerEdits")
    return problems


def load_errors(spec: Spec) -> list[SpecProblem]:
    """Return the problems for which a runtime does not load a spec's file."""
    return [problem for problem in validate_spec(spec) if problem.refused]


def _refused(path: str, text: str) -> SpecProblem:
    return SpecProblem(path, text, refused=True)


def _unfit(path: str, text: str) -> SpecProblem:
    return SpecProblem(path, text, refused=False)


def _version(spec: Spec) -> Iterator[SpecProblem]:
    declared = spec.cdi_version.removeprefix("v")
    if declared not in VERSIONS:
        yield _refused("cdiVersion", f"{spec.cdi_version!r} is none of {', '.join(VERSIONS)}")
        return
    for need in version_requirements(spec):
        if VERSIONS.index(need.version) > VERSIONS.index(declared):
            yield _refused("cdiVersion", f"{declared} is too old: {need.path} ({need.feature}) needs {need.version}")


@lru_cache(maxsize=16)  # a process has one kind, checked with each claim
def _kind(kind: str) -> tuple[SpecProblem, ...]:
    return tuple(_kind_problems(kind))


def _kind_problems(kind: str) -> Iterator[SpecProblem]:
    vendor, _, class_name = kind.partition("/")
    if not valid_vendor(vendor):
        yield _refused("kind", f"{kind!r} is not vendor/class: {VENDOR_RULE}")
    elif len(vendor) > 253 or not _SUBDOMAIN.fullmatch(vendor):
        yield _unfit("kind", f"{kind!r}: a vendor is a DNS subdomain of at most 253 characters")
    if not valid_class(class_name):
        yield _refused("kind", f"{kind!r} is not vendor/class: {CLASS_RULE}")
    elif len(class_name) > 63:
        yield _unfit("kind", f"{kind!r}: a class has at most 63 characters")


def _annotations(annotations: Mapping[str, str], path: str) -> Iterator[SpecProblem]:
    if not annotations:
        return
    for key in annotations:
        prefix, slash, name = key.rpartition("/")
        well_prefixed = not slash or (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix))
        if not (well_prefixed and len(name) <= 63 and _ANNOTATION_NAME.fullmatch(name)):
            yield _unfit(
                f"{path}[{key}]", "a key is [DNS subdomain/]name; a name has 1 to 63 letters, digits, '_', '-', '.'"
            )
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _ANNOTATIONS_LIMIT:
        yield _unfit(path, f"{size} bytes: all keys and values together have at most {_ANNOTATIONS_LIMIT}")


def _edits(edits: SpecEdits, path: str) -> Iterator[SpecProblem]:
    yield from _env(edits.env, f"{path}.env")
    for i, node in enumerate(edits.device_nodes):
        yield from _device_node(node, f"{path}.deviceNodes[{i}]")
    yield from _net_devices(edits.net_devices, f"{path}.netDevices")
    for i, hook in enumerate(edits.hooks):
        yield from _hook(hook, f"{path}.hooks[{i}]")
    for i, mount in enumerate(edits.mounts):
        yield from _mount(mount, f"{path}.mounts[{i}]")
    if edits.intel_rdt is not None:
        yield from _intel_rdt(edits.intel_rdt, f"{path}.intelRdt")
    for i, gid in enumerate(edits.additional_gids):
        yield from _number(gid, f"{path}.additionalGids[{i}]", 0, _UINT32)


def _env(env: Iterable[str], path: str) -> Iterator[SpecProblem]:
    for i, entry in enumerate(env):
        if entry.find("=") <= 0:
            yield _refused(f"{path}[{i}]", "an entry is NAME=value with a name of at least one character")
        yield from _no_nul(entry, f"{path}[{i}]")


def _device_node(node: DeviceNode, path: str) -> Iterator[SpecProblem]:
    yield from _path(node.path, f"{path}.path")
    if node.host_path:
        yield from _path(node.host_path, f"{path}.hostPath")
    if node.type and node.type not in DEVICE_TYPES:
        yield _refused(f"{path}.type", f"{node.type!r} is none of {', '.join(DEVICE_TYPES)}")
    for name, number in (("major", node.major), ("minor", node.minor)):
        yield from _number(number, f"{path}.{name}", 0, _INT64, lowest=-_INT64 - 1)
    if node.file_mode is not None:
        yield from _number(node.file_mode, f"{path}.fileMode", 0, 0o7777, highest=_UINT32)
    if node.permissions != "none" and not set(node.permissions) <= set("rwm"):
        yield _refused(f"{path}.permissions", f"{node.permissions!r} is neither 'none' nor made of 'r', 'w', 'm'")
    for name, owner in (("uid", node.uid), ("gid", node.gid)):
        if owner is not None:
            yield from _number(owner, f"{path}.{name}", 0, _UINT32)


def _net_devices(devices: Iterable[NetDevice], path: str) -> Iterator[SpecProblem]:
    seen: dict[tuple[str, str], int] = {}
    for i, device in enumerate(devices):
        for field, name in (("hostInterfaceName", device.host_interface_name), ("name", device.name)):
            where = f"{path}[{i}].{field}"
            if not name:
                yield _refused(where, "must not be empty")
            elif name in {".", ".."} or len(name.encode()) > 15 or re.search(r"[/:\s\0]", name):
                # dev_valid_name() of the kernel; IFNAMSIZ counts the final NUL
                yield _unfit(where, f"{name!r}: an interface name has at most 15 bytes, no '/', ':' or white space")
            first = seen.setdefault((field, name), i)
            if first != i:
                yield _refused(where, f"{name!r} is already the {field} of {path}[{first}]")


def _hook(hook: Hook, path: str) -> Iterator[SpecProblem]:
    if hook.hook_name not in HOOK_NAMES:
        yield _refused(f"{path}.hookName", f"{hook.hook_name!r} is none of {', '.join(HOOK_NAMES)}")
    yield from _path(hook.path, f"{path}.path")
    for i, argument in enumerate(hook.args):
        yield from _no_nul(argument, f"{path}.args[{i}]")
    yield from _env(hook.env, f"{path}.env")
    if hook.timeout is not None:
        yield from _number(hook.timeout, f"{path}.timeout", 1, _UINT32, lowest=-_INT64 - 1, highest=_INT64)


def _mount(mount: Mount, path: str) -> Iterator[SpecProblem]:
    # other file systems accept any text as their source, for example "tmpfs"
    has_file_as_source = mount.type in {"", "none", "bind"} or not {"bind", "rbind"}.isdisjoint(mount.options)
    yield from _path(mount.host_path, f"{path}.hostPath", absolute=has_file_as_source)
    yield from _path(mount.container_path, f"{path}.containerPath")
    for i, option in enumerate(mount.options):
        yield from _no_nul(option, f"{path}.options[{i}]")
    yield from _no_nul(mount.type, f"{path}.type")


def _intel_rdt(rdt: IntelRdt, path: str) -> Iterator[SpecProblem]:
    clos = rdt.clos_id
    if clos != "/" and (clos in {".", ".."} or "/" in clos or "\n" in clos or len(clos.encode()) >= 4096):
        yield _refused(f"{path}.closID", f"{clos[:64]!r}: a CLOS is named like a file, or '/' for the root CLOS")
    yield from _no_nul(clos, f"{path}.closID")


def _path(value: str, path: str, *, absolute: bool = True) -> Iterator[SpecProblem]:
    if not value:
        yield _refused(path, "must not be empty")
    elif absolute and not value.startswith("/"):
        yield _unfit(path, f"{value!r} is not an absolute path")
    yield from _no_nul(value, path)


def _no_nul(value: str, path: str) -> Iterator[SpecProblem]:
    if "\0" in value:
        yield _unfit(path, f"{value!r} contains NUL, which ends a string in the kernel")


def _number(
    value: int, path: str, least: int, most: int, *, lowest: int | None = None, highest: int | None = None
) -> Iterator[SpecProblem]:
    """Yield what is wrong with a number: sensible from ``least`` to ``most``, read from ``lowest`` to ``highest``."""
    if not least <= value <= most:
        readable = (least if lowest is None else lowest) <= value <= (most if highest is None else highest)
        yield SpecProblem(path, f"{value} is not between {least} and {most}", refused=not readable)


VENDOR_RULE = "a vendor starts with a letter, ends with a letter or digit, and has only letters, digits, '_', '-', '.'"
CLASS_RULE = "a class starts with a letter, ends with a letter or digit, and has only letters, digits, '_', '-', '.'"
DEVICE_RULE = "a device name starts and ends with a letter or digit, and has only letters, digits, '_', '-', '.', ':'"
_VENDOR_OR_CLASS = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def valid_vendor(vendor: str) -> bool:
    """Return whether runtimes accept it as the part of a kind before the slash."""
    return _VENDOR_OR_CLASS.fullmatch(vendor) is not None


def valid_class(class_name: str) -> bool:
    """Return whether runtimes accept it as the part of a kind after the slash."""
    return _VENDOR_OR_CLASS.fullmatch(class_name) is not None


def valid_device_name(name: str) -> bool:
    """Return whether runtimes accept it as the name of a device in a spec."""
    return _DEVICE.fullmatch(name) is not None


def check_qualified_name(text: str) -> str:
    """Return a device's name as containers request it, ``vendor/class=name``.

    Raises:
        PermanentError: not a qualified name, with code ``invalid-cdi-name``: a runtime would find no such device.
    """
    kind, equals, name = text.partition("=")
    vendor, slash, class_name = kind.partition("/")
    if not (equals and slash):
        rule = "a qualified name is vendor/class=name"
    elif not valid_vendor(vendor):
        rule = VENDOR_RULE
    elif not valid_class(class_name):
        rule = CLASS_RULE
    elif not valid_device_name(name):
        rule = DEVICE_RULE
    else:
        return text
    raise PermanentError(f"CDI device {text!r} cannot exist: {rule}", code="invalid-cdi-name")

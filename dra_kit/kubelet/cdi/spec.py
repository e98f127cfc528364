"""Which rules of CDI a spec breaks.

There are two kinds of rules. The first a container runtime checks when it loads a file, and one broken rule costs
all devices of the file (CDI's Go library 1.1.1, as in containerd 2.4). The second are the specification's own words,
the OCI runtime specification's and the kernel's: the file loads, but a container that asks for the device does not
start, or gets something else than intended. A spec that is written must break none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from dra_kit.cdi.names import (
    CLASS_RULE,
    DEVICE_RULE,
    VENDOR_RULE,
    valid_class,
    valid_device_name,
    valid_vendor,
)
from dra_kit.cdi.spec import (
    VERSIONS,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
    requirements,
)

HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
DEVICE_TYPES = ("b", "c", "u", "p")

_UINT32 = 2**32 - 1
_INT64 = 2**63 - 1
_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.IGNORECASE | re.ASCII)
_ANNOTATION_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_ANNOTATIONS_LIMIT = 256 * 1024


class Problem(Struct, frozen=True):
    """A broken rule.

    Args:
        path: JSON path of the field, for example ``devices[0].containerEdits.env[1]``.
        text: the value and the rule.
        refused: a runtime does not load the file; else it loads, but the device will not work as intended.
    """

    path: str
    text: str
    refused: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def validate(spec: Spec) -> list[Problem]:
    """Return the rules that a spec breaks, in the order of its fields; none when it may be written."""
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


def refusals(spec: Spec) -> list[Problem]:
    """Return the problems for which a runtime does not load a spec's file."""
    return [problem for problem in validate(spec) if problem.refused]


def _refused(path: str, text: str) -> Problem:
    return Problem(path, text, refused=True)


def _unfit(path: str, text: str) -> Problem:
    return Problem(path, text, refused=False)


def _version(spec: Spec) -> Iterator[Problem]:
    declared = spec.cdi_version.removeprefix("v")
    if declared not in VERSIONS:
        yield _refused("cdiVersion", f"{spec.cdi_version!r} is none of {', '.join(VERSIONS)}")
        return
    for need in requirements(spec):
        if VERSIONS.index(need.version) > VERSIONS.index(declared):
            yield _refused("cdiVersion", f"{declared} is too old: {need.path} ({need.feature}) needs {need.version}")


@lru_cache(maxsize=16)  # a process has one kind, and asks for it with each claim
def _kind(kind: str) -> tuple[Problem, ...]:
    return tuple(_kind_problems(kind))


def _kind_problems(kind: str) -> Iterator[Problem]:
    vendor, _, class_name = kind.partition("/")
    if not valid_vendor(vendor):
        yield _refused("kind", f"{kind!r} is not vendor/class: {VENDOR_RULE}")
    elif len(vendor) > 253 or not _SUBDOMAIN.fullmatch(vendor):
        yield _unfit("kind", f"{kind!r}: a vendor is a DNS subdomain of at most 253 characters")
    if not valid_class(class_name):
        yield _refused("kind", f"{kind!r} is not vendor/class: {CLASS_RULE}")
    elif len(class_name) > 63:
        yield _unfit("kind", f"{kind!r}: a class has at most 63 characters")


def _annotations(annotations: Mapping[str, str], path: str) -> Iterator[Problem]:
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


def _edits(edits: ContainerEdits, path: str) -> Iterator[Problem]:
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


def _env(env: Iterable[str], path: str) -> Iterator[Problem]:
    for i, entry in enumerate(env):
        if entry.find("=") <= 0:
            yield _refused(f"{path}[{i}]", "an entry is NAME=value with a name of at least one character")
        yield from _no_nul(entry, f"{path}[{i}]")


def _device_node(node: DeviceNode, path: str) -> Iterator[Problem]:
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


def _net_devices(devices: Iterable[NetDevice], path: str) -> Iterator[Problem]:
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


def _hook(hook: Hook, path: str) -> Iterator[Problem]:
    if hook.hook_name not in HOOK_NAMES:
        yield _refused(f"{path}.hookName", f"{hook.hook_name!r} is none of {', '.join(HOOK_NAMES)}")
    yield from _path(hook.path, f"{path}.path")
    for i, argument in enumerate(hook.args):
        yield from _no_nul(argument, f"{path}.args[{i}]")
    yield from _env(hook.env, f"{path}.env")
    if hook.timeout is not None:
        yield from _number(hook.timeout, f"{path}.timeout", 1, _UINT32, lowest=-_INT64 - 1, highest=_INT64)


def _mount(mount: Mount, path: str) -> Iterator[Problem]:
    # other file systems take any word as their source, for example "tmpfs"
    has_file_as_source = mount.type in {"", "none", "bind"} or not {"bind", "rbind"}.isdisjoint(mount.options)
    yield from _path(mount.host_path, f"{path}.hostPath", absolute=has_file_as_source)
    yield from _path(mount.container_path, f"{path}.containerPath")
    for i, option in enumerate(mount.options):
        yield from _no_nul(option, f"{path}.options[{i}]")
    yield from _no_nul(mount.type, f"{path}.type")


def _intel_rdt(rdt: IntelRdt, path: str) -> Iterator[Problem]:
    clos = rdt.clos_id
    if clos != "/" and (clos in {".", ".."} or "/" in clos or "\n" in clos or len(clos.encode()) >= 4096):
        yield _refused(f"{path}.closID", f"{clos[:64]!r}: a CLOS is named like a file, or '/' for the root CLOS")
    yield from _no_nul(clos, f"{path}.closID")


def _path(value: str, path: str, *, absolute: bool = True) -> Iterator[Problem]:
    if not value:
        yield _refused(path, "must not be empty")
    elif absolute and not value.startswith("/"):
        yield _unfit(path, f"{value!r} is not an absolute path")
    yield from _no_nul(value, path)


def _no_nul(value: str, path: str) -> Iterator[Problem]:
    if "\0" in value:
        yield _unfit(path, f"{value!r} contains NUL, which ends a string in the kernel")


def _number(
    value: int, path: str, least: int, most: int, *, lowest: int | None = None, highest: int | None = None
) -> Iterator[Problem]:
    """Yield what is wrong with a number: sensible from ``least`` to ``most``, read from ``lowest`` to ``highest``."""
    if not least <= value <= most:
        readable = (least if lowest is None else lowest) <= value <= (most if highest is None else highest)
        yield Problem(path, f"{value} is not between {least} and {most}", refused=not readable)

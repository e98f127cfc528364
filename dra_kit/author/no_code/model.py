"""The contents of a file of globs, as pydantic models; keys are written as in the Kubernetes API, in camelCase."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator
from pydantic.alias_generators import to_camel

from dra_kit.author.device_fields import CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity
from dra_kit.kubernetes.resource.names import driver_name

READABLE: Final = ("/sys/",)
"""Where attributes may be read: what the kernel tells of hardware, and no file that may hold a secret of the node."""


class GlobModel(BaseModel):
    """Immutable and strict; a key that does not exist is an error."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


def _driver(name: str) -> str:
    problems = [error.body for error in driver_name(name, "")]
    if not problems and name != name.lower():
        problems.append("must be in lower case")
    if problems:
        raise ValueError("; ".join(problems))
    return name


def _glob(text: str) -> str:
    if not text.startswith("/dev/") or text.endswith("/"):
        msg = f"{text!r} is no path of device nodes; write one that begins with /dev/, such as /dev/ttyUSB*"
        raise ValueError(msg)
    if ".." in text.split("/"):
        msg = f"{text!r} has .. in it; write the path without"
        raise ValueError(msg)
    if "**" in text:
        msg = f"{text!r} has ** in it, which is not taken; write one * for each folder"
        raise ValueError(msg)
    if "\0" in text:
        msg = "has NUL in it, which no path can hold"
        raise ValueError(msg)
    return text


def _plain_glob(text: str) -> str:
    if "{" in text:
        msg = f"{text!r} has a brace in it, which stands for itself in no path here; write a list of paths instead"
        raise ValueError(msg)
    return _glob(text)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        msg = f"{text!r} is no regular expression of Python: {error}"
        raise ValueError(msg) from None
    return text


def _readable(text: str) -> str:
    if not text.startswith(READABLE) or "\0" in text:
        msg = f"{text!r} is not below {' or '.join(READABLE)}; no other files are read"
        raise ValueError(msg)
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        msg = f"{text!r} is no absolute path; begin it with /"
        raise ValueError(msg)
    return text


def _constant(value: object) -> object:
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        msg = f"{value} is no whole number; put it in quotes to publish it as a text"
        raise ValueError(msg)  # noqa: TRY004 - pydantic collects ValueErrors only
    msg = "is no text, whole number, true or false"
    raise ValueError(msg)


def _listed(value: object) -> object:
    """Return a list; one text is a list of one."""
    return [value] if isinstance(value, str) else value


Constant: TypeAlias = Annotated[bool | int | str, PlainValidator(_constant)]
Pattern: TypeAlias = Annotated[str, AfterValidator(_pattern)]
AbsolutePath: TypeAlias = Annotated[str, AfterValidator(_absolute)]
Globs: TypeAlias = Annotated[
    list[Annotated[str, AfterValidator(_plain_glob)]], BeforeValidator(_listed), Field(min_length=1)
]
Companions: TypeAlias = Annotated[list[Annotated[str, AfterValidator(_glob)]], BeforeValidator(_listed)]
Permissions: TypeAlias = Literal["r", "w", "m", "rw", "rm", "wm", "rwm"]
ValueType: TypeAlias = Literal["string", "int", "bool", "version"]


class AttributeSource(GlobModel):
    """Where the value of an attribute comes from; a constant may be written without a mapping around it.

    Attributes:
        value: it is this; texts may have placeholders.
        read: it is what this file says, without blanks around it; may have placeholders.
        udev: it is this property of the device in udev's database.
        match: a regular expression: the value is its first group in what was found, or all that it matches.
        as_: what the text is made.
        default: the value where there is none; without it the device has no such attribute then.
    """

    value: Constant | None = None
    read: Annotated[str, AfterValidator(_readable)] | None = None
    udev: str | None = Field(None, pattern=r"^[A-Za-z0-9_.-]+$")
    match: Pattern | None = None
    as_: ValueType = Field("string", alias="as")
    default: Constant | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_a_constant(cls, given: Any) -> Any:
        return given if isinstance(given, dict) else {"value": given}

    @model_validator(mode="after")
    def _has_one_source(self) -> AttributeSource:
        given = [name for name in ("value", "read", "udev") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            msg = f"has {found} of value, read and udev; write one of them"
            raise ValueError(msg)
        return self


Amount: TypeAlias = int | str


class PolicyRange(GlobModel):
    """As in ``requestPolicy.validRange`` of a ResourceSlice."""

    min: Amount
    max: Amount | None = None
    step: Amount | None = None


class RequestPolicy(GlobModel):
    """As in ``requestPolicy`` of a ResourceSlice."""

    default: Amount | None = None
    valid_values: list[Amount] = []
    valid_range: PolicyRange | None = None


class CapacityEntry(GlobModel):
    """An amount; one that may not be divided may be written without a mapping around it."""

    value: Amount
    request_policy: RequestPolicy | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_an_amount(cls, given: Any) -> Any:
        return given if isinstance(given, dict) else {"value": given}


class MountEntry(GlobModel):
    """A file or folder of the host in the container; texts may have placeholders."""

    host_path: AbsolutePath
    container_path: AbsolutePath
    options: list[str] = ["ro"]


class GlobEntry(GlobModel):
    """Devices of one kind: one for each device node that the globs match.

    Attributes:
        paths: globs of device nodes, all below /dev.
        pattern: a regular expression that must be found in the path; its named groups are placeholders.
        name: of the device, made a DNS label; by default the path without /dev/.
        attributes: what selectors can ask for, by name.
        capacity: amounts, by name.
        allow_multiple_allocations: several claims may share a device.
        with_: globs of device nodes that belong to the device, too; it is there when each of them matches.
        permissions: of the container on the device nodes: r, w, and m for mknod.
        container_path: where the container finds the device node; by default where the host has it.
        uid: owner of the device nodes in the container.
        gid: their group.
        file_mode: their mode.
        env: variables of the container; names and values may have placeholders.
        mounts: of the container.
    """

    paths: Globs
    pattern: Pattern | None = None
    name: str | None = None
    attributes: dict[str, AttributeSource] = {}
    capacity: dict[str, CapacityEntry] = {}
    allow_multiple_allocations: bool = False
    with_: Companions = Field([], alias="with")
    permissions: Permissions = "rw"
    container_path: AbsolutePath | None = None
    uid: int | None = Field(None, ge=0)
    gid: int | None = Field(None, ge=0)
    file_mode: int | None = Field(None, ge=0, le=0o7777)
    env: dict[str, str] = {}
    mounts: list[MountEntry] = []


class GlobFile(GlobModel):
    """A driver as a file.

    Attributes:
        driver: its name, which DeviceClasses select by ``device.driver``.
        devices: in the order in which the scheduler prefers them.
    """

    driver: Annotated[str, AfterValidator(_driver)]
    devices: list[GlobEntry] = Field(min_length=1)


_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
PLACE: Final = ("path", "name")
"""Known of every device node: its path, and the name of the file, which is the last part of it."""
DEVICE: Final = (*PLACE, "device", "env")
"""Known once the device has a name: that name, and the name in the form of an environment variable."""


def placeholders(template: str) -> Iterator[str]:
    """Return the names in braces in a text; other braces are text."""
    return (match[1] for match in _PLACEHOLDER.finditer(template))


def fill_placeholders(template: str, values: Mapping[str, str]) -> str:
    """Return the text with what its placeholders stand for.

    Raises:
        KeyError: one stands for nothing.
    """
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def build_capacity(entry: CapacityEntry) -> DeviceCapacity:
    """Return a capacity as the author API has it.

    Raises:
        InvalidDevice: an amount is none.
    """
    policy = entry.request_policy
    if policy is None:
        return DeviceCapacity(value=entry.value)
    limits = policy.valid_range
    allowed = None if limits is None else CapacityRequestPolicyRange(**dict(limits))
    return DeviceCapacity(
        value=entry.value,
        request_policy=CapacityRequestPolicy(
            default=policy.default, valid_values=policy.valid_values, valid_range=allowed
        ),
    )

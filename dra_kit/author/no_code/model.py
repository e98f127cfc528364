"""The contents of a file of globs, as pydantic models; keys are written as in the Kubernetes API, in camelCase."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator
from pydantic.alias_generators import to_camel

from dra_kit.author.device import CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity
from dra_kit.kubernetes.resource.names import driver_name

READABLE: Final = ("/sys/",)
"""Where attributes may be read: files in which the kernel describes hardware, none that may hold a secret."""


class GlobModel(BaseModel):
    """Immutable and strict; an unknown key is an error."""

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
        msg = f"{text!r} is not a path of device nodes; write one that begins with /dev/, such as /dev/ttyUSB*"
        raise ValueError(msg)
    if ".." in text.split("/"):
        raise ValueError(f"{text!r} has .. in it; write the path without")
    if "**" in text:
        raise ValueError(f"{text!r} has ** in it, which is not taken; write one * for each folder")
    if "\0" in text:
        raise ValueError("contains NUL, which a path cannot hold")
    return text


def _plain_glob(text: str) -> str:
    if "{" in text:
        raise ValueError(f"{text!r} contains a brace, which is not supported; write a list of paths instead")
    return _glob(text)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a Python regular expression: {error}") from None
    return text


def _readable(text: str) -> str:
    if not text.startswith(READABLE) or "\0" in text:
        raise ValueError(f"{text!r} is not below {' or '.join(READABLE)}; no other files are read")
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ValueError(f"{text!r} is not an absolute path; begin it with /")
    return text


def _constant(value: object) -> object:
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        msg = f"{value} is not an integer; quote it to publish it as a string"
        raise ValueError(msg)  # noqa: TRY004 - pydantic collects ValueErrors only
    raise ValueError("is not a string, integer, true or false")


def _listed(value: object) -> object:
    """Return a list; a single text becomes a list of one."""
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
    """The source of an attribute's value; a constant may be written without a mapping around it.

    Attributes:
        value: this value; texts may have placeholders.
        read: the content of this file, without surrounding white space; may have placeholders.
        udev: this property of the device in udev's database.
        match: a regular expression: the value is its first group in the text found, or the whole match.
        as_: the type that the text is converted to.
        default: the value if none is found; without it the device does not get the attribute.
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
            raise ValueError(f"has {found} of value, read and udev; write one of them")
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
    """An amount; one that must not be divided may be written without a mapping around it."""

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
        pattern: a regular expression that must match in the path; its named groups are placeholders.
        name: of the device, converted to a DNS label; by default the path without /dev/.
        attributes: the values that selectors can match, by name.
        capacity: amounts, by name.
        allow_multiple_allocations: several claims may share a device.
        with_: globs of further device nodes of the device; it exists only if each of them matches.
        permissions: of the container on the device nodes: r, w, and m for mknod.
        container_path: the path of the device node in the container; by default the host's path.
        uid: owner of the device nodes in the container.
        gid: their group.
        file_mode: their mode.
        env: environment variables of the container; names and values may have placeholders.
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
"""Placeholders of every device node: its path, and the name of the file, which is the last part of the path."""
DEVICE: Final = (*PLACE, "device", "env")
"""Placeholders available once the device has a name: the name, and the name as an environment variable."""


def placeholders(template: str) -> Iterator[str]:
    """Return the names in braces in a text; other braces are ordinary text."""
    return (match[1] for match in _PLACEHOLDER.finditer(template))


def fill_placeholders(template: str, values: Mapping[str, str]) -> str:
    """Return the text with its placeholders replaced.

    Raises:
        KeyError: a placeholder has no value.
    """
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def build_capacity(entry: CapacityEntry) -> DeviceCapacity:
    """Return a capacity in the form of the author API.

    Raises:
        InvalidDevice: an amount is invalid.
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

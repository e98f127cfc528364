"""The form of a story's file: steps, expectations, values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from dra_kit.kubernetes.release import SUPPORTED
from dra_kit.node.failpoints import Failpoint as NodeStep
from dra_kit.sandbox.containers.runtime import parse_numbers
from dra_kit.text import did_you_mean


def _regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a valid regular expression: {error}") from None
    return text


def _same_as(text: str) -> str:
    if text.count("/") < 2:
        raise ValueError(f"{text!r} must be pod/container/NAME")
    return text


def _texts(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _value(value: object) -> object:
    match value:
        case None:
            return {"absent": True}
        case str():
            return {"equals": value}
        case {"pattern": str(), **rest} | {"same_as": str(), **rest} if not rest:
            return value
        case {} if value == {}:
            return {"present": True}
    raise ValueError(
        "must be a text (numbers and booleans in quotes), null, {}, {pattern: …} or {same_as: pod/container/NAME}"
    )


def _numbers(text: str) -> str:
    parse_numbers(text)
    return text


def _release(value: object) -> object:
    if isinstance(value, int | float):  # 1.40 would be read as 1.4, so that no number is taken
        quoted = f': "{value}"' if str(value) in map(str, SUPPORTED) else ', like "1.36"'
        raise ValueError(f"write it in quotes{quoted}")  # noqa: TRY004 - pydantic reports a ValueError
    return value


def _object_reference(text: str) -> str:
    kind, slash, name = text.partition("/")
    if not (kind and slash and name):
        raise ValueError(f"{text!r} must be <kind>/<name>, such as Pod/guest")
    return text


def _step(name: str) -> str:
    if name not in NodeStep.__members__:
        hint = did_you_mean(name, NodeStep.__members__) or ";"
        raise ValueError(f"unknown step {name!r}{hint} valid steps: {', '.join(NodeStep.__members__)}")
    return name


RegularExpression = Annotated[str, AfterValidator(_regular_expression)]
ObjectReference = Annotated[
    str, AfterValidator(_object_reference), WithJsonSchema({"type": "string", "pattern": "^[^/]+/.+$"})
]
Texts = Annotated[
    tuple[str, ...],
    BeforeValidator(_texts),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Numbers = Annotated[str, AfterValidator(_numbers)]
StepName = Annotated[str, AfterValidator(_step), WithJsonSchema({"type": "string", "enum": list(NodeStep.__members__)})]
Scalar = bool | int | str
Health = Literal["Healthy", "Unhealthy", "Unknown"]


class StoryPart(BaseModel):
    """A mapping in the file; keys that it does not have are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
    )


class ValueExpectation(StoryPart):
    """What a variable, a device file or a mount of a container must be; exactly one field is set."""

    equals: str | None = None
    pattern: RegularExpression | None = None
    same_as: Annotated[str, AfterValidator(_same_as)] | None = None
    absent: bool = False
    present: bool = False


_VALUE_SCHEMA: Final = {
    "anyOf": [
        {"type": "string"},
        {"type": "null"},
        {"type": "object", "properties": {}, "additionalProperties": False},
        *(
            {
                "type": "object",
                "properties": {key: {"type": "string"}},
                "required": [key],
                "additionalProperties": False,
            }
            for key in ("pattern", "same_as")
        ),
    ]
}
Value = Annotated[ValueExpectation, BeforeValidator(_value), WithJsonSchema(_VALUE_SCHEMA)]


class ContainerExpectation(StoryPart):
    """What must be true of a container."""

    exit_code: int | None = Field(default=None, description="The exit code of the container.")
    environment: Mapping[str, Value] = Field(
        default={},
        description="Variables. A text: exactly this value. `null`: not set. `{}`: set. `{pattern: …}`: the "
        "whole value matches the regular expression. `{same_as: pod/container/NAME}`: the same "
        "value as there.",
    )
    device_nodes: Mapping[str, Value] = Field(
        default={},
        description="Device files by path, with type and numbers (`c 195:0`), in the same way; `null`: the "
        "file does not exist.",
    )
    mounts: Mapping[str, Value] = Field(
        default={},
        description="The path on the node of each mount, by path in the container, in the same way; `null`: no mount.",
    )
    cpuset: Numbers | None = Field(
        default=None,
        description='The CPUs that the container may use, such as `"0-3,8"`; `""`: all, because no hook has set any.',
    )
    memory_nodes: Numbers | None = Field(
        default=None, description='The memory nodes that the container may use, such as `"0-1"`; `""`: all.'
    )
    hugepages: Mapping[str, int] | None = Field(
        default=None,
        description="Limits of huge pages in bytes by page size, such as `{2MB: 4194304}`; `{}`: no limit is set.",
    )
    rdt_class: str | None = Field(
        default=None, description='The class of the container in resctrl (Intel RDT); `""`: none.'
    )
    output: Texts = Field(default=(), description="The output of the container contains all of these texts.")
    health: Mapping[str, Health | Mapping[str, Health]] = Field(
        default={},
        description="The health of all devices of the pod's claim of this name, or of `<claim>/<request>`; or of "
        "single devices, by `<device>` or `<pool>/<device>`.",
    )


class PodExpectation(StoryPart):
    """What must be true of a pod."""

    phase: Literal["Pending", "Running", "Succeeded", "Failed"] = Field(description="`status.phase`.")
    message: Texts = Field(
        default=(),
        description="One of its events or conditions contains all of these texts; `{namespace}` is the "
        "namespace of the story.",
    )
    interfaces: tuple[str, ...] | None = Field(
        default=None,
        description="Names of the network interfaces that drivers gave the pod, in any order; `[]`: none.",
    )
    containers: Mapping[str, ContainerExpectation] = Field(
        default={}, description="Containers by name, which have started."
    )


class ClaimExpectation(StoryPart):
    """What must be true of a ResourceClaim."""

    devices: tuple[str, ...] | None = Field(default=None, description="Allocated, in any order; `[]`: not allocated.")
    reserved_for: tuple[str, ...] | None = Field(
        default=None, description="Names of the pods that use it, in any order."
    )
    message: Texts = Field(default=(), description="One of its events contains all of these texts.")
    conditions: Mapping[str, Literal["True", "False", "Unknown"]] = Field(
        default={},
        description="Conditions in `status.devices`: each device has the condition with this status (in quotes).",
    )


class DeviceExpectation(StoryPart):
    """What must be true of a published device."""

    attributes: Mapping[str, Scalar | list[Scalar]] = Field(
        default={},
        description="The device has these, and may have others. Names are as published: those of other domains begin "
        "with the domain, such as `resource.kubernetes.io/pcieRoot`.",
    )
    capacity: Mapping[str, str] = Field(default={}, description="The device has these amounts, and may have others.")


class Expectation(StoryPart):
    """What must be true at one moment."""

    pods: Mapping[str, PodExpectation] = Field(default={}, description="Pods by name.")
    claims: Mapping[str, ClaimExpectation] = Field(default={}, description="ResourceClaims by name.")
    devices: Mapping[str, DeviceExpectation | None] = Field(
        default={},
        description="Published devices, by name or, if several have it, by `<pool>/<device>` or"
        " `<driver>/<pool>/<device>`; `{}`: it is published, `null`: it is not.",
    )
    gone: tuple[ObjectReference, ...] = Field(
        default=(), description="Objects of the story that no longer exist, regardless of who deleted them."
    )
    files: Mapping[str, Texts | None] = Field(
        default={},
        description="Files of the nodes, such as simulated hardware, by the driver's setting that names the "
        "file, or `<setting>/<glob>` below the folder that it names: one of the files contains "
        "all of these texts; `null`: no such file exists.",
    )


class EmptyMapping(StoryPart):
    """Has no keys: write `{}`."""


class Kill(StoryPart):
    """How the driver is killed."""

    after: StepName | None = Field(
        default=None,
        description="Kill the driver after its next step of this name, instead of now. The story fails if the"
        " driver never reaches the step. Write it in the step of the story that leads there.",
    )
    restart: bool = Field(default=True, description="Restart the driver, as the kubelet restarts a container.")

    @model_validator(mode="after")
    def _comes_back(self) -> Kill:
        if self.after is not None and not self.restart:
            raise ValueError(
                "after and restart: false cannot be combined: a driver that is killed after a step is always restarted"
            )
        return self


class Upgrade(StoryPart):
    """The release that takes the driver's place."""

    target: str = Field(
        min_length=1, description="A TARGET: `./next.py` or a folder, relative to the story's folder; or `module:attr`."
    )


class Reboot(StoryPart):
    """How the nodes are rebooted."""

    lost: tuple[str, ...] = Field(
        default=(), description="Settings of the driver that name directories whose files are lost in the reboot."
    )


class DriverActions(StoryPart):
    """What is done to the driver, one thing in a step, before all else in it."""

    restart: EmptyMapping | None = Field(default=None, description="Shut the driver down and start it again.")
    kill: Kill | None = Field(
        default=None, description="`kill -9`. In a story with this key, the driver always runs in a separate process."
    )
    start: EmptyMapping | None = Field(default=None, description="Start the driver after `kill: {restart: false}`.")
    upgrade: Upgrade | None = Field(
        default=None,
        description="A rolling update: another release starts next to the driver, and replaces it until the "
        "story ends.",
    )
    rollback: EmptyMapping | None = Field(default=None, description="Undo the last `upgrade` by a rolling update.")
    reboot: Reboot | None = Field(
        default=None,
        description="Reboot the nodes: containers and driver stop, CDI files are lost, the boot ID changes.",
    )

    @model_validator(mode="after")
    def _one(self) -> DriverActions:
        given = [name for name in DriverActions.model_fields if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given: write a step for each")
        return self


class StepFile(Expectation, DriverActions):
    """One step: what is done, and what must become true then."""

    driver: str | None = Field(
        default=None,
        description="The name of the driver that this step acts on. If several drivers run, it is required "
        "for actions on a driver, `edit`, `health`, and the settings in `lost`.",
    )
    apply: tuple[str, ...] | None = Field(
        default=None,
        description="Manifests to create: files in the story's folder. By default, the first step creates all"
        " that no other step names.",
    )
    edit: Mapping[str, str] = Field(
        default={},
        description="Replaces the file that a setting of the driver names by a file of the story. The story "
        "continues when the driver publishes other devices, or after three seconds.",
    )
    health: Mapping[str, Mapping[str, str | None]] = Field(
        default={},
        description="Messages that make devices unhealthy, by device, then by reason of the driver's health "
        "source. `null` and the end of the story clear the reason.",
    )
    delete: tuple[ObjectReference, ...] = Field(
        default=(), description="Objects to delete; the story continues when they are gone."
    )


class Namespace(StoryPart):
    """The namespace that the story runs in."""

    labels: Mapping[str, str] = Field(default={}, description="The labels of the namespace.")


class StoryNode(StoryPart):
    """A Node of the sandbox, in addition to what its kubelet finds on this machine, or instead of it."""

    capacity: Mapping[str, str | float] = Field(
        default={}, description="Quantities by resource, such as `cpu: 64` or `memory: 256Gi`."
    )
    labels: Mapping[str, str] = Field(default={}, description="The labels of the Node.")


class StoryFile(Expectation):
    """The whole file: either `steps`, or what must be true once everything is applied."""

    targets: tuple[str, ...] = Field(
        default=(),
        description="Further drivers that the story needs, in addition to that of the command. TARGETs: "
        "`./nic.py` or a folder, relative to the story's folder; or `module:attr`.",
    )
    nodes: Mapping[str, StoryNode] = Field(
        default={},
        description="Capacity and labels of nodes that the story needs, by the name of the node; `*` is every node. "
        "For `dra-kit sandbox`; other clusters must have them.",
    )
    kubernetes: Annotated[str | None, BeforeValidator(_release)] = Field(
        default=None,
        description='The release of Kubernetes that the story needs, in quotes: `"1.36"`. For `dra-kit sandbox`; other '
        "clusters must have it.",
    )
    namespace: Namespace = Field(default=Namespace(), description="Settings of the namespace that the story runs in.")
    steps: tuple[StepFile, ...] = Field(default=(), description="The steps, in order.")
    leftovers: tuple[RegularExpression, ...] = Field(
        default=(),
        description="Regular expressions of what may remain after the story, such as a file of the hardware.",
    )


def story_schema() -> dict[str, Any]:
    """Return the JSON schema of ``expect.yaml``, for editors."""
    schema = StoryFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "a story's expect.yaml"}

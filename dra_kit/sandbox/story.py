"""A story: a folder of manifests with an ``expect.yaml`` that says what must be true once they are applied.

The whole of ``expect.yaml``; all but one of ``pods`` and ``steps`` may be left out::

    namespace:
      labels: {resource.kubernetes.io/admin-access: "true"}
    pods:
      guest:
        phase: Succeeded                                # Pending, Running, Succeeded or Failed
        message: [FailedScheduling, cannot allocate]    # all in one event or condition of the pod
        containers:
          eater:
            exit_code: 0
            environment:
              PIZZA_0_DOUGH: thin                       # exactly this
              PIZZA_0_SLICES: {pattern: "[0-9]+"}       # the whole value fits the regular expression
              PIZZA_0_OVEN: {same_as: waiter/main/OVEN} # the value in another container
              PIZZA_1_DOUGH: null                       # not set
            output: [enjoying]                          # all in what the container wrote
            health: {lunch: Healthy}                    # of the devices of the pod's claim lunch, or lunch/<request>
    claims:
      lunch:
        devices: [margherita-0]                         # allocated, in any order; [] is not allocated
        reserved_for: [guest]
        message: ClaimReleased                          # all in one event of the claim
    leftovers: ["hardware file oven/.*"]                # what may remain; by default nothing
    steps:                                              # instead of pods and claims, one after the other
      - apply: [order.yaml]                             # the first step: by default all that no other step names
        edit: {menu: new-menu.yaml}                     # the file that the driver's setting ``menu`` names
        health: {margherita-0: {burnt: black}}          # make a device ill, for a reason of the driver's health source;
                                                        # {burnt: null} ends it, and so does the end of the story
        delete: [Pod/guest]
        pods: …
        claims: …

``{namespace}`` in a message stands for the namespace of the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from dra_kit.errors import ConfigurationError
from dra_kit.manifests.files import read_file
from dra_kit.manifests.limits import MANIFESTS
from dra_kit.manifests.objects import file_values
from dra_kit.sandbox.manifests import Manifest, load_manifests
from dra_kit.values.nearest import did_you_mean

EXPECT_FILE = "expect.yaml"


def _regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        msg = f"{text!r} is no regular expression: {error}"
        raise ValueError(msg) from None
    return text


def _same_as(text: str) -> str:
    if text.count("/") != 2:
        msg = f"{text!r} must be pod/container/NAME"
        raise ValueError(msg)
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
    msg = "must be a text (numbers and booleans in quotes), null, {pattern: …} or {same_as: pod/container/NAME}"
    raise ValueError(msg)


def _object_reference(text: str) -> str:
    kind, slash, name = text.partition("/")
    if not (kind and slash and name):
        msg = f"{text!r} must be <kind>/<name>, such as Pod/guest"
        raise ValueError(msg)
    return text


RegularExpression = Annotated[str, AfterValidator(_regular_expression)]
ObjectReference = Annotated[str, AfterValidator(_object_reference)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ValueExpectation(_Part):
    """What an environment variable must be; exactly one field is set."""

    equals: str | None = None
    pattern: RegularExpression | None = None
    same_as: Annotated[str, AfterValidator(_same_as)] | None = None
    absent: bool = False


class ContainerExpectation(_Part):
    """What must be true of a container."""

    exit_code: int | None = None
    environment: Mapping[str, Annotated[ValueExpectation, BeforeValidator(_value)]] = {}
    output: Texts = ()
    health: Mapping[str, Literal["Healthy", "Unhealthy", "Unknown"]] = {}


class PodExpectation(_Part):
    """What must be true of a pod."""

    phase: Literal["Pending", "Running", "Succeeded", "Failed"]
    message: Texts = ()
    containers: Mapping[str, ContainerExpectation] = {}


class ClaimExpectation(_Part):
    """What must be true of a ResourceClaim."""

    devices: tuple[str, ...] | None = None
    reserved_for: tuple[str, ...] | None = None
    message: Texts = ()


class Expectation(_Part):
    """What must be true at one moment."""

    pods: Mapping[str, PodExpectation] = {}
    claims: Mapping[str, ClaimExpectation] = {}


class _StepFile(Expectation):
    apply: tuple[str, ...] | None = None
    edit: Mapping[str, str] = {}
    health: Mapping[str, Mapping[str, str | None]] = {}
    delete: tuple[ObjectReference, ...] = ()


class _Namespace(_Part):
    labels: Mapping[str, str] = {}


class _StoryFile(Expectation):
    namespace: _Namespace = _Namespace()
    steps: tuple[_StepFile, ...] = ()
    leftovers: tuple[RegularExpression, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One phase of a story: what is done, in this order, and what must become true.

    Attributes:
        manifests: objects to create.
        edits: the driver's settings whose files change, and the new text of each.
        health: reasons with messages that make devices ill; None for one that ends.
        deletes: objects to delete, as ``<kind>/<name>``.
        expectation: what must be true then.
    """

    manifests: tuple[Manifest, ...]
    edits: Mapping[str, str]
    health: Mapping[str, Mapping[str, str | None]]
    deletes: tuple[str, ...]
    expectation: Expectation


@dataclass(frozen=True, slots=True)
class Story:
    """A story as it was read.

    Attributes:
        name: of its folder.
        namespace_labels: of the namespace it runs in.
        steps: at least one.
        leftovers: regular expressions of what may remain after it.
    """

    name: str
    namespace_labels: Mapping[str, str]
    steps: tuple[Step, ...]
    leftovers: tuple[str, ...]


def load_story(directory: Path) -> Story:
    """Read a story.

    Raises:
        ConfigurationError: naming the file, the field and the rule.
    """
    path = directory / EXPECT_FILE
    file = _read(path)
    if bool(file.steps) == bool(file.pods or file.claims):
        raise ConfigurationError(f"{path}: give either steps, or pods and claims; there is nothing to expect otherwise")
    steps = file.steps or (_StepFile(pods=file.pods, claims=file.claims),)
    return Story(
        name=directory.resolve().name,
        namespace_labels=file.namespace.labels,
        steps=tuple(
            Step(
                manifests=tuple(item for name in names for item in load_manifests(directory / name)),
                edits={setting: _text(directory / name) for setting, name in step.edit.items()},
                health=step.health,
                deletes=step.delete,
                expectation=Expectation(pods=step.pods, claims=step.claims),
            )
            for step, names in zip(steps, _applied(directory, steps), strict=True)
        ),
        leftovers=file.leftovers,
    )


def find_stories(directory: Path) -> tuple[Path, ...]:
    """The folders below ``directory`` that hold a story, sorted by name."""
    return tuple(sorted(path.parent for path in directory.glob(f"*/{EXPECT_FILE}")))


def _applied(directory: Path, steps: Sequence[_StepFile]) -> list[tuple[str, ...]]:
    """File names that each step applies; the first one takes what no step names."""
    named = {name for step in steps for name in (*(step.apply or ()), *step.edit.values())}
    rest = tuple(sorted(path.name for path in directory.glob("*.yaml") if path.name not in {*named, EXPECT_FILE}))
    first, *others = [step.apply for step in steps]
    if first is not None and rest:
        raise ConfigurationError(f"{directory / EXPECT_FILE}: no step applies {', '.join(rest)}")
    return [rest if first is None else first, *(names or () for names in others)]


def _read(path: Path) -> _StoryFile:
    found = file_values(path)
    if len(found) > 1:
        raise ConfigurationError(f"{path}: it has {len(found)} documents, and a story is one; remove the others")
    try:
        return _StoryFile.model_validate_json(json.dumps(found[0] if found else None))
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {'; '.join(_problem(item) for item in error.errors())}") from None


def _problem(item: Any) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"]).lstrip(".")
    if item["type"] == "extra_forbidden":
        *path, key = item["loc"]
        known = _keys(_StoryFile, path)
        hint = did_you_mean(str(key), known) or ";"
        return f"{place}: there is no key {key!r} here{hint} it may be {', '.join(known)}"
    return f"{place or 'the file'}: {item['msg'].removeprefix('Value error, ')}"


def _keys(part: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys that may stand at a place."""
    if not path:
        return list(part.model_fields)
    annotation, rest = part.model_fields[str(path[0])].annotation, path[1:]
    while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        # of a mapping or a tuple of parts: what it holds, below a name or a number
        annotation = next(item for item in get_args(annotation) if get_args(item) or issubclass(item, BaseModel))
        rest = rest[1:]
    return _keys(annotation, rest)


def _text(path: Path) -> str:
    try:
        return read_file(path, MANIFESTS).decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is no text in UTF-8: {error.reason} at byte {error.start}") from None

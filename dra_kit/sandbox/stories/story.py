"""A story, loaded from a folder."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, Union, get_args, get_origin

from msgspec import Struct, field
from pydantic import BaseModel, ValidationError

from dra_kit.author.config_problems import problem_text
from dra_kit.author.target import GLOB_SUFFIXES
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import read_values, source_file
from dra_kit.kubernetes.manifests.files import MANIFESTS, read_file
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.sandbox.kubelet.environment import NodeShape, node_shape
from dra_kit.sandbox.stories.completion import PodsOutcome
from dra_kit.sandbox.stories.manifests import Manifest, load_manifests
from dra_kit.sandbox.stories.model import DriverActions, Expectation, StepFile, StoryFile, Upgrade
from dra_kit.sandbox.stories.namespace import CreatedObject
from dra_kit.text import did_you_mean

EXPECT_FILE: Final = "expect.yaml"
P = TypeVar("P", bound=BaseModel)
_UNIONS: Final = frozenset({Union, types.UnionType})


def load_story(directory: Path) -> Story:
    """Read a story.

    Raises:
        ConfigurationError: naming the file, the field and the rule.
    """
    path = directory / EXPECT_FILE
    file = _read(path)
    expected = _part(Expectation, file)
    if bool(file.steps) == (expected != Expectation()):
        raise ConfigurationError(f"{path}: give either steps, or pods and claims; there is nothing to expect otherwise")
    steps = file.steps or (StepFile(**dict(expected)),)
    return Story(
        name=name_parts(directory)[-1],
        namespace_labels=file.namespace.labels,
        steps=tuple(
            StoryStep(
                manifests=tuple(item for name in names for item in load_manifests(directory / name)),
                edits={setting: _text(directory / name) for setting, name in step.edit.items()},
                health=step.health,
                deletes=step.delete,
                expectation=_part(Expectation, step),
                actions=_actions(directory, step),
                driver=step.driver or "",
            )
            for step, names in zip(steps, _applied(directory, steps, file.targets), strict=True)
        ),
        leftovers=file.leftovers,
        targets=tuple(_target(directory, target, "targets") for target in file.targets),
        nodes={
            name: NodeShape(
                capacity={resource: _quantity(value) for resource, value in node.capacity.items()}, labels=node.labels
            )
            for name, node in file.nodes.items()
        },
        kubernetes=_release(path, file.kubernetes),
    )


def _release(path: Path, text: str | None) -> KubernetesVersion | None:
    try:
        return None if text is None else KubernetesVersion.supported(text)
    except ValueError as error:
        raise ConfigurationError(f"{path}: kubernetes: {error}") from None


def _quantity(value: str | float) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _part(kind: type[P], whole: P) -> P:
    """Return what of a part of the file belongs to one of its bases."""
    return kind.model_construct(**{name: getattr(whole, name) for name in kind.model_fields})


def _actions(directory: Path, step: StepFile) -> DriverActions | None:
    """Return the actions on the driver, if there are any; paths are in the story's folder."""
    actions = _part(DriverActions, step)
    if actions == DriverActions():
        return None
    if actions.upgrade is None:
        return actions
    target = _target(directory, actions.upgrade.target, "upgrade to")
    return actions.model_copy(update={"upgrade": Upgrade(target=target)})


def _target(directory: Path, target: str, key: str) -> str:
    """Return a TARGET whose path, if it is one, is in the story's folder."""
    named, colon, attribute = target.partition(":")
    if "/" not in named and not named.endswith((".py", *GLOB_SUFFIXES)):
        return target
    path = (directory / named).resolve()
    if not path.exists():
        raise ConfigurationError(
            f"{directory / EXPECT_FILE}: {key} {target}: {path} does not exist; "
            "name a file or a folder below the story's folder"
        )
    return f"{path}{colon}{attribute}"


def name_parts(directory: Path) -> tuple[str, ...]:
    """Return the folders whose names name a story, its own last; it is left out if it only says that it is a story."""
    parts = directory.resolve().parts
    return parts[:-1] if parts[-1] == "story" and len(parts) > 2 else parts


def find_stories(directory: Path) -> tuple[Path, ...]:
    """Return the folders below ``directory`` that hold a story, sorted by name."""
    return tuple(sorted(path.parent for path in directory.glob(f"*/{EXPECT_FILE}")))


def _applied(directory: Path, steps: Sequence[StepFile], targets: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the file names that each step applies; a first step that names none takes all that no step names."""
    named = {name for step in steps for name in (*(step.apply or ()), *step.edit.values())}
    named |= {target.removeprefix("./") for target in targets}
    rest = tuple(sorted(path.name for path in directory.glob("*.yaml") if path.name not in {*named, EXPECT_FILE}))
    first, *others = [step.apply for step in steps]
    if first is not None and rest:
        raise ConfigurationError(f"{directory / EXPECT_FILE}: no step applies {', '.join(rest)}")
    return [rest if first is None else first, *(names or () for names in others)]


def _read(path: Path) -> StoryFile:
    found = read_values(source_file(path))
    if len(found) > 1:
        raise ConfigurationError(f"{path}: it has {len(found)} documents, and a story is one; remove the others")
    try:
        return StoryFile.model_validate_json(json.dumps(found[0] if found else None))
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {'; '.join(_problem(item) for item in error.errors())}") from None


def _problem(item: Any) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"]).lstrip(".")
    if item["type"] == "extra_forbidden":
        *path, key = item["loc"]
        known = _keys(StoryFile, path)
        hint = did_you_mean(str(key), known) or ";"
        return f"{place}: unknown key {key!r}{hint} valid keys: {', '.join(known)}"
    return f"{place or 'the file'}: {problem_text(item)}"


def _keys(part: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the keys that are allowed at a place."""
    if not path:
        return list(part.model_fields)
    annotation, rest = part.model_fields[str(path[0])].annotation, path[1:]
    while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        # of a mapping or a tuple of parts: what it holds, below a name or a number
        rest = rest if get_origin(annotation) in _UNIONS else rest[1:]
        annotation = next(item for item in get_args(annotation) if get_args(item) or issubclass(item, BaseModel))
    return _keys(annotation, rest)


def _text(path: Path) -> str:
    try:
        return read_file(path, MANIFESTS).decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None


class CompletionCheck(Protocol):
    """The check of a step without an expectation."""

    async def look(self, made: Sequence[CreatedObject]) -> PodsOutcome:
        """Return the state of the pods; called repeatedly until it is settled."""
        ...

    async def judge(self, made: Sequence[CreatedObject]) -> PodsOutcome:
        """Return the state of the pods, with the causes of failures; called once, at the end."""
        ...


class StoryStep(Struct, frozen=True):
    """One phase of a story: the changes, in this order, and what must become true.

    Attributes:
        edits: the driver's settings whose files change, and the new text of each file.
        health: reasons with messages that make devices unhealthy; None for a reason that ends.
        deletes: objects to delete, as ``<kind>/<name>``.
        expectation: what must be true afterwards; None if ``completion`` is used instead.
        actions: actions on a driver that come first; None for none.
        driver: the name of the driver that actions, edits and health apply to; may be empty if only one runs.
        completion: used instead of an expectation if none is written.
    """

    manifests: tuple[Manifest, ...]
    edits: Mapping[str, str]
    health: Mapping[str, Mapping[str, str | None]]
    deletes: tuple[str, ...]
    expectation: Expectation | None = None
    actions: DriverActions | None = None
    driver: str = ""
    completion: CompletionCheck | None = None

    @property
    def acts(self) -> bool:
        """Whether it acts on a single driver."""
        actions = self.actions
        reboots = actions is not None and actions.reboot is not None and not actions.reboot.lost
        return bool((actions is not None and not reboots) or self.edits or self.health)


class Story(Struct, frozen=True):
    """A story, read from its files.

    Attributes:
        namespace_labels: the labels of the namespace it runs in.
        leftovers: regular expressions for what may remain after it.
        targets: the TARGETs of further drivers that it needs.
        nodes: capacity and labels of nodes that it needs, by node name; ``*`` is every node.
        kubernetes: the release of Kubernetes that it needs; None for any.
        own_namespace: the story runs in its own namespace. Otherwise its objects are applied to the namespaces they
            name, and an object that the API server rejects is a configuration error.
    """

    name: str
    namespace_labels: Mapping[str, str]
    steps: tuple[StoryStep, ...]
    leftovers: tuple[str, ...]
    targets: tuple[str, ...] = ()
    nodes: Mapping[str, NodeShape] = field(default_factory=dict)
    kubernetes: KubernetesVersion | None = None
    own_namespace: bool = True

    def shape_of(self, node: str) -> NodeShape:
        """Return what it needs of a node; ``*`` for what it needs of every node."""
        return node_shape(self.nodes, node)

    @property
    def killed(self) -> frozenset[str]:
        """Names of the drivers that it kills, which must run in separate processes; "" for the only driver."""
        return frozenset(
            step.driver for step in self.steps if step.actions is not None and step.actions.kill is not None
        )

    @property
    def replaces(self) -> bool:
        """Whether another copy of a driver, or another release, takes its place."""
        return any(step.actions is not None for step in self.steps)

    @property
    def edited(self) -> frozenset[str]:
        """Settings that name files which it edits, as ``NAME``, or as ``DRIVER.NAME`` where a step names a driver."""
        return frozenset(f"{step.driver}.{name}" if step.driver else name for step in self.steps for name in step.edits)

"""Reads a story: a folder of manifests with an ``expect.yaml`` that says what must be true once they are applied.

Its form is that of :mod:`dra_kit.sandbox.stories.story_model`; docs/reference/story-format.md leads to every key.
"""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from dra_kit.author.target import GLOB_SUFFIXES
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import read_values, source_file
from dra_kit.kubernetes.manifests.files import MANIFESTS, read_file
from dra_kit.sandbox.stories.manifests import load_manifests
from dra_kit.sandbox.stories.story import Step, Story
from dra_kit.sandbox.stories.story_model import DriverActions, Expectation, StepFile, StoryFile, Upgrade
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
        name=directory.resolve().name,
        namespace_labels=file.namespace.labels,
        steps=tuple(
            Step(
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
    )


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
            f"{directory / EXPECT_FILE}: {key} {target}: there is no {path}; name a file or a folder below the story's "
            "own"
        )
    return f"{path}{colon}{attribute}"


def find_stories(directory: Path) -> tuple[Path, ...]:
    """Return the folders below ``directory`` that hold a story, sorted by name."""
    return tuple(sorted(path.parent for path in directory.glob(f"*/{EXPECT_FILE}")))


def _applied(directory: Path, steps: Sequence[StepFile], targets: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the file names that each step applies; the first one takes what no step names and is no driver."""
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
        return f"{place}: there is no key {key!r} here{hint} it may be {', '.join(known)}"
    return f"{place or 'the file'}: {item['msg'].removeprefix('Value error, ')}"


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
        raise ConfigurationError(f"{path} is no text in UTF-8: {error.reason} at byte {error.start}") from None

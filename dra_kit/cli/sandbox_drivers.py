"""Drivers of a sandbox on the command line: TARGETs, stories, and the settings of several drivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from dra_kit.author.target import load_drivers
from dra_kit.cli.app import flags_of, ordered_values, values_of
from dra_kit.cli.options import is_help, load_named_driver, targets_of
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.drivers.commands import DriverCommand, parse_commands, with_distinct_names

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver
    from dra_kit.kubernetes.release import KubernetesVersion
    from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
    from dra_kit.sandbox.kubelet.environment import NodeShape
    from dra_kit.sandbox.stories.story import Story


SET: Final = "--set"
VALUES: Final = "--values"
_CHART: Final = "--chart"


def options_of_drivers(drivers: Sequence[Driver[Any, Any]], own: Iterable[click.Parameter]) -> list[click.Option]:
    """Return an option for each setting; if several drivers share one, its help says to use ``--set`` instead.

    Raises:
        ConfigurationError: a setting has the same flag as an option of dra-kit.
    """
    from dra_kit.cli.driver_settings import settings_options  # only needed with a driver

    own = list(own)
    of_each = {driver.name: settings_options(driver, own, meta_key=_meta_key(driver.name)) for driver in drivers}
    owners: dict[str, list[str]] = {}
    for name, options in of_each.items():
        for option in options:
            for flag in flags_of(option):
                owners.setdefault(flag, []).append(name)
    found: dict[str, click.Option] = {}
    for options in of_each.values():
        for option in options:
            several = list(dict.fromkeys(name for flag in flags_of(option) for name in owners[flag]))
            first = flags_of(option)[0]
            if len(several) == 1:
                found[first] = option
            elif first not in found:
                found[first] = _ambiguous(option, several)
    return list(found.values())


def given_settings(
    ctx: click.Context, drivers: Sequence[Driver[Any, Any]], texts: Sequence[str]
) -> Mapping[str, Mapping[str, object]]:
    """Return the values of flags, environment and ``--set`` (``texts``), for each driver by the name of the setting.

    Raises:
        ConfigurationError: a value of ``--set`` has an unknown or ambiguous setting.
    """
    from dra_kit.author.settings import setting_value
    from dra_kit.sandbox.drivers.settings import settings_by_driver  # slow to import

    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(f"{SET} {text} lacks a value; use {SET} DRIVER.NAME=VALUE")
        pairs[name] = value
    named = settings_by_driver(drivers, pairs)
    return {
        driver.name: {
            **ctx.meta.get(_meta_key(driver.name), {}),
            **{name: setting_value(driver, name, value) for name, value in named[driver.name].items()},
        }
        for driver in drivers
    }


def _meta_key(driver: str) -> str:
    return f"driver_settings of {driver}"


def _ambiguous(option: click.Option, drivers: Sequence[str]) -> click.Option:
    """Return an option that rejects its value, because several drivers have this setting."""
    flag, name = flags_of(option)[0], str(option.name).removeprefix("driver_setting_")
    which = " or ".join(f"{SET} {driver}.{name}=VALUE" for driver in drivers)
    return click.Option(
        [str(option.name), *flags_of(option)],
        is_flag=False,
        flag_value="",
        default=None,
        metavar="",
        envvar=option.envvar,
        expose_value=False,
        help=f"a setting of {' and '.join(drivers)}; use {which}",
        callback=_refuse(f"{flag} ({option.envvar}) is a setting of {' and '.join(drivers)}; use {which}"),
    )


def _refuse(text: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(_: click.Context, __: click.Parameter, value: Any) -> None:
        if value is not None:
            raise ConfigurationError(text)

    return callback


def driver_commands(options: Mapping[str, Any]) -> tuple[DriverCommand, ...]:
    """Return the programs that ``--plugin``, ``--controller`` and ``--webhook`` name.

    Raises:
        ConfigurationError: one is invalid.
    """
    given = {"plugin": options["plugins"], "controller": options["controllers"], "webhook": options["webhooks"]}
    here = Path.cwd()
    return tuple(
        with_distinct_names(
            [
                *parse_commands("plugin", given["plugin"], directory=here),
                *parse_commands("controller", given["controller"], directory=here),
                *parse_commands("webhook", given["webhook"], directory=here),
            ]
        )
    )


def chart_folders(arguments: Sequence[str]) -> tuple[tuple[Path, tuple[Path, ...]], ...]:
    """Return the folders of charts among the arguments of the command, each with the files of values after it.

    Raises:
        ConfigurationError: values come before the first chart.
    """
    given: list[tuple[Path, tuple[Path, ...]]] = []
    for flag, value in ordered_values((_CHART, VALUES), arguments):
        if flag == _CHART:
            given.append((Path(value), ()))
        elif given:
            given[-1] = (given[-1][0], (*given[-1][1], Path(value)))
        else:
            raise ConfigurationError(f"{VALUES} {value} comes before the first {_CHART}; write it after its chart")
    return tuple(given)


Loaded = tuple[str, "Driver[Any, Any]"]
"""A TARGET and its driver."""


def load_targets(
    own: Sequence[click.Parameter], args: Sequence[str], loading: Callable[[str], None] = lambda _: None
) -> tuple[list[Loaded], list[click.Option]]:
    """Return the drivers that the arguments name, with the options of their settings.

    Drivers are loaded one after the other, because values of a driver's options can only be distinguished from TARGETs
    once the driver is loaded. ``loading`` is called with each TARGET before it and its imports are loaded.

    Raises:
        ConfigurationError: a driver or a story cannot be loaded, two drivers have the same name, or a setting has the
            same flag as an option of dra-kit.
    """
    found: list[Loaded] = []
    options: list[click.Option] = []

    def load(targets: Callable[[], Sequence[str]]) -> None:
        nonlocal options
        while fresh := [target for target in targets() if not any(_same(target, known) for known, _ in found)]:
            loading(fresh[0])
            from dra_kit.sandbox.drivers.sandbox_driver import require_distinct_drivers

            found.append((fresh[0], load_named_driver(fresh[0], [*own, *options], args)))
            require_distinct_drivers((target, driver.name) for target, driver in found)
            options = options_of_drivers([driver for _, driver in found], own)

    load(lambda: targets_of([*own, *options], args))
    if is_help(args):
        return found, options  # a story names TARGETs that the user has not named
    folders = [Path(text) for text in values_of("--story", args) if Path(text).is_dir()]
    needed = [target for story in load_stories(folders) for target in story.targets]
    load(lambda: needed)
    return found, options


def load_stories(folders: Sequence[Path]) -> tuple[Story, ...]:
    """Return the stories in folders, each of which is a story or contains several.

    If folders of several stories have the same name, the names of the folders above them distinguish the stories.

    Raises:
        ConfigurationError: a folder has no story, or a story is invalid.
    """
    if not folders:
        return ()
    from dra_kit.sandbox.stories.story import EXPECT_FILE, find_stories, load_story, name_parts

    found: list[Path] = []
    for folder in folders:
        several = [folder] if (folder / EXPECT_FILE).exists() else list(find_stories(folder))
        if not several:
            raise ConfigurationError(f"--story {folder}: neither this folder nor its subfolders contain {EXPECT_FILE}")
        found += several
    parts = {folder.resolve(): name_parts(folder) for folder in found}
    if len(set(parts.values())) < len(parts):  # a folder is a story, and its subfolder "story" is another one
        parts = {folder: folder.parts for folder in parts}
    names = dict(zip(parts, _distinct_names(tuple(parts.values())), strict=True))
    return tuple(replace(load_story(folder), name=names[folder.resolve()]) for folder in found)


def _distinct_names(folders: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the name of each folder, after those of as many folders above it as distinguish it from the others."""
    depths = [1] * len(folders)
    while True:
        names = ["-".join(parts[-depth:]) for parts, depth in zip(folders, depths, strict=True)]
        times = Counter(names)
        same = [place for place, name in enumerate(names) if times[name] > 1 and depths[place] < len(folders[place])]
        if not same:
            return names
        for place in same:
            depths[place] += 1


def node_shapes(capacity: Sequence[str], labels: Sequence[str]) -> dict[str, NodeShape]:
    """Return the capacity and labels of nodes that the options give, by node name; ``*`` is every node.

    Raises:
        ConfigurationError: a value of an option has another form.
    """
    if not (capacity or labels):
        return {}
    from dra_kit.sandbox.kubelet.environment import NodeShape

    capacity_of = _by_node("--node-capacity", capacity, "cpu=8")
    labels_of = _by_node("--node-labels", labels, "zone=a")
    return {
        node: NodeShape(capacity=capacity_of.get(node, {}), labels=labels_of.get(node, {}))
        for node in {**capacity_of, **labels_of}
    }


def _by_node(flag: str, texts: Sequence[str], example: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        node, colon, pairs = text.rpartition(":")
        for pair in pairs.split(","):
            name, equals, value = pair.partition("=")
            if not (name and equals) or (colon and not node):
                raise ConfigurationError(
                    f"{flag} {text} is invalid: {pair!r} is not NAME=VALUE; use for example {flag} {example}, or "
                    f"{flag} node-1:{example} for one node"
                )
            found.setdefault(node or "*", {})[name] = value
    return found


def shapes_with_stories(given: Mapping[str, NodeShape], stories: Sequence[Story]) -> dict[str, NodeShape]:
    """Return the capacity and labels that stories need of nodes, overridden by those that options give.

    Raises:
        ConfigurationError: two stories need different ones.
    """
    found = dict(given)
    for node in dict.fromkeys(name for story in stories for name in story.nodes):
        shape = stories[0].shape_of(node)
        for story in stories[1:]:
            needed, before = story.shape_of(node), shape
            shape = before.overridden_by(needed)
            if shape != needed.overridden_by(before):
                raise ConfigurationError(
                    f"story {story.name} needs other capacity or labels of node {node} than a story before it; run "
                    "them one by one"
                )
        for name in dict.fromkeys(["*", node]):
            shape = shape.overridden_by(given[name]) if name in given else shape
        found[node] = shape
    return found


def release_of_stories(
    given: KubernetesVersion | None, stories: Sequence[Story], *, where: str = "--kubernetes names"
) -> KubernetesVersion | None:
    """Return the release that stories need, or the given one; None for any. ``where`` says what gives it.

    Raises:
        ConfigurationError: two stories need different ones, or a story needs another one than is given.
    """
    needed, named = given, where
    for story in stories:
        if story.kubernetes is not None and needed not in (None, story.kubernetes):
            raise ConfigurationError(
                f"story {story.name} needs Kubernetes {story.kubernetes}, but {named} {needed}; run it "
                f"separately, with --kubernetes {story.kubernetes}"
            )
        if story.kubernetes is not None and needed is None:
            needed, named = story.kubernetes, f"story {story.name} needs"
    return needed


def _same(one: str, other: str) -> bool:
    """Return whether two TARGETs name the same driver, even with different paths."""
    if one == other:
        return True
    (path, _, attribute), (other_path, _, other_attribute) = one.partition(":"), other.partition(":")
    if attribute != other_attribute or not Path(path).exists():
        return False
    return Path(path).resolve() == Path(other_path).resolve()


def sandbox_driver(
    target: str, first: Driver[Any, Any], given: Mapping[str, object], nodes: int, *, replaced: bool = False
) -> SandboxDriver:
    """Return the driver, which was loaded once (``first``), with its settings, loaded once for each node.

    The ``given`` settings override those of its project. ``replaced``: a story replaces it by another release.

    Raises:
        ConfigurationError: the project is invalid, or the driver lacks a setting that the project names.
    """
    from dra_kit.author.settings import author_settings
    from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver, device_classes, project_settings, successor_loader

    drivers: tuple[Driver[Any, Any], ...] = (first,)
    spare: Driver[Any, Any] | None = None
    if replaced:
        *several, spare = load_drivers(target, nodes + 1)
        drivers = tuple(several)
    elif nodes > 1:
        drivers = tuple(load_drivers(target, nodes))
    values = {**project_settings(target, first), **given}
    return SandboxDriver(
        drivers,
        partial(author_settings, first),
        device_classes(target),
        values,
        spare,
        target=target,
        successor=successor_loader(author_settings, nodes, values),
    )

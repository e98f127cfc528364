"""Which drivers ``dra-kit sandbox`` is to run: its TARGETs, and those that its stories need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dra_kit.cli.app import values_of
from dra_kit.cli.options.role_command import is_help, targets_of
from dra_kit.cli.options.several_drivers import options_of_drivers
from dra_kit.errors import ConfigurationError

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver
    from dra_kit.sandbox.stories.story import Story

Loaded = tuple[str, "Driver[Any, Any]"]
"""A TARGET, and what was loaded from it."""


def load_targets(
    own: Sequence[click.Parameter],
    args: Sequence[str],
    option: str,
    loading: Callable[[str], None] = lambda _: None,
) -> tuple[list[Loaded], list[click.Option]]:
    """Return the drivers that the arguments name, with the options of their settings.

    What follows an option of a driver can only be distinguished from a TARGET when the driver's options are known:
    drivers are loaded one after the other.

    Args:
        own: the command's own options.
        args: its arguments.
        option: that names folders of stories.
        loading: called with a TARGET before it is loaded, and before anything is imported for that.

    Raises:
        ConfigurationError: a driver or a story cannot be loaded, two drivers have one name, or a setting takes the
            place of an option of dra-kit.
    """
    found: list[Loaded] = []
    options: list[click.Option] = []

    def load(targets: Callable[[], Sequence[str]]) -> None:
        nonlocal options
        while fresh := [target for target in targets() if not any(_same(target, known) for known, _ in found)]:
            loading(fresh[0])
            from dra_kit.author.target import load_driver
            from dra_kit.sandbox.driver.drivers import require_distinct

            found.append((fresh[0], load_driver(fresh[0])))
            require_distinct((target, driver.name) for target, driver in found)
            options = options_of_drivers([driver for _, driver in found], own)

    load(lambda: targets_of([*own, *options], args))
    if is_help(args):
        return found, options  # a story names TARGETs that the user has not named
    folders = [Path(text) for text in values_of(option, args) if Path(text).is_dir()]
    needed = [target for story in load_stories(folders) for target in story.targets]
    load(lambda: needed)
    return found, options


def load_stories(folders: Sequence[Path]) -> tuple[Story, ...]:
    """Return the stories in folders; a folder is a story, or has several.

    Raises:
        ConfigurationError: there is none, or one is wrong.
    """
    if not folders:
        return ()
    from dra_kit.sandbox.stories.story_file import EXPECT_FILE, find_stories, load_story

    found: list[Path] = []
    for folder in folders:
        several = [folder] if (folder / EXPECT_FILE).exists() else list(find_stories(folder))
        if not several:
            raise ConfigurationError(f"--story {folder}: neither it nor a folder in it has an {EXPECT_FILE}")
        found += several
    return tuple(map(load_story, found))


def _same(one: str, other: str) -> bool:
    """Return whether two TARGETs are the same, however they are written."""
    if one == other:
        return True
    (path, _, attribute), (other_path, _, other_attribute) = one.partition(":"), other.partition(":")
    if attribute != other_attribute or not Path(path).exists():
        return False
    return Path(path).resolve() == Path(other_path).resolve()

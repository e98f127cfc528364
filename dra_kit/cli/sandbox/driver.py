"""A driver that a command has loaded, as a sandbox runs it: with what its project and its flags say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver
    from dra_kit.sandbox.driver.drivers import SandboxDriver


def sandbox_driver(
    target: str, first: Driver[Any, Any], given: Mapping[str, object], nodes: int, *, replaced: bool = False
) -> SandboxDriver:
    """Return the driver for so many nodes.

    Args:
        target: the driver.
        first: what was loaded from it, to know its options.
        given: values of its settings, by name, which win over those of its project.
        nodes: that each get one.
        replaced: another one may take its place while the cluster runs.

    Raises:
        ConfigurationError: the project is wrong, or the driver has not the settings that it names.
    """
    from dra_kit.author.settings import author_settings
    from dra_kit.author.target import load_drivers
    from dra_kit.sandbox.driver.drivers import SandboxDriver, device_classes, project_settings, successors

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
        successor=successors(author_settings, nodes, values),
    )

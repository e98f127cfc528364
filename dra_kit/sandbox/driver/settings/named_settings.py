"""Settings of a sandbox's drivers by name: ``NAME`` where one driver has it, ``DRIVER.NAME`` where several do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dra_kit.errors import ConfigurationError
from dra_kit.text import did_you_mean

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver

T = TypeVar("T")


def by_driver(drivers: Sequence[Driver[Any, Any]], given: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Return the given values of settings, for each driver by the name of the setting.

    Args:
        drivers: each once.
        given: by ``NAME`` or ``DRIVER.NAME``.

    Raises:
        ConfigurationError: no driver has such a setting, or several have it and none is named.
    """
    found: dict[str, dict[str, T]] = {driver.name: {} for driver in drivers}
    for text, value in given.items():
        driver, name = _owner(drivers, text)
        found[driver.name][name] = value
    return found


def settings_of(driver: Driver[Any, Any]) -> list[str]:
    """Return the names of a driver's settings."""
    return list(driver.settings.model_fields) if driver.settings else []


def _owner(drivers: Sequence[Driver[Any, Any]], text: str) -> tuple[Driver[Any, Any], str]:
    for driver in sorted(drivers, key=lambda item: -len(item.name)):
        name = text.removeprefix(f"{driver.name}.")
        if name != text or len(drivers) == 1:
            return driver, _required(driver, name)
    having = [driver for driver in drivers if text in settings_of(driver)]
    if len(having) == 1:
        return having[0], text
    if having:
        names = [driver.name for driver in having]
        raise ConfigurationError(
            f"setting {text!r} is one of the drivers {' and '.join(names)}; write "
            f"{' or '.join(f'{name}.{text}' for name in names)}"
        )
    known = [name for driver in drivers for name in settings_of(driver)]
    theirs = "; ".join(f"{driver.name}: {', '.join(settings_of(driver)) or 'none'}" for driver in drivers)
    raise ConfigurationError(
        f"no driver has a setting {text!r}{did_you_mean(text, known) or ';'} their settings: {theirs}"
    )


def _required(driver: Driver[Any, Any], name: str) -> str:
    known = settings_of(driver)
    if name not in known:
        raise ConfigurationError(
            f"driver {driver.name} has no setting {name!r}{did_you_mean(name, known) or ';'} its settings: "
            f"{', '.join(known) or 'none'}"
        )
    return name

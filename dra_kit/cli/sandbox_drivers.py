"""The settings of several drivers as options of one command: a flag belongs to the driver that declares it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.driver.settings.named_settings import by_driver

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver

SET: Final = "--set"


def options_of_drivers(drivers: Sequence[Driver[Any, Any]], own: Iterable[click.Parameter]) -> list[click.Option]:
    """Return an option for each setting; the help of one that several drivers have says how to name the driver.

    Args:
        drivers: each once.
        own: the command's own options.

    Raises:
        ConfigurationError: when a setting would take the place of an option of dra-kit.
    """
    from dra_kit.cli.options.driver_settings import settings_options  # a command without a driver needs none of it

    own = list(own)
    of_each = {driver.name: settings_options(driver, own, meta_key=_meta_key(driver.name)) for driver in drivers}
    owners: dict[str, list[str]] = {}
    for name, options in of_each.items():
        for option in options:
            for flag in _flags(option):
                owners.setdefault(flag, []).append(name)
    found: dict[str, click.Option] = {}
    for options in of_each.values():
        for option in options:
            several = list(dict.fromkeys(name for flag in _flags(option) for name in owners[flag]))
            first = _flags(option)[0]
            if len(several) == 1:
                found[first] = option
            elif first not in found:
                found[first] = _ambiguous(option, several)
    return list(found.values())


def given_settings(
    ctx: click.Context, drivers: Sequence[Driver[Any, Any]], texts: Sequence[str]
) -> Mapping[str, Mapping[str, object]]:
    """Return the values of flags, environment and ``--set``, for each driver by the name of the setting.

    Args:
        ctx: of the command.
        drivers: each once.
        texts: of ``--set``: ``NAME=VALUE`` or ``DRIVER.NAME=VALUE``.

    Raises:
        ConfigurationError: a text of ``--set`` names no setting, or one of several drivers.
    """
    from dra_kit.cli.options.driver_settings import setting_value

    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(f"{SET} {text}: there is no value; write {SET} DRIVER.NAME=VALUE")
        pairs[name] = value
    named = by_driver(drivers, pairs)
    return {
        driver.name: {
            **ctx.meta.get(_meta_key(driver.name), {}),
            **{name: setting_value(driver, name, value) for name, value in named[driver.name].items()},
        }
        for driver in drivers
    }


def _meta_key(driver: str) -> str:
    return f"driver_settings of {driver}"


def _flags(option: click.Option) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _ambiguous(option: click.Option, drivers: Sequence[str]) -> click.Option:
    """Refuse an option that several drivers have."""
    flag, name = _flags(option)[0], str(option.name).removeprefix("driver_setting_")
    which = " or ".join(f"{SET} {driver}.{name}=VALUE" for driver in drivers)
    return click.Option(
        [str(option.name), *_flags(option)],
        is_flag=False,
        flag_value="",
        default=None,
        metavar="",
        envvar=option.envvar,
        expose_value=False,
        help=f"a setting of {' and '.join(drivers)}: write {which}",
        callback=_refuse(f"{flag} ({option.envvar}) is a setting of {' and '.join(drivers)}; write {which}"),
    )


def _refuse(text: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(_: click.Context, __: click.Parameter, value: Any) -> None:
        if value is not None:
            raise ConfigurationError(text)

    return callback

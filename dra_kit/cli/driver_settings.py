"""The author's own settings, one pydantic model, as options of a command: flags, environment and help."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dra_kit.author.driver import Driver
from dra_kit.author.settings import (
    choices_of,
    has_items,
    has_parts,
    parse_setting,
    setting_flag,
    setting_kind,
    setting_variable,
)
from dra_kit.cli.app import flags_of
from dra_kit.errors import ConfigurationError

_SIGNS: Final = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
"""The operator of each of pydantic's constraints."""
_METAVARS: Final = {int: "INTEGER", float: "FLOAT", Path: "PATH"}


class _Text(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """Unconverted text; pydantic converts it to the value."""

    name = "text"

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return a variable as one text, including blanks, like the flag."""
        return [rv]


def settings_options(
    driver: Driver[Any, Any], own: Iterable[click.Parameter], *, meta_key: str = "driver_settings"
) -> list[click.Option]:
    """Return an option for each field of ``Driver(settings=…)``; its values are stored in ``ctx.meta``.

    A bool is ``--x/--no-x``. A list is a flag that may be repeated, a text with commas, or JSON. A model or a dict is
    JSON. Everything else is one text. ``meta_key`` is the key of the values, a mapping by the name of the setting.

    Raises:
        ConfigurationError: a setting has the same flag as an option of dra-kit.
    """
    if driver.settings is None:
        return []
    taken = {flag for param in own for flag in flags_of(param)} | {"--help", "-h"}
    options = []
    for name, field in driver.settings.model_fields.items():
        option = _option(name, field, meta_key)
        collisions = [flag for flag in flags_of(option) if flag in taken]
        if collisions:
            raise ConfigurationError(
                f"driver {driver.name}: setting {name} collides with {collisions[0]}, which is taken; rename the field"
            )
        taken.update(flags_of(option))
        options.append(option)
    return options


def _option(name: str, field: FieldInfo, meta_key: str) -> click.Option:
    kind = setting_kind(field.annotation)
    flag = setting_flag(name)
    is_bool = kind is bool
    return click.Option(
        [f"driver_setting_{name}", f"{flag}/--no-{flag.removeprefix('--')}" if is_bool else flag],
        type=click.BOOL if is_bool else _Text(),
        default=None,
        multiple=has_items(kind),
        metavar=None if is_bool else _metavar(kind),
        envvar=setting_variable(name),
        show_envvar=True,
        help=_help(field),
        expose_value=False,
        callback=_collect(name, kind, meta_key),
    )


def _metavar(kind: Any) -> str:
    if choices := choices_of(kind):
        return f"[{'|'.join(choices)}]"
    if has_parts(kind):
        return "JSON"
    if has_items(kind):
        return "TEXT[,...]"
    return _METAVARS.get(kind, "TEXT")


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    default = None if field.default_factory is not None else _default(field)
    note = "required" if field.is_required() else f"default: {default}" if default else ""
    note = "; ".join(filter(None, (note, _range(field))))
    return "  ".join(part for part in (text, f"[{note}]" if note else "") if part)


def _range(field: FieldInfo) -> str:
    """Return the range of a number as click writes it, ``1<=x<=8`` or ``x>=1``; empty if it has none."""
    limits = {
        name: value for item in field.metadata for name in _SIGNS if (value := getattr(item, name, None)) is not None
    }
    least = next((name for name in ("ge", "gt") if name in limits), "")
    most = next((name for name in ("le", "lt") if name in limits), "")
    if least and most:
        return f"{limits[least]}{_SIGNS[least].replace('>', '<')}x{_SIGNS[most]}{limits[most]}"
    return "".join(f"x{_SIGNS[name]}{limits[name]}" for name in (least, most) if name)


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.is_required() or value is None:
        return ""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _collect(name: str, kind: Any, meta_key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value is None or value == ():
            return
        ctx.meta.setdefault(meta_key, {})[name] = value if isinstance(value, bool) else parse_setting(name, kind, value)

    return callback

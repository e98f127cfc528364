"""The author's own settings, one pydantic model, as options of a command: flags, environment and help."""

from __future__ import annotations

import enum
import json
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dra_kit.author.driver import Driver
from dra_kit.author.settings import setting_flag, setting_variable
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


def setting_value(driver: Driver[Any, Any], name: str, text: str) -> object:
    """Return the input for pydantic of a setting that is given as text.

    Raises:
        ConfigurationError: the setting takes JSON, and the text is not JSON.
    """
    fields = driver.settings.model_fields if driver.settings else {}
    return _value(name, _kind(fields[name].annotation), text)


def _option(name: str, field: FieldInfo, meta_key: str) -> click.Option:
    kind = _kind(field.annotation)
    flag = setting_flag(name)
    is_bool = kind is bool
    return click.Option(
        [f"driver_setting_{name}", f"{flag}/--no-{flag.removeprefix('--')}" if is_bool else flag],
        type=click.BOOL if is_bool else _Text(),
        default=None,
        multiple=_has_items(kind),
        metavar=None if is_bool else _metavar(kind),
        envvar=setting_variable(name),
        show_envvar=True,
        help=_help(field),
        expose_value=False,
        callback=_collect(name, kind, meta_key),
    )


def _kind(annotation: Any) -> Any:
    """Return ``X`` for ``X | None``, and any other type unchanged."""
    if get_origin(annotation) in {Union, types.UnionType}:
        members = [item for item in get_args(annotation) if item is not types.NoneType]
        return _kind(members[0]) if len(members) == 1 else annotation
    return annotation


def _has_items(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return (
        isinstance(origin, type)
        and not issubclass(origin, str | bytes)
        and issubclass(origin, list | tuple | set | frozenset | Sequence)
    )


def _has_parts(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, BaseModel | Mapping)


def _choices(kind: Any) -> dict[str, object]:
    if get_origin(kind) is Literal:
        return {str(item): item for item in get_args(kind)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {str(item.value): item for item in kind}
    return {}


def _metavar(kind: Any) -> str:
    if choices := _choices(kind):
        return f"[{'|'.join(choices)}]"
    if _has_parts(kind):
        return "JSON"
    if _has_items(kind):
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
        ctx.meta.setdefault(meta_key, {})[name] = value if isinstance(value, bool) else _value(name, kind, value)

    return callback


def _value(name: str, kind: Any, given: str | tuple[str, ...]) -> object:
    texts = (given,) if isinstance(given, str) else given
    if _has_parts(kind) or (_has_items(kind) and texts[0].lstrip().startswith("[")):
        try:
            return json.loads(texts[-1])
        except ValueError as error:
            raise ConfigurationError(
                f"{setting_flag(name)} ({setting_variable(name)}) is not valid JSON: {error}"
            ) from None
    if _has_items(kind):
        return [item.strip() for text in texts for item in text.split(",") if item.strip()]
    return _choices(kind).get(texts[-1], texts[-1])

"""The author's settings, one pydantic model, filled from flags and the environment."""

from __future__ import annotations

import enum
import json
import types
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dra_kit.author.driver import Driver
from dra_kit.author.model import rule_text, short_repr
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.values.quantity import InvalidQuantity
from dra_kit.text import did_you_mean

AUTHOR_PREFIX: Final = "DRIVER_"
"""Prefix of the environment variables of an author's settings: ``DRIVER_`` and the field's name in upper case."""


ROLE_FLAGS: Final = frozenset({
    "--abandon", "--ca-bundle", "--cdi-dir", "--cert", "--check-device-nodes", "--cluster-role", "--dra-versions",
    "--driver", "--dump-state", "--globs", "--hang-timeout", "--help", "--host", "--key", "--kubeconfig",
    "--kubelet-dir", "--leader-election", "--lease-name", "--lease-namespace", "--log-format", "--log-level",
    "--namespace", "--no-check-device-nodes", "--no-leader-election", "--node-name", "--nri-socket", "--orphan-after",
    "--own-certificate", "--pod", "--pod-uid", "--port", "--print-configuration", "--probe-address", "--state-dir",
    "--stay", "--url",
})  # fmt: skip
"""Flags of the commands that run a role; in a cluster each of these commands has a flag for each setting, too."""


def author_settings(driver: Driver[Any, Any], values: Mapping[str, object]) -> BaseModel | None:
    """Return the author's settings from values by field name; missing fields take their defaults.

    Values of JSON types are read as the node role reads them: the chart writes them as texts into its environment. So
    each role, the sandbox, ``dra-kit lint`` and tests accept and reject the same values.

    Raises:
        ConfigurationError: naming flag, variable, value and rule.
    """
    if driver.settings is None:
        return None
    for name in driver.settings.model_fields:
        if setting_flag(name) in ROLE_FLAGS:
            raise ConfigurationError(
                f"driver {driver.name}: setting {name} collides with {setting_flag(name)} of the commands that run "
                "roles; rename the field"
            )
    try:
        return _validated(driver, driver.settings, values)
    except ValidationError as error:
        text = _problems(driver.settings.model_fields, error.errors(include_url=False))
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001 - an author's validator may read files and fail in any way
        text = f"{type(error).__name__}: {error}"
    raise ConfigurationError(f"settings of driver {driver.name}: {' '.join(text.split())}")


def check_settings(driver: Driver[Any, Any], values: Mapping[str, object]) -> None:
    """Check settings for another machine: their names, types and limits.

    Missing ones may be set there in another way, and the author's validators may need its files.

    Raises:
        ConfigurationError: naming flag, variable, value and rule, or the setting that does not exist.
    """
    fields = driver.settings.model_fields if driver.settings is not None else {}
    unknown = next((name for name in values if name not in fields), None)
    if unknown is not None:
        raise ConfigurationError(
            f"driver {driver.name} has no setting {unknown!r}{did_you_mean(unknown, fields) or ';'} its settings: "
            f"{', '.join(fields) or 'none'}"
        )
    if driver.settings is None:
        return
    try:
        _validated(driver, driver.settings, values)
    except ValidationError as error:
        found = [detail for detail in error.errors(include_url=False) if not _is_of_validator(dict(detail))]
    except ConfigurationError:
        raise
    except Exception:  # noqa: BLE001 - an author's validator may read files, which nodes have
        return
    else:
        return
    if found:
        raise ConfigurationError(f"settings of driver {driver.name}: {_problems(fields, found)}")


_PATHS: Final = frozenset({"path_not_file", "path_not_directory", "path_exists", "path_not_socket"})


def _is_of_validator(detail: dict[str, Any]) -> bool:
    """Return whether a problem is that a setting or a file is missing, or one of an author's validator."""
    if detail["type"] in {"value_error", "assertion_error"}:
        return not isinstance(detail["ctx"]["error"], InvalidQuantity)
    return detail["type"] in _PATHS or (detail["type"] == "missing" and len(detail["loc"]) == 1)


def _validated(driver: Driver[Any, Any], model: type[BaseModel], values: Mapping[str, object]) -> BaseModel:
    given = {name: setting_value(driver, name, value) for name, value in values.items()}
    return model.model_validate(given, strict=False, by_name=True, by_alias=False)


def _problems(fields: Mapping[str, FieldInfo], found: Sequence[ErrorDetails]) -> str:
    return " ".join("; ".join(dict.fromkeys(_setting_problem(fields, dict(detail)) for detail in found)).split())


def setting_value(driver: Driver[Any, Any], name: str, value: object) -> object:
    """Return the input for pydantic of a setting that is given as text, or as a value of JSON.

    Raises:
        ConfigurationError: the setting takes JSON, and the text is not JSON.
    """
    field = driver.settings.model_fields.get(name) if driver.settings else None
    text = _as_text(value)
    return value if field is None or text is None else parse_setting(name, setting_kind(field.annotation), text)


def _as_text(value: object) -> str | None:
    """Return a value as the chart writes it into the environment; None for a value that is not of a JSON type."""
    if type(value) is str:
        return value
    if type(value) is float and value.is_integer():
        return str(int(value))
    try:
        return (
            json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            if type(value) in {bool, int, float, list, dict}
            else None
        )
    except (TypeError, ValueError):  # a list of paths, for example, which only code can give
        return None


def parse_setting(name: str, kind: Any, given: str | tuple[str, ...]) -> object:
    """Return the input for pydantic of a setting of a :func:`setting_kind`, from its text or the texts of its flags.

    Raises:
        ConfigurationError: the setting takes JSON, and the text is not JSON.
    """
    texts = (given,) if isinstance(given, str) else given
    if has_parts(kind) or (has_items(kind) and texts[0].lstrip().startswith("[")):
        try:
            return json.loads(texts[-1])
        except ValueError as error:
            raise ConfigurationError(
                f"{setting_flag(name)} ({setting_variable(name)}) is not valid JSON: {error}"
            ) from None
    if has_items(kind):
        return [item.strip() for text in texts for item in text.split(",") if item.strip()]
    return choices_of(kind).get(texts[-1], texts[-1])


def setting_kind(annotation: Any) -> Any:
    """Return ``X`` for ``X | None``, and any other type unchanged."""
    if get_origin(annotation) in {Union, types.UnionType}:
        members = [item for item in get_args(annotation) if item is not types.NoneType]
        return setting_kind(members[0]) if len(members) == 1 else annotation
    return annotation


def has_items(kind: Any) -> bool:
    """Return whether a setting is a list: a text with commas, a repeated flag, or JSON."""
    origin = get_origin(kind) or kind
    return (
        isinstance(origin, type)
        and not issubclass(origin, str | bytes)
        and issubclass(origin, list | tuple | set | frozenset | Sequence)
    )


def has_parts(kind: Any) -> bool:
    """Return whether a setting is a model or a dict, which is given as JSON."""
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, BaseModel | Mapping)


def choices_of(kind: Any) -> dict[str, object]:
    """Return the values of a Literal or an enum by their texts; empty for other types."""
    if get_origin(kind) is Literal:
        return {json.dumps(item) if isinstance(item, bool) else str(item): item for item in get_args(kind)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {str(item.value): item for item in kind}
    return {}


def _setting_problem(fields: Mapping[str, FieldInfo], detail: dict[str, Any]) -> str:
    text = rule_text(detail["msg"])
    if not detail["loc"] or detail["loc"][0] not in fields:
        return text
    name, *inner = detail["loc"]
    where = f"{setting_flag(name)} ({setting_variable(name)})" + "".join(f"[{part}]" for part in inner)
    if detail["type"] == "missing" and not inner:
        return f"{where}: is required; give the flag or set the variable"
    if _is_secret(fields[name]) or detail["type"] == "missing":
        return f"{where}: {text}"
    return f"{where}: {text}, not {short_repr(detail['input'])}"


def setting_flag(name: str) -> str:
    """Return the flag of a setting, such as ``--oven-name``."""
    return f"--{name.lower().replace('_', '-')}"


def setting_variable(name: str) -> str:
    """Return the environment variable of a setting, such as ``DRIVER_OVEN_NAME``."""
    return f"{AUTHOR_PREFIX}{name.upper()}"


def _is_secret(field: FieldInfo) -> bool:
    return any(name in repr(field.annotation) for name in (SecretStr.__name__, SecretBytes.__name__))

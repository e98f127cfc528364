"""The author's settings, one pydantic model, filled from flags and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from dra_kit.author.driver import Driver
from dra_kit.author.model import rule_text, short_repr
from dra_kit.errors import ConfigurationError

AUTHOR_PREFIX: Final = "DRIVER_"
"""Prefix of the environment variables of an author's settings: ``DRIVER_`` and the field's name in upper case."""


def author_settings(driver: Driver[Any, Any], values: Mapping[str, object]) -> BaseModel | None:
    """Return the author's settings from values by field name; missing fields take their defaults.

    Raises:
        ConfigurationError: naming flag, variable, value and rule.
    """
    if driver.settings is None:
        return None
    try:
        return driver.settings.model_validate(dict(values), strict=False, by_name=True, by_alias=False)
    except ValidationError as error:
        fields = driver.settings.model_fields
        texts = [_setting_problem(fields, dict(detail)) for detail in error.errors(include_url=False)]
        text = "; ".join(dict.fromkeys(texts))
    except Exception as error:  # noqa: BLE001 - an author's validator may read files and fail in any way
        text = f"{type(error).__name__}: {error}"
    raise ConfigurationError(f"settings of driver {driver.name}: {' '.join(text.split())}")


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

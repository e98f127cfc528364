"""Opaque parameters to the author's models: the one decoder that node and webhook share."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from dra_kit.author.config import OpaqueConfig
from dra_kit.errors import ConfigurationError, InvalidConfig
from dra_kit.values.json import DuplicateKeysObject

ConfigT = TypeVar("ConfigT", bound=OpaqueConfig)


class ConfigDecoder(Generic[ConfigT]):
    """Decodes ``opaque.parameters`` by ``apiVersion`` and ``kind``, and upgrades old versions.

    Args:
        kinds: the models a preparer takes; none means that parameters are refused.

    Raises:
        ConfigurationError: for a model without api_version, or two models of one api_version and kind.
    """

    def __init__(self, kinds: Sequence[type[ConfigT]]) -> None:
        self.kinds = tuple(kinds)
        self._models: dict[tuple[str, str], type[OpaqueConfig]] = {}
        for model in _with_older(kinds):
            if not model.api_version_:
                raise ConfigurationError(
                    f"config {model.__name__} has no api_version; write class {model.__name__}"
                    '(dra_kit.OpaqueConfig, api_version="<group>/v1")'
                )
            key = (model.api_version_, model.kind_)
            if self._models.setdefault(key, model) is not model:
                raise ConfigurationError(
                    f"configs {self._models[key].__name__} and {model.__name__} are both {key[0]}, kind {key[1]}; "
                    "give one another kind= or api_version="
                )

    def decode(self, parameters: Any) -> ConfigT:
        """The newest model's instance for these parameters.

        Raises:
            InvalidConfig: with every problem as (path, text).
        """
        model = self._model(parameters)
        body = {key: value for key, value in parameters.items() if key not in {"apiVersion", "kind"}}
        problems = list(_duplicates(parameters, ""))
        try:
            config: OpaqueConfig = model.model_validate_json(json.dumps(body))
        except ValidationError as error:
            problems += [_problem(model, dict(detail)) for detail in error.errors(include_url=False)]
            raise _invalid(model.kind_, problems) from None
        if problems:
            raise _invalid(model.kind_, problems)
        while not isinstance(config, self.kinds):
            config = config.upgrade()
        return config

    def _model(self, parameters: Any) -> type[OpaqueConfig]:
        if not self._models:
            raise _invalid("parameters", [("", "this driver takes no configuration; remove the config entry")])
        if not isinstance(parameters, Mapping):
            raise _invalid("parameters", [("", f"must be an object, not {json.dumps(parameters)[:80]}")])
        problems = []
        wanted = {"apiVersion": {key[0] for key in self._models}, "kind": {key[1] for key in self._models}}
        for key, accepted in wanted.items():
            value = parameters.get(key)
            if not isinstance(value, str) or value not in accepted:
                found = f"{json.dumps(value)} is not known" if key in parameters else "is missing"
                problems.append(
                    (key, f"{found}; {_one_of(accepted)}{_did_you_mean(value, accepted) if len(accepted) > 1 else ''}")
                )
        if problems:
            raise _invalid("parameters", problems)
        model = self._models.get((parameters["apiVersion"], parameters["kind"]))
        if model is None:
            versions = {key[0] for key in self._models if key[1] == parameters["kind"]}
            problem = f"{json.dumps(parameters['apiVersion'])} has no kind {parameters['kind']}; {_one_of(versions)}"
            raise _invalid("parameters", [("apiVersion", problem)])
        return model


def _with_older(kinds: Iterable[type[OpaqueConfig]]) -> Iterable[type[OpaqueConfig]]:
    for kind in kinds:
        yield kind
        yield from _with_older(kind.upgrades_from_)


def _invalid(what: str, problems: list[tuple[str, str]]) -> InvalidConfig:
    texts = [f"{path}: {text}" if path else text for path, text in problems]
    return InvalidConfig(f"{what}: " + "; ".join(texts), problems=problems)


def _duplicates(value: Any, path: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, DuplicateKeysObject):
        for key in value.duplicates:
            yield (f"{path}.{key}".lstrip("."), "stands twice in the same object; remove one")
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _duplicates(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _duplicates(item, f"{path}[{index}]")


def _problem(model: type[OpaqueConfig], detail: dict[str, Any]) -> tuple[str, str]:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).lstrip(".")
    match detail["type"]:
        case "extra_forbidden":
            return path, f"unknown field{_did_you_mean(str(detail['loc'][-1]), _sibling_keys(model, detail['loc']))}"
        case "missing":
            return path, "is required"
        case "literal_error" | "enum":
            accepted = [item.strip().strip("'") for item in detail["ctx"]["expected"].replace(" or ", ", ").split(",")]
            value = json.dumps(detail["input"])
            return path, f"{value} is not supported; {_one_of(accepted)}{_did_you_mean(detail['input'], accepted)}"
        case "value_error":
            return path, detail["msg"].removeprefix("Value error, ")
    return path, f"{_lower_first(detail['msg'])}, not {_short(detail['input'])}"


def _sibling_keys(model: type[OpaqueConfig], loc: tuple[Any, ...]) -> list[str]:
    current: Any = model
    for part in loc[:-1]:
        field = getattr(current, "model_fields", {}).get(part)
        current = field.annotation if field is not None else None
    fields = getattr(current, "model_fields", {})
    return [field.alias or name for name, field in fields.items()]


def _one_of(accepted: Iterable[str]) -> str:
    texts = sorted(json.dumps(text) for text in accepted)
    return f"use {texts[0]}" if len(texts) == 1 else f"use one of {', '.join(texts)}"


def _did_you_mean(value: object, accepted: Iterable[str]) -> str:
    if not isinstance(value, str):
        return ""
    plain = {_folded(text): text for text in accepted}
    near = difflib.get_close_matches(_folded(value), plain, n=1, cutoff=0.6)
    return f'; did you mean "{plain[near[0]]}"?' if near and plain[near[0]] != value else ""


def _folded(text: str) -> str:
    return text.casefold().replace("_", "").replace("-", "")


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _short(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."

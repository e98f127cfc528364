"""Opaque parameters to the author's models: the one decoder that node and webhook share."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, Self

from pydantic import BaseModel, ValidationError
from typing_extensions import TypeVar

from dra_kit.author.config.opaque import OpaqueConfig
from dra_kit.errors import ConfigurationError, DraKitError, InvalidConfig

if TYPE_CHECKING:  # what is wrong with a config is put into words when there is one: many drivers have none
    from dra_kit.author.config.problems import Problem

ConfigT = TypeVar("ConfigT", bound=OpaqueConfig)


class ConfigDecoder(Generic[ConfigT]):
    """Decodes ``opaque.parameters`` by ``apiVersion`` and ``kind``, and upgrades old versions.

    Args:
        kinds: the models a preparer takes; none means that parameters are refused.

    Raises:
        ConfigurationError: for a model without api_version, two models of one api_version and kind, or a model that
            some claim keeps busy for ever.
    """

    def __init__(self, kinds: Sequence[type[ConfigT]]) -> None:
        self.kinds: tuple[type[ConfigT], ...] = tuple(kinds)
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
            from dra_kit.author.config.cost import check_cost  # of the first model: many drivers have none

            check_cost(model)
        self._older = frozenset(self._models.values()) - frozenset(kinds)
        self._settings: BaseModel | None = None

    @property
    def models(self) -> Mapping[tuple[str, str], type[OpaqueConfig]]:
        """All models by ``apiVersion`` and ``kind``: those of ``kinds``, each with the older ones that lead to it."""
        return self._models

    def with_settings(self, settings: BaseModel | None) -> Self:
        """Return a decoder whose validators have the driver's settings as ``info.context``; None without any."""
        other = copy.copy(self)
        other._settings = settings  # noqa: SLF001
        return other

    def decode(self, parameters: Any) -> ConfigT:
        """Return the newest model's instance for these parameters.

        Args:
            parameters: as :func:`dra_kit.kubernetes.values.json.loads` gives them.

        Raises:
            InvalidConfig: with the first problems as (path, text), and how many there are beside these; nothing else,
                whatever the author's validators raise.
        """
        from dra_kit.author.config.problems import duplicate_keys
        from dra_kit.author.config.usable import usable_json

        model = self._model(parameters)
        given = {key: value for key, value in parameters.items() if key not in {"apiVersion", "kind"}}
        problems = list(duplicate_keys(parameters))
        body, unusable = usable_json(given)
        if unusable:
            raise _invalid(model, [*problems, *unusable])
        text = json.dumps(body, allow_nan=False)
        validate = partial(model.model_validate_json, text, strict=True, extra="forbid", context=self._settings)
        config = _validated(model, body, problems, validate, self._fields_of_others(model))
        if problems:
            raise _invalid(model, problems)
        return self._upgraded(config)

    def _fields_of_others(self, model: type[OpaqueConfig]) -> dict[str, str]:
        """Return for each field the version that has it, of the other versions of the kind; the newest of several."""
        return {
            field.alias or name: other.api_version_
            for other in reversed(self._models.values())
            if other is not model and other.kind_ == model.kind_
            for name, field in other.model_fields.items()
        }

    def _model(self, parameters: Any) -> type[OpaqueConfig]:
        from dra_kit.author.config.problems import instead_of, one_of, short

        if not self._models:
            raise _invalid(None, [("", "this driver takes no configuration; remove the config entry")])
        if not isinstance(parameters, Mapping):
            raise _invalid(None, [("", f"must be an object, not {short(parameters)}")])
        problems = []
        wanted = {"apiVersion": {key[0] for key in self._models}, "kind": {key[1] for key in self._models}}
        for key, accepted in wanted.items():
            value = parameters.get(key)
            if not isinstance(value, str) or value not in accepted:
                found = f"{short(value)} is not known" if key in parameters else "is missing"
                problems.append((key, f"{found}{instead_of(value, accepted)}"))
        if problems:
            raise _invalid(None, problems)
        model = self._models.get((parameters["apiVersion"], parameters["kind"]))
        if model is None:
            versions = {key[0] for key in self._models if key[1] == parameters["kind"]}
            problem = f"{short(parameters['apiVersion'])} has no kind {parameters['kind']}; {one_of(versions)}"
            raise _invalid(None, [("apiVersion", problem)])
        return model

    def _upgraded(self, config: OpaqueConfig) -> ConfigT:
        passed = set()
        while not isinstance(config, self.kinds) or type(config) in self._older:
            cls = type(config)
            passed.add(cls)
            try:
                config = config.upgrade()
            except Exception as error:
                raise _invalid(cls, [("", _raised(f"{cls.__name__}.upgrade", error))]) from error
            if not isinstance(config, OpaqueConfig) or type(config) in passed:
                text = f"{cls.__name__}.upgrade gave a {type(config).__name__}, which is no newer version of it"
                raise _invalid(cls, [("", text)])
        if not passed or self._settings is None:
            return config
        # upgrade() has made it without the settings
        model, fields = type(config), dict(config)
        validate = partial(model.model_validate, fields, strict=True, by_name=True, context=self._settings)
        checked: ConfigT = _validated(model, fields, [], validate, {})
        return checked


def _with_older(kinds: Iterable[type[OpaqueConfig]]) -> Iterable[type[OpaqueConfig]]:
    for kind in kinds:
        yield kind
        yield from _with_older(kind.upgrades_from_)


def _validated(
    model: type[OpaqueConfig],
    body: Mapping[str, Any],
    problems: Sequence[Problem],
    validate: Callable[[], Any],
    elsewhere: Mapping[str, str],
) -> Any:
    """Return what ``validate`` gives; ``elsewhere`` are fields that the model may be taken to have, and their version.

    Raises:
        InvalidConfig: with the problems that are known, and those that it finds.
    """
    try:
        return validate()
    except ValidationError as error:
        from dra_kit.author.config.problems import problems_of

        count = len(problems) + error.error_count()
        found = problems_of(error, model, body, elsewhere)
        raise _first_of(model, chain(problems, found), count) from None
    except Exception as error:
        raise _invalid(model, [*problems, ("", _raised(f"validator of {model.__name__}", error))]) from error


def _invalid(model: type[OpaqueConfig] | None, problems: Sequence[Problem]) -> InvalidConfig:
    return _first_of(model, problems, len(problems))


def _first_of(model: type[OpaqueConfig] | None, problems: Iterable[Problem], count: int) -> InvalidConfig:
    """Return the error with the first of so many problems; the others are not even looked at."""
    from dra_kit.author.config.problems import MOST_PROBLEMS, loggable_path

    found = iter(problems)
    reported = list(islice(found, MOST_PROBLEMS))
    omitted = count - len(reported) if next(found, None) else 0
    texts = [f"{path}: {text}" if path else text for path, text in reported]
    if omitted:
        texts.append(f"… and {omitted} more")
    # without a model a problem is with apiVersion or kind
    places = [loggable_path(path, model) if model is not None else path for path, _ in reported]
    return InvalidConfig(
        f"{model.kind_ if model is not None else 'parameters'}: " + "; ".join(texts),
        problems=reported, omitted=omitted, places=places,
    )  # fmt: skip


def _raised(where: str, error: Exception) -> str:
    from dra_kit.author.config.problems import TEXT_BYTES, one_line
    from dra_kit.text import shorten

    text = one_line(str(error))
    if not (isinstance(error, DraKitError) and text):
        text = f"{where} raised {type(error).__name__}{f': {text}' if text else ''}"
    return shorten(text, TEXT_BYTES)

"""What a class gave for its base's type arguments: ``class Waiter(Preparer[PizzaConfig])`` says PizzaConfig."""

from __future__ import annotations

import types
from typing import Any, Generic, Union, get_args, get_origin

from typing_extensions import NoDefault, TypeVar

from dra_kit.author.config.opaque import NoConfig, OpaqueConfig
from dra_kit.errors import ConfigurationError


def type_arguments(cls: type, base: type) -> tuple[Any, ...]:
    """Return the arguments that ``cls`` gives for the parameters of its generic ``base``, () where it gives none.

    Works through intermediate generic classes. A parameter that stays open is given as its TypeVar.
    """
    # not getattr: a class without generic bases of its own would answer with those of some ancestor
    for parent in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin = get_origin(parent) or parent
        if origin is Generic or not isinstance(origin, type) or not issubclass(origin, base):
            continue
        arguments = get_args(parent)
        if origin is base:
            return arguments
        inherited = type_arguments(origin, base)
        parameters = getattr(origin, "__parameters__", ())
        known: dict[object, Any] = dict(zip(parameters, arguments, strict=False))
        return tuple(known.get(item, item) if isinstance(item, TypeVar) else item for item in inherited)
    return ()


def config_classes(name: str, arguments: tuple[Any, ...]) -> tuple[type[OpaqueConfig], ...]:
    """Return the config classes that a preparer class was given: none, one, or those of ``Preparer[A | B]``.

    A TypeVar that a generic preparer left open stands for its default.

    Args:
        name: of the class.
        arguments: what it gave for the parameters of ``Preparer``.

    Raises:
        ConfigurationError: when the first one is no OpaqueConfig.
    """
    if not arguments:
        return ()
    argument = _open(arguments[0])
    members = get_args(argument) if get_origin(argument) in {Union, types.UnionType} else (argument,)
    for member in members:
        if not (isinstance(member, type) and issubclass(member, OpaqueConfig)):
            raise ConfigurationError(
                f"preparer {name}: {member!r} is no dra_kit.OpaqueConfig; write Preparer[<your OpaqueConfig subclass>]"
            )
    return tuple(member for member in members if member is not NoConfig)


def _open(argument: Any) -> Any:
    """Return what stands behind a ``type X = A | B`` statement, or a TypeVar with a default."""
    if isinstance(argument, TypeVar):
        default = getattr(argument, "__default__", NoDefault)
        return argument if default is NoDefault else default
    return getattr(argument, "__value__", argument)

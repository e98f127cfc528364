"""What pydantic says of a config, as field paths of the manifest and texts for its writer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from pydantic import BaseModel, ValidationError

from dra_kit.author.config.places import known_path, place_of
from dra_kit.author.models.wording import rule
from dra_kit.kubernetes.values.json import DuplicateKeysObject
from dra_kit.text import did_you_mean, shorten

Problem: TypeAlias = tuple[str, str]
"""Path below ``parameters``, empty for the whole, and text."""


class KeyProblem(NamedTuple):
    """A problem with a key, and not with its value."""

    path: str
    text: str


MOST_PROBLEMS: Final = 20
"""How many problems of one config are reported; nobody reads more at once."""

TEXT_BYTES: Final = 400
"""Bytes of a problem's text, most of which may be a validator's."""

_PATH_BYTES: Final = 300
_MOST_ERRORS: Final = 10_000  # pydantic makes all of them or none: this many take it some 20 ms

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PARTS: Final = re.compile(
    rf"""\[(?P<index>[0-9]{{1,9}})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]|\.?(?P<plain>{_PLAIN_KEY.pattern})|.""",
    re.DOTALL,
)
_LITERALS: Final = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^\s,]+)""")


def problems_of(
    error: ValidationError, model: type[BaseModel], body: Mapping[str, Any], elsewhere: Mapping[str, str] | None = None
) -> Iterator[Problem]:
    """Yield each problem once, in pydantic's order; made one by one, for nobody may want them all.

    Args:
        error: what pydantic found.
        model: the model that was tried.
        body: the input.
        elsewhere: paths of fields that another version of the model has, and its name.
    """
    if error.error_count() > _MOST_ERRORS:
        yield "", f"does not fit {model.__name__} in {error.error_count()} places; write a smaller one, step by step"
        return
    seen = set()
    for detail in error.errors(include_url=False):
        path = shorten(_located(detail["loc"], model, body, missing=detail["type"] == "missing"), _PATH_BYTES)
        beside = place_of(detail["loc"][:-1], model, body)[1]
        problem: Problem
        if detail["type"] == "extra_forbidden":
            problem = KeyProblem(
                path, shorten(_unknown_field(detail["loc"][-1], beside, elsewhere or {}, path), TEXT_BYTES)
            )
        else:
            problem = path, shorten(_text(dict(detail)), TEXT_BYTES)
        if problem not in seen:
            seen.add(problem)
            yield problem


def duplicate_keys(value: Any) -> Iterator[Problem]:
    """Yield keys that are in one object twice, as :func:`dra_kit.kubernetes.values.json.loads` remembers them."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:  # not recursive: the depth is the manifest's
        loc, current = waiting.pop()
        if isinstance(current, DuplicateKeysObject):
            for key in current.duplicates:
                yield KeyProblem(
                    shorten(path_text((*loc, key)), _PATH_BYTES), "stands twice in the same object; remove one"
                )
        items: Iterable[tuple[str | int, Any]] = ()
        if isinstance(current, Mapping):
            items = current.items()
        elif isinstance(current, list):
            items = enumerate(current)
        waiting.extend(((*loc, key), item) for key, item in items if isinstance(item, Mapping | list))


def path_text(loc: Iterable[str | int]) -> str:
    """Return ``("a", 0, "b", "x.y")`` as ``a[0].b["x.y"]``."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}"
        else:
            text += f"[{json.dumps(part)}]"
    return text.removeprefix(".")


def loggable_path(path: str, model: type[BaseModel]) -> str:
    """Return where a problem is, for a log: up to the first key that its writer made up, which may be a secret.

    Args:
        path: below ``parameters``, as a problem has it.
        model: of the parameters.
    """
    parts: list[str | int] = []
    with suppress(ValueError):  # in a key, where the path is cut
        for match in _PARTS.finditer(path):
            if match["plain"] is not None:
                parts.append(match["plain"])
            elif match.lastgroup is not None:
                parts.append(json.loads(match[match.lastgroup]))
            else:
                break
    return path_text(known_path(parts, model))


def instead_of(value: object, accepted: Iterable[object]) -> str:
    """Return what to write instead of a value that is not accepted: the nearest first, then all."""
    accepted = list(accepted)
    near = did_you_mean(value, accepted) if len(accepted) > 1 else ""
    return f"{near} {one_of(accepted)}" if near else f"; {one_of(accepted)}"


def one_of(accepted: Iterable[object]) -> str:
    """Return what to write instead."""
    texts = sorted(json.dumps(item) for item in accepted)
    return f"use {texts[0]}" if len(texts) == 1 else f"use one of {', '.join(texts)}"


def one_line(text: str) -> str:
    """Return what a validator says, on one line; not much more of it is read than is reported."""
    return shorten(" ".join(shorten(text, 4 * TEXT_BYTES).split()), TEXT_BYTES)


def short(value: object) -> str:
    """Return a value as JSON, cut when it is long."""
    try:
        text = json.dumps(value, default=repr)
    except RecursionError:
        return "something of too many levels"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _located(loc: Sequence[str | int], model: type[BaseModel], body: Any, *, missing: bool) -> str:
    """Return the path of a problem in the input; what is missing is not there, but the object it should be in is."""
    last = loc[-1:] if missing else ()
    path, _ = place_of(loc[: len(loc) - len(last)], model, body)
    return path_text((*path, *last))


def _unknown_field(key: str | int, beside: Sequence[type[BaseModel]], elsewhere: Mapping[str, str], path: str) -> str:
    """Return what is wrong with a key that no model has; ``beside`` are the models that may be where it is."""
    keys = [field.alias or name for model in beside for name, field in model.model_fields.items()]
    near = did_you_mean(key, keys)
    return f"unknown field{near}{f'; {elsewhere[path]} has it' if not near and path in elsewhere else ''}"


def _text(detail: dict[str, Any]) -> str:
    """Return what is wrong with a value, for the manifest's writer."""
    value, context = detail["input"], detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "is required"
        case "json_invalid":
            return f"is no JSON: {context['error']}"
        case "literal_error" | "enum":
            accepted = list(_literals(context["expected"]))
            return f"{short(value)} is not supported{instead_of(value, accepted)}"
        case "value_error" | "assertion_error":
            return one_line(str(context.get("error") or detail["msg"])) or "is not valid"
    if isinstance(value, float) and abs(value) >= 2**63 and detail["type"] in {"int_type", "int_from_float"}:
        return f"must be an integer of 64 bits, not {short(value)}"
    remedy = "; put it in quotes" if detail["type"] == "string_type" and isinstance(value, bool | int | float) else ""
    return f"{'key ' if '[key]' in detail['loc'] else ''}{rule(detail['msg'])}, not {short(value)}{remedy}"


def _literals(expected: str) -> Iterator[object]:
    """Yield what pydantic accepts, ``'a', 1 or "it's"``, as values."""
    for match in _LITERALS.finditer(expected):
        text = match["single"] if match["single"] is not None else match["double"]
        if text is not None:
            yield text
        elif match["bare"] != "or":
            yield _bare(match["bare"])


def _bare(text: str) -> object:
    try:
        return json.loads(text.lower() if text in {"True", "False"} else text)
    except ValueError:
        return text

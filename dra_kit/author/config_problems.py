"""What pydantic says of a config, as field paths of the manifest and texts for its writer."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, get_args

from pydantic import BaseModel, ValidationError

from dra_kit.values.json import DuplicateKeysObject

Problem: TypeAlias = tuple[str, str]
"""Path below ``parameters``, empty for the whole, and text."""

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LITERALS: Final = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^\s,]+)""")


def problems_of(error: ValidationError, model: type[BaseModel], body: Mapping[str, Any]) -> Iterator[Problem]:
    """Each problem once, in pydantic's order."""
    found = (
        (_located(detail["loc"], body, missing=detail["type"] == "missing"), _text(model, dict(detail)))
        for detail in error.errors(include_url=False)
    )
    yield from dict.fromkeys(found)


def duplicate_keys(value: Any) -> Iterator[Problem]:
    """Keys that stand twice in one object, as :func:`dra_kit.values.json.loads` remembers them."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:  # not recursive: the depth is the manifest's
        loc, current = waiting.pop()
        if isinstance(current, DuplicateKeysObject):
            for key in current.duplicates:
                yield path_text((*loc, key)), "stands twice in the same object; remove one"
        items: Iterable[tuple[str | int, Any]] = ()
        if isinstance(current, Mapping):
            items = current.items()
        elif isinstance(current, list):
            items = enumerate(current)
        waiting.extend(((*loc, key), item) for key, item in items if isinstance(item, Mapping | list))


def path_text(loc: Iterable[str | int]) -> str:
    """``("a", 0, "b", "x.y")`` as ``a[0].b["x.y"]``."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}"
        else:
            text += f"[{json.dumps(part)}]"
    return text.removeprefix(".")


def one_of(accepted: Iterable[object]) -> str:
    """What to write instead."""
    texts = sorted(json.dumps(item) for item in accepted)
    return f"use {texts[0]}" if len(texts) == 1 else f"use one of {', '.join(texts)}"


def did_you_mean(value: object, accepted: Iterable[object]) -> str:
    """The accepted text that is nearest, when one is near; case, ``-`` and ``_`` count nothing."""
    if not isinstance(value, str):
        return ""
    texts = {_folded(text): text for text in accepted if isinstance(text, str)}
    near = difflib.get_close_matches(_folded(value), texts, n=1, cutoff=0.6)
    return f'; did you mean "{texts[near[0]]}"?' if near and texts[near[0]] != value else ""


def short(value: object) -> str:
    """A value as JSON, cut when it is long."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _located(loc: Sequence[str | int], body: Any, *, missing: bool) -> str:
    """The path of a problem in the input.

    pydantic puts the names of a union's members between the keys; they lead nowhere in the input and are left out.
    """
    last = loc[-1:] if missing else ()
    return path_text((*_walk(loc[: len(loc) - len(last)], body), *last))


def _walk(loc: Sequence[str | int], current: Any) -> Iterator[str | int]:
    """The parts of ``loc`` that lead somewhere in ``current``."""
    for part in loc:
        inside = isinstance(current, Mapping) if isinstance(part, str) else isinstance(current, list)
        if inside and (part in current if isinstance(part, str) else part < len(current)):
            yield part
            current = current[part]


def _text(model: type[BaseModel], detail: dict[str, Any]) -> str:
    value, context = detail["input"], detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            return f"unknown field{did_you_mean(detail['loc'][-1], _keys_beside(model, detail['loc']))}"
        case "missing":
            return "is required"
        case "json_invalid":
            return f"is no JSON: {context['error']}"
        case "literal_error" | "enum":
            accepted = list(_literals(context["expected"]))
            return f"{short(value)} is not supported; {one_of(accepted)}{did_you_mean(value, accepted)}"
        case "value_error" | "assertion_error":
            text = str(context.get("error") or detail["msg"])
            return " ".join(text.split()) or "is not valid"
    text = detail["msg"].replace("Input should be", "must be", 1)
    text = " ".join(f"{text[:1].lower()}{text[1:]}".split())
    return f"{'key ' if '[key]' in detail['loc'] else ''}{text}, not {short(value)}"


def _literals(expected: str) -> Iterator[object]:
    """``'a', 1 or "it's"``, as pydantic lists what it accepts, as values."""
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


def _keys_beside(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """The keys that would be known at the place of an unknown one."""
    candidates = [model]
    for part in loc[:-1]:
        named = [item for item in candidates if item.__name__ == part]
        inside = [
            inner
            for item in candidates
            for name, field in item.model_fields.items()
            if part in {name, field.alias}
            for inner in _models(field.annotation)
        ]
        candidates = named or inside or candidates
    return [field.alias or name for item in candidates for name, field in item.model_fields.items()]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _folded(text: str) -> str:
    return text.casefold().replace("_", "").replace("-", "")

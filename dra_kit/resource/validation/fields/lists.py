"""Lists with a limit and with unique entries, as the API server checks them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

from dra_kit.resource.fielderror import FieldError, declarative, duplicate, too_many

_Item = TypeVar("_Item")


def limited(items: Sequence[_Item], limit: int, path: str) -> Iterator[tuple[str, _Item]]:
    """Yield the entries with their paths; none of a list that is too long, since its entries are not checked."""
    if len(items) <= limit:
        for i, item in enumerate(items):
            yield f"{path}[{i}]", item


def over_limit(items: Sequence[_Item], limit: int, path: str) -> list[FieldError]:
    """Return the error about a list that is too long."""
    return declarative([too_many(path, len(items), limit)]) if len(items) > limit else []


def repeated(items: Sequence[_Item], key: Callable[[_Item], Hashable], path: str) -> list[FieldError]:
    """Return the errors about entries with the key of an earlier one; their value is the entry."""
    seen: set[Hashable] = set()
    errors = []
    for i, item in enumerate(items):
        if key(item) in seen:
            errors.append(duplicate(f"{path}[{i}]", item))
        seen.add(key(item))
    return declarative(errors)


def repeated_names(names: Sequence[str], path: str) -> list[FieldError]:
    """Return the errors about texts that come a second time."""
    return [duplicate(f"{path}[{i}]", name) for i, name in enumerate(names) if name in names[:i]]

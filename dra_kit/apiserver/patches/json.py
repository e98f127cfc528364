"""JSON patch, RFC 6902.

Source of what differs from the RFC: gopkg.in/evanphx/json-patch.v4 4.13, as Kubernetes 1.37 uses it.
"""

from __future__ import annotations

import copy
import json
from typing import Any, Final


class PatchFailed(ValueError):
    """A patch that cannot be applied to this document."""


class PatchInvalid(ValueError):
    """What is no patch."""


_STRINGS: Final = ("op", "path", "from")


def apply(document: Any, patch: Any) -> Any:
    """Return the patched document; the given one stays as it is.

    As the API server's library does, and unlike the RFC, ``replace`` sets an entry of an object that is not there,
    and ``copy`` copies it as null.

    Raises:
        PatchInvalid: it is no list of operations.
        PatchFailed: an operation is unknown, a path does not exist, or a test fails.
    """
    if not isinstance(patch, list):
        raise PatchInvalid("json: cannot unmarshal the body into a list of operations")
    for operation in patch:
        if not isinstance(operation, dict):
            raise PatchInvalid("json: cannot unmarshal an operation that is no object")
        for name in _STRINGS:
            if not isinstance(operation.get(name, ""), str):
                raise PatchInvalid(f"json: cannot unmarshal the {name} of an operation into a string")
    document = copy.deepcopy(document)
    for operation in patch:
        document = _apply(document, operation)
    return document


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    path, value = _parse(operation, "path"), copy.deepcopy(operation.get("value"))
    if operation.get("op") == "replace" and not path:
        return value
    parent, key = _place(document, path)
    match operation.get("op"):
        case "add":
            _add(parent, key, value)
        case "remove":
            _remove(parent, key)
        case "replace":
            _get(parent, key)
            _set(parent, key, value)
        case "test":
            if not _same(_get(parent, key), value):
                raise PatchFailed(f"testing value {operation['path']} failed")
        case "move":
            source = _place(document, _parse(operation, "from"))
            value = _get(*source)
            _remove(*source)
            _add(*_place(document, path), value)
        case "copy":
            _add(parent, key, copy.deepcopy(_get(*_place(document, _parse(operation, "from")))))
        case other:
            raise PatchFailed(f"unexpected kind of operation: {other}")
    return document


def _parse(operation: dict[str, Any], name: str) -> list[str]:
    if name not in operation:
        raise PatchFailed(f"an operation has no {name}")
    _, *parts = operation[name].split("/")  # whatever comes before the first slash does not count
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def _index(part: str, end: int) -> int:
    if not part.removeprefix("-").isdecimal():
        raise PatchFailed(f"{part} is no index")
    index = int(part)
    if not -end <= index < end:
        raise PatchFailed(f"there is no item {part}")
    return index % end if end else 0


def _place(document: Any, path: list[str]) -> tuple[Any, str]:
    """Return the object or list that a path leads into, and the key in it."""
    if not path:
        raise PatchFailed("the whole document can only be replaced")
    for part in path[:-1]:
        document = _get(document, part)
        if not isinstance(document, dict | list):
            raise PatchFailed(f"/{'/'.join(path)} does not exist")
    return document, path[-1]


def _get(parent: Any, key: str) -> Any:
    return parent[_index(key, len(parent))] if isinstance(parent, list) else parent.get(key)


def _set(parent: Any, key: str, value: Any) -> None:
    if isinstance(parent, list):
        parent[_index(key, len(parent))] = value
    else:
        parent[key] = value


def _add(parent: Any, key: str, value: Any) -> None:
    if isinstance(parent, list):
        parent.insert(len(parent) if key == "-" else _index(key, len(parent) + 1), value)
    else:
        parent[key] = value


def _remove(parent: Any, key: str) -> None:
    if isinstance(parent, list):
        del parent[_index(key, len(parent))]
    elif key in parent:
        del parent[key]
    else:
        raise PatchFailed(f"there is no {key} to remove")


def _same(one: Any, other: Any) -> bool:
    # 1 and true are equal in Python, and not in JSON
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

"""JSON patch, RFC 6902."""

from __future__ import annotations

import copy
import json
from typing import Any


class PatchFailed(ValueError):
    """A patch that cannot be applied to this document."""


class PatchInvalid(ValueError):
    """What is no patch."""


def apply(document: Any, patch: Any) -> Any:
    """The patched document; the given one stays as it is.

    Raises:
        PatchInvalid: it is no list of operations.
        PatchFailed: a path does not exist, or a test fails.
    """
    if not isinstance(patch, list):
        raise PatchInvalid("json: cannot unmarshal the body into a list of operations")
    document = copy.deepcopy(document)
    for operation in patch:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise PatchInvalid("an operation has no path")
        document = _apply(document, operation)
    return document


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    path = _parse(operation["path"])
    match operation.get("op"):
        case "add":
            return _add(document, path, copy.deepcopy(operation.get("value")))
        case "remove":
            _remove(document, path)
        case "replace":
            _get(document, path)
            if not path:
                return copy.deepcopy(operation.get("value"))
            _set(document, path, copy.deepcopy(operation.get("value")))
        case "test":
            if not _same(_get(document, path), operation.get("value")):
                raise PatchFailed(f"testing value {operation['path']} failed")
        case "move":
            source = _parse(str(operation.get("from")))
            value = _get(document, source)
            _remove(document, source)
            return _add(document, path, value)
        case "copy":
            return _add(document, path, copy.deepcopy(_get(document, _parse(str(operation.get("from"))))))
        case other:
            raise PatchInvalid(f"unexpected kind of operation: {other}")
    return document


def _parse(path: str) -> list[str]:
    if not path:
        return []
    if not path.startswith("/"):
        raise PatchFailed(f"the path {path} does not begin with a slash")
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def _index(part: str, end: int) -> int:
    if not part.removeprefix("-").isdecimal():
        raise PatchFailed(f"{part} is no index")
    index = int(part)
    if not -end <= index < end:
        raise PatchFailed(f"there is no item {part}")
    return index % end if end else 0


def _get(document: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list):
            document = document[_index(part, len(document))]
        else:
            raise PatchFailed(f"/{'/'.join(path)} does not exist")
    return document


def _set(document: Any, path: list[str], value: Any) -> None:
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        parent[_index(path[-1], len(parent))] = value
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise PatchFailed(f"/{'/'.join(path)} does not exist")


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        index = len(parent) if path[-1] == "-" else _index(path[-1], len(parent) + 1)
        parent.insert(index, value)
    else:
        _set(document, path, value)
    return document


def _remove(document: Any, path: list[str]) -> None:
    if not path:
        raise PatchFailed("the whole document cannot be removed")
    _get(document, path)
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        del parent[_index(path[-1], len(parent))]
    else:
        del parent[path[-1]]


def _same(one: Any, other: Any) -> bool:
    # 1 and true are equal in Python, and not in JSON
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

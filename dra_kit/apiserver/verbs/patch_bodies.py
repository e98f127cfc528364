"""Bodies of patches other than apply: JSON of the form that the content type asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dra_kit.apiserver.answers import Refusal, bad_request
from dra_kit.apiserver.api import Request
from dra_kit.apiserver.verbs.bodies import parse_json
from dra_kit.kubernetes.resource.schema.decode import json_type
from dra_kit.kubernetes.values.json import DuplicateKeysObject

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"

_OPERATIONS_MAX: Final = 10_000
_OPERATION: Final = {"op", "path", "from", "value"}


def parse_patch(request: Request) -> Any:
    """Return the JSON of a patch.

    Raises:
        Refusal: 400.
    """
    try:
        return parse_json(request.body)
    except ValueError:
        raise bad_request("invalid JSON patch") from None


def formed(value: Any, request: Request) -> Any:
    """Return the operations of a JSON patch, the object of the others.

    Raises:
        Refusal: 400 or 413.
    """
    if request.content_type == JSON_PATCH:
        return _operations(value)
    if value is None and request.content_type == MERGE_PATCH:
        raise bad_request("Invalid JSON Patch")
    value = {} if value is None else value
    if not isinstance(value, dict):
        cause = f"json: cannot unmarshal {json_type(value)} into Go value of type map[string]interface {{}}"
        raise bad_request(cause if request.content_type == STRATEGIC_PATCH else f"error decoding patch: {cause}")
    return value


def _operations(value: Any) -> list[Any]:
    value = [] if value is None else value
    if not isinstance(value, list):
        cause = f"json: cannot unmarshal {json_type(value)} into Go value of type []handlers.jsonPatchOp"
        raise bad_request(f"error decoding patch: {cause}")
    if len(value) > _OPERATIONS_MAX:
        cause = f"The allowed maximum operations in a JSON patch is {_OPERATIONS_MAX}, got {len(value)}"
        raise Refusal(413, "RequestEntityTooLarge", f"Request entity too large: {cause}")
    return [{} if item is None else item for item in value]


def problems_of(body: Any) -> list[str]:
    """Return what strict decoding finds fault with in a patch itself."""
    if isinstance(body, dict):
        return [f'duplicate field "{path}"' for path in _duplicates(body, "")]
    return [
        f'json patch unknown field "[{i}].{name}"'
        for i, operation in enumerate(body)
        for name in operation
        if name not in _OPERATION
    ]


def _duplicates(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, DuplicateKeysObject):
        yield from (f"{path}{key}" for key in value.duplicates)
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _duplicates(item, f"{path}{key}.")

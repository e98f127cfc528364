"""Opaque JSON of drivers: the API server keeps it byte for byte, so that its size and equality are those of bytes.

Source: k8s.io/apimachinery 0.37 ``pkg/runtime`` RawExtension; measured on kube-apiserver 1.37.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import override

from dra_kit.resource import names

MAX_LENGTH: Final = 10 * 1024
"""Bytes of ``opaque.parameters`` and of ``status.devices[].data`` (resource.k8s.io/v1)."""


class RawObject(dict[str, Any]):
    """A JSON object that remembers its text; two are equal when their texts are.

    Args:
        value: the object.
        text: as it was sent. The limits of the API are for the bytes of this text.
    """

    __slots__ = ("text",)
    __hash__ = None

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text: str = text

    @override
    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, RawObject) else super().__eq__(other)

    @override
    def __ne__(self, other: object) -> bool:
        return not self == other

    def __copy__(self) -> RawObject:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RawObject:
        return self  # values are replaced, never changed


def size(value: Any) -> int:
    """Return the bytes of opaque JSON: of the text that was read, white space included, else of compact JSON."""
    if isinstance(value, RawObject):
        return names.byte_length(value.text)
    return names.byte_length(json.dumps(value, separators=(",", ":"), ensure_ascii=False))

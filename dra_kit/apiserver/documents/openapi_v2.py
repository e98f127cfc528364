"""OpenAPI v2 without definitions: kubectl then leaves the check of what it sends to the server.

kubectl validates by v3, but for ``kind: List`` it reads v2, in protobuf alone, and refuses to go on without it
(k8s.io/cli-runtime 0.37 ``resource/query_param_verifier_v3.go``, k8s.io/client-go 0.37 ``openapi``). It skips what has
no definition there. The form is ``Document`` of gnostic's OpenAPIv2.proto.
"""

from __future__ import annotations

import json
from typing import Any, Final

from dra_kit.apiserver.documents import discovery

PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_SWAGGER, _INFO, _PATHS = 1, 2, 8
_TITLE, _VERSION = 1, 2


def as_json() -> bytes:
    """Return the document as JSON."""
    document: dict[str, Any] = {"swagger": "2.0", "info": {"title": "Kubernetes", "version": discovery.VERSION}}
    return json.dumps(document | {"paths": {}}).encode()


def as_protobuf() -> bytes:
    """Return the document in protobuf."""
    info = _field(_TITLE, b"Kubernetes") + _field(_VERSION, discovery.VERSION.encode())
    return _field(_SWAGGER, b"2.0") + _field(_INFO, info) + _field(_PATHS, b"")


def _field(number: int, value: bytes) -> bytes:
    """Return one field of bytes, of fewer than 128 of them."""
    return bytes([number << 3 | 2, len(value)]) + value

"""What a request asks an authorizer for.

Source: k8s.io/apiserver 0.37 ``pkg/endpoints/request/requestinfo.go``.
"""

from __future__ import annotations

import re
from typing import Final

from dra_kit.apiserver.authorization.attributes import Attributes
from dra_kit.apiserver.requests.requests import Query, Target, verb

_NAME: Final = re.compile(r"metadata\.name\s*==?\s*([^,!=]+)")


def attributes_of_path(method: str, path: str) -> Attributes:
    """Return the attributes of a request for no resource."""
    return Attributes(method.lower(), path=path, is_path=True)


def attributes_of(method: str, target: Target, query: Query) -> Attributes:
    """Return the attributes of a request on a resource, whether there is such a resource or not."""
    action = verb(method, target, query)
    name, namespace = target.name, target.namespace
    if not name and action in {"list", "watch"}:
        name = _selected_name(query.text("fieldSelector"))
    if target.plural == "namespaces":
        namespace = target.name
    return Attributes(action, target.group, target.plural, target.subresource, namespace, name)


def _selected_name(selector: str) -> str:
    """Return the only name that a field selector lets through; empty for none."""
    for term in selector.split(","):
        match = _NAME.fullmatch(term.strip())
        if match is not None and not any(char in match[1] for char in "/%"):
            return match[1].strip()
    return ""

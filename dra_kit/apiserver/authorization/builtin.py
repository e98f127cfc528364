"""The roles and bindings that every cluster has from the start.

``builtin_roles.jsonl`` is what Kubernetes 1.37.1 answers of those of them that people bind, or that everybody has;
roles of single controllers are left out.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from dra_kit.apiserver.authorization.rbac import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from dra_kit.kubernetes.values.json import Object


@cache
def builtin() -> tuple[tuple[str, Object], ...]:
    """Return resource and object of each, aggregated ones last; the objects must not be changed."""
    text = files("dra_kit.apiserver.authorization").joinpath("builtin_roles.jsonl").read_text(encoding="utf-8")
    found = []
    for line in text.splitlines():
        given = json.loads(line)
        resource = CLUSTER_ROLES if given.pop("kind") == "ClusterRole" else CLUSTER_ROLE_BINDINGS
        metadata = {name: given.pop(name) for name in ("name", "labels", "annotations") if name in given}
        found.append((resource, {"metadata": metadata, **given}))
    return tuple(found)

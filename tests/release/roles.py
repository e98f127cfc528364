"""The roles and bindings of a new cluster, read from an API server of the release."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import dra_kit.apiserver
from tests.release.server import fetch

TABLE: Final = Path(dra_kit.apiserver.__file__).with_name("builtin_roles.jsonl")
_RESOURCES: Final = {
    "clusterroles": "ClusterRole",
    "clusterrolebindings": "ClusterRoleBinding",
    "roles": "Role",
    "rolebindings": "RoleBinding",
}
_DEFAULTS: Final = "labelSelector=kubernetes.io/bootstrapping=rbac-defaults"
_METADATA: Final = ("name", "namespace", "labels", "annotations")


def roles_of(server: str) -> list[dict[str, Any]]:
    """Return what a new cluster starts with; aggregated roles come after those of which they consist."""
    found = []
    for resource, kind in _RESOURCES.items():
        items = fetch(server, f"/apis/rbac.authorization.k8s.io/v1/{resource}?{_DEFAULTS}")["items"]
        rows = [_row(kind, item) for item in items]
        # view is part of edit, and edit of admin
        aggregated = [row for row in reversed(rows) if "aggregationRule" in row]
        found += [row for row in rows if "aggregationRule" not in row] + aggregated
    return found


def _row(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    metadata = obj["metadata"]
    managers = [{key: value for key, value in entry.items() if key != "time"} for entry in metadata["managedFields"]]
    row = {"kind": kind, **{key: metadata[key] for key in _METADATA if key in metadata}, "managedFields": managers}
    return row | {key: value for key, value in obj.items() if key not in {"kind", "apiVersion", "metadata"}}


def recorded() -> list[dict[str, Any]]:
    """Return the objects of the table."""
    return [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]


def differences(rows: Iterable[dict[str, Any]], table: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each object that only one side has, or that has other fields."""
    there, here = ({_title(row): row for row in side} for side in (rows, table))
    for title in sorted(there.keys() | here.keys()):
        if title not in here:
            yield f"{title} is new"
        elif title not in there:
            yield f"{title} has gone"
        elif names := sorted(
            key for key in there[title].keys() | here[title].keys() if there[title].get(key) != here[title].get(key)
        ):
            yield f"{title} differs in {', '.join(names)}"


def write(rows: Iterable[dict[str, Any]]) -> None:
    """Replace the table."""
    lines = (json.dumps(row, separators=(",", ":")) for row in rows)
    TABLE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _title(row: dict[str, Any]) -> str:
    return " ".join(filter(None, (row["kind"], row.get("namespace"), row["name"])))

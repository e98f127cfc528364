"""A small kitchen as ``kubectl get -o yaml`` would save it, for commands that read files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from dra_kit.cli.app import cli

Document = dict[str, Any]

CASES = Path(__file__).parents[3] / "data" / "cases"
"""Folders with saved objects and manifests of users."""
DRIVER = "dra.pizza"
CHEESE = f'device.attributes["{DRIVER}"].cheese'


def node(name: str, cpu: str = "4", **spec: Any) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}},
    }


def slice_of(node_name: str, **cheeses: str) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-slice"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": name.replace("_", "-"), "attributes": {"cheese": {"string": cheese}}}
                for name, cheese in cheeses.items()
            ],
        },
    }


CLASS: Document = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "pizza"},
    "spec": {
        "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
        "config": [{"opaque": {"driver": DRIVER, "parameters": {"kind": "PizzaConfig", "extraCheese": False}}}],
    },
}


def claim_spec(*selectors: str, count: int = 1, device_class: str = "pizza", **devices: Any) -> Document:
    exactly = {
        "deviceClassName": device_class,
        "count": count,
        "allocationMode": "ExactCount",
        "selectors": [{"cel": {"expression": selector}} for selector in selectors],
    }
    return {"devices": {"requests": [{"name": "pizza", "exactly": exactly}], **devices}}


def claim(name: str, *selectors: str, held: tuple[str, str] | None = None, **more: Any) -> Document:
    """A claim; ``held`` are node and device that it has."""
    document: Document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": claim_spec(*selectors, **more),
    }
    if held is not None:
        result = {"request": "pizza", "driver": DRIVER, "pool": held[0], "device": held[1]}
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [held[0]]}]}]
        document["status"] = {
            "allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}},
            "reservedFor": [{"resource": "pods", "name": "guest", "uid": "uid-guest"}],
        }
    return document


def template(name: str, *selectors: str) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": claim_spec(*selectors)},
    }


def pod(name: str, *, claim: str = "", template: str = "", requests: Document | None = None, **spec: Any) -> Document:
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    entries = [{"name": "food", **source}] if claim or template else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {
            "containers": [{"name": "eater", "image": "busybox", "resources": {"requests": requests or {}}}],
            "resourceClaims": entries,
            **spec,
        },
    }


def event(reason: str, pod_name: str, note: str, *, uid: str = "") -> Document:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{pod_name}.{reason}", "namespace": "default"},
        "regarding": {"kind": "Pod", "namespace": "default", "name": pod_name, "uid": uid or f"uid-{pod_name}"},
        "reason": reason,
        "note": note,
    }


KITCHEN: tuple[Document, ...] = (
    CLASS,
    node("node-1"),
    node("node-2"),
    slice_of("node-1", margherita_0="mozzarella", margherita_1="mozzarella", rustica="cheddar"),
    slice_of("node-2", margherita_0="mozzarella", rustica="cheddar"),
)


def save(path: Path, *documents: Document) -> Path:
    path.write_text(yaml.safe_dump_all(documents, sort_keys=False), encoding="utf-8")
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def explained(tmp_path: Path, *documents: Document, what: tuple[str, ...]) -> tuple[int, str]:
    """Exit code and text of an explanation in the kitchen with these objects besides."""
    result = run("explain", *what, "--from", save(tmp_path / "objects.yaml", *KITCHEN, *documents))
    return result.exit_code, result.output


def explained_manifest(tmp_path: Path, *documents: Document) -> tuple[int, str]:
    """Exit code and text of an explanation of a file with these objects in the kitchen."""
    return explained(tmp_path, what=("-f", str(save(tmp_path / "order.yaml", *documents))))


def words(text: str) -> str:
    """A text as if its lines were endless."""
    return " ".join(text.split())

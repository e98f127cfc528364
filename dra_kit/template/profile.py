"""A kind of node: what a cluster's autoscaler could add, and how the driver is set up there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import read_values, source_file
from dra_kit.kubernetes.resource.api_model import ObjectMeta


class NodeTaint(BaseModel):
    """A taint of the node, as in ``spec.taints`` of a Node."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    key: str
    value: str = ""
    effect: str


class NodeProfile(BaseModel):
    """A kind of node, as a file says it.

    Attributes:
        name: of the node that stands for all of its kind; without one, the file's name.
        labels: of such a node; the driver's provider gets them.
        taints: of such a node.
        allocatable: what pods can have of such a node, by resource: ``cpu: "96"``.
        settings: the driver's settings on such a node, by field name.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    labels: dict[str, str] = {}
    taints: tuple[NodeTaint, ...] = ()
    allocatable: dict[str, str] = {}
    settings: dict[str, Any] = Field(default={})


def read_profile(path: Path) -> NodeProfile:
    """Return the profile of a file.

    Raises:
        ConfigurationError: it cannot be read, or is none; with the field and what is wrong with it.
    """
    documents = read_values(source_file(path))
    if len(documents) > 1:
        raise ConfigurationError(f"profile {path}: it has {len(documents)} documents; make a file of each")
    found = documents[0] if documents else None
    try:
        profile = NodeProfile.model_validate({} if found is None else found)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        where = ".".join(map(str, detail["loc"]))
        known = ", ".join(NodeProfile.model_fields)
        raise ConfigurationError(
            f"profile {path}: {where or 'the file'}: {detail['msg']}; a profile has {known}"
        ) from error
    return profile if profile.name else profile.model_copy(update={"name": path.stem})


def node_object(profile: NodeProfile) -> dict[str, Any]:
    """Return the Node of a profile, as JSON."""
    labels = {"kubernetes.io/hostname": profile.name, **profile.labels}
    node: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": ObjectMeta(name=profile.name, labels=labels).to_json(),
    }
    if profile.taints:
        node["spec"] = {"taints": [taint.model_dump(exclude_defaults=True) for taint in profile.taints]}
    if profile.allocatable:
        node["status"] = {"capacity": dict(profile.allocatable), "allocatable": dict(profile.allocatable)}
    return node

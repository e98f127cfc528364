"""Nodes that do not exist yet: profiles, slices, and the claims that would fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dra_kit.author.config_problems import describe_problems
from dra_kit.author.device import Device
from dra_kit.author.driver import Driver
from dra_kit.author.inventory import Inventory
from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import ClusterDocuments
from dra_kit.diagnosis.explain.pods import explain_pod
from dra_kit.diagnosis.explain.subjects import ExplainSubject, claim_of, pod_of
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import read_values, source_file
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import ObjectMeta, OwnerReference
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.node.slices import desired_pool
from dra_kit.slices.planning import DesiredSlices, plan


class TemplateFit(Struct, frozen=True):
    """A kind of node that would help.

    Attributes:
        node: the name of the example node.
        certain: whether everything was checked; without a Node object, only its devices are known.
    """

    node: str
    certain: bool

    def __str__(self) -> str:
        if self.certain:
            return f"a node like {self.node} would fit"
        return f"a node like {self.node} would have the devices; its other resources are not known"


class NodeTemplates:
    """The cluster with one additional node from a template, for each kind of node.

    Raises:
        ConfigurationError: no slice names the node, or an object does not have the structure of the API.
    """

    def __init__(self, objects: ClusterDocuments, given: Mapping[str, Sequence[ObjectView]]) -> None:
        names = dict.fromkeys(
            [
                *(item["metadata"]["name"] for item in given.get("Node", ())),
                *(name for item in given.get("ResourceSlice", ()) if (name := item["spec"].get("nodeName"))),
            ]
        )
        if not names:
            raise ConfigurationError("the template has neither a Node nor slices of one; use dra-kit template")
        self._explainers = {name: ClaimExplainer(_alone(objects, given, name).cluster()) for name in names}

    def fits(self, subject: ExplainSubject) -> list[TemplateFit]:
        """Return the kinds of nodes on which a claim can get devices, or a pod can run.

        Raises:
            NotFound: the claim or pod does not exist.
        """
        found = []
        for node, explainer in self._explainers.items():
            explainer.renew_budget()
            explanation = (
                explain_pod(explainer, pod_of(explainer.cluster, subject))
                if subject.kind == "pod"
                else explainer.explain(claim_of(explainer.cluster, subject))
            )
            if explanation.outcome in {"fits", "devices-fit"}:
                found.append(TemplateFit(node, certain=explanation.good))
        return found


def _alone(objects: ClusterDocuments, given: Mapping[str, Sequence[ObjectView]], name: str) -> ClusterDocuments:
    """Return the objects with one node, and the slices of that node and of no node."""
    documents = {kind: found for kind, found in objects.documents.items() if kind != "Node"}
    documents["ResourceSlice"] = [
        item for item in objects.documents.get("ResourceSlice", ()) if not item["spec"].get("nodeName")
    ]
    alone = replace(objects, documents=documents)
    return alone.with_(
        {
            "Node": [item for item in given.get("Node", ()) if item["metadata"]["name"] == name],
            "ResourceSlice": [item for item in given.get("ResourceSlice", ()) if item["spec"].get("nodeName") == name],
        }
    )


class NodeTaint(BaseModel):
    """A taint of the node, as in ``spec.taints`` of a Node."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    key: str
    value: str = ""
    effect: str


class NodeProfile(BaseModel):
    """A kind of node, read from a file.

    Attributes:
        name: the name of the example node; by default the file's name.
        labels: the node's labels; the driver's provider gets them.
        allocatable: the node's allocatable resources: ``cpu: "96"``.
        settings: the driver's settings on the node, by field name.
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
        ConfigurationError: the file cannot be read, or is not a valid profile; names the field.
    """
    documents = read_values(source_file(path))
    if len(documents) > 1:
        raise ConfigurationError(f"profile {path}: it has {len(documents)} documents; use a file for each")
    found = documents[0] if documents else None
    try:
        profile = NodeProfile.model_validate({} if found is None else found)
    except ValidationError as error:
        remedy = f"a profile has {', '.join(NodeProfile.model_fields)}"
        raise ConfigurationError(f"profile {path}: {describe_problems(error, NodeProfile, found, remedy)}") from error
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


_SUFFIX: Final = "tmpl0"  # as long as the API server's suffix for generateName


def template_slices(
    driver: Driver[Any, Any], inventory: Inventory[Device], node: str, version: KubernetesVersion
) -> list[v1.ResourceSlice]:
    """Return the slices that the driver publishes of an inventory; names lack the API server's suffix.

    Raises:
        ConfigurationError: the inventory cannot be published.
    """
    owner = OwnerReference(api_version="v1", kind="Node", name=node, uid="-")
    desired = DesiredSlices(driver.name, owner, tuple(desired_pool(pool, node) for pool in inventory.pools))
    steps = plan(desired, [], version=version)
    # no Node exists that could own them
    return [
        v1.ResourceSlice(metadata=ObjectMeta(name=f"{item.metadata.generate_name}{_SUFFIX}"), spec=item.spec)
        for item in steps.creates
    ]

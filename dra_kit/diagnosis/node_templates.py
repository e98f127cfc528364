"""Nodes that a cluster does not have and could get: would one of them help?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dra_kit.errors import ConfigurationError
from dra_kit.explain.claims.explainer import Explainer
from dra_kit.explain.cluster.objects import Objects
from dra_kit.explain.pods.explainer import explain_pod
from dra_kit.explain.subjects import Subject, claim_of, pod_of
from dra_kit.kubernetes.values.json import ObjectView


class Fit(Struct, frozen=True):
    """A kind of node that would help.

    Attributes:
        node: the name of the node that stands for all of its kind.
        certain: whether everything was looked at; without its Node object, what it has beside devices is not known.
    """

    node: str
    certain: bool

    def __str__(self) -> str:
        if self.certain:
            return f"a node like {self.node} would fit"
        return f"a node like {self.node} would have the devices; what else it has is not known"


class NodeTemplates:
    """The cluster with one such node, and no other, for each kind.

    Args:
        objects: of the cluster.
        given: nodes and slices of templates, by kind.

    Raises:
        ConfigurationError: there is no slice that names its node, or an object does not have the shape of the API.
    """

    def __init__(self, objects: Objects, given: Mapping[str, Sequence[ObjectView]]) -> None:
        names = dict.fromkeys(
            [
                *(item["metadata"]["name"] for item in given.get("Node", ())),
                *(name for item in given.get("ResourceSlice", ()) if (name := item["spec"].get("nodeName"))),
            ]
        )
        if not names:
            raise ConfigurationError("the template has neither a Node nor slices of one; write one by dra-kit template")
        self._explainers = {name: Explainer(_alone(objects, given, name).cluster()) for name in names}

    def fits(self, subject: Subject) -> list[Fit]:
        """Return the kinds of nodes on which a claim can get devices, or a pod can run.

        Raises:
            NotFound: there is no such claim or pod.
        """
        found = []
        for node, explainer in self._explainers.items():
            explainer.renew_budget()
            if subject.kind == "pod":
                pod = explain_pod(explainer, pod_of(explainer.cluster, subject))
                good, fits = pod.good, pod.outcome in {"fits", "devices-fit"}
            else:
                claim = explainer.explain(claim_of(explainer.cluster, subject))
                good, fits = claim.good, claim.outcome in {"fits", "devices-fit"}
            if fits:
                found.append(Fit(node, certain=good))
        return found


def _alone(objects: Objects, given: Mapping[str, Sequence[ObjectView]], name: str) -> Objects:
    """Return the objects with one node, and the slices of that node and of no node."""
    documents = {kind: found for kind, found in objects.documents.items() if kind != "Node"}
    documents["ResourceSlice"] = [
        item for item in objects.documents.get("ResourceSlice", ()) if not item["spec"].get("nodeName")
    ]
    alone = Objects(documents, objects.version, objects.alpha, objects.gaps)
    return alone.with_(
        {
            "Node": [item for item in given.get("Node", ()) if item["metadata"]["name"] == name],
            "ResourceSlice": [item for item in given.get("ResourceSlice", ()) if item["spec"].get("nodeName") == name],
        }
    )

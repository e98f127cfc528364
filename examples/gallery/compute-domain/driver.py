"""Domains of nodes on one memory fabric: the pods of a domain start when all of them have a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

import dra_kit as dra

GROUP = "domain.example.com"
API = f"{GROUP}/v1"
DOMAIN_LABEL = f"{GROUP}/domain"


class Settings(BaseModel):
    """Where the node is on the fabric."""

    fabric: Path = Field(
        default=Path("/run/fabric"),
        description="folder with the files partition (which nodes reach each other) and channels (their number)",
    )


class Channel(dra.Device):
    """A channel to the fabric; a node has several, so that it can be in several domains."""

    partition: str


class Channels(dra.DeviceProvider[Channel, None, Settings]):
    """Offers the channels of the node."""

    def discover(self) -> Iterator[Sequence[Channel]]:
        """Read the fabric again every ten seconds (``rescan_every``): the node may move to another partition."""
        folder = self.context.settings.fabric
        partition = (folder / "partition").read_text(encoding="utf-8").strip()
        count = int((folder / "channels").read_text(encoding="utf-8"))
        yield [
            Channel(name=f"channel-{number}", partition=partition, attributes={"partition": partition})
            for number in range(count)
        ]


class DomainConfig(dra.OpaqueConfig, api_version=API):
    """The domain that the pod joins; a domain is known in its namespace only."""

    domain: str = Field(pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    size: int = Field(ge=1, le=1000, description="number of pods; none starts before all have joined")


class Member(dra.ClusterObject, id="member", api_version=API, kind="Member", plural="members"):
    """A pod that joined a domain. It exists as long as the claim is prepared, and the nodes read those of others."""

    domain: str
    pod: str
    node: str
    partition: str

    def body(self) -> dict[str, Any]:
        """Return the object; the label lets the others list one domain only."""
        spec = {"pod": self.pod, "node": self.node, "partition": self.partition}
        return {"metadata": {"labels": {DOMAIN_LABEL: self.domain}}, "spec": spec}


class Peer(BaseModel):
    """A pod of the domain, and where it runs."""

    pod: str
    node: str


class Gathering(dra.Effect[list[Peer]], id="gathering"):
    """Waits until all members of the domain are there; its outcome is their list, in the order of their names."""

    claim_uid: str
    namespace: str
    domain: str
    size: int

    def keys(self) -> Iterable[str]:
        """Return the claim: each waits for itself."""
        return [f"claim/{self.claim_uid}"]

    def apply(self, previous: list[Peer] | None) -> list[Peer]:
        """Read the members; the framework calls again until they are complete, and the kubelet after its deadline."""
        if previous is not None:
            return previous  # the container was started with these ranks
        found = self.context.api.list(API, "members", self.namespace, label_selector=f"{DOMAIN_LABEL}={self.domain}")
        members = [item["spec"] for item in found.result()]
        if len(members) < self.size:
            raise dra.NotYet(f"domain {self.domain} waits for its pods: {len(members)} of {self.size} have a node")
        if len(members) > self.size:
            raise dra.PermanentError(
                f"domain {self.domain} has {len(members)} pods, but its size is {self.size}; use another name for the "
                "domain of other pods"
            )
        if len({item["partition"] for item in members}) > 1:
            places = ", ".join(f"{item['node']} in {item['partition']}" for item in members)
            raise dra.PermanentError(
                f"domain {self.domain}: the nodes do not reach each other: {places}; select one partition in the claims"
            )
        return sorted((Peer(pod=item["pod"], node=item["node"]) for item in members), key=lambda peer: peer.pod)

    def revert(self, outcome: list[Peer] | None) -> None:
        """Do nothing: Member leaves the domain."""


class Joiner(dra.Preparer[DomainConfig, Channel, None, Settings]):
    """Joins the pod to its domain, and waits for the others."""

    def default_config(self, device: Channel) -> DomainConfig:
        """Reject claims without config, because a domain needs a name."""
        raise dra.PermanentError("the claim names no domain; add the config DomainConfig with domain and size")

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[DomainConfig, Channel]) -> dra.Prepared:
        """Return the hosts of the domain, and the place of this pod among them."""
        pods = [consumer.name for consumer in claim.reserved_for]
        if len(pods) != 1:
            raise dra.PermanentError(
                f"ResourceClaim {claim.name} is used by {len(pods)} pods: {', '.join(pods)}; each pod of a domain "
                "needs its own claim; use a ResourceClaimTemplate"
            )
        wanted = device.config
        device.ensure(
            Member(
                claim_uid=claim.uid,
                namespace=claim.namespace,
                domain=wanted.domain,
                pod=pods[0],
                node=self.context.node.name,
                partition=device.advertised.partition,
            )
        ).result()
        peers = device.ensure(
            Gathering(claim_uid=claim.uid, namespace=claim.namespace, domain=wanted.domain, size=wanted.size)
        ).result()
        rank = [peer.pod for peer in peers].index(pods[0])
        return dra.Prepared(
            env={
                "DOMAIN_HOSTS": ",".join(peer.node for peer in peers),
                "DOMAIN_RANK": str(rank),
                "DOMAIN_CHANNEL": device.name.removeprefix("channel-"),
            }
        )


driver = dra.Driver(
    GROUP,
    provider=Channels(),
    preparer=Joiner(),
    effects=[Member, Gathering],
    settings=Settings,
    reads=[dra.Reads(API, "members")],
    rescan_every=10,
)

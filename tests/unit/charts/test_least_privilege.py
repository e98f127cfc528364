"""What the chart grants is what the roles need, no less and no more: they live as their service accounts, under RBAC.

The life is played once; each test takes one right away and looks whether something that was done would be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from dra_kit.apiserver.authorization.attributes import Attributes
from dra_kit.apiserver.authorization.rbac import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, Rbac
from dra_kit.apiserver.authorization.rbac import ROLES as NAMESPACED_ROLES
from dra_kit.apiserver.authorization.users import User
from tests.unit.charts.life import ROLES, Audit, play
from tests.unit.charts.rendering import DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm, Manifests

RIGHTS = [
    ("node", "resource.k8s.io", "resourceclaims", "get"),
    ("node", "resource.k8s.io", "resourceslices", "list"),
    ("node", "resource.k8s.io", "resourceslices", "watch"),
    ("node", "resource.k8s.io", "resourceslices", "create"),
    ("node", "resource.k8s.io", "resourceslices", "update"),
    ("node", "resource.k8s.io", "resourceslices", "delete"),
    ("node", "", "nodes", "get"),
    ("node", "resource.k8s.io", "resourceclaims/status", "patch"),
    ("node", "resource.k8s.io", "resourceclaims/driver", "associated-node:patch"),
    ("node", "events.k8s.io", "events", "create"),
    ("node", "events.k8s.io", "events", "patch"),
    ("controller", "resource.k8s.io", "resourceclaims", "list"),
    ("controller", "resource.k8s.io", "resourceclaims", "watch"),
    ("controller", "events.k8s.io", "events", "create"),
    ("controller", "events.k8s.io", "events", "patch"),
    ("controller", "resource.k8s.io", "resourceslices", "list"),
    ("controller", "resource.k8s.io", "resourceslices", "delete"),
    ("controller", "", "nodes", "list"),
    ("controller", "coordination.k8s.io", "leases", "create"),
    ("controller", "coordination.k8s.io", "leases", "get"),
    ("controller", "coordination.k8s.io", "leases", "update"),
]
"""What the chart grants without being asked for more: role, API group, resource, verb; nothing to the webhook role."""


@dataclass(frozen=True)
class Life:
    """What was played, and with which rights."""

    manifests: Manifests
    audit: Audit


@pytest.fixture(scope="module")
def life(helm: Helm) -> Life:
    manifests = helm.render({**DEPLOYED, "webhook": {"certificate": {"secretName": "webhook"}}})
    return Life(manifests, asyncio.run(play(manifests)))


def granted(manifests: Manifests) -> Iterator[tuple[str, str, str, str]]:
    for role in ROLES:
        for item in manifests.objects:
            if item["kind"] in {"ClusterRole", "Role"} and item["metadata"]["name"] == f"{RELEASE}-{role}":
                for rule in item["rules"]:
                    yield from (
                        (role, *right) for right in product(rule["apiGroups"], rule["resources"], rule["verbs"])
                    )


Right = tuple[str, str, str]


def rbac(manifests: Manifests, role: str, *, without: Right | None = None) -> Rbac:
    """The chart's bindings of a role, which lacks one right."""
    name = f"{RELEASE}-{role}"

    def found(kind: str, key: str = name) -> dict[str, dict[str, Any]]:
        if name not in manifests.names(kind):
            return {}
        item = manifests.named(kind, name)
        return {key: {**item, "rules": list(_single(item["rules"], without))} if "rules" in item else item}

    objects = {
        CLUSTER_ROLES: found("ClusterRole"),
        CLUSTER_ROLE_BINDINGS: found("ClusterRoleBinding"),
        NAMESPACED_ROLES: found("Role", f"{NAMESPACE}/{name}"),
        ROLE_BINDINGS: found("RoleBinding", f"{NAMESPACE}/{name}"),
    }
    return Rbac(
        lambda resource, key: objects[resource].get(key),
        lambda resource, prefix: [item for key, item in objects[resource].items() if key.startswith(prefix)],
    )


def _single(rules: list[dict[str, Any]], without: Right | None) -> Iterator[dict[str, Any]]:
    for rule in rules:
        for right in product(rule["apiGroups"], rule["resources"], rule["verbs"]):
            if right != without:
                group, resource, verb = right
                yield {**rule, "apiGroups": [group], "resources": [resource], "verbs": [verb]}


def refused(life: Life, role: str, right: Right) -> list[Attributes]:
    """What of all that was allowed would not be without a right; discovery is open to everybody."""
    user, decides = life.audit.users[role], rbac(life.manifests, role, without=right)
    return [
        asked
        for asked, allowed in life.audit.asked[role].items()
        if allowed and not asked.is_path and not decides.authorize(user, asked).allowed
    ]


def test_the_roles_can_do_all_that_they_want_to(life: Life) -> None:
    # the API server itself asks for arbitrary nodes where the right for the node of the token is not enough
    tried = Attributes("arbitrary-node:patch", "resource.k8s.io", "resourceclaims", "driver", "default", DRIVER)

    assert life.audit.refused() == {"node": [tried], "controller": [], "webhook": []}


def test_every_role_ran_as_its_account_and_the_nodes_token_names_the_node(life: Life) -> None:
    assert life.audit.users.keys() == set(ROLES)
    assert life.audit.users["node"].extra["authentication.kubernetes.io/node-name"] == ("node-1",)


def test_the_list_of_rights_is_that_of_the_chart(life: Life) -> None:
    assert sorted(granted(life.manifests)) == sorted(RIGHTS)


@pytest.mark.parametrize(("role", "group", "resource", "verb"), RIGHTS)
def test_without_a_right_something_is_refused(life: Life, role: str, group: str, resource: str, verb: str) -> None:
    lost = refused(life, role, (group, resource, verb))

    assert {(asked.group, asked.full_resource, asked.verb) for asked in lost} == {(group, resource, verb)}


def test_a_named_right_is_needed_for_that_name_alone(life: Life) -> None:
    (asked,) = {one for one in life.audit.asked["node"] if one.verb == "associated-node:patch"}

    assert asked.name == DRIVER
    assert (
        not rbac(life.manifests, "node")
        .authorize(
            User(life.audit.users["node"].name),
            Attributes(asked.verb, asked.group, asked.resource, "driver", name="other"),
        )
        .allowed
    )


@pytest.mark.parametrize(
    ("verb", "group", "resource"),
    [
        ("get", "", "secrets"),
        ("list", "", "pods"),
        ("create", "", "pods"),
        ("list", "", "nodes"),
        ("list", "resource.k8s.io", "resourceclaims"),
        ("update", "resource.k8s.io", "resourceclaims"),
        ("patch", "resource.k8s.io", "resourceslices"),
        ("deletecollection", "resource.k8s.io", "resourceslices"),
    ],
)
def test_what_the_node_role_never_asks_for_is_refused(life: Life, verb: str, group: str, resource: str) -> None:
    decides = rbac(life.manifests, "node")

    assert not decides.authorize(life.audit.users["node"], Attributes(verb, group, resource)).allowed

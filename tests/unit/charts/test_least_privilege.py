"""What the chart grants is what the roles need, no less and no more: they live as their service accounts, under RBAC.

The life is played once; each test takes one right away and looks whether something that was done would be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dra_kit.apiserver.authorization.attributes import Attributes
from dra_kit.apiserver.authorization.rbac import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, Rbac
from dra_kit.apiserver.authorization.users import User
from tests.unit.charts.life import ROLES, Audit, play
from tests.unit.charts.rendering import DEPLOYED, DRIVER, RELEASE, Helm, Manifests

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
]
"""All that the chart grants: role, API group, resource, verb. The webhook role has no rights at all."""


@dataclass(frozen=True)
class Life:
    """What was played, and with which rights."""

    manifests: Manifests
    audit: Audit


@pytest.fixture(scope="module")
def life(helm: Helm) -> Life:
    manifests = helm.render({**DEPLOYED, "webhook": {"certificate": {"secretName": "webhook"}}})
    return Life(manifests, asyncio.run(play(manifests)))


def rules(manifests: Manifests, role: str) -> list[dict[str, Any]]:
    names = {item["metadata"]["name"] for item in manifests.objects if item["kind"] == "ClusterRole"}
    name = f"{RELEASE}-{role}"
    return list(manifests.named("ClusterRole", name)["rules"]) if name in names else []


def granted(manifests: Manifests) -> Iterator[tuple[str, str, str, str]]:
    for role in ROLES:
        for rule in rules(manifests, role):
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    yield from ((role, group, resource, verb) for verb in rule["verbs"])


def rbac(manifests: Manifests, role: str, remaining: list[dict[str, Any]]) -> Rbac:
    """The chart's binding of a role that has only some of its rules."""
    name = f"{RELEASE}-{role}"
    objects: dict[str, dict[str, Any]] = {
        CLUSTER_ROLES: {name: {**manifests.named("ClusterRole", name), "rules": remaining}},
        CLUSTER_ROLE_BINDINGS: {name: manifests.named("ClusterRoleBinding", name)},
    }
    return Rbac(
        lambda resource, key: objects.get(resource, {}).get(key),
        lambda resource, prefix: objects.get(resource, {}).values(),
    )


def refused(life: Life, role: str, remaining: list[dict[str, Any]]) -> list[Attributes]:
    """What of all that was allowed would not be with some rules only; discovery is open to everybody."""
    user, decides = life.audit.users[role], rbac(life.manifests, role, remaining)
    return [
        asked
        for asked, allowed in life.audit.asked[role].items()
        if allowed and not asked.is_path and not decides.authorize(user, asked).allowed
    ]


def without(rule: dict[str, Any], group: str, resource: str, verb: str) -> list[dict[str, Any]]:
    """A rule as single rights, without one of them."""
    return [
        {**rule, "apiGroups": [one_group], "resources": [one_resource], "verbs": [one_verb]}
        for one_group in rule["apiGroups"]
        for one_resource in rule["resources"]
        for one_verb in rule["verbs"]
        if (one_group, one_resource, one_verb) != (group, resource, verb)
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
    remaining = [one for rule in rules(life.manifests, role) for one in without(rule, group, resource, verb)]

    assert {(asked.group, asked.full_resource, asked.verb) for asked in refused(life, role, remaining)} == {
        (group, resource, verb)
    }


def test_a_named_right_is_needed_for_that_name_alone(life: Life) -> None:
    (asked,) = {one for one in life.audit.asked["node"] if one.verb == "associated-node:patch"}

    assert asked.name == DRIVER
    assert (
        not rbac(life.manifests, "node", rules(life.manifests, "node"))
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
    decides = rbac(life.manifests, "node", rules(life.manifests, "node"))

    assert not decides.authorize(life.audit.users["node"], Attributes(verb, group, resource)).allowed

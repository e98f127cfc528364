"""What the chart grants is what the roles need, no less and no more: they live as their service accounts, under RBAC.

The life is played once; each test takes one right away and looks whether something that was done would be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from dra_kit.apiserver.authentication import User
from dra_kit.apiserver.authorization import AuthorizationAttributes
from tests.charts.end_life import ACCOUNT, play_end
from tests.charts.life import ROLES, play
from tests.charts.options_life import ALLOWED, OPTIONS, Option, play_options
from tests.charts.rendering import ALL_ROLES, DEPLOYED, DRIVER, RELEASE, Helm, Manifests
from tests.charts.rights import Audit, Right, granted, rbac

RIGHTS = [
    ("node", "resource.k8s.io", "resourceclaims", "get"),
    ("node", "resource.k8s.io", "resourceslices", "list"),
    ("node", "resource.k8s.io", "resourceslices", "watch"),
    ("node", "resource.k8s.io", "resourceslices", "create"),
    ("node", "resource.k8s.io", "resourceslices", "update"),
    ("node", "resource.k8s.io", "resourceslices", "delete"),
    ("node", "", "nodes", "get"),
    ("node", "resource.k8s.io", "resourceclaims/status", "patch"),
    ("node", "resource.k8s.io", "resourceclaims/status", "update"),
    ("node", "resource.k8s.io", "resourceclaims/driver", "associated-node:patch"),
    ("node", "resource.k8s.io", "resourceclaims/driver", "associated-node:update"),
    ("node", "events.k8s.io", "events", "create"),
    ("node", "events.k8s.io", "events", "patch"),
    ("controller", "resource.k8s.io", "resourceclaims", "list"),
    ("controller", "resource.k8s.io", "resourceclaims", "watch"),
    ("controller", "events.k8s.io", "events", "create"),
    ("controller", "events.k8s.io", "events", "patch"),
    ("controller", "resource.k8s.io", "resourceslices", "list"),
    ("controller", "resource.k8s.io", "resourceslices", "delete"),
    ("controller", "", "nodes", "list"),
    ("controller", "coordination.k8s.io", "leases", "get"),
    ("controller", "coordination.k8s.io", "leases", "update"),
]
"""What the chart grants without being asked for more: role, API group, resource, verb; nothing to the webhook role."""


REENCODED = AuthorizationAttributes("patch", "resource.k8s.io", "resourceclaims", "binding")
"""An apply that would change the text of opaque parameters is taken for a change of the allocation."""
TRIED = [
    REENCODED,
    *(
        AuthorizationAttributes(
            f"arbitrary-node:{verb}", "resource.k8s.io", "resourceclaims", "driver", "default", DRIVER
        )
        for verb in ("patch", "update")
    ),
]
"""The API server itself asks for arbitrary nodes where the right for the node of the token is not enough."""


@dataclass(frozen=True)
class Life:
    """What was played, with which rights, and directories that were used meanwhile."""

    manifests: Manifests
    audit: Audit
    used: frozenset[str] = frozenset()


@pytest.fixture(scope="module")
def life(helm: Helm) -> Life:
    manifests = helm.render(ALL_ROLES)
    played = asyncio.run(play(manifests))
    return Life(manifests, played.audit, frozenset(played.used))


def test_the_roles_can_do_all_that_they_want_to(life: Life) -> None:
    assert life.audit.refused() == {
        f"{RELEASE}-node": TRIED,
        f"{RELEASE}-controller": [],
        f"{RELEASE}-webhook": [],
    }


def test_every_role_ran_as_its_account_and_the_nodes_token_names_the_node(life: Life) -> None:
    assert life.audit.users.keys() == {f"{RELEASE}-{role}" for role in ROLES}
    assert life.audit.users[f"{RELEASE}-node"].extra["authentication.kubernetes.io/node-name"] == ("node-1",)


def test_the_list_of_rights_is_that_of_the_chart(life: Life) -> None:
    found = [(role, *right) for role in ROLES for right in granted(life.manifests, f"{RELEASE}-{role}")]

    assert sorted(found) == sorted(RIGHTS)


@pytest.mark.parametrize(("role", "group", "resource", "verb"), RIGHTS)
def test_without_a_right_something_is_refused(life: Life, role: str, group: str, resource: str, verb: str) -> None:
    lost = life.audit.lost(life.manifests, f"{RELEASE}-{role}", (group, resource, verb))

    assert {(asked.group, asked.full_resource, asked.verb) for asked in lost} == {(group, resource, verb)}


def test_a_named_right_is_needed_for_that_name_alone(life: Life) -> None:
    node = f"{RELEASE}-node"
    (asked,) = {one for one in life.audit.asked[node] if one.verb == "associated-node:patch"}

    assert asked.name == DRIVER
    other = AuthorizationAttributes(asked.verb, asked.group, asked.resource, "driver", name="other")
    assert not rbac(life.manifests, node).authorize(User(life.audit.users[node].name), other).allowed


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
    node = f"{RELEASE}-node"

    asked = AuthorizationAttributes(verb, group, resource)
    assert not rbac(life.manifests, node).authorize(life.audit.users[node], asked).allowed


def test_each_directory_of_the_host_is_one_that_the_node_role_uses(life: Life, helm: Helm) -> None:
    manifests = helm.render({**DEPLOYED, "node": {"kubeletDir": "/kubelet", "cdiDir": "/cdi"}})

    assert {mount["mountPath"] for mount in manifests.container("node")["volumeMounts"]} == life.used


PUBLISHING = {"watch", "create", "update"}
ENDING: list[Right] = [
    (group, resource, verb)
    for role, group, resource, verb in RIGHTS
    if role == "node" and not (resource == "resourceslices" and verb in PUBLISHING)
] + [("", "pods/status", "patch")]
"""What the node role needs at the end of the driver: all but what publishes, and to confirm by its pod."""


@pytest.fixture(scope="module")
def end(helm: Helm) -> Life:
    manifests = helm.render({**DEPLOYED, "node": {"decommission": True}})
    return Life(manifests, asyncio.run(play_end(manifests)))


def test_at_the_end_the_node_role_has_the_rights_that_it_needs_and_no_others(end: Life) -> None:
    assert end.audit.refused()[ACCOUNT] == TRIED
    assert sorted(granted(end.manifests, ACCOUNT)) == sorted(ENDING)


@pytest.mark.parametrize(("group", "resource", "verb"), ENDING)
def test_without_a_right_something_is_refused_at_the_end(end: Life, group: str, resource: str, verb: str) -> None:
    lost = end.audit.lost(end.manifests, ACCOUNT, (group, resource, verb))

    assert {(asked.group, asked.full_resource, asked.verb) for asked in lost} == {(group, resource, verb)}


@dataclass(frozen=True)
class OptionsLife:
    """What was played for each option, and with which rights."""

    manifests: Mapping[str, Manifests]
    audit: Audit


@pytest.fixture(scope="module")
def options(helm: Helm) -> OptionsLife:
    manifests = {name: helm.render(option.values(name)) for name, option in OPTIONS.items()}
    return OptionsLife(manifests, asyncio.run(play_options(manifests)))


@pytest.fixture
def plain(helm: Helm) -> Manifests:
    """Without any option."""
    return helm.render({**DEPLOYED, "fullnameOverride": "plain", "drainGuard": {"enabled": False}})


ADDED = [pytest.param(name, option, id=name) for name, option in OPTIONS.items()]


@pytest.mark.parametrize(("name", "option"), ADDED)
def test_an_option_gives_the_rights_that_it_needs(name: str, option: Option, options: OptionsLife) -> None:
    assert options.audit.refused()[option.account(name)] == ([REENCODED] if name == "binding" else [])


@pytest.mark.parametrize(("name", "option"), ADDED)
def test_an_option_gives_no_other_rights(name: str, option: Option, options: OptionsLife, plain: Manifests) -> None:
    made = options.manifests[name]
    for role in (*ROLES, "drain-guard", "webhook-certificate"):
        before = list(granted(plain, f"plain-{role}"))
        added = [right for right in granted(made, f"{name}-{role}") if right not in before]
        giving = name if role == option.role else option.beside.get(role, "")
        assert sorted(added) == sorted(ALLOWED.get(giving, [])), role


NEEDED = [(name, *right) for name, rights in ALLOWED.items() for right in rights]


@pytest.mark.parametrize(("name", "group", "resource", "verb"), NEEDED)
def test_without_a_right_of_an_option_something_is_refused(
    name: str, group: str, resource: str, verb: str, options: OptionsLife
) -> None:
    right: Right = (group, resource, verb)
    account = OPTIONS[name].account(name)

    lost = options.audit.lost(options.manifests[name], account, right)

    assert {(asked.group, asked.full_resource, asked.verb) for asked in lost} == {right}


NAMED: dict[str, Any] = {
    "pools": {"clusterroles"}, "taints": {"clusterroles"}, "binding": {"resourceclaims/driver"},
    "certificate": {"secrets"},
    "trust": {"secrets", "validatingwebhookconfigurations", "rolebindings", "clusterrolebindings"},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_what_an_option_gives_for_one_object_is_for_that_alone(name: str, options: OptionsLife) -> None:
    account = OPTIONS[name].account(name)
    user, decides = options.audit.users[account], rbac(options.manifests[name], account)
    asked = [one for one in options.audit.asked[account] if one.full_resource in NAMED[name]]

    assert {one.full_resource for one in asked} == NAMED[name]
    for one in asked:
        other = AuthorizationAttributes(one.verb, one.group, one.resource, one.subresource, one.namespace, "other")
        assert not decides.authorize(user, other).allowed

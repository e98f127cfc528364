"""``dra-kit check`` asks for rights that the chart gives the roles; of the node, which pods need, for all of them."""

from __future__ import annotations

import pytest

from dra_kit.operation.checks.rights import RIGHTS, Account
from tests.unit.charts.rendering import DEPLOYED, RELEASE, Helm


@pytest.mark.parametrize("account", ["node", "controller"])
def test_the_rights_of_a_role_are_those_of_its_cluster_role(helm: Helm, account: Account) -> None:
    role = helm.render(DEPLOYED).named("ClusterRole", f"{RELEASE}-{account}")
    given = {
        (verb, group, resource)
        for rule in role["rules"]
        if not rule.get("resourceNames")
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    asked = {(right.verb, right.group, right.resource) for right in RIGHTS[account]}
    assert asked <= given
    assert account != "node" or asked == given

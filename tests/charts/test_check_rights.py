"""``dra-kit check`` asks for the rights that the chart gives the roles, for those and no others."""

from __future__ import annotations

from typing import Any

import pytest

import dra_kit as dra
from dra_kit.diagnosis.check import Account, DriverAccount, required_rights
from tests.charts.rendering import DEPLOYED, DRIVER, NAMESPACE, RELEASE, Helm, Manifests
from tests.unit.diagnosis.operation.parts import whole

Asked = tuple[str, str, str, str, str]

PARTS = {"clusterPools": True, "binding": True, "taintRules": True}


def given(manifests: Manifests, account: str) -> set[Asked]:
    """Verb, group, resource, name and namespace of what the chart allows an account."""
    return {
        (verb, group, resource, name, item["metadata"].get("namespace", ""))
        for item in manifests.objects
        if item["kind"] in {"ClusterRole", "Role"} and item["metadata"]["name"] == f"{RELEASE}-{account}"
        for rule in item["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or [""]
    }


@pytest.mark.parametrize(
    ("account", "values", "code", "certificate"),
    [
        ("node", {}, None, ""),
        ("controller", {}, None, ""),
        ("controller", {"controller": PARTS}, whole(DRIVER), ""),
        ("webhook", {"webhook": {"certificate": {"selfMade": True}}}, None, f"{RELEASE}-webhook-self-made"),
        ("webhook", {"webhook": {"certificate": {"secretName": "given"}}}, None, ""),
    ],
)
def test_the_rights_of_a_role_are_those_of_its_roles(
    helm: Helm, account: Account, values: dict[str, Any], code: dra.Driver[Any, Any] | None, certificate: str
) -> None:
    driven = DriverAccount(name=DRIVER, code=code, namespace=NAMESPACE, certificate=certificate)
    asked = {
        (right.verb, right.group, right.resource, right.name, right.namespace)
        for right in required_rights(account, driven)
    }
    # the owner of what is made in the cluster, which only the chart names
    owner = {("get", "rbac.authorization.k8s.io", "clusterroles", f"{RELEASE}-controller", "")} if code else set()
    assert asked | owner == given(helm.render({**DEPLOYED, **values}), account)

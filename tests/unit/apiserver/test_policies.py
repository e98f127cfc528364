"""Policies and bindings in the embedded API server, beyond what is replayed of a real one (tests/golden, E-policy)."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kit.apiserver.admission import policies as plugin
from dra_kit.client.resources import CUSTOM_RESOURCE_DEFINITIONS
from dra_kit.kubernetes.cel.admission import CompiledPolicy, compile_policy
from dra_kit.kubernetes.release import KubernetesVersion
from tests.golden import api
from tests.golden.files import cases, read
from tests.golden.pins import pinned
from tests.golden.report import Agreement
from tests.unit.apiserver.conftest import Http, config_map, definition, namespace, pod

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


async def policy(
    http: Http,
    expression: str,
    resource: str = "configmaps",
    *,
    param_kind: dict[str, Any] | None = None,
    param: dict[str, Any] | None = None,
    **constraints: Any,
) -> None:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": [resource]}
    spec = {
        "paramKind": param_kind,
        "matchConstraints": {"resourceRules": [rule], **constraints},
        "validations": [{"expression": expression}],
    }
    binding = {"policyName": "p", "validationActions": ["Deny"], "paramRef": param}
    made = await http("POST", f"{ADMISSION}/validatingadmissionpolicies", {"metadata": {"name": "p"}, "spec": spec})
    assert made[0] == 201, made
    body = {"metadata": {"name": "b"}, "spec": binding}
    assert (await http("POST", f"{ADMISSION}/validatingadmissionpolicybindings", body))[0] == 201


async def test_a_policy_is_compiled_once_and_again_when_it_changes(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def compile_and_count(spec: dict[str, Any], version: KubernetesVersion) -> CompiledPolicy:
        compiled.append(spec)
        return compile_policy(spec, version)

    monkeypatch.setattr(plugin, "compile_policy", compile_and_count)
    await policy(http, "object.metadata.name != 'a'")

    for name in "bc":
        assert (await http("POST", CONFIG_MAPS, config_map(name)))[0] == 201
    assert len(compiled) == 1
    change = {"spec": {"validations": [{"expression": "object.metadata.name != 'd'"}]}}
    path = f"{ADMISSION}/validatingadmissionpolicies/p"
    assert (await http("PATCH", path, change, content_type="application/merge-patch+json"))[0] == 200

    assert (await http("POST", CONFIG_MAPS, config_map("d")))[0] == 422
    assert len(compiled) == 2


async def test_a_namespace_is_selected_by_its_own_labels(http: Http) -> None:
    selector = {"matchLabels": {"team": "a"}}
    await policy(http, "false", "namespaces", namespaceSelector=selector)

    made = [(await http("POST", "/api/v1/namespaces", namespace(name, labels={"team": name})))[0] for name in "ab"]

    assert made == [422, 201]


async def test_a_custom_object_may_be_a_parameter(http: Http) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    made = await http("POST", CUSTOM_RESOURCE_DEFINITIONS.path(), definition("Limit", version, scope="Cluster"))
    assert made[0] == 201
    kind = {"apiVersion": "kitchen.example.com/v1", "kind": "Limit"}
    limit = {**kind, "metadata": {"name": "l"}, "max": 1}
    assert (await http("POST", "/apis/kitchen.example.com/v1/limits", limit))[0] == 201
    await policy(
        http,
        "!has(object.data) || size(object.data) <= params.max",
        param_kind=kind,
        param={"name": "l", "parameterNotFoundAction": "Deny"},
    )

    statuses = [
        (await http("POST", CONFIG_MAPS, config_map(name, data)))[0]
        for name, data in (("one", {"a": "1"}), ("two", {"a": "1", "b": "2"}))
    ]

    assert statuses == [201, 422]


@pytest.mark.processes  # no process, but seconds
def test_all_validations_of_a_policy_may_cost_as_much_as_in_kubernetes() -> None:
    agreement = Agreement()
    (path,) = pinned("golden/api/E-costs*")

    agreement.add("E-costs", cases(api, read(path)))

    assert (agreement.agree, agreement.total) == (1, 1)


async def test_policy_judges_binding_that_names_no_kind(http: Http) -> None:
    pods = "/api/v1/namespaces/default/pods"
    await policy(http, "request.kind.kind != object.kind || object.target.name != 'lost'", "pods/binding")
    assert (await http("POST", pods, pod("p")))[0] == 201

    bound = [
        (await http("POST", f"{pods}/p/binding", {"metadata": {"name": "p"}, "target": {"name": node}}))[0]
        for node in ("lost", "node-a")
    ]

    assert bound == [422, 201]


async def test_policy_asks_about_lists_with_a_field_selector(http: Http) -> None:
    kubelet = {"Impersonate_User": "system:node:node-a", "Impersonate_Group": "system:nodes"}
    unreadable = "node-a="
    lists = "authorizer.group('').resource('pods').fieldSelector('spec.nodeName={}').check('list').allowed()"
    await policy(http, f"{lists.format('node-a')} && !{lists.format(unreadable)}", "nodes")

    created = [
        (await http("POST", "/api/v1/nodes", {"metadata": {"name": name}}, **headers))[0]
        for name, headers in (("node-a", kubelet), ("node-b", {}))
    ]

    assert created == [201, 422]

"""Users, roles and tokens of the embedded API server; a real one's verdicts are in tests/golden (F-rbac, G-rbac)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.apiserver.authentication import Authenticator
from dra_kit.apiserver.authorization import CLUSTER_ROLES, AuthorizationAttributes, rule_allows, uncovered_rules
from dra_kit.apiserver.bootstrap import builtin_roles
from dra_kit.apiserver.server import ApiServer
from tests.unit.apiserver.conftest import Http, pod

RBAC = "/apis/rbac.authorization.k8s.io/v1"
_words = st.lists(st.sampled_from(["*", "a", "b"]), min_size=1, max_size=2, unique=True)
_resources = st.lists(st.sampled_from(["*", "r", "r/s", "*/s", "q"]), min_size=1, max_size=2, unique=True)
_rules = st.fixed_dictionaries(
    {"verbs": _words, "apiGroups": _words, "resources": _resources},
    optional={"resourceNames": st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2, unique=True)},
)


@given(owned=st.lists(_rules, max_size=3), wanted=_rules)
def test_user_with_all_of_a_rule_may_do_all_that_it_allows(owned: list[Any], wanted: Any) -> None:
    if uncovered_rules(owned, [wanted]):
        return
    for verb in "ab":
        for group in "ab":
            for resource, subresource in (("r", ""), ("r", "s"), ("q", ""), ("q", "s")):
                for name in ("", "x", "y", "z"):
                    asked = AuthorizationAttributes(verb, group, resource, subresource, name=name)
                    assert not rule_allows(wanted, asked) or any(rule_allows(rule, asked) for rule in owned)


async def grant(http: Http, user: str, *rules: dict[str, Any]) -> None:
    role = {"metadata": {"name": user}, "rules": list(rules)}
    reference = {"kind": "ClusterRole", "name": user}
    binding = {"metadata": {"name": user}, "roleRef": reference, "subjects": [{"kind": "User", "name": user}]}
    assert (await http("POST", f"{RBAC}/clusterroles", role))[0] == 201
    assert (await http("POST", f"{RBAC}/clusterrolebindings", binding))[0] == 201


async def test_a_server_has_the_built_in_roles_from_the_start_and_after_a_reset(server: ApiServer) -> None:
    names = {obj["metadata"]["name"] for kind, obj in builtin_roles() if kind.resource == CLUSTER_ROLES}
    assert {obj["metadata"]["name"] for obj in server.api.listed(CLUSTER_ROLES)} == names
    assert {"admin", "cluster-admin", "edit", "view"} <= names
    # the aggregated ones are complete: nothing was written twice
    assert server.api.storage.revision == 1 + len(builtin_roles()) + 11  # namespaces, accounts, a Service

    server.api.storage.delete(CLUSTER_ROLES, "admin")
    server.reset()
    assert {obj["metadata"]["name"] for obj in server.api.listed(CLUSTER_ROLES)} == names


async def test_roles_are_aggregated_after_a_reset_that_brought_them_back(server: ApiServer) -> None:
    storage = server.api.storage
    storage.delete(CLUSTER_ROLES, "admin")
    storage.create(CLUSTER_ROLES, "any", {"metadata": {"name": "any", "uid": "1"}})  # then it is known as gone
    server.reset()

    rule = {"verbs": ["get"], "apiGroups": ["pizza.example"], "resources": ["pizzas"]}
    labels = {"rbac.authorization.k8s.io/aggregate-to-admin": "true"}
    storage.create(
        CLUSTER_ROLES, "pizza", {"metadata": {"name": "pizza", "uid": "2", "labels": labels}, "rules": [rule]}
    )

    admin = storage.get(CLUSTER_ROLES, "admin")
    assert admin is not None
    assert rule in admin.object["rules"]


async def test_an_update_that_creates_needs_the_right_to_create(http: Http) -> None:
    lease = {"metadata": {"name": "l", "namespace": "default"}, "spec": {}}
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
    await grant(http, "alice", {"apiGroups": ["*"], "resources": ["leases"], "verbs": ["update"]})

    status, answer, _ = await http("PUT", path, lease, Impersonate_User="alice")

    assert (status, answer["reason"]) == (403, "Forbidden")
    assert 'User "alice" cannot create resource "leases"' in answer["message"]


async def answer_to(
    server: ApiServer, token: str, path: str = "/api/v1/namespaces/default/pods", **more: str
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}", **more}
    async with aiohttp.ClientSession() as session, session.get(server.url + path, headers=headers) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"Impersonate-User": "bob"}, 'cannot impersonate resource "users" in API group ""'),
        ({"Impersonate-User": "system:serviceaccount:a:b"}, 'cannot impersonate resource "serviceaccounts"'),
    ],
)
async def test_impersonation_needs_the_right_to_impersonate(
    server: ApiServer, headers: dict[str, str], text: str
) -> None:
    status, answer = await answer_to(server, server.token("default", "default"), "/api/v1/pods", **headers)

    assert status == 403
    assert text in answer["message"]


@pytest.fixture
async def guarded() -> AsyncIterator[ApiServer]:
    async with ApiServer(authenticator=Authenticator()) as running:
        yield running


async def test_service_account_token_is_accepted_with_the_rights_of_the_account(guarded: ApiServer) -> None:
    token = guarded.token("default", "default")

    status, answer = await answer_to(guarded, token)

    assert (status, answer["reason"]) == (403, "Forbidden")
    assert 'User "system:serviceaccount:default:default" cannot list resource "pods"' in answer["message"]
    assert (await answer_to(guarded, token, "/apis"))[0] == 200  # discovery is open to all of them
    assert guarded.kubeconfig(token)["users"][0]["user"] == {"token": token}


@pytest.mark.parametrize("invalid", ["", "x", "a.b.c", "é"])
async def test_invalid_token_is_rejected(guarded: ApiServer, invalid: str) -> None:
    token = guarded.token("default", "default")
    head, payload, signature = token.split(".")
    forged = f"{head}.{payload[:-2]}{'AA' if payload[-2:] != 'AA' else 'BB'}.{signature}"

    for wrong in (invalid, f"{token}{invalid or 'x'}", forged):
        assert guarded.api.tokens.user(wrong) is None


async def test_token_is_invalid_after_its_account_node_or_lifetime(guarded: ApiServer) -> None:
    storage, tokens = guarded.api.storage, guarded.api.tokens
    storage.create("nodes", "n", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "uid": "1"}})
    account = guarded.api.lookup("serviceaccounts", "default/default")
    assert account is not None
    of_node = guarded.token("default", "default", node="n")
    old, _ = tokens.issue(account, seconds=-1)
    user = tokens.user(of_node)
    assert user is not None
    assert user.extra["authentication.kubernetes.io/node-name"] == ("n",)
    assert tokens.user(old) is None
    storage.delete("nodes", "n")
    assert tokens.user(of_node) is None
    plain = guarded.token("default", "default")
    storage.delete("serviceaccounts", "default/default")
    assert tokens.user(plain) is None
    with pytest.raises(KeyError):
        guarded.token("default", "default")


async def test_a_token_request_of_a_pod(http: Http, server: ApiServer) -> None:
    await http("POST", "/api/v1/nodes", {"metadata": {"name": "node-1"}})
    _, made, _ = await http("POST", "/api/v1/namespaces/default/pods", pod(spec={"nodeName": "node-1"}))
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "pod-1", "uid": made["metadata"]["uid"]}
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"

    status, answer, _ = await http("POST", path, {"spec": {"boundObjectRef": reference, "expirationSeconds": 600}})

    latest = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 601))
    assert status == 201
    assert answer["status"]["expirationTimestamp"] <= latest
    user = server.api.tokens.user(answer["status"]["token"])
    assert user is not None
    assert {key.rpartition("/")[2]: values for key, values in user.extra.items() if "uid" not in key} | {
        "credential-id": ()
    } == {"credential-id": (), "node-name": ("node-1",), "pod-name": ("pod-1",)}
    review = {"spec": {"token": answer["status"]["token"]}}
    _, known, _ = await http("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert known["status"]["user"]["username"] == "system:serviceaccount:default:default"


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"expirationSeconds": 1}, 422),
        ({"boundObjectRef": {"kind": "Pod", "name": "none"}}, 404),
        ({"boundObjectRef": {"kind": "Secret", "name": "s"}}, 400),
        ({"boundObjectRef": {"kind": "Node", "name": "node-1", "uid": "other"}}, 409),
    ],
)
async def test_invalid_token_request_is_rejected(http: Http, spec: dict[str, Any], status: int) -> None:
    await http("POST", "/api/v1/nodes", {"metadata": {"name": "node-1"}})

    got, answer, _ = await http("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", {"spec": spec})

    assert (got, answer["kind"]) == (status, "Status")


async def test_authorization_decisions_are_reported_to_listeners(server: ApiServer, http: Http) -> None:
    heard: list[tuple[str, str, bool]] = []
    server.api.rbac.audit = lambda user, asked, decision: heard.append((user.name, asked.verb, decision.allowed))

    await http("GET", "/api/v1/pods", Impersonate_User="alice")

    assert ("alice", "list", False) in heard


async def test_metrics_count_requests(http: Http) -> None:
    await http("GET", "/api/v1/pods")

    _, text, _ = await http("GET", "/metrics")

    assert 'apiserver_request_total{resource="pods",subresource="",verb="LIST"} 1.0' in text.splitlines()


async def test_table_of_bindings_shows_account_without_namespace(http: Http) -> None:
    path = f"{RBAC}/namespaces/default/rolebindings"
    reference = {"kind": "ClusterRole", "name": "view"}
    subjects = [{"kind": "ServiceAccount", "name": "driver"}]
    assert (await http("POST", path, {"metadata": {"name": "b"}, "roleRef": reference, "subjects": subjects}))[0] == 201

    status, table, _ = await http("GET", path, Accept="application/json;as=Table;v=v1;g=meta.k8s.io")

    assert status == 200
    assert table["rows"][0]["cells"][-1] == "/driver"

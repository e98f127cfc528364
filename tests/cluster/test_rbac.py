"""The chart's roles, as the API server understands them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.access import Access, granted
from tests.cluster.plane import Plane

DRIVER = "rbac.pizza.example"
pytestmark = pytest.mark.any_release  # RBAC does not know what it names


@pytest.fixture(scope="module")
def access(plane: Plane) -> Iterator[Access]:
    with granted(plane, release="rbac-tests", driver=DRIVER) as access:
        yield access


@pytest.mark.parametrize(
    ("role", "verb", "resource", "allowed"),
    [
        ("node", "get", "resourceclaims.resource.k8s.io", True),
        ("node", "list", "resourceclaims.resource.k8s.io", False),
        ("node", "watch", "resourceclaims.resource.k8s.io", False),
        ("node", "update", "resourceclaims.resource.k8s.io", False),
        ("node", "patch", "resourceclaims.resource.k8s.io/status", True),
        ("node", "associated-node:patch", f"resourceclaims.resource.k8s.io/{DRIVER}/driver", True),
        ("node", "associated-node:update", f"resourceclaims.resource.k8s.io/{DRIVER}/driver", True),
        ("node", "update", "resourceclaims.resource.k8s.io/status", True),
        ("node", "associated-node:update", "resourceclaims.resource.k8s.io/other.example/driver", False),
        ("node", "arbitrary-node:update", f"resourceclaims.resource.k8s.io/{DRIVER}/driver", False),
        ("node", "watch", "resourceslices.resource.k8s.io", True),
        ("node", "delete", "resourceslices.resource.k8s.io", True),
        ("node", "get", "nodes", True),
        ("node", "list", "nodes", False),
        ("node", "create", "events.events.k8s.io", True),
        ("node", "get", "pods", False),
        ("node", "get", "secrets", False),
        ("controller", "watch", "resourceclaims.resource.k8s.io", True),
        ("controller", "patch", "resourceclaims.resource.k8s.io", False),
        ("controller", "update", "resourceclaims.resource.k8s.io/status", False),
        ("controller", "create", "events.events.k8s.io", True),
        ("controller", "list", "resourceslices.resource.k8s.io", True),
        ("controller", "delete", "resourceslices.resource.k8s.io", True),
        ("controller", "update", "resourceslices.resource.k8s.io", False),
        ("controller", "list", "nodes", True),
        ("controller", "delete", "nodes", False),
        ("controller", "update", "leases.coordination.k8s.io", False),  # but its own, in its namespace
        ("controller", "get", "secrets", False),
        ("webhook", "get", "resourceclaims.resource.k8s.io", False),
        ("webhook", "get", "secrets", False),
    ],
)
def test_a_role_may_do_what_it_needs_and_no_more(
    access: Access, role: str, verb: str, resource: str, allowed: bool
) -> None:
    name, *rest = resource.split("/")
    subresource = ["--subresource", rest.pop()] if rest else []
    target = "/".join([name, *rest])
    account = f"system:serviceaccount:{access.namespace}:{access.release}-{role}"

    arguments = ("auth", "can-i", verb, target, "--all-namespaces", "--as", account, *subresource)
    answer = access.plane.kubectl(*arguments, check=False)

    assert answer.stdout.strip() == ("yes" if allowed else "no"), answer.stderr

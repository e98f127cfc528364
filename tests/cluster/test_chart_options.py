"""All that the chart can make, taken by a real API server: values that set every option, and no unknown field."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.charts import monitoring_kinds
from tests.charts.options import ROWS
from tests.charts.rendering import NAMESPACE, Helm
from tests.cluster.manifests import listed
from tests.cluster.plane import Plane

NAMESPACES = (NAMESPACE, "other")
HOOK = "helm.sh/hook"


@pytest.fixture(scope="module")
def helm(helm_plane: Plane) -> Helm:
    return Helm(helm_plane.binaries / "helm")


@pytest.fixture(scope="module")
def prepared(plane: Plane) -> Iterator[Plane]:
    """With the namespaces and the kinds of monitoring."""
    kinds = listed(list(monitoring_kinds.definitions()))
    for namespace in NAMESPACES:
        plane.kubectl("create", "namespace", namespace)
    plane.kubectl("create", "-f", "-", stdin=kinds)
    plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", "-", stdin=kinds)
    try:
        yield plane
    finally:
        plane.kubectl("delete", "-f", "-", stdin=kinds)
        plane.kubectl("delete", "namespace", *NAMESPACES, "--wait=false")


def test_all_of_it_is_taken_as_it_is(prepared: Plane, helm: Helm) -> None:
    objects = [item for values in ROWS.values() for item in helm.render(values).objects]

    # nothing is stored, so that objects of several rows may have one name
    result = prepared.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-", stdin=listed(objects), check=False
    )

    assert result.stderr == ""
    assert len(result.stdout.split()) == len(objects)


@pytest.mark.any_release  # what a release does not know is refused above
@pytest.mark.parametrize("row", ROWS)
def test_what_was_applied_has_no_difference(row: str, prepared: Plane, helm: Helm) -> None:
    release = [item for item in helm.render(ROWS[row]).objects if HOOK not in item["metadata"].get("annotations", {})]
    text = listed(release)
    prepared.kubectl("apply", "-f", "-", stdin=text)
    try:
        # pods and others that are made meanwhile are not compared, only what was applied
        difference = prepared.kubectl("diff", "-f", "-", stdin=text, check=False)
        assert (difference.returncode, difference.stdout) == (0, ""), difference.stdout + difference.stderr
    finally:
        prepared.kubectl("delete", "--wait", "--ignore-not-found", "-f", "-", stdin=text)


@pytest.mark.parametrize("kind", ["Job", "ServiceMonitor"])
def test_unknown_fields_would_be_reported(kind: str, prepared: Plane, helm: Helm) -> None:
    row = {"Job": "everything", "ServiceMonitor": "bare"}[kind]
    item = next(each for each in helm.render(ROWS[row]).objects if each["kind"] == kind)
    item["spec"]["selectr"] = {}

    result = prepared.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(item), check=False
    )

    assert 'unknown field "spec.selectr"' in result.stderr

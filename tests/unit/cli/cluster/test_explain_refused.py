"""Manifests that an API server would refuse: there is nothing to explain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.cluster.saved import (
    CHEESE,
    KITCHEN,
    Document,
    claim,
    explained_manifest,
    pod,
    run,
    save,
    slice_of,
    template,
)

COSTLY = "lists.range(1000).all(x, lists.range(2000).all(y, true)) || true"


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        (claim("UPPER_x"), 'metadata.name: Invalid value: "UPPER_x": a lowercase RFC 1123 subdomain must consist'),
        (claim("lunch", count=-1), "spec.devices.requests[0].exactly.count: Invalid value: -1: must be greater than"),
        (claim("lunch", COSTLY), "spec.devices.requests[0].exactly.selectors[0].cel.expression: "),
        (claim("lunch", f'{CHEESE}.includes("a")'), "expression: Invalid value: "),
        (template("t", f"{CHEESE} +"), "spec.spec.devices.requests[0].exactly.selectors[0].cel.expression: "),
        (pod("guest", containers=[]), "spec.containers: Required value"),
        (slice_of("node-3", UPPER="mozzarella"), 'spec.devices[0].name: Invalid value: "UPPER"'),
    ],
)
def test_what_an_api_server_refuses_is_not_explained(tmp_path: Path, manifest: Document, field: str) -> None:
    code, text = explained_manifest(tmp_path, manifest)

    assert code == 1
    [line] = text.splitlines()
    named = f"{tmp_path / 'order.yaml'}, document 1: the API server would reject {manifest['kind']} "
    assert line.startswith(f"error: {named}{manifest['metadata']['name']}: ")
    assert field in line
    assert line.endswith("; dra-kit lint shows where [kube-invalid]")


def test_explain_reports_all_invalid_fields(tmp_path: Path) -> None:
    wrong = claim("UPPER_x", count=-1)
    wrong["spec"]["devices"]["requests"] *= 2

    _, text = explained_manifest(tmp_path, wrong)

    assert "metadata.name: " in text
    assert "requests[0].exactly.count: " in text
    assert "spec.devices.requests[1]: Duplicate value: " in text


def test_a_class_may_come_with_a_namespace_as_for_kubectl(tmp_path: Path) -> None:
    spec = {"selectors": [{"cel": {"expression": "true"}}]}
    own = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "any", "namespace": "x"}}

    code, text = explained_manifest(tmp_path, {**own, "spec": spec}, claim("lunch"))

    assert code == 0, text


def test_a_name_may_be_left_to_the_api_server(tmp_path: Path) -> None:
    order = {**claim("lunch"), "metadata": {"generateName": "lunch-"}}

    code, text = explained_manifest(tmp_path, order)

    assert code == 0
    assert "✓ default/lunch fits on 2 of 2 nodes\n" in text


def test_admin_access_is_the_namespaces_business(tmp_path: Path) -> None:
    order = claim("lunch")
    order["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True

    assert explained_manifest(tmp_path, order)[0] == 0


def test_what_alpha_features_allow_is_checked_where_they_are_on(tmp_path: Path) -> None:
    order = claim("lunch")
    order["spec"]["devices"]["requests"][0]["exactly"]["derivedAttributes"] = [{"name": "x", "expression": "1 +"}]
    file = save(tmp_path / "order.yaml", order)
    saved = save(tmp_path / "objects.yaml", *KITCHEN)

    refused = run("explain", "-f", file, "--alpha", "--from", saved)

    assert refused.exit_code == 1
    assert "derivedAttributes[0]" in refused.output
    assert run("explain", "-f", file, "--from", saved).exit_code == 3

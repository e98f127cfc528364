"""Manifests that an API server would refuse: there is nothing to explain."""

from __future__ import annotations

import json
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
    words,
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
    dropped = run("explain", "-f", file, "--from", saved)
    assert dropped.exit_code == 0
    assert "drops spec.devices.requests[0].exactly.derivedAttributes of ResourceClaim lunch" in words(dropped.output)


def snapshot(tmp_path: Path, version: str) -> Path:
    """A snapshot of the kitchen as a cluster of this release."""
    folder = tmp_path / f"snapshot-{version}"
    folder.mkdir()
    (folder / "snapshot.json").write_text(json.dumps({"version": version}))
    save(folder / "objects.yaml", *KITCHEN)
    return folder


def sharing(name: str) -> Document:
    """A claim for a part of a device."""
    made = claim(name)
    made["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"cheese": "1"}}
    return made


@pytest.mark.parametrize("options", [("1.34",), ("1.35", "--kubernetes", "1.34"), ("1.36", "--kubernetes", "1.34")])
def test_a_field_that_the_release_drops_is_named_and_not_judged(tmp_path: Path, options: tuple[str, ...]) -> None:
    order = save(tmp_path / "order.yaml", sharing("lunch"), pod("guest", claim="lunch"))

    result = run("explain", "-f", order, "--from", snapshot(tmp_path, options[0]), *options[1:])

    assert result.exit_code == 0, result.output
    assert (
        "an API server of Kubernetes 1.34 drops spec.devices.requests[0].exactly.capacity of ResourceClaim lunch "
        f"({order}, document 1): dra-kit lint --kubernetes 1.34 FILE says why"
    ) in words(result.output)


def test_dropped_fields_are_in_json(tmp_path: Path) -> None:
    order = save(tmp_path / "order.yaml", sharing("lunch"))

    result = run("explain", "-f", order, "--from", snapshot(tmp_path, "1.35"), "-o", "json")

    [dropped] = json.loads(result.output)["dropped"]
    assert dropped["object"] == "ResourceClaim lunch"
    assert dropped["fields"] == ["spec.devices.requests[0].exactly.capacity"]


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
def test_a_version_that_the_release_does_not_serve_is_refused(tmp_path: Path, version: str) -> None:
    rule: Document = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "hot"},
        "spec": {"taint": {"key": "hot", "effect": "NoSchedule"}, "deviceSelector": {"pool": "node-1"}},
    }
    order = save(tmp_path / "order.yaml", rule, claim("lunch"))

    result = run("explain", "-f", order, "--from", snapshot(tmp_path, "1.35"))

    assert result.exit_code == 2
    told = f"does not serve DeviceTaintRule in resource.k8s.io/{version}; write apiVersion: resource.k8s.io/v1alpha3"
    assert f"{order}, document 1: Kubernetes 1.35 {told}" in words(result.output)


@pytest.mark.parametrize("target", ["1.36", "1.37"])
def test_a_release_that_the_cluster_does_not_have_is_announced(tmp_path: Path, target: str) -> None:
    order = save(tmp_path / "order.yaml", claim("lunch"))
    arguments = ("explain", "-f", order, "--from", snapshot(tmp_path, "1.35"), "--kubernetes", target)

    found = json.loads(run(*arguments, "-o", "json").output)

    assert f"\nthe cluster is Kubernetes 1.35; judged as if it were {target}\n" in run(*arguments).output
    assert (found["kubernetes"], found["judgedBy"]) == ("1.35", target)


def test_the_release_of_a_cluster_is_announced_if_it_is_not_the_newest(tmp_path: Path) -> None:
    order = save(tmp_path / "order.yaml", claim("lunch"))

    old, new = (run("explain", "-f", order, "--from", snapshot(tmp_path, version)) for version in ("1.36", "1.37"))

    assert "\njudged by the rules of Kubernetes 1.36\n" in old.output
    assert "judged" not in new.output

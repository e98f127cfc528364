"""Saved objects that no API server stores: one line with the file, the object, the cause and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kit.diagnosis.snapshot import load
from dra_kit.errors import ConfigurationError
from tests.unit.cli.cluster.saved import KITCHEN, Document, claim, event, node, pod, run, save, template

GUEST = pod("guest", claim="lunch")


def with_spec(**spec: Any) -> Document:
    return {**GUEST, "spec": {**GUEST["spec"], **spec}}


UNNAMED = "ResourceClaimTemplate t is corrupt: it has no spec.spec.devices.requests[0].name"


@pytest.mark.parametrize(
    ("malformed", "cause"),
    [
        ({**GUEST, "spec": None}, "Pod guest is corrupt: it has no spec.containers"),
        (with_spec(containers=None), "Pod guest is corrupt: it has no spec.containers"),
        (with_spec(resourceClaims=[{}]), "Pod guest is corrupt: it has no spec.resourceClaims[0].name"),
        (with_spec(schedulingGates=[{}]), "Pod guest is corrupt: it has no spec.schedulingGates[0].name"),
        (
            with_spec(nodeName=1),
            "Pod guest is corrupt: spec: json: cannot unmarshal number into a field of type string",
        ),
        (
            with_spec(containers=[{"name": "a", "resources": {"requests": {"cpu": "zz"}}}]),
            "Pod guest is corrupt: spec: 'zz' is not a quantity: it must be a number with an optional suffix",
        ),
        ({**GUEST, "metadata": {"namespace": "default"}}, "Pod is corrupt: it has no metadata.name"),
        (
            {**node("node-3"), "status": {"allocatable": {"cpu": "x"}}},
            "Node node-3 is corrupt: status: 'x' is not a quantity",
        ),
        (node("node-3", taints=[{"key": "a"}]), "Node node-3 is corrupt: it has no spec.taints[0].effect"),
        ({**template("t"), "spec": {"spec": {"devices": {"requests": [{}]}}}}, UNNAMED),
        (
            {**claim("lunch"), "metadata": {"name": "lunch", "namespace": 1}},
            "ResourceClaim lunch is corrupt: its metadata.namespace is not a string",
        ),
        ({**claim("lunch"), "metadata": {"name": ""}}, "ResourceClaim is corrupt: it has no metadata.name"),
    ],
)
def test_malformed_saved_object_is_reported(tmp_path: Path, malformed: Document, cause: str) -> None:
    file = save(tmp_path / "objects.yaml", *KITCHEN, malformed)

    result = run("explain", "pod", "guest", "--from", file)

    assert result.exit_code == 2
    [line] = result.output.splitlines()
    assert line.startswith(f"error: {file}, document 6: {cause}")
    assert line.endswith("; save it again, with dra-kit snapshot or kubectl get -o yaml [configuration]")


@pytest.mark.parametrize(
    ("index", "cause"),
    [
        ("{nope", "Invalid JSON"),
        ('{"version": "1.3', "Invalid JSON"),
        ("[1]", "Input should be an object"),
        ('{"gaps": [{"kind": "x"}]}', "gaps.0.group: Field required"),
        ('{"version": 3}', "version: Input should be a valid string"),
    ],
)
@pytest.mark.parametrize("command", [("explain", "claim", "lunch"), ("lint", "{file}")])
def test_malformed_snapshot_index_is_reported(tmp_path: Path, index: str, cause: str, command: tuple[str, ...]) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    save(folder / "objects.yaml", *KITCHEN)
    (folder / "snapshot.json").write_text(index)
    file = str(save(tmp_path / "lunch.yaml", claim("lunch")))

    result = run(*(each.format(file=file) for each in command), "--from", folder)

    assert result.exit_code == 2
    [line] = result.output.splitlines()
    assert line.startswith(f"error: {folder}: snapshot.json is corrupt: ")
    assert cause in line
    assert line.endswith("; run dra-kit snapshot again [configuration]")


def test_an_object_without_a_namespace_is_in_the_default_one(tmp_path: Path) -> None:
    wanted = claim("lunch")
    del wanted["metadata"]["namespace"]
    file = save(tmp_path / "objects.yaml", *KITCHEN, wanted)

    assert run("explain", "claim", "lunch", "--from", file).exit_code == 0
    assert "there is one in namespace default" in run("explain", "claim", "lunch", "-n", "bar", "--from", file).output


nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "spec", "key"]), inner),
    max_leaves=4,
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every part of an object that can be malformed."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in ((*path, key), *places(item, (*path, key)))]


RICH = with_spec(
    containers=[{"name": "a", "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "food"}]}}],
    schedulingGates=[{"name": "wait"}],
    tolerations=[{"key": "k", "operator": "Exists"}],
    nodeSelector={"a": "b"},
    affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}},
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_malformed_object_gives_an_explanation_or_one_error_line(tmp_path: Path, data: st.DataObject) -> None:
    victims = [RICH, node("node-1", taints=[{"key": "k", "effect": "NoSchedule"}]), template("t"), claim("lunch")]
    place = data.draw(st.integers(0, len(victims) - 1))
    victim = json.loads(json.dumps(victims[place]))
    path = data.draw(st.sampled_from([path for path in places(victim) if path[0] not in {"kind", "apiVersion"}]))
    parent = victim
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = data.draw(nonsense)
    file = tmp_path / "objects.json"
    items = [*KITCHEN, *(victim if at == place else each for at, each in enumerate(victims))]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    result = run("explain", "pod", "guest", "--from", file)

    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in {0, 1, 2, 3}
    if result.exit_code == 2:
        assert result.output.startswith(f"error: {file}") or "it is not an object that an API server" in result.output


def test_unused_malformed_time_is_ignored(tmp_path: Path) -> None:
    told = {**event("FailedScheduling", "guest", "no"), "eventTime": "2025-01-01T00:00:00Z"}
    file = save(tmp_path / "objects.yaml", *KITCHEN, claim("lunch"), GUEST, told)

    assert "pod default/guest" in run("explain", "pod", "guest", "--from", file).output


def test_folder_with_a_malformed_list_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('{"apiVersion": "v1", "kind": "List", "items": [1]}')

    with pytest.raises(ConfigurationError, match=r"list\.json, document 1, items\[0\] is not an object"):
        load(tmp_path)


def test_pod_is_explained_beside_a_saved_device_class_without_spec(tmp_path: Path) -> None:
    empty = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": None}
    file = save(tmp_path / "objects.yaml", *KITCHEN, empty, GUEST)

    assert "pod default/guest" in run("explain", "pod", "guest", "--from", file).output

"""``dra-kit explain pod`` where kube-scheduler looks at more than devices: it says so, and does not say yes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_kit.diagnosis.explain.cluster import reduced
from tests.unit.cli.cluster.saved import (
    CLASS,
    DRIVER,
    KITCHEN,
    Document,
    claim,
    explained,
    pod,
    run,
    save,
    slice_of,
    words,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NEAR: dict[str, Any] = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "oven"}}}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}


def asking(**spec: Any) -> Document:
    return pod("guest", claim="lunch", **spec)


@pytest.mark.parametrize(
    ("spec", "missed"),
    [
        ({"schedulerName": "volcano"}, "the rules of scheduler volcano"),
        ({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}, "volumes (data)"),
        ({"volumes": [{"name": "scratch", "ephemeral": {}}]}, "volumes (scratch)"),
        ({"volumes": [{"name": "disk", "iscsi": {"targetPortal": "a", "iqn": "b", "lun": 0}}]}, "volumes (disk)"),
        ({"initContainers": [{"name": "a", "restartPolicy": "Always", "ports": [{"hostPort": 80}]}]}, "host ports"),
        ({"topologySpreadConstraints": [SPREAD]}, "topology spread constraints"),
        (
            {
                "affinity": {
                    "podAntiAffinity": {REQUIRED: [{**NEAR, "namespaceSelector": {"matchLabels": {"team": "a"}}}]}
                }
            },
            "labels of namespaces, which affinity between pods selects",
        ),
        ({"containers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": 80}]}]}, "host ports"),
    ],
)
def test_unexamined_constraint_is_reported_and_verdict_is_undecided(
    tmp_path: Path, spec: dict[str, Any], missed: str
) -> None:
    code, text = explained(tmp_path, claim("lunch"), asking(**spec), what=("pod", "guest"))

    assert code == 4
    verdict = f"? pod default/guest finds its devices on node-1, node-2; not examined: {missed}"
    assert verdict in words(text)
    assert "✓ pod" not in text


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"name": "config", "configMap": {"name": "config"}}, {"name": "scratch", "emptyDir": {}}]},
        {"topologySpreadConstraints": [{**SPREAD, "whenUnsatisfiable": "ScheduleAnyway"}]},
        {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
        {"schedulerName": "default-scheduler"},
        {"containers": [{"name": "a", "ports": [{"containerPort": 80}]}]},
    ],
)
def test_what_keeps_no_pod_away_is_not_told(tmp_path: Path, spec: dict[str, Any]) -> None:
    code, text = explained(tmp_path, claim("lunch"), asking(**spec), what=("pod", "guest"))

    assert (code, "✓ pod default/guest can run on node-1, node-2" in text) == (0, True)


@pytest.mark.parametrize(
    ("affinity", "fits"),
    [
        ({"podAffinity": {REQUIRED: [NEAR]}}, "node-1"),
        ({"podAntiAffinity": {REQUIRED: [NEAR]}}, "node-2"),
        ({"podAntiAffinity": {REQUIRED: [{**NEAR, "namespaces": ["other"]}]}}, "node-1, node-2"),
        ({"podAntiAffinity": {REQUIRED: [{**NEAR, "namespaceSelector": {}}]}}, "node-2"),
    ],
)
def test_affinity_to_a_placed_pod_selects_nodes(tmp_path: Path, affinity: dict[str, Any], fits: str) -> None:
    oven = pod("oven", nodeName="node-1")
    oven["metadata"]["labels"] = {"app": "oven"}

    code, text = explained(tmp_path, claim("lunch"), asking(affinity=affinity), oven, what=("pod", "guest"))

    assert (code, f"✓ pod default/guest can run on {fits}" in words(text)) == (0, True)


def test_affinity_to_no_pod_is_the_reason(tmp_path: Path) -> None:
    affinity = {"podAffinity": {REQUIRED: [NEAR]}}

    code, text = explained(tmp_path, claim("lunch"), asking(affinity=affinity), what=("pod", "guest"))

    assert code == 3
    assert "node(s) didn't match pod affinity rules" in words(text)


@pytest.mark.parametrize(("app", "fits"), [("guest", "node-2"), ("other", "node-1, node-2")])
def test_anti_affinity_of_another_pod_selects_nodes(tmp_path: Path, app: str, fits: str) -> None:
    away = {**NEAR, "labelSelector": {"matchLabels": {"app": app}}}
    cook = pod("cook", nodeName="node-1", affinity={"podAntiAffinity": {REQUIRED: [away]}})
    eater = asking()
    eater["metadata"]["labels"] = {"app": "guest"}

    code, text = explained(tmp_path, claim("lunch"), eater, cook, what=("pod", "guest"))

    assert (code, f"✓ pod default/guest can run on {fits}" in words(text)) == (0, True)


def test_nodes_that_are_not_known_were_not_looked_at(tmp_path: Path) -> None:
    saved = save(tmp_path / "saved.yaml", CLASS, slice_of("node-1", margherita="mozzarella"), claim("lunch"), asking())

    result = run("explain", "pod", "guest", "--from", saved)

    assert result.exit_code == 4
    assert "not examined: labels, taints, cpu and memory of nodes" in words(result.output)


def saved_without(tmp_path: Path, kind: str, *objects: Document) -> Path:
    """A snapshot by a user who may not list a kind."""
    folder = tmp_path / "snapshot"
    folder.mkdir()
    save(folder / "saved.yaml", *objects)
    gap = {"kind": kind, "group": "", "plural": f"{kind.lower()}s", "consequence": "not known"}
    (folder / "snapshot.json").write_text(json.dumps({"version": "1.37", "alpha": False, "gaps": [gap]}))
    return folder


@pytest.mark.parametrize(
    ("kind", "missed"),
    [
        ("ResourceClaim", "devices that claims of other namespaces hold"),
        ("DeviceTaintRule", "taints of DeviceTaintRules"),
    ],
)
def test_a_claim_does_not_fit_for_sure_where_not_everything_could_be_read(
    tmp_path: Path, kind: str, missed: str
) -> None:
    saved = saved_without(tmp_path, kind, *KITCHEN, claim("lunch"))

    result = run("explain", "claim", "lunch", "--from", saved)
    (found,) = json.loads(run("explain", "claim", "lunch", "--from", saved, "-o", "json").output)["explanations"]

    assert result.exit_code == 4
    assert f"? default/lunch finds devices on 2 of 2 nodes; not examined: {missed}" in words(result.output)
    assert "✓ default/lunch" not in result.output
    assert (found["outcome"], found["notLookedAt"]) == ("devices-fit", [missed])


@pytest.mark.parametrize("what", ["claim", "pod"])
def test_devices_that_any_node_may_reach_are_not_refused_where_no_node_is_known(tmp_path: Path, what: str) -> None:
    of_all = slice_of("node-1", margherita="mozzarella")
    del of_all["spec"]["nodeName"]
    of_all["spec"]["allNodes"] = True
    saved = saved_without(tmp_path, "Node", CLASS, of_all, claim("lunch"), asking())

    result = run("explain", what, "lunch" if what == "claim" else "guest", "--from", saved)

    assert result.exit_code == 4
    assert "may find" in result.output
    assert "cannot be" not in result.output


def test_programs_get_an_outcome_of_its_own(tmp_path: Path) -> None:
    saved = save(tmp_path / "saved.yaml", *KITCHEN, claim("lunch"), asking(schedulerName="volcano"))

    result = run("explain", "pod", "guest", "--from", saved, "-o", "json")

    whole = json.loads(result.output)
    (found,) = whole["explanations"]
    assert (result.exit_code, whole["good"], found["outcome"]) == (4, False, "devices-fit")
    assert found["notLookedAt"] == ["the rules of scheduler volcano"]
    assert found["fittingNodes"] == ["node-1", "node-2"]


@pytest.mark.parametrize(
    ("spec", "first", "code"),
    [
        (
            {"schedulingGates": [{"name": "example.com/quota"}]},
            "it has scheduling gates, which must be removed first: example.com/quota",
            3,
        ),
        ({"schedulerName": "volcano"}, "scheduler volcano places it, if it runs", 4),
    ],
)
def test_a_gate_or_another_scheduler_is_said_first(tmp_path: Path, spec: dict[str, Any], first: str, code: int) -> None:
    found, text = explained(tmp_path, claim("lunch"), asking(**spec), what=("pod", "guest"))

    assert found == code
    assert text.startswith(f"! pod default/guest: {first}")


def test_rejection_is_final_despite_unexamined_constraints(tmp_path: Path) -> None:
    code, text = explained(tmp_path, claim("lunch", 'device.driver == "x"'), asking(schedulerName="volcano"),
                           what=("pod", "guest"))  # fmt: skip

    assert code == 3
    assert "✗ pod default/guest cannot be scheduled" in text


def test_a_snapshot_keeps_what_the_answer_depends_on() -> None:
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "inline", "csi": {"driver": "disk.example.com", "volumeAttributes": {"password": "p"}}},
        {"name": "disk", "iscsi": {"targetPortal": "10.0.0.1", "iqn": "secret"}},
    ]
    ports = [{"containerPort": 1, "hostPort": 80}, {"containerPort": 2}]
    kept = reduced("Pod", asking(volumes=volumes, containers=[{"name": "a", "ports": ports}]))["spec"]
    assert kept["volumes"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "inline", "csi": {"driver": "disk.example.com"}},
        {"name": "disk", "iscsi": {}},
    ]
    assert kept["containers"] == [{"name": "a", "ports": ports[:1]}]


def test_a_saved_claim_without_defaults_is_explained_as_the_api_server_would_store_it(tmp_path: Path) -> None:
    plain = claim("lunch")
    plain["spec"]["devices"]["requests"] = [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]

    code, text = explained(tmp_path, plain, what=("claim", "lunch"))

    assert code == 0
    assert "1 device of class pizza" in text


def test_too_costly_selectors_stop_the_explanation(tmp_path: Path) -> None:
    numbers = "[1,2,3,4,5,6,7,8,9]"
    costly = f"{numbers}.all(a,{numbers}.all(b,{numbers}.all(c,{numbers}.all(d,{numbers}.all(e,a+b+c+d+e>{{}})))))"
    hungry = claim("lunch", *(costly.format(-n) for n in range(1, 12)))

    code, text = explained(tmp_path, hungry, what=("claim", "lunch"))

    assert code == 4
    assert "? default/lunch would take too much work to explain; not examined: devices for request" in words(text)
    assert DRIVER not in text

"""``dra-kit explain`` on the command line, on saved objects and on an API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dra_kit.apiserver.server import run_in_thread
from dra_kit.sandbox.run.detached import STATE_VARIABLE, report_ready, state_directory
from tests.support.api import Api
from tests.unit.cli.cluster.saved import (
    CHEESE,
    Document,
    claim,
    claim_spec,
    explained,
    explained_manifest,
    node,
    pod,
    run,
    save,
    slice_of,
    template,
    words,
)


def test_a_claim_that_fits(tmp_path: Path) -> None:
    code, text = explained(tmp_path, claim("lunch", f'{CHEESE} == "cheddar"'), what=("claim", "lunch"))

    assert code == 0
    assert text == (
        """\
request pizza: 1 device of class pizza, cheese == "cheddar"
  node-1
    ✗ margherita-0, margherita-1  cheese is "mozzarella", not "cheddar"
    ✓ rustica                     fits, would be taken
  node-2
    ✗ margherita-0  cheese is "mozzarella", not "cheddar"
    ✓ rustica       fits, would be taken

5 devices on 2 nodes: 2 fit, 3 wrong cheese ("mozzarella" ≠ "cheddar")
✓ default/lunch fits on 2 of 2 nodes
  on node-1 it would get
    pizza: rustica of dra.pizza, pool node-1
      config of the class: {"kind": "PizzaConfig", "extraCheese": false}
  on node-2 it would get
    pizza: rustica of dra.pizza, pool node-2
      config of the class: {"kind": "PizzaConfig", "extraCheese": false}
"""
    )


def test_a_claim_that_no_device_matches(tmp_path: Path) -> None:
    code, text = explained(tmp_path, claim("lunch", f'{CHEESE} == "gouda"'), what=("claim", "lunch"))

    assert code == 3
    assert text == (
        """\
request pizza: 1 device of class pizza, cheese == "gouda"
  node-1
    ✗ margherita-0, margherita-1  cheese is "mozzarella", not "gouda"
    ✗ rustica                     cheese is "cheddar", not "gouda"
  node-2
    ✗ margherita-0  cheese is "mozzarella", not "gouda"
    ✗ rustica       cheese is "cheddar", not "gouda"

5 devices on 2 nodes: 5 wrong cheese ("mozzarella", "cheddar" ≠ "gouda")
✗ default/lunch cannot be allocated
  request pizza: no device matches
  → without `cheese == "gouda"`, 5 devices fit
"""
    )


def test_a_claim_whose_devices_are_all_allocated(tmp_path: Path) -> None:
    holders = claim("a", held=("node-1", "rustica")), claim("b", held=("node-2", "rustica"))
    wanted = claim("lunch", f'{CHEESE} == "cheddar"')

    code, text = explained(tmp_path, *holders, wanted, what=("claim", "lunch"))

    assert code == 3
    assert "    ✗ rustica                     allocated to default/a\n" in text
    assert "  request pizza: 2 devices match, but none is available: 2 allocated to default/a, default/b\n" in text
    assert "  → once other claims release their devices, 2 devices fit\n" in text


def test_a_claim_with_a_constraint_that_cannot_be_satisfied(tmp_path: Path) -> None:
    wanted = claim("lunch", count=3, constraints=[{"matchAttribute": "dra.pizza/cheese"}])

    code, text = explained(tmp_path, wanted, what=("claim", "lunch"))

    assert code == 3
    assert 'on node-1 those that fit have "mozzarella" (2 devices), "cheddar" (1 device)' in words(text)


def test_a_claim_of_a_class_that_does_not_exist(tmp_path: Path) -> None:
    code, text = explained(tmp_path, claim("lunch", device_class="piza"), what=("claim", "lunch"))

    assert code == 3
    assert 'request pizza: DeviceClass piza does not exist; did you mean "pizza"?' in text


def test_a_claim_that_is_allocated(tmp_path: Path) -> None:
    holder = claim("lunch", held=("node-1", "rustica"))
    condition = {"type": "Ready", "status": "False", "reason": "Cold", "message": "it is cold"}
    prepared = {"driver": "dra.pizza", "pool": "node-1", "device": "rustica", "conditions": [condition]}
    holder["status"]["devices"] = [prepared]

    code, text = explained(tmp_path, holder, what=("claim", "lunch"))

    assert code == 0
    assert text == (
        """\
✓ default/lunch is allocated
    pizza: rustica of dra.pizza, pool node-1
      no configuration: the driver's default
  reserved for pod guest
  dra.pizza on rustica: Ready is False (Cold: it is cold)
"""
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [("lunhc", 'did you mean "lunch"?'), ("other", "the namespace has lunch; -n selects another")],
)
def test_a_claim_that_does_not_exist(tmp_path: Path, name: str, hint: str) -> None:
    code, text = explained(tmp_path, claim("lunch"), what=("claim", name))

    assert code == 1
    assert text == f"error: ResourceClaim default/{name} does not exist; {hint} [kube-not-found]\n"


def test_a_claim_of_another_namespace(tmp_path: Path) -> None:
    _, text = explained(tmp_path, claim("lunch"), what=("claim", "lunch", "-n", "bar"))

    assert "there is one in namespace default: add -n default" in text


def test_explain_lists_only_some_nodes_without_all(tmp_path: Path) -> None:
    nodes = [document for n in range(20) for document in (node(f"n{n}"), slice_of(f"n{n}", **{f"d{n}": "gouda"}))]

    _, some = explained(tmp_path, claim("lunch"), *nodes, what=("claim", "lunch"))
    _, all_of_them = explained(tmp_path, claim("lunch"), *nodes, what=("claim", "lunch", "--all"))

    assert "… and 14 more nodes; --all shows them\n" in some
    assert "… and likewise on 19 more nodes\n" in some
    assert "more node" not in all_of_them
    assert all(f"d{n}" in all_of_them for n in range(20))


def test_a_claim_that_is_being_deleted(tmp_path: Path) -> None:
    going = claim("lunch")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    text = explained(tmp_path, going, what=("claim", "lunch"))[1]
    assert text.startswith("✗ default/lunch is being deleted since 2026-01-01T00:00:00Z\n")


# --- manifests


def test_a_manifest_is_explained_as_if_it_were_applied(tmp_path: Path) -> None:
    order = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaim",
        "metadata": {"name": "lunch"},
        "spec": {"devices": {"requests": [{"name": "pizza", "deviceClassName": "pizza"}]}},
    }

    code, text = explained_manifest(tmp_path, order)

    assert code == 0
    assert "request pizza: 1 device of class pizza\n" in text


def test_pods_of_a_manifest_are_explained_with_its_templates(tmp_path: Path) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kitchen"}}
    order = pod("guest", template="one-pizza"), template("one-pizza"), namespace

    code, text = explained_manifest(tmp_path, *order)

    assert code == 0
    assert text.count("request pizza") == 1
    assert "✓ pod default/guest can run on node-1, node-2\n" in text


def test_templates_of_a_manifest_without_pods_are_explained_themselves(tmp_path: Path) -> None:
    code, text = explained_manifest(tmp_path, template("one-pizza"))

    assert code == 0
    assert "✓ default/one-pizza fits on 2 of 2 nodes\n" in text


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"spec": {**claim_spec(), "device": {}}}, 'unknown field "spec.device"'),
        ({"apiVersion": "resource.k8s.io/v9"}, "ResourceClaim of resource.k8s.io/v9 is not served by Kubernetes"),
        ({"metadata": None}, "lacks metadata.name"),
        ({"spec": {"devices": {"requests": "pizza"}}}, "spec.devices.requests"),
    ],
)
def test_a_mistake_in_a_manifest_is_named_with_its_place(tmp_path: Path, change: Document, error: str) -> None:
    code, text = explained_manifest(tmp_path, {**claim("lunch"), **change})

    assert code == 2
    assert "order.yaml, document 1" in text
    assert error in text


# --- for programs


def test_json_output_contains_the_whole_explanation(tmp_path: Path) -> None:
    _, text = explained(
        tmp_path,
        claim("lunch", f'{CHEESE} == "gouda"'),
        pod("guest", claim="lunch"),
        what=("pod", "guest", "-o", "json"),
    )

    whole = json.loads(text)
    assert whole["good"] is False
    [found] = whole["explanations"]
    assert (found["kind"], found["name"], found["outcome"]) == ("pod", "guest", "does-not-fit")
    [choice] = found["claims"][0]["claim"]["requests"][0]["choices"]
    assert len(choice["devices"]) == 5
    assert choice["devices"][0]["reasons"][0]["values"] == {CHEESE: '"mozzarella"'}
    assert found["claims"][0]["claim"]["nearest"][0]["devices"] == 5


def test_json_output_contains_the_devices_a_claim_would_get(tmp_path: Path) -> None:
    _, text = explained(tmp_path, claim("lunch"), what=("claim", "lunch", "-o", "json"))

    nodes = json.loads(text)["explanations"][0]["nodes"]
    [[result]] = nodes[0]["allocations"]
    assert result["device"] == "margherita-0"
    assert result["config"] == [{"source": "FromClass", "parameters": {"kind": "PizzaConfig", "extraCheese": False}}]


# --- a live cluster


def test_a_live_cluster_is_read(tmp_path: Path) -> None:
    with run_in_thread() as server:
        config = tmp_path / "kubeconfig"
        config.write_text(yaml.safe_dump(server.kubeconfig()))

        order = save(tmp_path / "order.yaml", claim("lunch"))
        result = run("explain", "-f", order, "--kubeconfig", config)

    assert result.exit_code == 3
    assert "DeviceClass pizza does not exist, nor any other: is the driver's chart installed?" in result.output
    assert "no devices at all" not in result.output


def test_missing_right_is_reported_with_its_consequence(tmp_path: Path) -> None:
    with Api() as api, api.failing(403, "GET", below="/api/v1/nodes"):
        api.put("resourceclaims", claim("lunch", held=("node-1", "rustica")))
        api.put("pods", pod("guest", claim="lunch", nodeName="node-1"))

        result = run("explain", "claim", "lunch", "--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))

    assert result.exit_code == 0
    text = words(result.output)
    assert "you may not list nodes: only nodes that slices name are known, without labels" in text
    assert 'a ClusterRole needs these rules - {apiGroups: [""], resources: [nodes], verbs: [list]}' in text


def test_all_missing_required_rights_are_reported(tmp_path: Path) -> None:
    with Api() as api, api.failing(403, "GET", below="/apis/resource.k8s.io/v1/"):
        result = run("explain", "claim", "lunch", "--kubeconfig", api.kubeconfig(tmp_path / "kubeconfig"))

    assert result.exit_code == 1
    named = "resourceslices, deviceclasses, devicetaintrules, resourceclaims"
    assert f'{{apiGroups: ["resource.k8s.io"], resources: [{named}], verbs: [list]}}' in result.output


CLAIM_FITS = "✓ default/lunch fits on 2 of 2 nodes\n"
POD_FITS = "✓ pod default/guest can run on node-1, node-2\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("claim lunch", CLAIM_FITS),
        ("claims lunch", CLAIM_FITS),
        ("claim/lunch", CLAIM_FITS),
        ("resourceclaim/lunch", CLAIM_FITS),
        ("resourceclaims lunch", CLAIM_FITS),
        ("resourceclaims.resource.k8s.io/lunch", CLAIM_FITS),
        ("pod/guest", POD_FITS),
        ("pods guest", POD_FITS),
        ("po guest", POD_FITS),
    ],
)
def test_a_claim_or_pod_is_named_as_kubectl_takes_it(tmp_path: Path, arguments: str, told: str) -> None:
    code, text = explained(tmp_path, pod("guest", claim="lunch"), claim("lunch"), what=tuple(arguments.split()))

    assert code == 0
    assert told in text


@pytest.mark.parametrize("arguments", [("claims", "a", "b"), ("claim/a", "resourceclaim/b")])
def test_several_are_explained_one_after_the_other(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, text = explained(tmp_path, claim("a"), claim("b", f'{CHEESE} == "gouda"'), what=arguments)

    assert code == 3
    assert "✓ default/a fits" in text
    assert "✗ default/b cannot be allocated" in text


@pytest.mark.parametrize("arguments", [(), ("pod",), ("pods",)])
def test_without_a_name_all_pods_are_explained_that_are_pending(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    running = {**pod("cook", nodeName="node-1"), "status": {"phase": "Running"}}
    elsewhere = pod("stranger")
    elsewhere["metadata"]["namespace"] = "elsewhere"
    documents = pod("a"), pod("b", claim="lost"), running, elsewhere

    code, text = explained(tmp_path, *documents, what=arguments)

    assert code == 3
    assert "✓ pod default/a can run on node-1, node-2" in text
    assert "✗ pod default/b waits for a claim" in text
    assert "cook" not in text
    assert "stranger" not in text
    assert "pod elsewhere/stranger can run" in explained(tmp_path, *documents, what=("pod", "-A"))[1]


def test_without_a_name_all_claims_are_explained_that_have_no_devices(tmp_path: Path) -> None:
    documents = claim("a"), claim("b", held=("node-1", "rustica"))

    code, text = explained(tmp_path, *documents, what=("claim",))

    assert code == 0
    assert "✓ default/a fits" in text
    assert "default/b is allocated" not in text


def test_that_nothing_is_pending_is_good(tmp_path: Path) -> None:
    assert explained(tmp_path, what=()) == (0, "no pod of namespace default is pending\n")
    assert explained(tmp_path, what=("claims", "-A")) == (0, "no claim is pending\n")
    assert json.loads(explained(tmp_path, what=("pods", "-o", "json"))[1])["explanations"] == []


@pytest.mark.parametrize("arguments", [("node", "node-1"), ("node/node-1",)])
def test_explain_rejects_unknown_kinds(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, text = explained(tmp_path, what=arguments)

    assert code == 2
    assert "node cannot be explained. Name what to explain: 'claim NAME', 'pod NAME'" in words(text)


def test_a_folder_of_manifests_is_explained(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    folder.mkdir()
    save(folder / "pod.yaml", pod("guest", template="one-pizza"))
    save(folder / "template.yaml", template("one-pizza"))
    save(folder / "values.yaml", {"replicas": 3})
    (folder / "notes.txt").write_text("[")

    code, text = explained(tmp_path, what=("-f", str(folder)))

    assert code == 0
    assert "✓ pod default/guest can run on node-1, node-2\n" in text


def test_invalid_manifest_is_reported_with_its_position(tmp_path: Path) -> None:
    file = tmp_path / "driver.py"
    file.write_text("a: 1\nimport this\n")

    _, as_manifest = explained(tmp_path, what=("-f", str(file)))
    as_snapshot = run("explain", "claim", "lunch", "--from", file).output

    for text in (as_manifest, as_snapshot):
        assert text.startswith(f"error: {file} cannot be read: line 3, column 1: ")
        assert "string>" not in text


def test_missing_credentials_error_suggests_ways_to_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    result = run("explain", "claim", "lunch")

    assert result.exit_code == 2
    assert "to start a sandbox, run dra-kit sandbox TARGET --detach and pass its kubeconfig" in result.output
    assert "to read saved objects, use dra-kit explain --from PATH" in result.output


def test_missing_credentials_error_names_running_sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(STATE_VARIABLE, str(state_directory() / "this.json"))
    report_ready(["dra.pizza"], tmp_path / "kitchen")

    output = run("snapshot", tmp_path / "saved").output

    assert f"to use the sandbox of dra.pizza, add --kubeconfig {tmp_path / 'kitchen'}" in output


@pytest.mark.parametrize(
    "arguments", [("claim/",), ("claim/a", "b"), ("claim", "lunch", "-f", "{file}"), ("claim", "-f", "{file}")]
)
def test_explain_rejects_ambiguous_arguments(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    file = save(tmp_path / "order.yaml", claim("lunch"))

    result = run("explain", *(each.format(file=file) for each in arguments))

    assert result.exit_code == 2
    assert "Name what to explain" in result.output


def test_opaque_configuration_of_manifests_is_reported_once_as_not_checked(tmp_path: Path) -> None:
    config: list[Document] = [{"opaque": {"driver": driver, "parameters": {}}} for driver in ("dra.wine", "dra.pizza")]
    first, second = template("cheddar"), template("gouda")
    for each in (first, second):
        each["spec"]["spec"]["devices"]["config"] = config

    code, text = explained_manifest(tmp_path, first, second, pod("guest", template="cheddar"))

    assert code == 0
    assert (
        words(text).count(
            "the opaque configuration for dra.pizza, dra.wine is not checked: only the driver knows its rules; dra-kit "
            "lint --driver TARGET FILE checks it"
        )
        == 1
    )
    assert "not checked" not in explained_manifest(tmp_path, template("cheddar"), pod("guest", template="cheddar"))[1]

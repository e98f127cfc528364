"""``dra-kit snapshot``, and explanations from what it saved."""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path

import pytest
import yaml

from dra_kit.apiserver.api import ALL_VERSIONS
from dra_kit.apiserver.server import run_in_thread
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import DEVICE_CLASSES, EVENTS, NAMESPACES, POD_GROUPS, RESOURCE_QUOTAS
from dra_kit.diagnosis.explain.cluster import COPY_KINDS, KINDS, reduced
from dra_kit.diagnosis.snapshot import load, load_cluster
from dra_kit.kubernetes.release import Release
from tests.support.api import Api
from tests.unit.cli.cluster.saved import CLASS, KITCHEN, Document, claim, event, pod, run, save, slice_of, words


def test_an_explanation_is_the_same_from_a_snapshot(tmp_path: Path) -> None:
    with Api() as api:
        config = api.kubeconfig(tmp_path / "kubeconfig")
        api.put("resourceslices", slice_of("node-1", margherita="mozzarella"))
        api.put("nodes", KITCHEN[1])
        api.put("resourceclaims", claim("lunch", held=("node-1", "margherita")))
        live = run("explain", "claim", "lunch", "--kubeconfig", config)

        saved = run("snapshot", tmp_path / "kitchen.tar.gz", "--kubeconfig", config)

    assert saved.exit_code == 0
    assert saved.output.startswith("3 objects saved in ")
    assert run("explain", "claim", "lunch", "--from", tmp_path / "kitchen.tar.gz").output == live.output


@pytest.mark.parametrize("name", ["kitchen", "kitchen.tar.gz", "kitchen.tgz"])
def test_a_snapshot_knows_the_release_and_what_could_not_be_read(tmp_path: Path, name: str) -> None:
    with Api(minor="36") as api, api.failing(403, "GET", below="/api/v1/nodes"):
        api.put("resourceslices", slice_of("node-1", margherita="mozzarella"))

        run("snapshot", tmp_path / name, "--alpha", "--kubeconfig", api.kubeconfig(tmp_path / "config"))

    objects = load(tmp_path / name)
    assert (objects.version, objects.alpha) == ("1.36", True)
    assert [gap.kind for gap in objects.gaps] == ["Node"]
    assert [each["metadata"]["name"] for each in objects.documents["ResourceSlice"]] == ["node-1-slice"]


def test_a_snapshot_holds_no_secrets(tmp_path: Path) -> None:
    with run_in_thread() as server:
        config = tmp_path / "kubeconfig"
        config.write_text(yaml.safe_dump(server.kubeconfig()))

        assert run("snapshot", tmp_path / "saved", "--kubeconfig", config).exit_code == 0

    lists = [json.loads(file.read_text()) for file in (tmp_path / "saved").glob("*s.json")]
    assert {item["kind"] for found in lists for item in found["items"]} <= {*KINDS, *COPY_KINDS}


def test_a_snapshot_has_what_a_copy_needs_of_namespaces_quotas_and_pod_groups(tmp_path: Path) -> None:
    space: Document = {
        "metadata": {"name": "train", "labels": {"team": "vision"}, "annotations": {"contact": "a-secret"}},
    }
    quota: Document = {"metadata": {"name": "limits"}, "spec": {"hard": {"pods": "3"}}}
    group: Document = {"metadata": {"name": "gang"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}

    async def fill(config: Path) -> None:
        async with Client(await load_credentials(config), user_agent="test") as client:
            await client.create(DEVICE_CLASSES, CLASS)
            await client.create(NAMESPACES, space)
            await client.create(RESOURCE_QUOTAS, quota, "train")
            await client.create(POD_GROUPS, group, "train")

    with run_in_thread(release=Release.alpha(), runtime_config=ALL_VERSIONS) as server:
        config = tmp_path / "kubeconfig"
        config.write_text(yaml.safe_dump(server.kubeconfig()))
        asyncio.run(fill(config))

        assert run("snapshot", tmp_path / "saved.tgz", "--alpha", "--kubeconfig", config).exit_code == 0

    saved = load_cluster(tmp_path / "saved.tgz")
    others = {f"{item['kind']} {item['metadata']['name']}": item for _, item in saved.others}
    found = others["Namespace train"]
    assert (found["metadata"]["labels"]["team"], found["status"]) == ("vision", {"phase": "Active"})
    assert "annotations" not in found["metadata"]
    assert others["ResourceQuota limits"]["spec"] == quota["spec"]
    assert others["PodGroup gang"]["spec"]["schedulingPolicy"] == group["spec"]["schedulingPolicy"]


def test_missing_rights_to_what_copies_need_do_not_matter_to_explanations(tmp_path: Path) -> None:
    with Api() as api, api.failing(403, "GET", below="/api/v1/namespaces"):
        api.put("resourceslices", slice_of("node-1", margherita="mozzarella"))
        api.put("resourceclaims", claim("lunch"))
        config = api.kubeconfig(tmp_path / "config")

        saved = run("snapshot", tmp_path / "saved", "--kubeconfig", config)

    assert "you may not list namespaces: a copy of the cluster has its namespaces without labels" in saved.output
    assert "namespaces" not in run("explain", "claim", "lunch", "--from", tmp_path / "saved").output


def test_what_kubectl_wrote_is_a_snapshot_too(tmp_path: Path) -> None:
    slices = {"apiVersion": "v1", "kind": "List", "items": [slice_of("node-1", margherita="mozzarella")]}
    classes = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClassList",
               "items": [{"metadata": CLASS["metadata"], "spec": CLASS["spec"]}]}  # fmt: skip
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "slices.json").write_text(json.dumps(slices))
    save(tmp_path / "saved" / "rest.yaml", classes, claim("lunch"))

    result = run("explain", "claim", "lunch", "--from", tmp_path / "saved")

    assert result.exit_code == 0
    assert "✓ default/lunch fits on 1 of 1 node\n" in result.output


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "saved.yaml is not a saved cluster: it has none of ResourceSlice, "),
        (
            b'{"kind":"RecordingStarted","number":1}\n{}\n',
            "saved.yaml is a recording, not a saved cluster; show it with",
        ),
        (b"kind: [", "saved.yaml cannot be read: line 1, column 8: "),
        (b"- 1\n", "is not an object; it must have apiVersion, kind and metadata"),
    ],
)
def test_invalid_snapshot_is_rejected(tmp_path: Path, content: bytes, error: str) -> None:
    file = tmp_path / "saved.yaml"
    file.write_bytes(content)

    result = run("explain", "claim", "lunch", "--from", file)

    assert result.exit_code == 2
    assert error in result.output


def test_a_snapshot_of_a_release_without_the_api_is_refused(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    save(tmp_path / "saved" / "class.yaml", CLASS)
    (tmp_path / "saved" / "snapshot.json").write_text('{"version": "1.33"}')

    result = run("explain", "claim", "lunch", "--from", tmp_path / "saved")

    assert result.exit_code == 2
    assert result.output.startswith("error: the cluster is of release 1.33: Kubernetes 1.33 has no resource.k8s.io/v1")


def test_a_broken_archive_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "saved.tar.gz"
    file.write_bytes(b"no archive")

    assert "is not an archive of dra-kit snapshot" in run("explain", "claim", "lunch", "--from", file).output


def test_a_snapshot_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with Api() as api:
        result = run("snapshot", tmp_path / "no" / "a.tgz", "--kubeconfig", api.kubeconfig(tmp_path / "config"))

    assert result.exit_code == 2
    assert "no/a.tgz cannot be written: No such file or directory; use another path" in result.output


def test_a_snapshot_does_not_replace_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    result = run("snapshot", tmp_path / "file", "--kubeconfig", tmp_path / "not-even-looked-at")

    assert result.exit_code == 2
    assert "file: it is a file; use a folder, or an archive that ends in .tar.gz" in result.output


@pytest.mark.parametrize("name", ["saved.zip", "saved.tar", "saved.json"])
def test_a_snapshot_is_not_written_under_the_name_of_another_kind_of_file(tmp_path: Path, name: str) -> None:
    result = run("snapshot", tmp_path / name, "--kubeconfig", tmp_path / "not-even-looked-at")

    assert result.exit_code == 2
    assert "use a folder, or an archive that ends in .tar.gz or .tgz" in result.output
    assert not (tmp_path / name).exists()


def test_of_containers_it_holds_why_they_do_not_run_and_not_what_they_wrote(tmp_path: Path) -> None:
    ended = {"exitCode": 1, "reason": "Error", "message": "the last lines of a log"}
    entry = {"name": "eater", "image": "busybox", "lastState": {"terminated": ended},
             "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}}  # fmt: skip
    guest = pod("guest", nodeName="node-1")
    guest["status"] = {"phase": "Running", "containerStatuses": [entry]}

    assert reduced("Pod", guest)["status"]["containerStatuses"] == [
        {
            "name": "eater",
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
        }
    ]


def test_an_archive_can_be_unpacked(tmp_path: Path) -> None:
    with Api() as api:
        api.put("resourceclaims", claim("lunch"))
        run("snapshot", tmp_path / "saved.tgz", "--kubeconfig", api.kubeconfig(tmp_path / "config"))

    with tarfile.open(tmp_path / "saved.tgz") as archive:
        assert "resourceclaims.json" in archive.getnames()


def test_a_folder_with_a_snapshot_gets_the_new_one_and_nothing_of_the_old_one(tmp_path: Path) -> None:
    with Api() as api:
        config = api.kubeconfig(tmp_path / "config")
        api.put("resourceclaims", claim("lunch"))
        api.put("nodes", KITCHEN[1])
        run("snapshot", tmp_path / "saved", "--kubeconfig", config)
    with Api() as api, api.failing(403, "GET", below="/api/v1/nodes"):
        api.put("resourceslices", slice_of("node-1", margherita="mozzarella"))

        again = run("snapshot", tmp_path / "saved", "--kubeconfig", api.kubeconfig(tmp_path / "config"))

    assert again.exit_code == 0
    found = load(tmp_path / "saved").documents
    assert {kind for kind, documents in found.items() if documents} == {"ResourceSlice"}


@pytest.mark.parametrize("names", [["pods.json"], ["notes.txt"], ["snapshot.json", "mine.yaml"]])
def test_a_folder_with_other_files_is_refused(tmp_path: Path, names: list[str]) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("{}")

    with Api() as api:
        result = run("snapshot", folder, "--kubeconfig", api.kubeconfig(tmp_path / "config"))

    assert result.exit_code == 2
    assert f"the folder has other files, which would be read as objects: {names[-1]}; use a new" in words(result.output)
    assert sorted(file.name for file in folder.iterdir()) == sorted(names)


@pytest.mark.parametrize("name", ["kitchen", "kitchen.tar.gz"])
def test_snapshot_is_readable_only_by_its_owner(tmp_path: Path, name: str) -> None:
    with Api() as api:
        api.put("resourceslices", slice_of("node-1", margherita="mozzarella"))
        saved = run("snapshot", tmp_path / name, "--kubeconfig", api.kubeconfig(tmp_path / "config"))

    assert saved.exit_code == 0
    place = tmp_path / name
    files = list(place.iterdir()) if place.is_dir() else [place]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    if place.is_dir():
        assert place.stat().st_mode & 0o777 == 0o700
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(["config", name])


def test_snapshot_does_not_follow_symlinks(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "snapshot.json").symlink_to(other)
    (tmp_path / "saved" / "nodes.json").symlink_to(other)
    (tmp_path / "link").symlink_to(tmp_path / "saved")
    (tmp_path / "link.tgz").symlink_to(other)
    with Api() as api:
        config = api.kubeconfig(tmp_path / "config")
        assert run("snapshot", tmp_path / "saved", "--kubeconfig", config).exit_code == 0
        for name in ("link", "link.tgz"):
            refused = run("snapshot", tmp_path / name, "--kubeconfig", config)
            assert refused.exit_code == 2
            assert "it is a link to" in refused.output

    assert other.read_text() == "precious"
    assert not any(file.is_symlink() for file in (tmp_path / "saved").iterdir())


@pytest.mark.parametrize(("flags", "namespaces"), [((), {"kitchen"}), (("--all-events",), {"kitchen", "default"})])
def test_events_of_other_namespaces_are_saved_only_when_asked(
    tmp_path: Path, flags: tuple[str, ...], namespaces: set[str]
) -> None:
    own = event("pulled", "guest", "told")
    own["metadata"]["namespace"] = own["regarding"]["namespace"] = "kitchen"
    with run_in_thread() as server:
        config = tmp_path / "kubeconfig"
        config.write_text(yaml.safe_dump(server.kubeconfig()))
        put_events(config, event("pulled", "guest", "told"), own)
        saved = run("snapshot", tmp_path / "saved", "-n", "kitchen", "--kubeconfig", config, *flags)

    assert saved.exit_code == 0
    items = json.loads((tmp_path / "saved" / "events.json").read_text())["items"]
    assert {item["metadata"]["namespace"] for item in items} == namespaces


def put_events(config: Path, *events: Document) -> None:
    """Creates Events, and the namespaces that they are in."""

    async def put() -> None:
        async with Client(await load_credentials(config, None), user_agent="test", timeout=60) as client:
            await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kitchen"}})
            for one in events:
                moment = {"eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "action": "Told",
                          "reportingController": "example.com/oven", "reportingInstance": "one"}  # fmt: skip
                await client.create(EVENTS, {**one, **moment})

    asyncio.run(put())

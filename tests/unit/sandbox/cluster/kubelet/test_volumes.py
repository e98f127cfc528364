"""Volumes of pods: they wait for what they need, and their tokens are renewed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.resources import CONFIG_MAPS, SECRETS
from tests.unit.sandbox.cluster.kubelet.node import NAMESPACE, Node, node
from tests.unit.sandbox.cluster.kubelet.pods import SLEEPER, container, pod

NAME = {"fieldPath": "metadata.name"}


def with_volume(*sources: dict[str, Any]) -> dict[str, Any]:
    """A pod without the volume of admission that has another one."""
    volume = {"name": "menu", "projected": {"sources": list(sources)}}
    mounts = [{"name": "menu", "mountPath": "/run/menu"}]
    return pod({**SLEEPER, "volumeMounts": mounts}, automountServiceAccountToken=False, volumes=[volume])


async def test_pod_waits_for_the_config_map_of_a_volume(kitchen: Node) -> None:
    await kitchen.start(with_volume({"configMap": {"name": "menu"}}))

    events = await kitchen.events("FailedMount")
    assert ("FailedMount", 'MountVolume.SetUp failed for volume "menu" : configmap "menu" not found') in events
    assert (await kitchen.pod())["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
    await kitchen.client.create(CONFIG_MAPS, {"metadata": {"name": "menu"}, "data": {"a": "b"}}, NAMESPACE)
    await kitchen.phase("Running")


async def test_key_that_a_volume_names_must_exist(kitchen: Node) -> None:
    await kitchen.client.create(CONFIG_MAPS, {"metadata": {"name": "menu"}, "data": {"a": "b"}}, NAMESPACE)
    await kitchen.start(with_volume({"configMap": {"name": "menu", "items": [{"key": "c", "path": "c"}]}}))

    events = await kitchen.events("FailedMount")
    note = 'MountVolume.SetUp failed for volume "menu" : configmap references non-existent config key: c'
    assert ("FailedMount", note) in events


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/etc/motd", "must be relative path: /etc/motd"),
        ("a/../../b", "must not contain '..': a/../../b"),
        ("..data", "must not start with '..': ..data"),
    ],
)
async def test_file_outside_of_its_volume_is_refused(kitchen: Node, path: str, problem: str) -> None:
    item = {"path": path, "fieldRef": {"fieldPath": "metadata.name"}}
    await kitchen.start(with_volume({"downwardAPI": {"items": [item]}}))

    events = await kitchen.events("FailedMount")

    assert ("FailedMount", f'MountVolume.SetUp failed for volume "menu" : invalid path: {problem}') in events


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([{"path": "a", "fieldRef": NAME}, {"path": "a/b", "fieldRef": NAME}], "file exists"),
        ([{"path": ".", "fieldRef": NAME}], "is a directory"),
        ([{"path": "a" * 300, "fieldRef": NAME}], "file name too long"),
        ([{"path": "a\0b", "fieldRef": NAME}], "embedded null byte"),
        ([{"path": "a"}], "unsupported fieldPath: "),
        ([{"path": "a", "resourceFieldRef": {"containerName": "oven", "resource": "limits.cpu"}}],
         "container oven not found"),
    ],
)  # fmt: skip
async def test_volume_that_cannot_be_written_delays_only_its_pod(
    kitchen: Node, items: list[dict[str, Any]], problem: str
) -> None:
    await kitchen.start(with_volume({"downwardAPI": {"items": items}}))

    events = await kitchen.events("FailedMount")

    assert ("FailedMount", f'MountVolume.SetUp failed for volume "menu" : {problem}') in events


async def test_token_is_renewed_before_it_expires(kubelet_dir: Path) -> None:
    async with node(kubelet_dir, time_scale=2000) as made:
        await made.start(with_volume({"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}))
        await made.phase("Running")
        (token,) = kubelet_dir.glob("pods/*/volumes/kubernetes.io~projected/menu/token")
        first = token.read_text()

        await made.is_so(lambda: token.read_text() != first)


# --- other volumes


def with_volumes(*volumes: dict[str, Any], script: str = "sleep 3600", **mount: Any) -> dict[str, Any]:
    """A pod whose only container mounts each volume at /run/of-test/NAME."""
    mounts = [{"name": item["name"], "mountPath": f"/run/of-test/{item['name']}", **mount} for item in volumes]
    # where volumes cannot be mounted, the variable says where they are
    script = f'v() {{ echo "$DRA_KIT_SANDBOX_MOUNTS" | tr : "\\n" | grep "$1=" || echo =$1; }}; {script}'
    made = pod(container("eater", "sh", "-c", script, volumeMounts=mounts))
    return {**made, "spec": {**made["spec"], "automountServiceAccountToken": False, "volumes": list(volumes)}}


def read(name: str, file: str) -> str:
    return f'cat "$(v /run/of-test/{name} | cut -d= -f2)/{file}"'


@pytest.mark.parametrize("kind", ["configMap", "secret"])
async def test_volume_has_the_keys_of_its_object(kitchen: Node, kubelet_dir: Path, kind: str) -> None:
    resource, data = (CONFIG_MAPS, {"a": "funghi"}) if kind == "configMap" else (SECRETS, {"a": "ZnVuZ2hp"})
    await kitchen.client.create(resource, {"metadata": {"name": "menu"}, "data": data}, NAMESPACE)
    named = {"name": "menu"} if kind == "configMap" else {"secretName": "menu"}
    items = [{"key": "a", "path": "in/b", "mode": 0o400}]
    volumes = (
        {"name": "all", kind: {**named, "defaultMode": 0o440}},
        {"name": "one", kind: {**named, "items": items}},
    )
    await kitchen.start(with_volumes(*volumes, script=f"{read('all', 'a')}; {read('one', 'in/b')}"))
    await kitchen.phase("Succeeded")

    assert kitchen.output() == "funghifunghi"
    folder = kubelet_dir / "pods" / str((await kitchen.pod())["metadata"]["uid"]) / "volumes"
    (first,), (second,) = folder.glob("*/all/a"), folder.glob("*/one/in/b")
    assert (first.stat().st_mode & 0o777, second.stat().st_mode & 0o777) == (0o440, 0o400)


@pytest.mark.parametrize(
    ("volume", "note"),
    [
        ({"configMap": {"name": "menu"}}, 'configmap "menu" not found'),
        ({"secret": {"secretName": "menu"}}, 'secret "menu" not found'),
        ({"configMap": {"name": "here", "items": [{"key": "b", "path": "b"}]}},
         "configmap references non-existent config key: b"),
        ({"hostPath": {"path": "/etc/passwd", "type": "Directory"}},
         "hostPath type check failed: /etc/passwd is not a directory"),
        ({"hostPath": {"path": "/etc/", "type": "FileOrCreate"}}, "hostPath type check failed: /etc is not a file"),
        ({"hostPath": {"path": "/etc/none-of-test", "type": "File"}},
         "hostPath type check failed: /etc/none-of-test is not a file"),
        ({"hostPath": {"path": "/etc", "type": "Socket"}}, "hostPath type check failed: /etc is not a socket file"),
        ({"hostPath": {"path": "/etc", "type": "CharDevice"}},
         "hostPath type check failed: /etc is not a character device"),
        ({"hostPath": {"path": "/dev/null", "type": "BlockDevice"}},
         "hostPath type check failed: /dev/null is not a block device"),
    ],
)  # fmt: skip
async def test_pod_waits_for_a_volume_that_cannot_be_set_up(kitchen: Node, volume: dict[str, Any], note: str) -> None:
    await kitchen.client.create(CONFIG_MAPS, {"metadata": {"name": "here"}, "data": {"a": "b"}}, NAMESPACE)
    await kitchen.start(with_volumes({"name": "menu", **volume}))

    events = await kitchen.events("FailedMount")

    assert ("FailedMount", f'MountVolume.SetUp failed for volume "menu" : {note}') in events


async def test_optional_objects_give_empty_volumes(kitchen: Node) -> None:
    volume = {"name": "menu", "configMap": {"name": "none", "optional": True}}
    await kitchen.start(with_volumes(volume, script='ls "$(v /run/of-test/menu | cut -d= -f2)"'))
    await kitchen.phase("Succeeded")

    assert kitchen.output() == ""


async def test_downward_api_volume_has_fields_of_the_pod(kitchen: Node) -> None:
    volume = {"name": "who", "downwardAPI": {"items": [{"path": "name", "fieldRef": NAME}]}}
    await kitchen.start(with_volumes(volume, script=read("who", "name")))
    await kitchen.phase("Succeeded")

    assert kitchen.output() == "guest"


async def test_containers_of_a_pod_share_an_empty_folder(kitchen: Node, kubelet_dir: Path) -> None:
    made = with_volumes({"name": "dough", "emptyDir": {}}, script=read("dough", "a"))
    (eater,) = made["spec"]["containers"]
    script = 'echo funghi > "$(v /run/of-test/dough | cut -d= -f2)/a"'
    function = eater["command"][2].removesuffix(read("dough", "a"))
    made["spec"]["initContainers"] = [{**eater, "name": "baker", "command": ["sh", "-c", f"{function} {script}"]}]
    await kitchen.start(made)
    await kitchen.phase("Succeeded")

    assert kitchen.output() == "funghi\n"
    (folder,) = kubelet_dir.glob("pods/*/volumes/kubernetes.io~empty-dir/dough")
    assert folder.stat().st_mode & 0o777 == 0o777


async def test_part_of_a_volume_is_mounted(kitchen: Node, kubelet_dir: Path) -> None:
    volume = {"name": "dough", "emptyDir": {}}
    await kitchen.start(with_volumes(volume, script="touch $(v /run/of-test/dough | cut -d= -f2)/x", subPath="a/b"))
    await kitchen.phase("Succeeded")

    assert list(kubelet_dir.glob("pods/*/volumes/kubernetes.io~empty-dir/dough/a/b/x"))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("../x", "unable to provision SubPath `../x`: must not contain '..'"),
        ("/x", "unable to provision SubPath `/x`: must be a relative path"),
        ("passwd/x", 'failed to create subPath directory for volumeMount "etc" of container "eater"'),
    ],
)
async def test_part_that_is_not_in_its_volume_keeps_the_container_from_starting(
    kitchen: Node, part: str, message: str
) -> None:
    made = with_volumes({"name": "etc", "hostPath": {"path": "/etc"}})
    mount = made["spec"]["containers"][0]["volumeMounts"][0]
    mount |= {"subPathExpr": "$(PART)"}
    made["spec"]["containers"][0]["env"] = [{"name": "PART", "value": part}]
    await kitchen.start(made)

    events = await kitchen.events("Failed")

    assert ("Failed", f"Error: {message}") in events


async def test_paths_of_the_node_are_those_of_its_kubelet(kitchen: Node, kubelet_dir: Path) -> None:
    (kubelet_dir / "plugins" / "x").mkdir(parents=True)
    (kubelet_dir / "plugins" / "x" / "a").write_text("funghi")
    volume = {"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/plugins", "type": "Directory"}}
    await kitchen.start(with_volumes(volume, script=read("plugins", "x/a")))
    await kitchen.phase("Succeeded")

    assert kitchen.output() == "funghi"


async def test_path_that_has_to_be_created_is_not_created_on_this_machine(kitchen: Node, kubelet_dir: Path) -> None:
    volume = {"name": "x", "hostPath": {"path": "/opt/of-test", "type": "DirectoryOrCreate"}}
    await kitchen.start(with_volumes(volume, script="touch $(v /run/of-test/x | cut -d= -f2)/a"))
    await kitchen.phase("Succeeded")

    assert (kubelet_dir / "host/opt/of-test/a").exists()
    assert not Path("/opt/of-test").exists()

"""Partitions that are made when a claim is prepared: what is left when the claim goes, or the driver is killed."""

from pathlib import Path

import dra_kit as dra
import pytest

from gpu_driver.effects.mig.compute_instance import CreateComputeInstance
from gpu_driver.effects.mig.gpu_instance import CreateGpuInstance
from gpu_driver.effects.mig.mode import SetMigMode
from gpu_driver.host.capabilities import capability_nodes
from gpu_driver.nvml.backend import NvmlBackend, Placement
from gpu_driver.nvml.fake import injection
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.profile import Fault
from tests.conftest import Node

LARGE, SMALL, SHARED = "gpu-0-mig-3g40gb-9-0", "gpu-0-mig-1g10gb-19-4", "gpu-0-mig-4g40gb-5-0-shared"


def instances(nvml: NvmlBackend, uuid: str) -> list[tuple[int, int]]:
    """Profile and first slice of what there is."""
    return [(instance.profile_id, instance.placement.start) for instance in nvml.gpu_instances(uuid)]


def by_hand(nvml: NvmlBackend, uuid: str, start: int = 0) -> None:
    """What an administrator does."""
    nvml.set_mig_mode(uuid, enabled=True)
    made = nvml.create_gpu_instance(uuid, 9, Placement(start, 4))
    nvml.create_compute_instance(uuid, made.id, 2)


def test_a_partition_is_created_at_its_placement_and_deleted_with_its_claim(node: Node) -> None:
    [prepared] = node.bench.prepare("train", [node.devices[LARGE]])
    assert prepared.env["GPU_0_MIG_3G40GB_9_0_UUID"].startswith("MIG-")
    assert list(prepared.hardware_ids) == [prepared.env["GPU_0_MIG_3G40GB_9_0_UUID"]], "as nvidia-smi names it"
    assert instances(node.nvml, node.first) == [(9, 0)]
    node.bench.unprepare("train")
    assert instances(node.nvml, node.first) == []
    assert not node.nvml.mig_mode(node.first).current


def test_mig_stays_on_until_the_last_partition_is_released(node: Node) -> None:
    devices = node.devices
    node.bench.prepare("train", [devices[LARGE]])
    node.bench.prepare("serve", [devices[SMALL]])
    node.bench.unprepare("train")
    assert node.nvml.mig_mode(node.first).current
    node.bench.unprepare("serve")
    assert not node.nvml.mig_mode(node.first).current


def test_the_container_gets_the_gpu_and_two_capabilities(node: Node) -> None:
    [prepared] = node.bench.prepare("train", [node.devices[LARGE]])
    paths = [device.path for device in prepared.device_nodes]
    assert paths[0] == "/dev/nvidia0"
    assert [path.rsplit("-", 1)[0] for path in paths[1:]] == ["/dev/nvidia-caps/nvidia"] * 2
    assert all((node.hardware.host / path.lstrip("/")).exists() for path in paths)


def test_prepare_waits_for_capabilities_in_procfs(tmp_path: Path) -> None:
    with pytest.raises(dra.NotYet, match="nvidia-modprobe -f caps"):
        capability_nodes(tmp_path, minor=0, gpu_instance=1, compute_instance=0)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text("Character devices:\n  1 mem\n508 nvidia-caps\n")
    with pytest.raises(dra.NotYet, match=r"gi1/access.*the partition is not ready"):
        capability_nodes(tmp_path, minor=0, gpu_instance=1, compute_instance=0)


def test_a_partition_destroyed_by_an_administrator_is_created_again(node: Node) -> None:
    device = node.devices[LARGE]
    [first] = node.bench.prepare("train", [device])
    [instance] = node.nvml.gpu_instances(node.first)
    node.nvml.destroy_compute_instance(node.first, instance.id, 0)
    node.nvml.destroy_gpu_instance(node.first, instance.id)
    [again] = node.bench.prepare("train", [device])
    assert instances(node.nvml, node.first) == [(9, 0)]
    assert again.env != first.env


def test_a_partition_created_by_an_administrator_is_not_used(node: Node) -> None:
    device = node.devices[LARGE]
    by_hand(node.nvml, node.first)
    with pytest.raises(dra.TransientError, match="this driver has not made it"):
        node.bench.prepare("train", [device])
    assert instances(node.nvml, node.first) == [(9, 0)]


def test_a_place_under_a_partition_of_an_administrator_is_not_offered(node: Node) -> None:
    by_hand(node.nvml, node.first, start=4)
    offered = {name for name in node.devices if name.startswith("gpu-0-")}
    assert LARGE in offered
    assert SMALL not in offered
    assert "gpu-0" not in node.devices


def test_a_partition_of_an_administrator_survives_neighboring_claims(node: Node) -> None:
    by_hand(node.nvml, node.first, start=4)
    node.bench.prepare("train", [node.devices[LARGE]])
    node.bench.unprepare("train")
    assert instances(node.nvml, node.first) == [(9, 4)]
    assert node.nvml.mig_mode(node.first).current


def test_shares_of_a_partition_have_separate_compute_instances(node: Node) -> None:
    shared = node.devices[SHARED]
    prepared = [node.bench.prepare(name, [shared])[0] for name in ("one", "two")]
    [instance] = node.nvml.gpu_instances(node.first)
    assert {made.mig_uuid for made in instance.compute_instances} == {
        value for item in prepared for name, value in item.env.items() if name.endswith("_UUID")
    }
    node.bench.unprepare("one")
    [instance] = node.nvml.gpu_instances(node.first)
    assert len(instance.compute_instances) == 1
    node.bench.unprepare("two")
    assert instances(node.nvml, node.first) == []


def parent(node: Node) -> CreateGpuInstance:
    effect = CreateGpuInstance(uuid=node.first, profile="4g.40gb", profile_id=5, start=0, size=4)
    return effect.with_hardware(node.hardware)


def make_parent(node: Node) -> int:
    node.nvml.set_mig_mode(node.first, enabled=True)
    return parent(node).apply(None)


def shares(node: Node) -> list[CreateComputeInstance]:
    """Return two shares of one GPU instance."""
    made = [CreateComputeInstance(parent=parent(node), slices=1, owner=owner) for owner in ("one", "two")]
    return [share.with_hardware(node.hardware) for share in made]


@pytest.mark.parametrize("begun_again", [True, False])
def test_mig_mode_set_before_a_crash_is_reverted(node: Node, begun_again: bool) -> None:
    effect = SetMigMode(uuid=node.first, enabled=True).with_hardware(node.hardware)
    effect.apply(None)  # the driver was killed before it could store what there was
    effect.revert(effect.apply(None) if begun_again else None)
    assert not node.nvml.mig_mode(node.first).current
    assert node.journal == []


def test_a_gpu_instance_created_before_a_crash_is_found(node: Node) -> None:
    node.nvml.set_mig_mode(node.first, enabled=True)
    effect = parent(node)
    made = effect.apply(None)
    assert effect.apply(None) == made  # the driver was killed before it could store the first outcome
    effect.revert(None)
    assert instances(node.nvml, node.first) == []


def test_a_compute_instance_of_another_share_is_not_adopted(node: Node) -> None:
    made = make_parent(node)
    mine, other = shares(node)
    node.hardware.journal.begin(mine._entry, [])  # killed before the instance was made
    theirs = other.apply(None)
    assert mine.apply(None).mig_uuid != theirs.mig_uuid
    mine.revert(None)
    assert [made.mig_uuid for made in node.nvml.gpu_instances(node.first)[0].compute_instances] == [theirs.mig_uuid]
    assert made == node.nvml.gpu_instances(node.first)[0].id


def test_shares_prepared_in_another_order_after_a_reboot_are_separate(node: Node) -> None:
    one, two = shares(node)
    make_parent(node)
    before = [one.apply(None), two.apply(None)]
    injection.reboot(node.nvml)
    make_parent(node)
    second = two.apply(before[1])
    assert second.compute_instance == before[0].compute_instance, "NVML gives an id again"
    assert one.apply(before[0]).mig_uuid != second.mig_uuid


def test_a_share_released_after_a_reboot_keeps_the_instance_of_another_share(node: Node) -> None:
    one, two = shares(node)
    make_parent(node)
    before = one.apply(None)
    injection.reboot(node.nvml)
    make_parent(node)
    there = two.apply(None)
    # a UUID that is made of the ids alone
    one.revert(before.model_copy(update={"mig_uuid": there.mig_uuid}))
    assert two.holds(there)


def test_a_partition_in_use_is_not_destroyed_and_the_error_says_why(node: Node) -> None:
    node.bench.prepare("train", [node.devices[LARGE]])
    [instance] = node.nvml.gpu_instances(node.first)
    node.change(clients={instance.compute_instances[0].mig_uuid: [4711]})
    with pytest.raises(dra.TransientError, match="still used"):
        node.bench.unprepare("train")
    node.change(clients={})
    node.bench.unprepare("train")
    assert instances(node.nvml, node.first) == []


def test_a_partition_of_a_lost_gpu_is_released(node: Node) -> None:
    node.bench.prepare("train", [node.devices[LARGE]])
    injection.lose(node.nvml.state, node.first)
    node.bench.unprepare("train")
    assert node.bench.effects == []
    assert node.journal == []


def test_a_partition_of_a_removed_gpu_is_released(node: Node) -> None:
    node.bench.prepare("train", [node.devices[LARGE]])
    node.change(driver="")
    node.bench.unprepare("train")
    assert node.bench.effects == []
    assert node.journal == []


@pytest.mark.parametrize(
    "call", ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstanceWithPlacement"]
)
@pytest.mark.parametrize("code", ["INSUFFICIENT_RESOURCES", "IN_USE", "NO_PERMISSION", "UNKNOWN"])
def test_a_failed_creation_leaves_nothing_and_is_retried(node: Node, call: str, code: str) -> None:
    before, device = node.nvml.state.read(), node.devices[LARGE]
    node.fail(Fault(call=call, times=None, error=code))
    with pytest.raises(dra.PrepareError, match=rf"{node.first}"):
        node.bench.prepare("train", [device])
    node.fail()
    assert node.nvml.state.read().gpus == before.gpus or not node.nvml.gpu_instances(node.first)
    assert node.journal == []
    node.bench.prepare("train", [device])
    assert instances(node.nvml, node.first) == [(9, 0)]


@pytest.mark.parametrize("profile", ["a100-40gb"])
def test_ampere_without_mig_is_offered_only_whole_because_mig_needs_a_reset(node: Node) -> None:
    assert [name for name in node.devices if name.startswith("gpu-0")] == ["gpu-0", "gpu-0-monitor"]


@pytest.mark.parametrize("profile", ["a100-mig"])
def test_partitions_that_exist_are_offered_with_their_uuid_and_stay(node: Node) -> None:
    device = node.devices["gpu-1-mig-2g10gb-14-2"]
    before = FakeNvml(node.nvml.profile, node.hardware.host.parent).state.read()
    [prepared] = node.bench.prepare("train", [device])
    assert prepared.env["GPU_1_MIG_2G10GB_14_2_UUID"] == device.attributes["uuid"]
    node.bench.unprepare("train")
    assert node.nvml.state.read() == before


def test_a_management_pod_changes_nothing_and_gets_every_gpu(node: Node) -> None:
    before = node.nvml.state.read()
    monitors = [device for device in node.devices.values() if device.kind == "monitor"]
    prepared = node.bench.prepare("dcgm", monitors, admin_access=True)
    assert [item.device_nodes[0].path for item in prepared] == [f"/dev/nvidia{minor}" for minor in range(2)]
    node.bench.unprepare("dcgm")
    assert node.nvml.state.read() == before


def test_admin_access_to_a_partition_creates_none(node: Node) -> None:
    before = node.nvml.state.read()
    with pytest.raises(dra.PrepareError):
        node.bench.prepare("look", [node.devices[LARGE]], admin_access=True)
    node.bench.unprepare("look")
    assert node.nvml.state.read() == before


def test_admin_access_to_an_existing_partition_does_not_change_it(node: Node) -> None:
    device = node.devices[LARGE]
    [tenant] = node.bench.prepare("train", [device])
    [admin] = node.bench.prepare("look", [device], admin_access=True)
    assert admin.env == tenant.env
    node.bench.unprepare("look")
    assert instances(node.nvml, node.first) == [(9, 0)]


def test_two_partitions_of_one_claim_share_the_control_nodes(node: Node) -> None:
    large, small = node.bench.prepare("both", [node.devices[LARGE], node.devices[SMALL]])
    assert sorted(instances(node.nvml, node.first)) == [(9, 0), (19, 4)]
    assert large.claim_edits == small.claim_edits
    assert not {node.path for node in large.claim_edits.device_nodes} & {node.path for node in large.device_nodes}

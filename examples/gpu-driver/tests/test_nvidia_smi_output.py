"""What ``make test-gpu`` compares with is read right: the tables of nvidia-smi, and its settings among what varies."""

import pytest

from gpu_driver.nvml.backend import Placement
from gpu_driver.nvml.fake.fake import profile_of
from gpu_driver.nvml.fake.profile import load
from tests.gpu import nvidia_smi

_LGIP = """\
+-------------------------------------------------------------------------------+
| GPU instance profiles:                                                        |
| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                                Free/Total   GiB              CE    JPEG  OFA  |
|===============================================================================|
|   0  MIG 1g.10gb         19     7/7        9.75       No     16     1     0   |
|                                                               1     1     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.10gb+me      20     1/1        9.75       No     16     1     0   |
|                                                               1     1     1   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.20gb         15     4/4        19.62      No     26     1     0   |
|                                                               1     1     0   |
+-------------------------------------------------------------------------------+
|   1  MIG 3g.40gb          9     2/2        39.50      No     60     3     0   |
|                                                               3     3     0   |
+-------------------------------------------------------------------------------+
"""

_LGIPP = """\
GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID  9 Placements: {0,4}:4
GPU  0 Profile ID  0 Placement : {0}:8
"""


def test_profiles_are_parsed_from_the_table() -> None:
    table = load("h100").gpu_types["h100"].mig
    assert table is not None
    known = {row.id: nvidia_smi.row_of(profile_of(row)) for row in table.gi}
    assert nvidia_smi.profiles(_LGIP) == {0: [known[19], known[20], known[15]], 1: [known[9]]}


def test_placements_are_parsed_from_the_list() -> None:
    places = nvidia_smi.placements(_LGIPP)
    assert places[0, 9] == (Placement(0, 4), Placement(4, 4))
    assert places[0, 0] == (Placement(0, 8),)
    assert len(places[0, 19]) == 7


_LOG = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<timestamp>{time}</timestamp>
	<driver_version>580.65.06</driver_version>
	<gpu id="00000000:18:00.0">
		<persistence_mode>{persistence}</persistence_mode>
		<mig_mode>
			<current_mig>Enabled</current_mig>
			<pending_mig>Enabled</pending_mig>
		</mig_mode>
		<mig_devices>
			<mig_device>
				<index>0</index>
				<gpu_instance_id>{instance}</gpu_instance_id>
				<compute_instance_id>0</compute_instance_id>
				<fb_memory_usage><used>{used} MiB</used></fb_memory_usage>
			</mig_device>
		</mig_devices>
		<pci><tx_util>{used} KB/s</tx_util></pci>
		<performance_state>P{state}</performance_state>
		<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>{ecc}</pending_ecc></ecc_mode>
		<temperature><gpu_temp>{state}0 C</gpu_temp></temperature>
		<gpu_power_readings>
			<instant_power_draw>{used}.53 W</instant_power_draw>
			<requested_power_limit>{limit} W</requested_power_limit>
		</gpu_power_readings>
		<clocks><sm_clock>{used} MHz</sm_clock></clocks>
		<applications_clocks><mem_clock>2619 MHz</mem_clock></applications_clocks>
		<processes></processes>
	</gpu>
</nvidia_smi_log>
{warning}"""
_SET = {"persistence": "Enabled", "ecc": "Enabled", "limit": "700.00", "instance": "7"}
_READ = {"time": "Mon", "used": 1, "state": 0, "warning": ""}


def settings(**other: object) -> dict[str, str]:
    return nvidia_smi.settings_of(_LOG.format(**{**_SET, **_READ, **other}))


def test_settings_are_parsed_for_each_gpu_and_its_partitions() -> None:
    assert settings() == {
        "00000000:18:00.0/persistence_mode": "Enabled",
        "00000000:18:00.0/mig_mode/current_mig": "Enabled",
        "00000000:18:00.0/mig_mode/pending_mig": "Enabled",
        "00000000:18:00.0/mig_devices": "7/0",
        "00000000:18:00.0/ecc_mode/current_ecc": "Enabled",
        "00000000:18:00.0/ecc_mode/pending_ecc": "Enabled",
        "00000000:18:00.0/gpu_power_readings/requested_power_limit": "700.00 W",
        "00000000:18:00.0/applications_clocks/mem_clock": "2619 MHz",
    }


def test_readings_and_warnings_are_not_settings() -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:18:00.0\n"
    assert settings(time="Tue", used=1980, state=8, warning=warning) == settings()


@pytest.mark.parametrize("name", _SET)
def test_a_changed_setting_is_detected(name: str) -> None:
    assert settings(**{name: "other"}) != settings()


@pytest.mark.parametrize("printed", ["[N/A]", "N/A", " [Not Supported] ", "[Unknown Error]", "None", "[None]"])
def test_a_placeholder_for_no_value_is_none(printed: str) -> None:
    assert nvidia_smi.value(printed) == ""


def test_partitions_are_parsed_from_the_list() -> None:
    printed = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5e4b5e0d-9f6f-4a2e-8a6e-1b2c3d4e5f60)
  MIG 3g.40gb     Device  0: (UUID: MIG-3f1c2b9a-0d4e-5f6a-8b7c-9d0e1f2a3b4c)
  MIG 1c.2g.20gb  Device  1: (UUID: MIG-4f1c2b9a-0d4e-5f6a-8b7c-9d0e1f2a3b4c)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-6e4b5e0d-9f6f-4a2e-8a6e-1b2c3d4e5f60)
"""
    assert nvidia_smi.partitions(printed) == [
        "MIG-3f1c2b9a-0d4e-5f6a-8b7c-9d0e1f2a3b4c",
        "MIG-4f1c2b9a-0d4e-5f6a-8b7c-9d0e1f2a3b4c",
    ]

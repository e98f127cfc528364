"""What ``make test-gpu`` compares with is read right: the tables of nvidia-smi, and its settings among what varies."""

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


def test_profiles_are_those_of_the_table() -> None:
    table = load("h100").gpu_types["h100"].mig
    assert table is not None
    known = {row.id: nvidia_smi.row_of(profile_of(row)) for row in table.gi}
    assert nvidia_smi.profiles(_LGIP) == {0: [known[19], known[20], known[15]], 1: [known[9]]}


def test_places_are_those_of_the_list() -> None:
    places = nvidia_smi.placements(_LGIPP)
    assert places[0, 9] == (Placement(0, 4), Placement(4, 4))
    assert places[0, 0] == (Placement(0, 8),)
    assert len(places[0, 19]) == 7


def test_settings_are_compared_and_temperatures_are_not() -> None:
    log = "<log><timestamp>{}</timestamp><gpu><compute_mode>{}</compute_mode><clocks><sm>{}</sm></clocks></gpu></log>"
    before = nvidia_smi.settings_of(log.format(1, "Default", 210))
    assert before == nvidia_smi.settings_of(log.format(2, "Default", 1980))
    assert before != nvidia_smi.settings_of(log.format(1, "Prohibited", 210))

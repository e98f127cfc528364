"""What is tested on real GPUs changes nothing on them, and that is tested, too."""

import shutil
from collections.abc import Iterator

import pytest

from tests.gpu import nvidia_smi


@pytest.fixture(scope="session", autouse=True)
def unchanged() -> Iterator[None]:
    """What nvidia-smi shows before and after, but for clocks, temperatures and load."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no GPU was tested: nvidia-smi is not on the PATH; run this on a machine with NVIDIA's driver")
    try:
        before = nvidia_smi.settings_of(nvidia_smi.run("-q", "-x"))
    except nvidia_smi.Refused as error:
        pytest.skip(f"no GPU was tested: {error}")
    yield
    after = nvidia_smi.settings_of(nvidia_smi.run("-q", "-x"))
    changed = {
        path: f"{before.get(path)} is {after.get(path)} now"
        for path in {*before, *after}
        if before.get(path) != after.get(path)
    }
    assert changed == {}, "a setting of a GPU is another one than before the tests"

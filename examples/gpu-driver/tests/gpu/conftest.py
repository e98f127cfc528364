"""What is tested on real GPUs changes nothing on them, and that is tested, too."""

import shutil
from collections.abc import Iterator

import pytest

from tests.gpu import nvidia_smi
from tests.mps_session import RECORDING


@pytest.fixture(scope="session", autouse=True)
def unchanged() -> Iterator[None]:
    """Compare the settings of all GPUs before and after the tests."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no GPU was tested: nvidia-smi is not on the PATH; run this on a machine with NVIDIA's driver")
    try:
        before = nvidia_smi.settings()
    except nvidia_smi.Refused as error:
        pytest.skip(f"no GPU was tested: {error}")
    if not before:
        pytest.skip("no GPU was tested: nvidia-smi lists none")
    yield
    after = nvidia_smi.settings()
    changed = {
        name: f"{before.get(name)} before, {after.get(name)} after"
        for name in {*before, *after}
        if before.get(name) != after.get(name)
    }
    assert changed == {}, "a setting of a GPU changed: by the tests, or by another user meanwhile"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the file to send back."""
    if RECORDING.exists():
        terminalreporter.write_line(f"MPS was recorded in {RECORDING}; send it back, as tests/gpu/README.md says")

"""The containers of ``make test-gpu`` and ``make bench-gpu``: what a claim mounts is there, and nowhere else."""

from pathlib import Path

import pytest
from dra_kit.testing import ContainerFacts

from tests.gpu import container


@pytest.mark.usefixtures("may_mount")
def test_mounts_below_links_stay_in_their_container(tmp_path: Path) -> None:
    """``/var/run`` is an absolute link on most machines: containers would share the files of the machine behind it."""
    (tmp_path / "metadata.json").write_text("{}\n")
    inside = "/var/run/kubernetes.io/dra-device-attributes/of-a-test/metadata.json"
    got = ContainerFacts(mounts={inside: str(tmp_path / "metadata.json")})
    running = [container.start(got, "cat", inside) for _ in range(4)]
    assert [process.communicate() for process in running] == [("{}\n", "")] * 4
    assert not Path(inside).exists()

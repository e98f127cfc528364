"""A container runtime's CDI status at its socket, over real gRPC with a fake runtime."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from typing_extensions import override

from dra_kit.diagnosis.node_checks import RuntimeInfo, check_runtime, info_findings
from dra_kit.kubelet.proto import cri_v1_pb2 as pb
from dra_kit.kubelet.proto import cri_v1_pb2_grpc as pb_grpc

CDI = Path("/var/run/cdi")


class Runtime(pb_grpc.RuntimeServiceServicer):
    """Answers as containerd does: the configuration is JSON, and only asked for verbosely."""

    def __init__(self, name: str, version: str, config: str) -> None:
        self._name, self._version, self._config = name, version, config

    @override
    async def Version(self, request: pb.VersionRequest, context: Any) -> pb.VersionResponse:
        return pb.VersionResponse(version="0.1.0", runtime_name=self._name, runtime_version=self._version)

    @override
    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        return pb.StatusResponse(info={"config": self._config} if request.verbose else {})


@asynccontextmanager
async def runtime(config: str, *, name: str = "containerd", version: str = "v2.4.2") -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cri") as directory:
        socket = Path(directory) / "cri.sock"
        server = grpc.aio.server()
        pb_grpc.add_RuntimeServiceServicer_to_server(Runtime(name, version, config), server)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        yield socket
        await server.stop(None)


async def reported(config: str, **says: str) -> str:
    async with runtime(config, **says) as socket:
        [finding] = await check_runtime(socket, CDI)
    assert finding.verdict == "ok" or finding.remedy
    return f"{finding.verdict} {finding.text}"


async def test_containerd_reports_whether_and_where_it_reads_cdi_files() -> None:
    reads = {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi", str(CDI)]}
    assert await reported(json.dumps(reads)) == f"ok containerd 2.4.2 reads CDI files in {CDI}"
    assert await reported(json.dumps(reads | {"enableCDI": False})) == "FAIL containerd 2.4.2 has CDI off"
    assert await reported(json.dumps(reads | {"cdiSpecDirs": ["/etc/cdi"]})) == (
        f"FAIL containerd 2.4.2 reads CDI files in /etc/cdi, not in {CDI}"
    )


async def test_a_runtime_that_reports_nothing_about_cdi_passes() -> None:
    sandbox = json.dumps({"sandboxImage": "pause"})
    assert await reported(sandbox, name="cri-o", version="1.34.0") == (
        "ok cri-o 1.34.0 answers, but does not report whether CDI is on; see its release"
    )


@pytest.mark.parametrize("config", ["", "no JSON", "[]", "null"])
async def test_an_invalid_configuration_is_treated_as_missing(config: str) -> None:
    assert (await reported(config)).startswith("ok containerd 2.4.2 answers")


async def test_a_runtime_that_does_not_answer_is_a_warning(tmp_path: Path) -> None:
    [finding] = await check_runtime(tmp_path / "none.sock", CDI)
    assert (finding.verdict, finding.text) == (
        "warn", f"the container runtime at {tmp_path}/none.sock does not report its configuration (UNAVAILABLE)",
    )  # fmt: skip
    assert finding.remedy


def test_links_to_a_directory_are_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").symlink_to(tmp_path)
    info = RuntimeInfo("containerd 2.4.2", {"enableCDI": True, "cdiSpecDirs": [str(tmp_path / "run")]})
    assert [item.verdict for item in info_findings(info, tmp_path / "var" / "run")] == ["ok"]

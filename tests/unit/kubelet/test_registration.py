"""The registration socket: what the kubelet asks and tells, and that it is answered whatever else goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grpc
import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.kubelet.plugin_server import KubeletDevice, PluginServer, RegistrationServer, RegistrationStatus
from dra_kit.kubelet.proto import dra_v1_pb2, dra_v1_pb2_grpc
from dra_kit.kubelet.proto import pluginregistration_v1_pb2 as pb
from dra_kit.kubelet.proto import pluginregistration_v1_pb2_grpc as pb_grpc
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.support.api import eventually
from tests.unit.kubelet.wire import Service

ENDPOINT = Path("/var/lib/kubelet/plugins/dra.pizza/dra.sock")
GENEROUS = 60.0


@pytest.fixture
def socket(kubelet_dir: Path) -> Path:
    return kubelet_dir / "plugins_registry" / "dra.pizza-reg.sock"


@pytest.fixture
def server(socket: Path) -> Iterator[RegistrationServer]:
    server = RegistrationServer(
        "dra.pizza",
        endpoint=ENDPOINT,
        supported_versions=("v1.DRAPlugin", "v1beta1.DRAPlugin"),
        socket=socket,
    )
    server.start()
    yield server
    server.stop(0)


def get_info(socket: Path) -> pb.PluginInfo:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        return pb_grpc.RegistrationStub(channel).GetInfo(pb.InfoRequest(), timeout=GENEROUS)


def notify(socket: Path, *, registered: bool, error: str = "") -> None:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        verdict = pb.RegistrationStatus(plugin_registered=registered, error=error)
        pb_grpc.RegistrationStub(channel).NotifyRegistrationStatus(verdict, timeout=GENEROUS)


def test_get_info(server: RegistrationServer, socket: Path) -> None:
    assert get_info(socket) == pb.PluginInfo(
        type="DRAPlugin",
        name="dra.pizza",
        endpoint=str(ENDPOINT),
        supported_versions=["v1.DRAPlugin", "v1beta1.DRAPlugin"],
    )


def test_the_last_verdict_is_kept(server: RegistrationServer, socket: Path) -> None:
    before = server.status
    assert before is None
    notify(socket, registered=False, error="endpoint taken")
    assert server.status == RegistrationStatus(registered=False, error="endpoint taken")
    notify(socket, registered=True)
    assert server.status == RegistrationStatus(registered=True)


def test_a_refusal_is_logged_as_an_error(
    server: RegistrationServer, socket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notify(socket, registered=False, error="endpoint taken")

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "the kubelet rejects driver dra.pizza: endpoint taken")
    ]


def test_stop_removes_the_socket_and_a_second_stop_is_harmless(server: RegistrationServer, socket: Path) -> None:
    server.stop(0)
    server.stop(0)

    assert list(socket.parent.iterdir()) == []


def test_other_file_at_the_registration_path_is_an_error(socket: Path) -> None:
    socket.parent.mkdir()
    socket.write_text("")
    server = RegistrationServer("dra.pizza", endpoint=ENDPOINT, supported_versions=["v1.DRAPlugin"], socket=socket)

    with pytest.raises(ConfigurationError, match="remove it"):
        server.start()
    server.stop(0)


class Busy(Service):
    """Keeps the event loop busy, as an author's code should not it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[KubeletDevice] | Exception]:
        self.begun.set()
        while not self.go_on.is_set():
            pass
        return await super().prepare(claims)


async def test_get_info_is_answered_while_the_event_loop_is_blocked(
    server: RegistrationServer, socket: Path, kubelet_dir: Path
) -> None:
    service = Busy()
    plugin = PluginServer(service, kubelet_dir / "dra.sock")
    await plugin.start()
    found: list[str] = []

    def kubelet() -> None:
        # another connection asks while this one's call holds the loop
        with grpc.insecure_channel(f"unix:{kubelet_dir / 'dra.sock'}") as channel:
            request = dra_v1_pb2.NodePrepareResourcesRequest(
                claims=[dra_v1_pb2.Claim(namespace="default", name="oven", uid="uid-1")]
            )
            call = dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources.future(request, timeout=GENEROUS)
            try:
                assert service.begun.wait(GENEROUS)
                found.append(get_info(socket).name)
            finally:
                service.go_on.set()
            found.extend(call.result().claims)

    thread = threading.Thread(target=kubelet)
    thread.start()
    await eventually(lambda: not thread.is_alive())
    await plugin.stop(0)

    assert found == ["dra.pizza", "uid-1"]

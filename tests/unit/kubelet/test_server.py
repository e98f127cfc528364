"""The DRA service on its socket: two versions, one answer per claim, an orderly end."""

from __future__ import annotations

import asyncio
import os
import socket as sockets
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import grpc.aio
import pytest

from dra_kit.errors import ConfigurationError, PermanentError
from dra_kit.kubelet.plugin_server import KubeletDevice, PluginServer
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.support.api import eventually
from tests.unit.kubelet.wire import Service, connect, serving

OVEN = ClaimReference("default", "oven", "uid-1")
STOVE = ClaimReference("kitchen", "stove", "uid-2")


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


@pytest.fixture
async def service(socket: Path) -> AsyncIterator[Service]:
    service = Service()
    async with serving(service, socket):
        yield service


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_prepare_answers_every_claim_of_the_batch(service: Service, socket: Path, version: str) -> None:
    async with connect(socket, version) as client:
        answers = await client.prepare([OVEN, STOVE])

    assert answers.keys() == {"uid-1", "uid-2"}
    (device,) = answers["uid-2"].devices
    assert list(device.request_names) == ["pizza", "plate"]
    assert device.pool_name == "node-a"
    assert device.device_name == "kitchen-stove"
    assert list(device.cdi_device_ids) == ["dra.pizza/claim=uid-2"]
    assert answers["uid-2"].error == ""


async def test_v1_sends_the_share_id(service: Service, socket: Path) -> None:
    async with connect(socket, "v1") as client:
        assert (await client.prepare([OVEN]))["uid-1"].devices[0].share_id == "share-1"


async def test_v1beta1_does_not_send_what_it_has_no_field_for(service: Service, socket: Path) -> None:
    async with connect(socket, "v1beta1") as client:
        wire = (await client.prepare([OVEN]))["uid-1"].SerializeToString()

    assert b"uid-1" in wire
    assert b"share-1" not in wire


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_unprepare_answers_every_claim_of_the_batch(service: Service, socket: Path, version: str) -> None:
    async with connect(socket, version) as client:
        assert await client.unprepare([OVEN, STOVE]) == {"uid-1": "", "uid-2": ""}

    assert service.unprepared == ["uid-1", "uid-2"]


class Broken(Service):
    """Fails for one claim when preparing and for all when releasing."""

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[KubeletDevice] | Exception]:
        return {**await super().prepare(claims), "uid-1": PermanentError("no basil;\nuse olives")}

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        raise PermanentError("the oven is on fire")


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_one_bad_claim_does_not_fail_its_batch(socket: Path, version: str) -> None:
    async with serving(Broken(), socket), connect(socket, version) as client:
        answers = await client.prepare([OVEN, STOVE])

    assert answers["uid-1"].error == "no basil;; use olives"
    assert not answers["uid-1"].devices
    assert answers["uid-2"].error == ""
    assert len(answers["uid-2"].devices) == 1


async def test_an_error_of_the_whole_call_becomes_that_of_each_claim(socket: Path) -> None:
    async with serving(Broken(), socket), connect(socket) as client:
        errors = await client.unprepare([OVEN, STOVE])

    assert errors == dict.fromkeys(["uid-1", "uid-2"], "the oven is on fire")


async def test_messages_may_be_larger_than_the_default_of_grpc(service: Service, socket: Path) -> None:
    claims = [ClaimReference("default", f"{i}-{'n' * 50_000}", f"uid-{i}") for i in range(100)]

    async with connect(socket) as client:
        answers = await client.prepare(claims)

    assert len(answers) == 100


def test_versions_are_advertised_newest_first(socket: Path) -> None:
    assert PluginServer(Service(), socket, versions=["v1beta1", "v1"]).supported_versions == (
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
    )


@pytest.mark.parametrize("versions", [[], ["v1", "v1alpha4"]])
def test_unknown_versions_are_refused(socket: Path, versions: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="give at least one of v1, v1beta1"):
        PluginServer(Service(), socket, versions=versions)


async def test_a_version_that_is_not_served_is_unimplemented(socket: Path) -> None:
    async with serving(Service(), socket, versions=["v1beta1"]), connect(socket, "v1") as client:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await client.prepare([OVEN])

    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


class Slow(Service):
    """Holds a prepare until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[KubeletDevice] | Exception]:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return await super().prepare(claims)


async def test_stop_lets_a_running_call_finish(socket: Path) -> None:
    service = Slow()
    async with serving(service, socket) as server, connect(socket) as client:
        call = asyncio.create_task(client.prepare([OVEN]))
        await service.begun.wait()
        stop = asyncio.create_task(server.stop(60))
        await eventually(lambda: not socket.exists())
        service.go_on.set()

        assert (await call).keys() == {"uid-1"}
        await stop


async def test_stop_cancels_calls_that_exceed_the_grace_period(socket: Path) -> None:
    service = Slow()
    async with serving(service, socket) as server, connect(socket) as client:
        call = asyncio.create_task(client.prepare([OVEN]))
        await service.begun.wait()
        await server.stop(0.01)

        with pytest.raises(grpc.aio.AioRpcError):
            await call
        await service.cancelled.wait()


async def test_stop_without_start_and_stop_twice_are_harmless(socket: Path) -> None:
    server = PluginServer(Service(), socket)
    await server.stop(0)
    await server.start()
    await server.stop(0)
    await server.stop(0)

    assert files(socket.parent) == []


async def test_a_server_starts_again_after_a_stop(socket: Path) -> None:
    server = PluginServer(Service(), socket)
    await server.start()
    await server.stop(0)
    await server.start()
    async with connect(socket) as client:
        assert (await client.unprepare([OVEN])) == {"uid-1": ""}
    await server.stop(0)


async def test_directories_are_for_the_owner_and_group_only(service: Service, socket: Path) -> None:
    assert [stat.S_IMODE(path.stat().st_mode) & 0o027 for path in (socket.parent, socket.parent.parent)] == [0, 0]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
async def test_the_socket_is_the_owners_whatever_the_umask(socket: Path, umask: int) -> None:
    server = PluginServer(Service(), socket)
    socket.parent.mkdir(parents=True)
    before = os.umask(umask)
    try:
        await server.start()
    finally:
        os.umask(before)
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    await server.stop(0)


async def test_a_leftover_socket_is_replaced(socket: Path) -> None:
    socket.parent.mkdir(parents=True)
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(socket))
    async with serving(Service(), socket), connect(socket) as client:
        assert (await client.unprepare([OVEN])) == {"uid-1": ""}


async def test_other_file_at_the_socket_path_is_an_error_and_stays(socket: Path) -> None:
    socket.parent.mkdir(parents=True)
    socket.write_text("precious")

    with pytest.raises(ConfigurationError, match=r"dra\.sock is at the path of the driver's socket"):
        await PluginServer(Service(), socket).start()
    assert socket.read_text() == "precious"


async def test_a_live_socket_is_refused_and_stays_reachable(service: Service, socket: Path) -> None:
    with pytest.raises(ConfigurationError, match="another process uses the socket"):
        await PluginServer(Service(), socket).start()

    async with connect(socket) as client:
        assert (await client.unprepare([OVEN])) == {"uid-1": ""}


async def test_path_too_long_for_a_socket_is_rejected(kubelet_dir: Path) -> None:
    path = kubelet_dir / ("d" * 60) / ("e" * 60)

    with pytest.raises(ConfigurationError, match=rf"has {len(bytes(path))} bytes, and Linux allows 107"):
        await PluginServer(Service(), path).start()


async def test_a_directory_that_cannot_be_made_is_refused(kubelet_dir: Path) -> None:
    (kubelet_dir / "plugins").write_text("precious")

    with pytest.raises(ConfigurationError, match=r"dra\.sock cannot be created: File exists: mount"):
        await PluginServer(Service(), kubelet_dir / "plugins" / "dra.sock").start()


async def test_a_path_with_characters_special_to_uris(kubelet_dir: Path) -> None:
    socket = kubelet_dir / "a b%20#c?d" / "dra.sock"
    async with serving(Service(), socket):
        assert files(socket.parent) == [socket]


async def test_stop_leaves_the_socket_of_a_successor_alone(socket: Path) -> None:
    first, second = PluginServer(Service(), socket), PluginServer(Service(), socket)
    await first.start()
    socket.unlink()  # as a successor does that takes the first for dead
    await second.start()

    await first.stop(0)

    async with connect(socket) as client:
        assert (await client.unprepare([OVEN])) == {"uid-1": ""}
    await second.stop(0)


async def test_instances_with_different_pods_do_not_disturb_each_other(kubelet_dir: Path) -> None:
    directory = kubelet_dir / "plugins" / "dra.pizza"
    old, new = Service(), Service()
    async with serving(new, directory / "dra-new.sock"):
        async with serving(old, directory / "dra-old.sock"), connect(directory / "dra-old.sock") as client:
            await client.prepare([OVEN])
        async with connect(directory / "dra-new.sock") as client:
            await client.prepare([STOVE])

        assert (old.prepared, new.prepared) == (["uid-1"], ["uid-2"])
        assert files(directory) == [directory / "dra-new.sock"]


def test_serving_writes_nothing_to_stderr(tmp_path: Path) -> None:
    """gRPC's core logs an error for a setting that it no longer knows."""
    source = """
        import asyncio, sys
        from pathlib import Path
        from dra_kit.kubelet.plugin_server import PluginServer

        async def main() -> None:
            server = PluginServer(None, Path(sys.argv[1]))  # is never called
            await server.start()
            await server.stop(0)

        asyncio.run(main())
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(tmp_path / "dra.sock")],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("GRPC_")},
    )
    assert result.stderr == ""

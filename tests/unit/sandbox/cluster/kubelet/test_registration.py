"""Registration in the kubelet's words: what it accepts, what it refuses, and what the plugin hears of it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from dra_kit.errors import KubeletError
from dra_kit.kubelet.plugin_client import PluginInfo, check_registration, select_service
from dra_kit.kubelet.proto import pluginregistration_v1_pb2 as pb
from dra_kit.kubelet.proto import pluginregistration_v1_pb2_grpc as pb_grpc
from dra_kit.kubernetes.release import UNMODIFIED, Release
from dra_kit.sandbox.kubelet.plugin_manager import PluginManager, register_plugin
from tests.unit.sandbox.cluster.kubelet.polling import until

GENEROUS = 60.0


class Plugin(pb_grpc.RegistrationServicer):
    """A plugin of any kind, good or bad."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.info = pb.PluginInfo(
            type="DRAPlugin", name="dra.pizza", endpoint="/plugins/dra.sock", supported_versions=["v1.DRAPlugin"]
        )
        self.heard: list[tuple[bool, str]] = []
        self.deaf = False

    def GetInfo(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> pb.PluginInfo:  # noqa: N802
        return self.info

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: pb.RegistrationStatus, context: grpc.ServicerContext
    ) -> pb.RegistrationStatusResponse:
        self.heard.append((request.plugin_registered, request.error))
        if self.deaf:
            context.abort(grpc.StatusCode.INTERNAL, "failed registration process")
        return pb.RegistrationStatusResponse()


@pytest.fixture
def plugin(kubelet_dir: Path) -> Iterator[Plugin]:
    plugin = Plugin(kubelet_dir / "reg.sock")
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        pb_grpc.add_RegistrationServicer_to_server(plugin, server)
        server.add_insecure_port(f"unix:{plugin.socket}")
        server.start()
        yield plugin
        server.stop(0).wait()


async def attempt(plugin: Plugin) -> PluginInfo:
    def accept(info: PluginInfo) -> None:
        select_service(info)

    return await register_plugin(plugin.socket, accept, get_info_timeout=GENEROUS, notify_timeout=GENEROUS)


async def test_accepted_plugin_is_notified(plugin: Plugin) -> None:
    assert await attempt(plugin) == PluginInfo("DRAPlugin", "dra.pizza", "/plugins/dra.sock", ("v1.DRAPlugin",))
    assert plugin.heard == [(True, "")]


async def test_an_empty_endpoint_is_the_registration_socket(plugin: Plugin) -> None:
    plugin.info.endpoint = ""

    assert (await attempt(plugin)).endpoint == str(plugin.socket)


async def refusal(plugin: Plugin) -> str:
    with pytest.raises(KubeletError) as error:
        await attempt(plugin)
    assert plugin.heard == [(False, str(error.value))]
    return str(error.value)


async def test_another_type_of_plugin_is_refused(plugin: Plugin) -> None:
    plugin.info.type = "PizzaPlugin"

    assert await refusal(plugin) == (
        f"RegisterPlugin error -- no handler registered for plugin type: PizzaPlugin at socket {plugin.socket}"
    )


async def test_a_plugin_without_versions_is_refused(plugin: Plugin) -> None:
    plugin.info.ClearField("supported_versions")

    assert await refusal(plugin) == (
        "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of DRA driver "
        "plugin dra.pizza at endpoint /plugins/dra.sock: empty list of supported gRPC services (aka supported versions)"
    )


async def test_a_plugin_with_unknown_versions_is_refused(plugin: Plugin) -> None:
    # a common mistake: the gRPC name of the service instead of its identifier
    plugin.info.supported_versions[:] = ["k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "v1alpha4.DRAPlugin"]

    assert await refusal(plugin) == (
        "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of DRA driver "
        "plugin dra.pizza at endpoint /plugins/dra.sock: none of services supported by the plugin "
        '(["k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin" "v1alpha4.DRAPlugin"]) are supported by the kubelet '
        '(["v1.DRAPlugin" "v1beta1.DRAPlugin"])'
    )


async def test_rejected_plugin_that_cannot_be_notified_is_rejected(plugin: Plugin) -> None:
    plugin.info.type, plugin.deaf = "PizzaPlugin", True

    assert "no handler registered" in await refusal(plugin)


async def test_an_accepted_plugin_that_does_not_listen_fails(plugin: Plugin) -> None:
    plugin.deaf = True

    with pytest.raises(KubeletError, match=r"err: rpc error: code = Internal desc = failed registration process$"):
        await attempt(plugin)


def info(*versions: str) -> PluginInfo:
    return PluginInfo("DRAPlugin", "dra.pizza", "/plugins/dra.sock", versions)


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (("v1.DRAPlugin", "v1beta1.DRAPlugin"), "v1.DRAPlugin"),
        (("v1beta1.DRAPlugin", "v1.DRAPlugin"), "v1beta1.DRAPlugin"),
        (("v2.DRAPlugin", "v1.DRAResourceHealth", "v1.DRAPlugin"), "v1.DRAPlugin"),
    ],
)
def test_the_first_known_entry_of_the_plugin_is_chosen(versions: tuple[str, ...], chosen: str) -> None:
    assert select_service(info(*versions)) == chosen


def test_an_older_kubelet_chooses_the_older_version() -> None:
    versions = info("v1.DRAPlugin", "v1beta1.DRAPlugin")

    assert select_service(versions, ("v1beta1.DRAPlugin",)) == "v1beta1.DRAPlugin"


def dial_failed(path: Path, reason: str) -> str:
    where = f"dial failed at socket {path}, err: failed to dial socket {path}, err: dial unix {path}: connect: {reason}"
    return f"RegisterPlugin error -- {where}"


def bind(path: Path) -> socket.socket:
    """A socket at a path that is as long as it likes: it is bound in its folder."""
    made, before = socket.socket(socket.AF_UNIX), Path.cwd()
    try:
        os.chdir(path.parent)
        made.bind(path.name)
    finally:
        os.chdir(before)
    return made


async def failure(path: Path) -> str:
    with pytest.raises(KubeletError) as error:
        await register_plugin(path, lambda _: None, get_info_timeout=GENEROUS)
    return str(error.value)


async def test_missing_socket_is_reported(kubelet_dir: Path) -> None:
    path = kubelet_dir / "missing.sock"

    assert await failure(path) == dial_failed(path, "no such file or directory")


async def test_socket_where_nothing_listens_is_reported(kubelet_dir: Path) -> None:
    path = kubelet_dir / "reg.sock"

    with bind(path):
        assert await failure(path) == dial_failed(path, "connection refused")


async def test_socket_whose_path_is_too_long_is_reported(kubelet_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = kubelet_dir / ("x" * (107 - len(str(kubelet_dir))))
    with bind(path) as listening:
        listening.listen()

        text = await failure(path)

    reason = "invalid argument (its path has 108 bytes, and a unix socket's at most 107)"
    assert text == dial_failed(path, reason)
    assert capfd.readouterr() == ("", "")


async def test_program_that_does_not_speak_grpc_is_reported(kubelet_dir: Path) -> None:
    path = kubelet_dir / "reg.sock"
    server = await asyncio.start_unix_server(lambda _, writer: writer.close(), path)
    async with server:
        text = await failure(path)

    failed = f"RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {path}, err: rpc error"
    assert text.startswith(f"{failed}: code = Unavailable")


async def test_each_attempt_is_reported_with_growing_waits(kubelet_dir: Path) -> None:
    registry, reported = kubelet_dir / "plugins_registry", []
    registry.mkdir()
    path = registry / "reg.sock"

    def refused(socket: Path, error: str) -> None:
        reported.append((socket, error))

    with bind(path):
        async with PluginManager(kubelet_dir, time_scale=100, refused=refused, release=UNMODIFIED):
            await until(lambda: len(reported) >= 3)

    text = dial_failed(path, "connection refused")
    assert reported[:3] == [
        (path, f"{text}; the kubelet tries again after {wait} s") for wait in ("0.005", "0.01", "0.02")
    ]


def registering(name: str = "dra.pizza", endpoint: str = "/plugins/dra.sock") -> PluginInfo:
    return PluginInfo("DRAPlugin", name, endpoint, ("v1.DRAPlugin",))


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        (registering(name=""), "invalid DRA driver name: driverName: Required value"),
        (registering(name="dra_pizza"), 'invalid DRA driver name: driverName: Invalid value: "dra_pizza": '),
        (registering(name="a" * 64), "invalid DRA driver name: driverName: Too long: may not be more than 63 bytes"),
        (registering(name="_" * 64), "invalid DRA driver name: [driverName: Too long: "),
        (registering(endpoint="dra.sock"), 'DRA plugin endpoint "dra.sock" must be an absolute path'),
        (registering(endpoint="/" + "a" * 107), "must not be longer than 108 bytes"),
        (registering(endpoint="/a%2e"), 'DRA plugin endpoint "/a%2e" must be a plain path'),
        (registering(endpoint="/a?"), "must be a plain path"),
        (registering(endpoint="/a#b"), "must be a plain path"),
        (registering(endpoint="//a/b"), "must be a plain path"),
        (registering(endpoint="/a\nb"), "must be a plain path"),
    ],
)
def test_names_and_endpoints_are_checked_since_1_38(info: PluginInfo, problem: str) -> None:
    check_registration(info, Release.parse("1.37"))

    with pytest.raises(KubeletError) as refused:
        check_registration(info, Release.parse("1.38"))

    text = str(refused.value)
    assert text.startswith("RegisterPlugin error -- plugin validation failed with err: ")
    assert problem in text


@pytest.mark.parametrize(
    "info",
    [
        registering(),
        registering(name="DRA.pizza"),
        registering(endpoint="/a b/ü/./c:d"),
        registering(endpoint="/" + "a" * 106),
    ],
)
def test_valid_names_and_endpoints_are_accepted(info: PluginInfo) -> None:
    check_registration(info, Release.parse("1.38"))


@pytest.mark.parametrize(("release", "accepted"), [("1.37", True), ("1.38", False)])
async def test_kubelet_of_a_release_checks_names(
    plugin: Plugin, kubelet_dir: Path, release: str, accepted: bool
) -> None:
    plugin.info.name = "dra_pizza"
    registry = kubelet_dir / "plugins_registry"
    registry.mkdir(parents=True, exist_ok=True)
    plugin.socket.rename(registry / "reg.sock")

    async with PluginManager(kubelet_dir, get_info_timeout=GENEROUS, release=Release.parse(release)):
        await until(lambda: bool(plugin.heard))

    assert plugin.heard[0][0] is accepted

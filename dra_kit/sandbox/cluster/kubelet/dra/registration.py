"""Registers one plugin as the kubelet's plugin manager does, in its words.

Sources: ``pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go`` and
``pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go`` of Kubernetes 1.37.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc.aio
from msgspec import Struct

from dra_kit.errors import KubeletError
from dra_kit.kubelet.proto import pluginregistration_v1_pb2 as pb
from dra_kit.kubelet.proto import pluginregistration_v1_pb2_grpc as pb_grpc
from dra_kit.sandbox.cluster.kubelet.dra.connection import open_channel, rpc_error_text

DRA_PLUGIN_TYPE = "DRAPlugin"

SUPPORTED_SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""DRA services that a kubelet of 1.34 to 1.37 calls; 1.32 and 1.33 know only the second."""

GET_INFO_TIMEOUT = 1.0
"""Seconds the kubelet waits for GetInfo."""

NOTIFY_TIMEOUT = 5.0
"""Seconds the kubelet waits for NotifyRegistrationStatus."""


class PluginInfo(Struct, frozen=True):
    """What a plugin says of itself.

    Args:
        type: ``DRAPlugin`` for DRA drivers.
        name: the driver's name.
        endpoint: path of the service socket; never empty, see ``register``.
        supported_versions: service identifiers in the plugin's order of preference.
    """

    type: str
    name: str
    endpoint: str
    supported_versions: tuple[str, ...]


async def register(
    socket: Path,
    accept: Callable[[PluginInfo], None],
    *,
    get_info_timeout: float = GET_INFO_TIMEOUT,
    notify_timeout: float = NOTIFY_TIMEOUT,
) -> PluginInfo:
    """Make one attempt: ask the plugin for its name, let ``accept`` decide, and notify the plugin.

    Args:
        socket: the plugin's registration socket; it is the endpoint too when the plugin names none.
        accept: validates and remembers the plugin; a ``KubeletError`` from it refuses the plugin with that text.
        get_info_timeout: seconds for GetInfo.
        notify_timeout: seconds for NotifyRegistrationStatus.

    Raises:
        KubeletError: no answer, or refused. When the plugin was accepted but could not be notified, ``accept`` has been
            called, and the caller must forget the plugin again, as the kubelet does.
    """
    async with open_channel(str(socket)) as channel:
        stub = pb_grpc.RegistrationStub(channel)
        info = await _get_info(stub, socket, get_info_timeout)
        refusal = _refusal(info, socket, accept)
        verdict = pb.RegistrationStatus(plugin_registered=refusal is None, error=str(refusal or ""))
        try:
            await stub.NotifyRegistrationStatus(verdict, timeout=notify_timeout)
        except grpc.aio.AioRpcError as error:
            if refusal is None:
                raise KubeletError(
                    "RegisterPlugin error -- failed to send registration status at socket "
                    f"{socket}, err: {rpc_error_text(error)}"
                ) from error
        if refusal is not None:
            raise refusal
    return info


def select_service(info: PluginInfo, supported: Sequence[str] = SUPPORTED_SERVICES) -> str:
    """Return the first entry of the plugin's list that the kubelet supports.

    Raises:
        KubeletError: there is none.
    """
    for service in info.supported_versions:
        if service in supported:
            return service
    if info.supported_versions:
        reason = (
            f"none of services supported by the plugin ({_quoted(info.supported_versions)}) are supported by the "
            f"kubelet ({_quoted(supported)})"
        )
    else:
        reason = "empty list of supported gRPC services (aka supported versions)"
    raise KubeletError(
        "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of DRA driver "
        f"plugin {info.name} at endpoint {info.endpoint}: {reason}"
    )


async def _get_info(stub: pb_grpc.RegistrationAsyncStub, socket: Path, timeout: float) -> PluginInfo:
    try:
        answer = await stub.GetInfo(pb.InfoRequest(), timeout=timeout)
    except grpc.aio.AioRpcError as error:
        raise KubeletError(
            "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket "
            f"{socket}, err: {rpc_error_text(error)}"
        ) from error
    return PluginInfo(
        type=answer.type,
        name=answer.name,
        endpoint=answer.endpoint or str(socket),
        supported_versions=tuple(answer.supported_versions),
    )


def _refusal(info: PluginInfo, socket: Path, accept: Callable[[PluginInfo], None]) -> KubeletError | None:
    if info.type != DRA_PLUGIN_TYPE:
        return KubeletError(
            f"RegisterPlugin error -- no handler registered for plugin type: {info.type} at socket {socket}"
        )
    try:
        accept(info)
    except KubeletError as error:
        return error
    return None


def _quoted(names: Sequence[str]) -> str:
    """Return a list as Go prints it with %q."""
    return f"[{' '.join(json.dumps(name, ensure_ascii=False) for name in names)}]"

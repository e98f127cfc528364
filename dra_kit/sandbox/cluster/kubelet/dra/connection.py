"""gRPC connections to unix sockets, and their errors as Go prints them."""

from __future__ import annotations

from urllib.parse import quote

import grpc.aio


def open_channel(path: str) -> grpc.aio.Channel:
    """Return a channel to the socket at ``path``, connected at the first call and again when it is lost.

    Each channel has a connection of its own: gRPC would share one between channels with the same target.
    """
    return grpc.aio.insecure_channel(
        f"unix:{quote(path)}",
        options=[
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", 16 * 1024 * 1024),
        ],
    )


def rpc_error_text(error: grpc.aio.AioRpcError) -> str:
    """Return the text of grpc-go for the same error: ``rpc error: code = DeadlineExceeded desc = ...``."""
    code = "".join(word.capitalize() for word in error.code().name.split("_"))
    return f"rpc error: code = {_GO_SPELLING.get(code, code)} desc = {error.details() or ''}"


_GO_SPELLING = {"Ok": "OK", "Cancelled": "Canceled"}

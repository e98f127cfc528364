"""ttrpc over NRI's multiplexer: several connections on one stream socket, each of which calls and serves.

Facts are from the sources of github.com/containerd/ttrpc (channel.go, server.go, v1.2.7) and of
github.com/containerd/nri (pkg/net/multiplex/mux.go, v0.12.5). Both ends have the same rights, so that a runtime can be
written with this module as well as a plugin.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from dra_kit.kubelet.nri.proto.ttrpc_pb2 import Request, Response, Status

MESSAGE_MAX: Final = 4 << 20
"""Bytes of the data of a ttrpc message."""
FRAME_MAX: Final = MESSAGE_MAX + 10
"""Bytes in an incoming frame: a message and its header."""
FRAME_SENT_MAX: Final = 4096
"""Bytes in an outgoing frame. Go's multiplexer cannot return a frame in parts, and ttrpc reads with a buffer of this
size: a larger frame ends the connection, unless it is the rest of a message whose header was read."""
CALLS_MAX: Final = 256
"""Calls of the peer that are served at the same time; further ones are answered with an error."""
_FRAME: Final = struct.Struct(">II")  # connection, bytes
_MESSAGE: Final = struct.Struct(">IIBB")  # bytes, stream, type, flags
_REQUEST, _RESPONSE = 1, 2
_READ_BYTES: Final = 1 << 18
_FLUSH: Final = 1.0  # seconds in which the peer can read the last answers

INVALID_ARGUMENT: Final = 3
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
UNAVAILABLE: Final = 14
UNKNOWN: Final = 2
"""Codes of gRPC. A runtime takes UNIMPLEMENTED for an older plugin and asks again with StateChange."""

ResponseT = TypeVar("ResponseT", bound=Message)


class NriError(Exception):
    """Base of the errors of this package; the text names the object, the cause and what to do."""


class ProtocolError(NriError):
    """The peer broke the protocol, and the stream cannot be read any further."""


class ConnectionLost(NriError):
    """The peer closed the connection, or it was closed here, before a call was answered."""


class CallError(NriError):
    """A call failed; raise it in a method to choose the code.

    Args:
        code: one of gRPC's codes.
        message: the text of the peer.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Method(NamedTuple):
    """A method that is served."""

    request: type[Message]
    serve: Callable[[Message, float | None], Awaitable[Message]]
    """Gets the request and the seconds that the caller waits, or None if it does not say."""


class TtrpcMessage(NamedTuple):
    """A message of a connection."""

    stream: int
    type: int
    data: bytes | None
    """None if it was too large; its bytes are discarded."""


def frames(connection: int, data: bytes) -> bytes:
    """Return a message with its header as frames that Go's multiplexer and ttrpc can read.

    A frame must not have more bytes than the reader asks for: :data:`FRAME_SENT_MAX` or, after a header, the rest of
    the message. A queue in the multiplexer holds 256 frames, and its overflow ends the connection. Therefore a message
    has one frame or, if it is too large for that, one for its header and one for the rest.
    """
    parts: Iterable[bytes] = [data]
    if len(data) > FRAME_SENT_MAX:
        parts = data[: _MESSAGE.size], data[_MESSAGE.size :]
    return b"".join(_FRAME.pack(connection, len(part)) + part for part in parts)


def message(stream: int, type_: int, data: bytes) -> bytes:
    """Return a message with its header.

    Raises:
        CallError: the data is too large.
    """
    if len(data) > MESSAGE_MAX:
        raise CallError(
            RESOURCE_EXHAUSTED,
            f"ttrpc message too large: it has {len(data)} bytes, the limit is {MESSAGE_MAX}; send less at once",
        )
    return _MESSAGE.pack(len(data), stream, type_, 0) + data


class FrameReader:
    """Finds frames in the bytes of a socket."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the connection and the content of each frame that is complete.

        Raises:
            ProtocolError: a frame is too large.
        """
        self._buffer += data
        while len(self._buffer) >= _FRAME.size:
            connection, length = _FRAME.unpack_from(self._buffer)
            if length > FRAME_MAX:
                raise ProtocolError(
                    f"NRI frame of connection {connection} too large: {length} bytes, the limit is {FRAME_MAX}; "
                    "check that the socket is the container runtime's NRI socket"
                )
            end = _FRAME.size + length
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[_FRAME.size : end])
            del self._buffer[:end]
            yield connection, content


class MessageReader:
    """Finds messages in the bytes of one connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._discard = 0

    def feed(self, data: bytes) -> Iterator[TtrpcMessage]:
        """Yield each message that is complete, and those that are too large without their data."""
        self._buffer += data
        while True:
            discarded = min(self._discard, len(self._buffer))
            del self._buffer[:discarded]
            self._discard -= discarded
            if self._discard or len(self._buffer) < _MESSAGE.size:
                return
            length, stream, type_, _ = _MESSAGE.unpack_from(self._buffer)
            if length > MESSAGE_MAX:
                self._discard = _MESSAGE.size + length
                yield TtrpcMessage(stream, type_, None)
                continue
            end = _MESSAGE.size + length
            if len(self._buffer) < end:
                return
            content = bytes(self._buffer[_MESSAGE.size : end])
            del self._buffer[:end]
            yield TtrpcMessage(stream, type_, content)


class TtrpcConnection:
    """One connection of a :class:`Mux`; opened by :meth:`Mux.open`."""

    def __init__(self, mux: Mux, number: int, services: Mapping[str, Mapping[str, Method]]) -> None:
        self._mux = mux
        self._number = number
        self._services = services
        self._reader = MessageReader()
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._next_stream = 1
        self._last_stream = 0
        self._serving: set[asyncio.Task[None]] = set()
        self._unanswered: set[int] = set()
        self._closed = False

    async def call(
        self, service: str, method: str, request: Message, response: type[ResponseT], timeout: float | None = None
    ) -> ResponseT:
        """Call a method of the peer.

        Args:
            service: full name of the service.
            method: its own name.
            request: is sent.
            response: type of the answer.
            timeout: seconds until the call fails; they are sent to the peer.

        Raises:
            CallError: the peer answered with an error, or what it answered is not a ``response``.
            ConnectionLost: there will be no answer.
            TimeoutError: the answer did not arrive in time.
        """
        if self._closed:
            raise ConnectionLost(f"{method} not called: the connection is closed; connect again")
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        call = Request(
            service=service,
            method=method,
            payload=request.SerializeToString(),
            timeout_nano=int((timeout or 0) * 1e9),
        )
        answered = self._calls[stream] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._send(stream, _REQUEST, call.SerializeToString())
                payload = await answered
        finally:
            self._calls.pop(stream, None)
            answered.cancel()
            if not answered.cancelled():
                answered.exception()  # the connection may be lost while the request is sent
        try:
            return response.FromString(payload)
        except DecodeError as error:
            raise CallError(INVALID_ARGUMENT, f"answer to {method} unreadable: {error}") from error

    async def receive(self, data: bytes) -> None:
        """Take bytes from the multiplexer."""
        for incoming in self._reader.feed(data):
            if incoming.type == _RESPONSE:
                self._answer(incoming)
            elif incoming.type == _REQUEST:
                await self._accept(incoming)
            # other types are for streams of messages, which NRI does not have

    def _answer(self, incoming: TtrpcMessage) -> None:
        waiting = self._calls.get(incoming.stream)
        if waiting is None or waiting.done():
            return  # its caller waits no longer
        try:
            waiting.set_result(_payload(incoming.data))
        except CallError as error:
            waiting.set_exception(error)

    async def _accept(self, incoming: TtrpcMessage) -> None:
        """Begin to serve a call, or answer with an error."""
        try:
            method, request, timeout = self._parse(incoming)
        except (CallError, DecodeError) as error:
            refusal = error if isinstance(error, CallError) else CallError(INVALID_ARGUMENT, f"unreadable: {error}")
            with suppress(ConnectionLost):
                self._mux.write(self._number, _refusal(incoming.stream, refusal))
                await self._mux.drain()
            return
        self._unanswered.add(incoming.stream)
        task = asyncio.create_task(self._serve(incoming.stream, method, request, timeout))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    def _parse(self, incoming: TtrpcMessage) -> tuple[Method, Message, float | None]:
        """Return the method of a call, its request, and the seconds that the caller waits."""
        if incoming.stream % 2 == 0 or incoming.stream <= self._last_stream:
            raise CallError(INVALID_ARGUMENT, f"stream {incoming.stream} invalid: numbers must be odd and increase")
        self._last_stream = incoming.stream
        if incoming.data is None:
            raise CallError(RESOURCE_EXHAUSTED, f"request too large: the limit is {MESSAGE_MAX} bytes")
        if len(self._serving) >= CALLS_MAX:
            raise CallError(RESOURCE_EXHAUSTED, f"too many calls at the same time: the limit is {CALLS_MAX}")
        request = Request.FromString(incoming.data)
        method = self._services.get(request.service, {}).get(request.method)
        if method is None:
            raise CallError(UNIMPLEMENTED, f"{request.service}/{request.method} is not implemented")
        timeout = request.timeout_nano / 1e9 if request.timeout_nano > 0 else None
        return method, method.request.FromString(request.payload), timeout

    async def _serve(self, stream: int, method: Method, request: Message, timeout: float | None) -> None:
        try:
            answer = await method.serve(request, timeout)
            response = message(stream, _RESPONSE, Response(payload=answer.SerializeToString()).SerializeToString())
        except CallError as error:
            response = _refusal(stream, error)
        except Exception as error:  # noqa: BLE001 (a bug must not look like an older plugin, or stop the connection)
            response = _refusal(stream, CallError(UNKNOWN, str(error) or type(error).__name__))
        self._unanswered.discard(stream)
        with suppress(ConnectionLost):  # then nothing waits for the answer
            self._mux.write(self._number, response)
            await self._mux.drain()

    async def _send(self, stream: int, type_: int, data: bytes) -> None:
        self._mux.write(self._number, message(stream, type_, data))
        await self._mux.drain()

    async def close(self, cause: str) -> None:
        """Fail all calls, and answer those of the peer with an error, which it gets if it still listens."""
        self._closed = True
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost(f"call not answered: {cause}; connect again"))
        with suppress(ConnectionLost):
            for stream in self._unanswered:
                # without an answer a runtime would continue without the plugin
                self._mux.write(self._number, _refusal(stream, CallError(UNAVAILABLE, f"not served: {cause}")))
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


def _payload(data: bytes | None) -> bytes:
    """Return the payload of a response; raise the error in it."""
    if data is None:
        raise CallError(RESOURCE_EXHAUSTED, f"answer too large: the limit is {MESSAGE_MAX} bytes")
    try:
        response = Response.FromString(data)
    except DecodeError as error:
        raise CallError(INVALID_ARGUMENT, f"answer unreadable: {error}") from error
    if response.status.code:
        raise CallError(response.status.code, response.status.message)
    return response.payload


def _refusal(stream: int, error: CallError) -> bytes:
    # file names in messages may have surrogates
    text = error.message.encode(errors="backslashreplace")[: MESSAGE_MAX // 2].decode(errors="ignore")
    return message(stream, _RESPONSE, Response(status=Status(code=error.code, message=text)).SerializeToString())


class Mux:
    """Connections on one stream socket.

    Args:
        reader: reads from the socket.
        writer: writes to it; the multiplexer closes it.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._connections: dict[int, TtrpcConnection] = {}

    def open(self, number: int, services: Mapping[str, Mapping[str, Method]] | None = None) -> TtrpcConnection:
        """Open a connection before :meth:`run`; the peer does not notice.

        Args:
            number: of the connection; both ends know it.
            services: methods that are served, by the full name of their service and their own.
        """
        connection = self._connections[number] = TtrpcConnection(self, number, services or {})
        return connection

    async def run(self) -> None:
        """Read until the peer closes the socket; then, or when cancelled, close everything.

        Raises:
            ProtocolError: the peer broke the protocol.
        """
        frames_read = FrameReader()
        cause = "the peer closed the connection"
        try:
            while data := await self._reader.read(_READ_BYTES):
                for number, content in frames_read.feed(data):
                    if number in self._connections:
                        await self._connections[number].receive(content)
        except OSError as error:
            cause = str(error)
        except ProtocolError as error:
            cause = str(error)
            raise
        except asyncio.CancelledError:
            cause = "the connection was closed"
            raise
        finally:
            try:
                for connection in self._connections.values():
                    await connection.close(cause)
                self._writer.close()
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(_FLUSH):
                        await self._writer.wait_closed()
            finally:
                self._writer.transport.abort()

    def write(self, number: int, data: bytes) -> None:
        """Write bytes of a connection, which are not mixed with those of other writers.

        Raises:
            ConnectionLost: the socket is closed.
        """
        if self._writer.is_closing():
            raise ConnectionLost("message not sent: the connection is closed; connect again")
        self._writer.write(frames(number, data))

    async def drain(self) -> None:
        """Wait until the peer has read most of what was written.

        Raises:
            ConnectionLost: the socket is closed.
        """
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(f"message not sent: {error}; connect again") from error

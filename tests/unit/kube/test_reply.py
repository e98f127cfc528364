from __future__ import annotations

import pytest

from dra_kit.kube.reply import BadReply, Reply, ReplyReader

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"Content-Length: 5\r\n\r\nhello"
CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"


def read(data: bytes) -> Reply | None:
    return ReplyReader().feed(data)


@pytest.mark.parametrize("data", [LENGTH, CHUNKS], ids=["length", "chunks"])
@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_an_answer_is_read_however_it_is_cut(data: bytes, step: int) -> None:
    reader = ReplyReader()
    found = [reader.feed(data[place : place + step]) for place in range(0, len(data), step)]
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] == Reply(200, (), b"hello", reusable=True)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader = ReplyReader()
    assert reader.feed(OK + b"\r\nhel") is None
    assert reader.feed(b"lo") is None
    assert reader.end() == Reply(200, (), b"hello", reusable=False)


@pytest.mark.parametrize("data", [b"", OK, LENGTH[:-1], CHUNKS[:-1]])
def test_an_answer_that_is_cut_off_is_none(data: bytes) -> None:
    reader = ReplyReader()
    assert reader.feed(data) is None
    assert reader.end() is None


def test_interim_answers_are_skipped() -> None:
    reply = read(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH)
    assert reply is not None
    assert (reply.status, reply.body) == (200, b"hello")


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body(status: int) -> None:
    reply = read(b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n" % status)
    assert reply == Reply(status, (), b"", reusable=True)


def test_all_warnings_are_kept() -> None:
    reply = read(OK + b'Warning: 299 - "a"\r\nwarning:299 - "b"\r\nContent-Length: 0\r\n\r\n')
    assert reply is not None
    assert reply.warnings == ('299 - "a"', '299 - "b"')


@pytest.mark.parametrize(
    "data",
    [
        OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        LENGTH + b"more",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["closed", "old", "more than the answer", "two lengths"],
)
def test_a_connection_is_not_used_again_where_the_next_answer_might_not_be_one(data: bytes) -> None:
    reply = read(data)
    assert reply is not None
    assert not reply.reusable


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        OK + b"no colon\r\n\r\n",
        OK + b"X: a\r\n folded\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1" + b"x" * 300_000,
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(BadReply):
        read(data)

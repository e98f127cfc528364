"""Log lines, as text and as JSON."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import ConfigurationError
from dra_kit.process.logging import JsonFormatter, TextFormatter, configure, log_context

LIBRARIES = ("kopf", "aiohttp", "grpc")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restores the logging configuration."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in (*LIBRARIES, "asyncio", "kubernetes_asyncio")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


@pytest.fixture
def text() -> io.StringIO:
    stream = io.StringIO()
    configure("text", "DEBUG", stream)
    return stream


@pytest.fixture
def jsonl() -> io.StringIO:
    stream = io.StringIO()
    configure("json", "DEBUG", stream)
    return stream


logger = logging.getLogger("dra_kit.node.claims")


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def fail(text: str) -> None:
    raise ValueError(text)


def record(message: object, *args: object, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("dra_kit.node", logging.INFO, "x.py", 1, str(message), args, None)
    vars(made).update(fields)
    return made


class TestText:
    def test_a_line_has_time_level_logger_message_and_fields(self, text: io.StringIO) -> None:
        logger.info("claim prepared", extra={"devices": 2, "first": "pizza-0", "warm": True})
        assert re.fullmatch(
            r"\d\d:\d\d:\d\d INFO node\.claims: claim prepared devices=2 first=pizza-0 warm=true\n", text.getvalue()
        )

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            ("plain", "plain"),
            ("two words", '"two words"'),
            ("", '""'),
            ('say "hi"', '"say \\"hi\\""'),
            ("a=b", '"a=b"'),
            ("line\nend", '"line\\nend"'),
            ("\x1b[31m", '"\\u001b[31m"'),
            ("\u2028", '"\\u2028"'),
            (None, "null"),
            ([1, "a"], '[1, "a"]'),
            ({"k": 1}, '{"k": 1}'),
            (1.5, "1.5"),
        ],
    )
    def test_values_are_bare_or_quoted(self, value: object, shown: str) -> None:
        assert TextFormatter().format(record("m", field=value)).endswith(f"m field={shown}")

    def test_a_message_cannot_start_a_line_of_its_own(self, text: io.StringIO) -> None:
        logger.info("hello\n12:00:00 INFO node: claim released")
        assert text.getvalue().count("\n") == 1
        assert "hello\\n12:00:00" in text.getvalue()

    def test_traceback_lines_start_with_a_bar(self, text: io.StringIO) -> None:
        try:
            fail("first\n12:00:00 INFO node: forged")
        except ValueError:
            logger.exception("part failed")
        first, *rest = text.getvalue().splitlines()
        assert first.endswith("ERROR node.claims: part failed")
        assert rest
        assert all(line.startswith("    | ") for line in rest)
        assert any("12:00:00 INFO node: forged" in line for line in rest)

    @given(message=st.text(), key=st.text(min_size=1), value=st.text())
    def test_any_record_is_one_printable_line(self, message: str, key: str, value: str) -> None:
        line = TextFormatter().format(record(message.replace("%", ""), **{f"f{key}": value}))
        assert line.isprintable()
        line.encode()


class TestJson:
    def test_a_line_is_an_object(self, jsonl: io.StringIO) -> None:
        logger.warning("claim %s", "released", extra={"devices": ["a", "b"], "size": 3})
        entry = json.loads(jsonl.getvalue())
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("time"))
        assert entry == {
            "level": "WARNING",
            "logger": "node.claims",
            "message": "claim released",
            "devices": ["a", "b"],
            "size": 3,
        }

    def test_a_traceback_is_a_field(self, jsonl: io.StringIO) -> None:
        try:
            fail("broken")
        except ValueError:
            logger.exception("part failed")
        entry = json.loads(jsonl.getvalue())
        assert entry["message"] == "part failed"
        assert entry["traceback"].endswith("ValueError: broken")

    def test_fields_do_not_replace_the_fixed_keys(self) -> None:
        entry = json.loads(JsonFormatter().format(record("m", level="mine", time="mine")))
        assert (entry["level"], entry["level_"], entry["time_"]) == ("INFO", "mine", "mine")

    @pytest.mark.parametrize(
        "value",
        [Broken(), {Broken(): 1}, {(1, 2): 3}, float("nan"), 10**5000, b"\xff", "\ud800", object, {1, 2}],
        ids=["broken", "broken key", "tuple key", "nan", "huge", "bytes", "surrogate", "class", "set"],
    )
    def test_odd_values_do_not_lose_the_line(self, value: object) -> None:
        assert json.loads(JsonFormatter().format(record("m", odd=value)))["message"] == "m"
        assert TextFormatter().format(record("m", odd=value)).isprintable()

    def test_a_value_that_holds_itself_is_cut(self) -> None:
        itself: list[Any] = []
        itself.append(itself)
        assert json.loads(JsonFormatter().format(record("m", odd=itself)))["odd"] == [[[["..."]]]]

    def test_arguments_that_do_not_fit_do_not_lose_the_line(self) -> None:
        entry = json.loads(JsonFormatter().format(record("%d devices", "many")))
        assert "%d devices" in entry["message"]
        assert "many" in entry["message"]

    def test_an_exception_that_cannot_be_printed_does_not_lose_the_line(self) -> None:
        class Unprintable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no str")

        made = record("m")
        made.exc_info = (Unprintable, Unprintable(), None)
        assert "Unprintable" in json.loads(JsonFormatter().format(made))["traceback"]

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.builds(Broken),
            lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner),
        )
    )
    def test_every_value_makes_one_valid_ascii_line(self, value: object) -> None:
        line = JsonFormatter().format(record("m", value=value))
        assert line.isascii()
        assert "\n" not in line
        strict = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert strict["message"] == "m"


class TestContext:
    def test_it_is_added_to_every_line_inside(self, text: io.StringIO) -> None:
        with log_context(claim="default/lunch", claim_uid="6ad1"):
            logger.info("claim prepared", extra={"devices": 2})
        logger.info("idle")
        inside, outside = text.getvalue().splitlines()
        assert inside.endswith("claim prepared claim=default/lunch claim_uid=6ad1 devices=2")
        assert outside.endswith("idle")

    def test_inner_contexts_add_and_override(self, jsonl: io.StringIO) -> None:
        with log_context(claim="default/a", pod="default/p"):
            with log_context(claim="default/b", device="pizza-0"):
                logger.info("inner")
            logger.info("outer")
        inner, outer = (json.loads(line) for line in jsonl.getvalue().splitlines())
        assert (inner["claim"], inner["pod"], inner["device"]) == ("default/b", "default/p", "pizza-0")
        assert (outer["claim"], outer["pod"]) == ("default/a", "default/p")
        assert "device" not in outer

    async def test_worker_threads_and_tasks_inherit_it(self, jsonl: io.StringIO) -> None:
        async def in_a_task() -> None:
            logger.info("task")

        with log_context(claim="default/lunch"):
            await asyncio.to_thread(logger.info, "thread")
            await asyncio.create_task(in_a_task())
        assert [json.loads(line).get("claim") for line in jsonl.getvalue().splitlines()] == ["default/lunch"] * 2

    async def test_concurrent_claims_have_separate_contexts(self, jsonl: io.StringIO) -> None:
        both = asyncio.Barrier(2)

        async def prepare(claim: str) -> None:
            with log_context(claim=claim):
                await both.wait()
                logger.info("prepared", extra={"expected": claim})

        await asyncio.gather(prepare("default/a"), prepare("default/b"))
        entries = [json.loads(line) for line in jsonl.getvalue().splitlines()]
        assert len(entries) == 2
        assert all(entry["claim"] == entry["expected"] for entry in entries)

    def test_it_ends_with_an_exception(self, text: io.StringIO) -> None:
        with pytest.raises(RuntimeError), log_context(claim="default/lunch"):
            raise RuntimeError
        logger.info("idle")
        assert "default/lunch" not in text.getvalue()


class TestConfigure:
    def test_again_replaces_the_stream(self, text: io.StringIO) -> None:
        other = io.StringIO()
        configure("text", "INFO", other)
        logger.info("once")
        assert text.getvalue() == ""
        assert other.getvalue().count("once") == 1

    def test_the_level_is_the_lowest_that_is_logged(self) -> None:
        stream = io.StringIO()
        configure(level="warning", stream=stream)
        logger.info("no")
        logger.warning("yes")
        assert re.fullmatch(r"\S+ WARNING node.claims: yes\n", stream.getvalue())

    def test_the_standard_error_is_the_default(self, capsys: pytest.CaptureFixture[str]) -> None:
        configure()
        logger.info("here")
        assert capsys.readouterr().err.endswith("INFO node.claims: here\n")

    @pytest.mark.parametrize("library", LIBRARIES)
    def test_libraries_log_from_warning(self, text: io.StringIO, library: str) -> None:
        logging.getLogger(f"{library}.part").info("chatter")
        logging.getLogger(f"{library}.part").warning("trouble")
        assert "chatter" not in text.getvalue()
        assert "trouble" in text.getvalue()

    def test_an_unknown_level_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="'loud' does not exist"):
            configure(level="loud")

    def test_an_unknown_format_is_refused(self) -> None:
        unknown: Literal["text"] = "xml"  # type: ignore[assignment]
        with pytest.raises(ConfigurationError, match="'xml' does not exist: use one of text, json"):
            configure(unknown)

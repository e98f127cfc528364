"""Commands that start drivers as programs: how they are split, what placeholders stand for, what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.drivers.commands import (
    PLACEHOLDERS,
    CommandKind,
    DriverCommand,
    parse_commands,
    with_distinct_names,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program, and a file that is none."""
    program = tmp_path / "bin" / "oven"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "notes").write_text("")
    return tmp_path


def parse(folder: Path, text: str, kind: CommandKind = "plugin") -> DriverCommand:
    [command] = parse_commands(kind, [text], directory=folder, environment={"PATH": str(folder / "bin")})
    return command


def refusal(folder: Path, *texts: str, kind: CommandKind = "plugin") -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_commands(kind, texts, directory=folder, environment={"PATH": str(folder / "bin")})
    return str(caught.value)


def test_a_command_is_split_like_a_shell_does(folder: Path) -> None:
    command = parse(folder, "oven --name 'two words' --node={node} \"{cdi}/x\"")

    assert command.arguments({"node": "node-1", "cdi": "/cdi"}) == [
        str(folder / "bin" / "oven"), "--name", "two words", "--node=node-1", "/cdi/x",
    ]  # fmt: skip
    assert command.placeholders == {"node", "cdi"}


def test_assignments_before_the_program_are_variables(folder: Path) -> None:
    command = parse(folder, "LEVEL=debug NODE='the {node}' oven A=b")

    assert command.arguments({"node": "node-1"}) == [str(folder / "bin" / "oven"), "A=b"]
    assert command.environment({"node": "node-1"}) == {"LEVEL": "debug", "NODE": "the node-1"}
    assert command.placeholders == {"node"}


def test_placeholders_of_variables_are_checked(folder: Path) -> None:
    assert 'unknown placeholder {nodes}; did you mean "node"?' in refusal(folder, "NODE={nodes} oven")


def test_two_braces_are_one(folder: Path) -> None:
    command = parse(folder, """oven '{{"node": "{node}", "deep": {{"a": 1}}'""")

    assert command.arguments({"node": "n"})[1] == '{"node": "n", "deep": {"a": 1}}'


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs", "Cc", "Z"], blacklist_characters="'\"\\{}")))
def test_text_without_placeholders_is_unchanged(text: str) -> None:
    command = DriverCommand(kind="plugin", text="", words=("x", text), program="/x", directory=Path("/"), name="x")

    assert command.arguments({}) == ["/x", text]


@pytest.mark.parametrize("kind", list(PLACEHOLDERS))
def test_all_placeholders_that_an_option_names_are_replaced(folder: Path, kind: CommandKind) -> None:
    command = parse(folder, " ".join(("oven", *(f"{{{name}}}" for name in PLACEHOLDERS[kind]))), kind)

    assert command.arguments({name: name.upper() for name in PLACEHOLDERS[kind]})[1:] == [
        name.upper() for name in PLACEHOLDERS[kind]
    ]


def test_a_relative_program_is_in_the_working_directory(folder: Path) -> None:
    assert parse(folder, "./bin/oven").arguments({}) == [str(folder / "bin" / "oven")]
    assert parse(folder, "bin/oven").name == "oven"


def test_an_unknown_placeholder_is_refused_with_the_known_ones(folder: Path) -> None:
    text = refusal(folder, "oven {nod}")

    assert "unknown placeholder {nod}" in text
    assert 'did you mean "node"' in text
    assert "{registry}" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "names no program"),
        ("oven 'x", "no closing quotation"),
        ("oven {", "write {{ for a brace"),
        ("{plugins}/oven", "placeholder {plugins} in the program"),
        ("grill", "program grill is not in the PATH; build or install it"),
        ("notes", "write ./notes for the one in the working directory"),
        ("./grill", "does not exist"),
        ("./notes", "is not an executable file; use chmod +x"),
        ("./bin", "is not an executable file"),
    ],
)
def test_an_unusable_command_is_refused(folder: Path, text: str, expected: str) -> None:
    assert expected in refusal(folder, text)


def test_a_controller_has_no_node(folder: Path) -> None:
    assert "unknown placeholder {node}" in refusal(folder, "oven {node}", kind="controller")


def test_a_webhook_needs_a_port(folder: Path) -> None:
    assert "lacks {port}" in refusal(folder, "oven", kind="webhook")


def test_a_webhook_may_name_its_service(folder: Path) -> None:
    command = parse(folder, "kitchen/oven-hook=oven --port {port}", "webhook")

    assert command.serves("kitchen", "oven-hook")
    assert not command.serves("other", "oven-hook")
    assert command.name == "oven"


def test_a_webhook_without_a_service_stands_for_all(folder: Path) -> None:
    assert parse(folder, "oven --port {port} --mode=strict", "webhook").serves("any", "service")


def test_several_webhooks_name_their_services(folder: Path) -> None:
    text = refusal(folder, "a=oven {port}", "oven {port}", kind="webhook")

    assert "--webhook 'oven {port}' does not name its Service" in text


def test_commands_of_one_program_get_numbers(folder: Path) -> None:
    named = with_distinct_names([parse(folder, "oven 1"), parse(folder, "oven 2"), parse(folder, "oven 3")])

    assert [command.name for command in named] == ["oven", "oven-2", "oven-3"]


def test_a_number_is_not_the_name_of_another_program(folder: Path) -> None:
    commands = [replace(parse(folder, "oven"), name=name) for name in ("oven", "oven", "oven-2")]

    assert [command.name for command in with_distinct_names(commands)] == ["oven", "oven-2", "oven-2-2"]

"""An expression as an API server compiles it, and its syntax tree even where it does not compile."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from dra_kit import cel
from dra_kit.cel.failure import Refusal
from dra_kit.cel.syntax.parser import parse
from dra_kit.cel.syntax.tree import Node

Role: TypeAlias = Literal["selector", "derived"]


class Expression(Struct, frozen=True):
    """An expression of a manifest.

    Attributes:
        path: its field.
        text: what is written.
        role: what it is for.
        root: its syntax tree; None if it has none. Checked only if ``program`` is there.
        program: it, compiled; None if it does not compile.
        error: why it does not; None if it does.
        declarations: what it was compiled with.
    """

    path: str
    text: str
    role: Role
    root: Node | None
    program: cel.Selector | cel.Derived | None
    error: cel.CelCompileError | None
    declarations: cel.Environment


def compiled(text: str, declarations: cel.Environment, *, path: str = "", role: Role = "selector") -> Expression:
    """Compile an expression as an API server with these declarations does."""
    root: Node | None = None
    try:
        root = parse(text)
    except (Refusal, RecursionError):
        pass  # the compiler reports the same, with the place
    compiler = cel.compile_derived if role == "derived" else cel.compile_selector
    try:
        program = compiler(text, environment=declarations)
    except cel.CelCompileError as error:
        return Expression(path, text, role, root, None, error, declarations)
    return Expression(path, text, role, program.root, program, None, declarations)

"""``dra-kit api``: the reference of the public names, in the terminal."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import click
import msgspec
from click.shell_completion import CompletionItem
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from dra_kit.errors import ConfigurationError
from dra_kit.text import did_you_mean

_ROOT: Final = "dra_kit"
_MODULES: Final = (_ROOT, f"{_ROOT}.testing", f"{_ROOT}.cel")
_SECTIONS: Final = {"Args": "Arguments", "Attributes": "Attributes", "Raises": "Raises", "Returns": "Returns",
                    "Yields": "Yields"}  # fmt: skip
"""The sections of a docstring, and their titles."""
_WIDTH: Final = 120
_INDENT: Final = "    "
_MISSING: Final = (PydanticUndefined, dataclasses.MISSING, msgspec.NODEFAULT)


class Argument(msgspec.Struct, frozen=True):
    """An argument of a model, a dataclass or a struct, as written in the source.

    Attributes:
        default: as text; None if it is required.
        by_name: it must be passed by name.
    """

    name: str
    annotation: str
    default: str | None
    by_name: bool

    def __str__(self) -> str:
        text = self.name + (f": {self.annotation}" if self.annotation else "")
        return text + ("" if self.default is None else f" = {self.default}")


def arguments_of(cls: type) -> list[Argument] | None:
    """Return the arguments of a model, a dataclass or a struct; None for any other class."""
    if issubclass(cls, BaseModel):
        models = cls.model_fields.items()
        return [_argument(cls, name, field.default, field.is_required(), by_name=True) for name, field in models]
    if dataclasses.is_dataclass(cls) and "__init__" in vars(cls):
        return [
            _argument(
                cls,
                field.name,
                field.default,
                field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
                by_name=bool(field.kw_only),
            )
            for field in dataclasses.fields(cls)
            if field.init
        ]
    if issubclass(cls, msgspec.Struct):
        structs = msgspec.structs.fields(cls)
        return [_argument(cls, field.name, field.default, field.required, by_name=False) for field in structs]
    return None


def _argument(cls: type, name: str, default: object, required: bool, *, by_name: bool) -> Argument:
    written = next(base.__annotations__[name] for base in cls.__mro__ if name in vars(base).get("__annotations__", {}))
    # each default factory here returns a mapping
    text = "{}" if default in _MISSING else repr(default)
    return Argument(name, str(written), None if required else text, by_name)


def _arguments(cls: type) -> list[Argument]:
    """Return the arguments of any class, with readable annotations."""
    found = arguments_of(cls)
    namespace: dict[str, Any] = {}
    for base in reversed(_own_classes(cls)):
        namespace |= vars(sys.modules[base.__module__])
    if found is None:
        made = next(base for base in cls.__mro__ if "__init__" in vars(base))
        # typing adds one to a protocol
        is_own = made.__module__.startswith(_ROOT) and inspect.getmodule(made.__init__) is not typing  # type: ignore[misc]
        found = _arguments_of_function(made.__init__)[1:] if is_own else []  # type: ignore[misc]
    return [msgspec.structs.replace(item, annotation=_expanded(item.annotation, namespace)) for item in found]


def _arguments_of_function(function: Any) -> list[Argument]:
    return [
        Argument(
            f"{'*' * ((item.kind is item.VAR_POSITIONAL) + 2 * (item.kind is item.VAR_KEYWORD))}{item.name}",
            "" if item.annotation is item.empty else str(item.annotation),
            None if item.default is item.empty else repr(item.default),
            item.kind is item.KEYWORD_ONLY,
        )
        for item in inspect.signature(inspect.unwrap(function)).parameters.values()
    ]


def _expanded(annotation: str, namespace: Mapping[str, Any]) -> str:
    """Return an annotation with the aliases of types that are not public replaced by the types."""
    public = public_names()

    def replaced(match: re.Match[str]) -> str:
        value = namespace.get(match[0])
        aliased = match[0] not in public and get_origin(value) in (Annotated, Literal, Union, UnionType)
        return _type_name(value) if aliased else match[0]

    return re.sub(r"\b[A-Z]\w*", replaced, annotation)


def _type_name(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type_name(args[0])
    if origin in (Union, UnionType):
        return " | ".join(map(_type_name, args))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_type_name, args))}]"
    if kind in (None, type(None), ...):
        return "..." if kind is ... else "None"
    return getattr(kind, "__name__", re.sub(r"\b(?:\w+\.)+", "", repr(kind)))


def signature_of(cls: type) -> str | None:
    """Return for example ``(*, name: str, taints: Sequence[DeviceTaint] = ())``; None as in :func:`arguments_of`."""
    arguments = arguments_of(cls)
    if not arguments:
        return arguments if arguments is None else ""
    texts = list(map(str, arguments))
    first = next((number for number, argument in enumerate(arguments) if argument.by_name), None)
    if first is not None:
        texts.insert(first, "*")
    return f"({', '.join(texts)})"


def public_names() -> dict[str, Any]:
    """Return all public objects, by the names that :func:`api` takes."""
    modules = {name: importlib.import_module(name) for name in _MODULES}
    return {
        f"{home}.{name}".removeprefix(f"{_ROOT}."): getattr(module, name)
        for home, module in modules.items()
        for name in module.__all__
    }


def _complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del ctx, param
    return [CompletionItem(name) for name in public_names() if name.startswith(incomplete)]


@click.command
@click.argument("name", required=False, shell_complete=_complete_name)
def api(name: str | None) -> None:
    """Show the reference of a public name of dra_kit: its arguments with types and defaults, methods, and errors.

    NAME is a class or function, such as Prepared or testing.unit, or a part of a class, such as Preparer.prepare or
    Prepared.env. Without a NAME, all names are listed.
    """
    names = public_names()
    width = min(_WIDTH, max(60, shutil.get_terminal_size((_WIDTH, 24)).columns))
    if name is None:
        for line in _overview(names, width):
            click.echo(line)
        return
    for line in _page(*_found(name, names), width):
        click.echo(line)


def _overview(names: Mapping[str, Any], width: int) -> Iterator[str]:
    yield "The public names of dra_kit (import dra_kit as dra). For one of them, run: dra-kit api NAME"
    longest = max(map(len, names))
    home = None
    for name, value in names.items():
        if home != name.rpartition(".")[0]:
            home = name.rpartition(".")[0]
            yield ""
        summary = _plain(Docstring.of(value, name).summary)
        yield f"  {name:<{longest}}  {textwrap.shorten(summary, width - longest - 4, placeholder=' …')}"


def _found(text: str, names: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the whole name of an object, and the object: also a method, an attribute or an argument of a class.

    Raises:
        ConfigurationError: the name is unknown.
    """
    name = re.sub(r"^(dra_kit|dra)\.", "", text)
    if name in names:
        return f"{_ROOT}.{name}", names[name]
    owner, _, member = name.rpartition(".")
    cls = names.get(owner)
    if isinstance(cls, type):
        doc = Docstring.of(cls, owner)
        kinds = {item.name: f": {item.annotation}" for item in _arguments(cls)}
        described = {**doc.items("Attributes"), **doc.items("Args")}
        members = {
            **{
                key: _Attribute(kinds.get(key) or _kind(cls, key, None), described.get(key, ""))
                for key in {**kinds, **described}
            },
            **_attributes(cls),
            **_methods(cls),
        }
        if member in members:
            return f"{_ROOT}.{name}", members[member]
        hint = did_you_mean(member, members) or f"; it has {', '.join(members) or 'no members'}"
        raise ConfigurationError(f"{text} is not a public name of {owner}{hint}")
    hint = did_you_mean(name, names) or "; dra-kit api lists all names"
    raise ConfigurationError(f"{text} is not a public name of {_ROOT}{hint}")


def _page(name: str, value: Any, width: int) -> Iterator[str]:
    doc = Docstring.of(value, name)
    yield from _wrapped(_title(name, value), width, later=_INDENT)
    yield ""
    yield from doc.text(width)
    if isinstance(value, type):
        yield from _class_sections(name, value, doc, width)
    elif doc.items("Args"):
        plain = inspect.unwrap(value)
        arguments = [item for item in _arguments_of_function(plain) if item.name != "self"]
        shown = [
            msgspec.structs.replace(item, annotation=_expanded(item.annotation, plain.__globals__))
            for item in arguments
        ]
        yield from _argument_section(shown, doc.items("Args"), width)
    for section in ("Returns", "Yields", "Raises"):
        if not isinstance(value, type):
            yield from doc.section(section, width)


def _title(name: str, value: Any) -> str:
    if isinstance(value, type):
        parameters = getattr(value, "__parameters__", ()) or getattr(value, "__pydantic_generic_metadata__", {}).get(
            "parameters", ()
        )
        generic = f"[{', '.join(item.__name__ for item in parameters)}]" if parameters else ""
        return f"class {name}{generic}"
    if isinstance(value, property):
        return f"{name}: {_annotation(value.fget)}"
    if callable(value):
        return f"{name}{_signature(value)}"
    return f"{name} = {value!r}" if not isinstance(value, _Attribute) else f"{name}{value.annotation}"


def _signature(function: Any) -> str:
    plain = inspect.unwrap(function)
    arguments = _arguments_of_function(plain)
    texts = [str(item) for item in arguments]
    first = next((number for number, item in enumerate(arguments) if item.by_name), None)
    if first is not None and not any(item.name.startswith("*") for item in arguments[:first]):
        texts.insert(first, "*")
    returned = str(inspect.get_annotations(plain).get("return", "None"))
    return _expanded(f"({', '.join(texts)}) -> {returned}", plain.__globals__)


def _annotation(function: Any) -> str:
    return str(inspect.get_annotations(function).get("return", "Any"))


def _class_sections(name: str, cls: type, doc: Docstring, width: int) -> Iterator[str]:
    arguments, described = _arguments(cls), {**doc.items("Attributes"), **doc.items("Args")}
    yield from _argument_section(arguments, described, width)
    members = {**_attributes(cls), **dict.fromkeys(doc.items("Attributes"))}
    attributes = [member for member in members if not any(member == item.name for item in arguments)]
    if attributes:
        yield from ("", "Attributes")
        for member in attributes:
            value = members[member]
            kind = value.annotation if isinstance(value, _Attribute) else _kind(cls, member, value)
            text = Docstring.of(value, member).body if value is not None else ""
            yield from _item(f"{member}{kind}", text or described.get(member, ""), width)
    yield from doc.section("Raises", width)
    methods = _methods(cls)
    if methods:
        yield from ("", "Methods")
        for member, value in methods.items():
            yield from _item(f"{member}{_signature(value)}", Docstring.of(value, member).summary, width)
        short = name.removeprefix(f"{_ROOT}.")
        yield from ("", f"For a whole text, run for example: dra-kit api {short}.{next(iter(methods))}")


def _argument_section(arguments: Sequence[Argument], described: Mapping[str, str], width: int) -> Iterator[str]:
    if arguments:
        yield from ("", f"Arguments{', passed by name' if all(item.by_name for item in arguments) else ''}")
        for item in arguments:
            yield from _item(str(item), described.get(item.name, ""), width)


def _kind(cls: type, member: str, value: object) -> str:
    if isinstance(value, property):
        return f": {_annotation(value.fget)}"
    written = (vars(base).get("__annotations__", {}).get(member) for base in cls.__mro__)
    return next((f": {item}" for item in written if item), "")


def _item(title: str, text: str, width: int) -> Iterator[str]:
    yield from _wrapped(title, width, first=_INDENT, later=_INDENT * 3)
    yield from _laid_out(text, width, _INDENT * 2)


class _Attribute(msgspec.Struct, frozen=True):
    """An attribute that a class only annotates, and the text below it in the source."""

    annotation: str
    doc: str


def _own_classes(cls: type) -> list[type]:
    """Return the classes that define the members of interest: not pydantic's or Python's."""
    return [base for base in cls.__mro__ if base.__module__.startswith(_ROOT)]


def _is_public(name: str) -> bool:
    return not name.startswith("_") and not name.endswith("_") and not name.startswith("model_")


def _methods(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in _own_classes(cls):
        for name, value in vars(base).items():
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inspect.isfunction(plain) and _is_public(name) and inspect.getdoc(getattr(cls, name)):
                found.setdefault(name, plain)
    return found


def _attributes(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in _own_classes(cls):
        for name, value in vars(base).items():
            if isinstance(value, property) and _is_public(name):
                found.setdefault(name, value)
        for name, attribute in _written_attributes(base).items():
            if _is_public(name):
                found.setdefault(name, attribute)
    return found


def _written_attributes(cls: type) -> dict[str, _Attribute]:
    """Return the attributes of a class that have a text below them, also those that its constructor sets."""
    parts = ast.parse(inspect.getsource(sys.modules[cls.__module__])).body
    written = next((node for node in parts if isinstance(node, ast.ClassDef) and node.name == cls.__name__), None)
    if written is None:
        return {}
    bodies = [node.body for node in ast.walk(written) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return {name: found for body in bodies for name, found in _documented(body)}


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, _Attribute]]:
    for node, below in pairwise(body):
        if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
        name = getattr(target, "attr", None) or getattr(target, "id", None)
        if name is not None and isinstance(below.value.value, str):
            written = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
            yield name, _Attribute(written, below.value.value)


class Docstring:
    """A docstring: a summary, a body, and sections with items; without the markup of the documentation site."""

    def __init__(self, text: str) -> None:
        self.whole: str = _plain(inspect.cleandoc(text))
        parts = re.split(rf"^({'|'.join(_SECTIONS)}):$\n", self.whole, flags=re.MULTILINE)
        self.body: str = parts[0].strip()
        self.sections: dict[str, str] = {
            title: textwrap.dedent(text) for title, text in zip(parts[1::2], parts[2::2], strict=True)
        }

    @classmethod
    def of(cls, value: Any, name: str) -> Docstring:
        """Return the docstring of an object; sections that a class lacks are those of the class that it extends."""
        if isinstance(value, _Attribute):
            return cls(value.doc)
        if not (isinstance(value, type | property) or callable(value)):
            return cls(_constant_doc(name.rpartition(".")[2], value))
        found = cls(inspect.getdoc(value) or "")
        bases = _own_classes(value)[1:] if isinstance(value, type) and arguments_of(value) else []
        for section, text in (
            (item, text) for base in bases for item, text in cls(base.__doc__ or "").sections.items()
        ):
            if section == "Args":
                found.sections[section] = f"{found.sections.get(section, '')}\n{text}"
            elif section == "Raises":
                found.sections.setdefault(section, text)
        return found

    @property
    def summary(self) -> str:
        """The first paragraph, on one line."""
        return " ".join(self.body.partition("\n\n")[0].split())

    def text(self, width: int) -> Iterator[str]:
        """Yield the lines before the first section."""
        yield from _laid_out(self.body, width, "")

    def items(self, section: str) -> dict[str, str]:
        """Return the items of a section by name."""
        parts = re.split(
            r"^(\\?\*{0,2}[\w.]+(?:, [\w.]+)*):(?= |$)", self.sections.get(section, ""), flags=re.MULTILINE
        )
        return {
            name: inspect.cleandoc(text)
            for names, text in zip(parts[1::2], parts[2::2], strict=True)
            for name in names.split(", ")
        }

    def section(self, section: str, width: int) -> Iterator[str]:
        """Yield the lines of a section; nothing if it is missing."""
        if section not in self.sections:
            return
        yield from ("", _SECTIONS[section])
        if section in ("Returns", "Yields"):
            yield from _laid_out(self.sections[section].strip(), width, _INDENT)
            return
        for name, text in self.items(section).items():
            yield from _item(name, text, width)


def _constant_doc(name: str, value: object) -> str:
    """Return the text below the definition of a constant."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(_ROOT) and vars(module).get(name) is value:
            found = dict(_documented(ast.parse(inspect.getsource(module)).body))
            if name in found:
                return found[name].doc
    return ""


def _plain(text: str) -> str:
    """Return a text without the roles and marks of reStructuredText."""
    text = re.sub(r":(?:\w+:)?\w+:`~?(?:[^`<]*<)?(?:dra_kit\.)?(?:\w+\.)*?([A-Z]\w*(?:\.\w+)?|\w+)>?`", r"`\1`", text)
    return re.sub(r"::$", ":", text.replace("``", "`"), flags=re.MULTILINE)


def _wrapped(text: str, width: int, *, first: str = "", later: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )


def _laid_out(text: str, width: int, indent: str) -> Iterator[str]:
    """Yield the lines of paragraphs, which are filled, of lists, and of code, which stays unchanged."""
    for number, paragraph in enumerate(text.strip("\n").split("\n\n")):
        if number:
            yield ""
        if paragraph.startswith(" "):
            yield from (f"{indent}{line}".rstrip() for line in paragraph.splitlines())
            continue
        for item in re.split(r"\n(?=- )", paragraph):
            later = indent + ("  " if item.startswith("- ") else "")
            yield from _wrapped(" ".join(item.split()), width, first=indent, later=later)

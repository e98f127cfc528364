"""Splits the text of an expression into tokens, by the grammar of cel-go v0.29.2."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.cel.failure import Refusal
from dra_kit.cel.values import INT_MAX, UINT_MAX, Uint

TokenKind: TypeAlias = Literal["operator", "identifier", "escaped", "literal", "int", "double", "end"]
"""``int`` and ``double`` are literals that a minus sign may belong to."""


class Token(Struct, frozen=True):
    """A piece of the text; ``value`` is the constant, or the name without back quotes."""

    kind: TokenKind
    text: str
    value: object
    start: int
    end: int


RESERVED: Final = frozenset({
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
})  # fmt: skip
"""Words that are no names of variables or functions, though names of fields."""

_ESCAPE: Final = r"\\(?:[abfnrtv\"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_TOKEN: Final = re.compile(
    r"""
    (?P<space>(?:[\t\ \r\n\f]|//[^\n]*)+)
  | (?P<string>(?P<prefix>[bB]?[rR]?)(?:
        (?P<triple>\"\"\"|''')
      | (?P<quote>["'])
    ))
  | (?P<double>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<int>(?:0x[0-9a-fA-F]+|[0-9]+))(?P<unsigned>[uU]?)
  | (?P<identifier>[A-Za-z_][A-Za-z0-9_]*)
  | `(?P<escaped>[A-Za-z0-9_.\-/ ]+)`
  | (?P<operator>==|!=|<=|>=|&&|\|\||[\[\]{}().,\-!?:+*/%<>])
    """,
    re.VERBOSE,
)
_BODY: Final = {
    ('"', False): re.compile(rf'((?:{_ESCAPE}|[^\\"\n\r])*)"'),
    ("'", False): re.compile(rf"((?:{_ESCAPE}|[^\\'\n\r])*)'"),
    ('"""', False): re.compile(rf'((?:{_ESCAPE}|[^\\])*?)"""'),
    ("'''", False): re.compile(rf"((?:{_ESCAPE}|[^\\])*?)'''"),
    ('"', True): re.compile(r'([^"\n\r]*)"'),
    ("'", True): re.compile(r"([^'\n\r]*)'"),
    ('"""', True): re.compile(r'(.*?)"""', re.DOTALL),
    ("'''", True): re.compile(r"(.*?)'''", re.DOTALL),
}
_ESCAPED: Final = re.compile(_ESCAPE)
_CONTROLS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
# longer ones do not fit 64 bits either
_LONGEST_NUMBER: Final = 400


def tokenize(text: str) -> list[Token]:
    """Return the tokens of an expression, the last one of kind ``end``.

    Raises:
        Refusal: a character or a literal is none.
    """
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Refusal(f"Syntax error: token recognition error at: {text[position]!r}", position)
        if match["space"]:
            position = match.end()
            continue
        token = _token(text, match)
        tokens.append(token)
        position = token.end
    tokens.append(Token("end", "<EOF>", None, len(text), len(text)))
    return tokens


def _token(text: str, match: re.Match[str]) -> Token:
    start, end = match.span()
    if match["string"] is not None:
        return _string(text, match)
    if name := match["identifier"]:
        if name in _CONSTANTS:
            return Token("literal", name, _CONSTANTS[name], start, end)
        return Token("operator" if name == "in" else "identifier", name, name, start, end)
    if match["double"]:
        return Token("double", match[0], _double(match["double"], start), start, end)
    if digits := match["int"]:
        number = int(digits[:_LONGEST_NUMBER], 0 if digits.startswith("0x") else 10)
        if match["unsigned"]:
            if number > UINT_MAX:
                raise Refusal("invalid uint literal", start)
            return Token("literal", match[0], Uint(number), start, end)
        if number > INT_MAX + 1:
            raise Refusal("invalid int literal", start)
        return Token("int", match[0], number, start, end)
    if match["escaped"]:
        return Token("escaped", match[0], match["escaped"], start, end)
    return Token("operator", match[0], match[0], start, end)


def _double(digits: str, start: int) -> float:
    number = float(digits)
    if number in {float("inf"), float("-inf")}:
        raise Refusal("invalid double literal", start)
    return number


def _string(text: str, match: re.Match[str]) -> Token:
    start = match.start()
    prefix, quote = match["prefix"].lower(), match["triple"] or match["quote"]
    body = _BODY[quote, "r" in prefix].match(text, match.end())
    if body is None:
        raise Refusal(f"Syntax error: token recognition error at: {text[start : start + 20]!r}", start)
    content = body[1].replace("\r\n", "\n").replace("\r", "\n") if match["triple"] else body[1]
    value: object
    if "b" in prefix:
        value = content.encode() if "r" in prefix else _unescape_bytes(content, start)
    else:
        value = content if "r" in prefix else _ESCAPED.sub(lambda escape: _character(escape[0], start), content)
    return Token("literal", text[start : body.end()], value, start, body.end())


def _character(escape: str, start: int) -> str:
    kind = escape[1]
    if kind in "xXuU":
        digits = escape[2:]
        code = int(digits, 16)
    elif kind in "0123":
        code = int(escape[1:], 8)
    else:
        return _CONTROLS.get(kind, kind)
    if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        raise Refusal("invalid unicode code point", start)
    return chr(code)


def _unescape_bytes(content: str, start: int) -> bytes:
    made = bytearray()
    position = 0
    for escape in _ESCAPED.finditer(content):
        made += content[position : escape.start()].encode()
        if escape[0][1] in "uU":
            raise Refusal("unable to unescape string: \\u and \\U are not for bytes", start)
        made.append(ord(_character(escape[0], start)))
        position = escape.end()
    return bytes(made + content[position:].encode())

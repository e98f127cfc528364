"""Parser: from the text of an expression through tokens to its syntax tree."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.kubernetes.cel.failures import CompileFailure
from dra_kit.kubernetes.cel.macros import expand
from dra_kit.kubernetes.cel.tree import (
    CallNode,
    IdentNode,
    ListNode,
    LiteralNode,
    MapNode,
    SelectNode,
    StructNode,
    SyntaxNode,
)
from dra_kit.kubernetes.cel.values import INT_MAX, UINT_MAX, Uint

# A single minus sign before one of these is part of the literal.
_NUMBERS: Final = frozenset({"int", "double"})
# cel-go's limit of the depth of any rule of its grammar
_MAX_DEPTH: Final = 250
_PRECEDENCE: Final = {
    "||": 1, "&&": 2, "<": 3, "<=": 3, ">=": 3, ">": 3, "==": 3, "!=": 3, "in": 3, "+": 4, "-": 4, "*": 5, "/": 5,
    "%": 5,
}  # fmt: skip


def parse(text: str, *, has_bind: bool = True) -> SyntaxNode:
    """Return the syntax tree of an expression, macros expanded.

    Args:
        text: the expression.
        has_bind: whether ``cel.bind`` is one of the macros.

    Raises:
        CompileFailure: the text is not an expression.
    """
    parser = _Parser(text, has_bind=has_bind)
    root = parser.expression()
    if parser.token.kind != "end":
        raise parser.unexpected()
    return root


class _Parser:
    def __init__(self, text: str, *, has_bind: bool) -> None:
        self._has_bind = has_bind
        self._tokens = iter(tokenize(text))
        self.token: Token = next(self._tokens)
        self._last_end = 0
        self._depth = 0

    def _advance(self) -> Token:
        token = self.token
        self._last_end = token.end
        self.token = next(self._tokens, token)
        return token

    def _accept(self, text: str) -> bool:
        if self.token.kind == "operator" and self.token.text == text:
            self._advance()
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self.unexpected(text)

    def unexpected(self, expected: str = "") -> CompileFailure:
        suffix = f" expecting '{expected}'" if expected else ""
        return CompileFailure(f"Syntax error: mismatched input '{self.token.text}'{suffix}", self.token.start)

    def expression(self) -> SyntaxNode:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise CompileFailure(f"expression recursion limit exceeded: {_MAX_DEPTH}", None)
        start = self.token.start
        node = self._binary(1)
        if self.token.kind == "operator" and self.token.text == "?":
            place = self._advance().start
            truthy = self._binary(1)
            self._expect(":")
            falsy = self.expression()
            node = CallNode("_?_:_", None, [node, truthy, falsy], start=start, end=self._last_end, place=place)
        self._depth -= 1
        return node

    def _binary(self, lowest: int) -> SyntaxNode:
        start = self.token.start
        left = self._unary()
        length = 0
        while self.token.kind == "operator" and _PRECEDENCE.get(self.token.text, 0) >= lowest:
            operator = self._advance()
            right = self._binary(_PRECEDENCE[operator.text] + 1)
            if operator.text not in {"&&", "||"}:
                length += 1
                if length > _MAX_DEPTH:
                    raise CompileFailure("max recursion depth exceeded", None)
                name = "@in" if operator.text == "in" else f"_{operator.text}_"
                left = CallNode(name, None, [left, right], start=start, end=self._last_end, place=operator.start)
            else:
                left = self._logical(operator, left, right, start)
        return left

    def _logical(self, operator: Token, left: SyntaxNode, right: SyntaxNode, start: int) -> SyntaxNode:
        """Parse ``a && b && c`` as one call with three arguments."""
        name = f"_{operator.text}_"
        if isinstance(left, CallNode) and left.function == name and left.start == start and left.macro == "chain":
            left.arguments.append(right)
            left.end = self._last_end
            return left
        return CallNode(name, None, [left, right], macro="chain", start=start, end=self._last_end, place=operator.start)

    def _unary(self) -> SyntaxNode:
        token = self.token
        if token.kind != "operator" or token.text not in {"!", "-"}:
            # parentheses here and not in _primary, to use fewer Python frames for each pair
            if token.kind == "operator" and token.text == "(":
                self._advance()
                node = self.expression()
                self._expect(")")
                return self._member(node, token.start)
            return self._member(self._primary(), token.start)
        operators = [self._advance()]
        while self.token.kind == "operator" and self.token.text == token.text:
            operators.append(self._advance())
        start = self.token.start
        if token.text == "-" and len(operators) == 1 and self.token.kind in _NUMBERS:
            return self._member(self._number(negative=True, start=token.start), token.start)
        if token.text == "!" and self._accept("-"):
            if self.token.kind not in _NUMBERS:
                raise self.unexpected()
            operand = self._member(self._number(negative=True, start=start), start)
        else:
            operand = self._member(self._primary(), start)
        if len(operators) % 2 == 0:
            return operand
        name = "!_" if token.text == "!" else "-_"
        return CallNode(name, None, [operand], start=token.start, end=self._last_end)

    def _number(self, *, negative: bool, start: int) -> SyntaxNode:
        token = self._advance()
        value = token.value
        assert isinstance(value, (int, float))  # noqa: S101 - the lexer says so with the kind
        if negative:
            value = -value
        elif token.kind == "int" and value > INT_MAX:
            raise CompileFailure("invalid int literal", token.start)
        return LiteralNode(value, start=start, end=token.end)

    def _member(self, node: SyntaxNode, start: int) -> SyntaxNode:
        length = 0
        while self.token.kind == "operator" and self.token.text in {".", "["}:
            length += 1
            if length > _MAX_DEPTH:
                raise CompileFailure("max recursion depth exceeded", None)
            place = self._advance()
            node = self._select(node, start, place) if place.text == "." else self._index(node, start, place)
        return node

    def _select(self, operand: SyntaxNode, start: int, dot: Token) -> SyntaxNode:
        optional = self._accept("?")
        token = self.token
        # constants such as `true`, and `in`, are separate tokens, so they cannot be field names either
        if token.kind not in {"identifier", "escaped"}:
            raise self.unexpected()
        self._advance()
        name = str(token.value)
        if optional:
            field = LiteralNode(name, start=token.start, end=token.end)
            return CallNode("_?._", None, [operand, field], start=start, end=token.end, place=dot.start)
        if token.kind == "identifier" and self.token.kind == "operator" and self.token.text == "(":
            place = self._advance().start
            arguments = self._arguments(")")
            return expand(
                name, operand, arguments, start=start, end=self._last_end, place=place, has_bind=self._has_bind
            )
        return SelectNode(operand, name, start=start, end=token.end, place=dot.start)

    def _index(self, operand: SyntaxNode, start: int, bracket: Token) -> SyntaxNode:
        name = "_[?_]" if self._accept("?") else "_[_]"
        index = self.expression()
        self._expect("]")
        return CallNode(name, None, [operand, index], start=start, end=self._last_end, place=bracket.start)

    def _arguments(self, closing: str) -> list[SyntaxNode]:
        arguments: list[SyntaxNode] = []
        if self._accept(closing):
            return arguments
        while True:
            arguments.append(self.expression())
            if self._accept(closing):
                return arguments
            self._expect(",")

    def _primary(self) -> SyntaxNode:
        token = self.token
        if token.kind == "literal":
            self._advance()
            return LiteralNode(token.value, start=token.start, end=token.end)
        if token.kind in _NUMBERS:
            return self._number(negative=False, start=token.start)
        if token.kind == "identifier":
            return self._name(token.start, "")
        if token.kind == "operator":
            match token.text:
                case "(":
                    self._advance()
                    node = self.expression()
                    self._expect(")")
                    return node
                case "[":
                    return self._list()
                case "{":
                    return self._map()
                case ".":
                    self._advance()
                    if self.token.kind == "identifier":
                        return self._name(token.start, ".")
                case _:
                    pass
        raise self.unexpected()

    def _name(self, start: int, dot: str) -> SyntaxNode:
        token = self._advance()
        follows = self.token.text if self.token.kind == "operator" else ""
        if follows == "{":
            return self._struct([dot + token.text], start)
        if token.text in RESERVED_WORDS:
            raise CompileFailure(f"reserved identifier: {token.text}", token.start)
        if follows == "(":
            opening = self._advance()
            arguments = self._arguments(")")
            return expand(dot + token.text, None, arguments, start=start, end=self._last_end, place=opening.start)
        node: SyntaxNode = IdentNode(dot + token.text, start=start, end=token.end)
        names = [dot + token.text]
        while self.token.kind == "operator" and self.token.text == ".":
            period = self._advance()
            names.append(self.token.text)
            node = self._select(node, start, period)
            if not isinstance(node, SelectNode):
                return node
            if self.token.kind == "operator" and self.token.text == "{" and len(names) > 1:
                return self._struct(names, start)
        return node

    def _struct(self, names: list[str], start: int) -> SyntaxNode:
        self._expect("{")
        fields: list[tuple[str, SyntaxNode]] = []
        optional: set[int] = set()
        while not self._accept("}"):
            if self._accept("?"):
                optional.add(len(fields))
            if self.token.kind not in {"identifier", "escaped"}:
                raise self.unexpected()
            name = str(self._advance().value)
            self._expect(":")
            fields.append((name, self.expression()))
            if not self._accept(","):
                self._expect("}")
                break
        return StructNode(".".join(names), fields, frozenset(optional), start=start, end=self._last_end)

    def _list(self) -> SyntaxNode:
        start = self._advance().start
        elements: list[SyntaxNode] = []
        optional: set[int] = set()
        while not self._accept("]"):
            if not elements and self._accept(","):
                self._expect("]")
                break
            if self._accept("?"):
                optional.add(len(elements))
            elements.append(self.expression())
            if not self._accept(","):
                self._expect("]")
                break
        return ListNode(elements, frozenset(optional), start=start, end=self._last_end)

    def _map(self) -> SyntaxNode:
        start = self._advance().start
        entries: list[tuple[SyntaxNode, SyntaxNode]] = []
        optional: set[int] = set()
        while not self._accept("}"):
            if not entries and self._accept(","):
                self._expect("}")
                break
            if self._accept("?"):
                optional.add(len(entries))
            key = self.expression()
            self._expect(":")
            entries.append((key, self.expression()))
            if not self._accept(","):
                self._expect("}")
                break
        return MapNode(entries, frozenset(optional), start=start, end=self._last_end)


TokenKind: TypeAlias = Literal["operator", "identifier", "escaped", "literal", "int", "double", "end"]
"""``int`` and ``double`` are literals that a minus sign may belong to."""


class Token(Struct, frozen=True):
    """A token; ``value`` is the constant, or the name without backquotes."""

    kind: TokenKind
    text: str
    value: object
    start: int
    end: int


RESERVED_WORDS: Final = frozenset({
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
})  # fmt: skip
"""Words that cannot be names of variables or functions, but can be names of fields."""
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
# longer ones exceed 64 bits
_LONGEST_NUMBER: Final = 400


def tokenize(text: str) -> list[Token]:
    """Return the tokens of an expression, the last one of kind ``end``.

    Raises:
        CompileFailure: a character or a literal is invalid.
    """
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CompileFailure(f"Syntax error: token recognition error at: {text[position]!r}", position)
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
                raise CompileFailure("invalid uint literal", start)
            return Token("literal", match[0], Uint(number), start, end)
        if number > INT_MAX + 1:
            raise CompileFailure("invalid int literal", start)
        return Token("int", match[0], number, start, end)
    if match["escaped"]:
        return Token("escaped", match[0], match["escaped"], start, end)
    return Token("operator", match[0], match[0], start, end)


def _double(digits: str, start: int) -> float:
    number = float(digits)
    if number in {float("inf"), float("-inf")}:
        raise CompileFailure("invalid double literal", start)
    return number


def _string(text: str, match: re.Match[str]) -> Token:
    start = match.start()
    prefix, quote = match["prefix"].lower(), match["triple"] or match["quote"]
    body = _BODY[quote, "r" in prefix].match(text, match.end())
    if body is None:
        raise CompileFailure(f"Syntax error: token recognition error at: {text[start : start + 20]!r}", start)
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
        raise CompileFailure("invalid unicode code point", start)
    return chr(code)


def _unescape_bytes(content: str, start: int) -> bytes:
    made = bytearray()
    position = 0
    for escape in _ESCAPED.finditer(content):
        made += content[position : escape.start()].encode()
        if escape[0][1] in "uU":
            raise CompileFailure("unable to unescape string: \\u and \\U are not for bytes", start)
        made.append(ord(_character(escape[0], start)))
        position = escape.end()
    return bytes(made + content[position:].encode())

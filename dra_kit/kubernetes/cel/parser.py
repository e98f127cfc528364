"""Reads an expression: precedence climbing over the tokens (grammar of cel-go v0.29.2)."""

from __future__ import annotations

from typing import Final

from dra_kit.cel.failure import Refusal
from dra_kit.cel.syntax.lexer import RESERVED, Token, tokenize
from dra_kit.cel.syntax.macros import expand
from dra_kit.cel.syntax.tree import Call, Ident, ListNode, Literal, MapNode, Node, Select, StructNode
from dra_kit.cel.values import INT_MAX

# A single minus sign before one of these is a part of it; of several signs none is.
_NUMBERS: Final = frozenset({"int", "double"})

# cel-go's limit of the depth of any rule of its grammar
_MAX_DEPTH: Final = 250

_PRECEDENCE: Final = {
    "||": 1, "&&": 2, "<": 3, "<=": 3, ">=": 3, ">": 3, "==": 3, "!=": 3, "in": 3, "+": 4, "-": 4, "*": 5, "/": 5,
    "%": 5,
}  # fmt: skip


def parse(text: str, *, has_bind: bool = True) -> Node:
    """Return the syntax tree of an expression, macros expanded.

    Args:
        text: the expression.
        has_bind: whether ``cel.bind`` is one of the macros.

    Raises:
        Refusal: it is none.
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

    def unexpected(self, expected: str = "") -> Refusal:
        suffix = f" expecting '{expected}'" if expected else ""
        return Refusal(f"Syntax error: mismatched input '{self.token.text}'{suffix}", self.token.start)

    def _too_deep(self) -> Refusal:
        return Refusal(f"expression recursion limit exceeded: {_MAX_DEPTH}", None)

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._too_deep()
        start = self.token.start
        node = self._binary(1)
        if self.token.kind == "operator" and self.token.text == "?":
            place = self._advance().start
            truthy = self._binary(1)
            self._expect(":")
            falsy = self.expression()
            node = Call("_?_:_", None, [node, truthy, falsy], start, self._last_end, place=place)
        self._depth -= 1
        return node

    def _binary(self, lowest: int) -> Node:
        start = self.token.start
        left = self._unary()
        length = 0
        while self.token.kind == "operator" and _PRECEDENCE.get(self.token.text, 0) >= lowest:
            operator = self._advance()
            right = self._binary(_PRECEDENCE[operator.text] + 1)
            if operator.text not in {"&&", "||"}:
                length += 1
                if length > _MAX_DEPTH:
                    raise Refusal("max recursion depth exceeded", None)
                name = "@in" if operator.text == "in" else f"_{operator.text}_"
                left = Call(name, None, [left, right], start, self._last_end, place=operator.start)
            else:
                left = self._logical(operator, left, right, start)
        return left

    def _logical(self, operator: Token, left: Node, right: Node, start: int) -> Node:
        """Parse ``a && b && c`` as one call with three arguments."""
        name = f"_{operator.text}_"
        if isinstance(left, Call) and left.function == name and left.start == start and left.macro == "chain":
            left.arguments.append(right)
            left.end = self._last_end
            return left
        return Call(name, None, [left, right], start, self._last_end, place=operator.start, macro="chain")

    def _unary(self) -> Node:
        token = self.token
        if token.kind != "operator" or token.text not in {"!", "-"}:
            # parentheses here and not in _primary: few Python frames for each pair
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
        return Call(name, None, [operand], token.start, self._last_end, place=token.start)

    def _number(self, *, negative: bool, start: int) -> Node:
        token = self._advance()
        value = token.value
        assert isinstance(value, (int, float))  # noqa: S101 - the lexer says so with the kind
        if negative:
            value = -value
        elif token.kind == "int" and value > INT_MAX:
            raise Refusal("invalid int literal", token.start)
        return Literal(value, start, token.end)

    def _member(self, node: Node, start: int) -> Node:
        length = 0
        while self.token.kind == "operator" and self.token.text in {".", "["}:
            length += 1
            if length > _MAX_DEPTH:
                raise Refusal("max recursion depth exceeded", None)
            place = self._advance()
            node = self._select(node, start, place) if place.text == "." else self._index(node, start, place)
        return node

    def _select(self, operand: Node, start: int, dot: Token) -> Node:
        optional = self._accept("?")
        token = self.token
        # the words of constants and `in` are tokens of their own, so that they are no fields either
        if token.kind not in {"identifier", "escaped"}:
            raise self.unexpected()
        self._advance()
        name = str(token.value)
        if optional:
            field = Literal(name, token.start, token.end)
            return Call("_?._", None, [operand, field], start, token.end, place=dot.start)
        if token.kind == "identifier" and self.token.kind == "operator" and self.token.text == "(":
            place = self._advance().start
            arguments = self._arguments(")")
            return expand(
                name, operand, arguments, start=start, end=self._last_end, place=place, has_bind=self._has_bind
            )
        return Select(operand, name, start, token.end, place=dot.start)

    def _index(self, operand: Node, start: int, bracket: Token) -> Node:
        name = "_[?_]" if self._accept("?") else "_[_]"
        index = self.expression()
        self._expect("]")
        return Call(name, None, [operand, index], start, self._last_end, place=bracket.start)

    def _arguments(self, closing: str) -> list[Node]:
        arguments: list[Node] = []
        if self._accept(closing):
            return arguments
        while True:
            arguments.append(self.expression())
            if self._accept(closing):
                return arguments
            self._expect(",")

    def _primary(self) -> Node:
        token = self.token
        if token.kind == "literal":
            self._advance()
            return Literal(token.value, token.start, token.end)
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

    def _name(self, start: int, dot: str) -> Node:
        token = self._advance()
        follows = self.token.text if self.token.kind == "operator" else ""
        if follows == "{":
            return self._struct([dot + token.text], start)
        if token.text in RESERVED:
            raise Refusal(f"reserved identifier: {token.text}", token.start)
        if follows == "(":
            opening = self._advance()
            arguments = self._arguments(")")
            return expand(dot + token.text, None, arguments, start=start, end=self._last_end, place=opening.start)
        node: Node = Ident(dot + token.text, start, token.end)
        names = [dot + token.text]
        while self.token.kind == "operator" and self.token.text == ".":
            period = self._advance()
            names.append(self.token.text)
            node = self._select(node, start, period)
            if not isinstance(node, Select):
                return node
            if self.token.kind == "operator" and self.token.text == "{" and len(names) > 1:
                return self._struct(names, start)
        return node

    def _struct(self, names: list[str], start: int) -> Node:
        self._expect("{")
        fields: list[tuple[str, Node]] = []
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
        return StructNode(".".join(names), fields, frozenset(optional), start, self._last_end)

    def _list(self) -> Node:
        start = self._advance().start
        elements: list[Node] = []
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
        return ListNode(elements, frozenset(optional), start, self._last_end)

    def _map(self) -> Node:
        start = self._advance().start
        entries: list[tuple[Node, Node]] = []
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
        return MapNode(entries, frozenset(optional), start, self._last_end)

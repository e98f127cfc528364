"""A driver whose configs have a field of every type that policies know, and strategies of its configs."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import ipaddress
import pathlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired

import pydantic
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    StringConstraints,
    Tag,
)
from typing_extensions import TypedDict

import dra_kit as dra

DRIVER = "canteen.example"
API_VERSION = "canteen.example/v1"


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"
    COUNT = 3


class Heat(enum.IntEnum):
    LOW = 0
    HIGH = 2


class Anyhow(enum.Enum):
    FAST = "fast"

    @classmethod
    def _missing_(cls, value: object) -> Anyhow:
        return cls.FAST


class Oil(BaseModel):
    """Says it takes more than the node lets it."""

    model_config = ConfigDict(extra="allow", strict=False)

    drops: int = 0
    name: Annotated[str, Field(min_length=1)]


class Soup(BaseModel):
    kind: Literal["soup"]
    liters: Annotated[float, Field(gt=0, le=2.5)]


class Salad(BaseModel):
    kind: Literal["salad", "greens"]
    leaves: int = 1
    oil: Oil | None = None


class Bread(BaseModel):
    slices: int


class Named(BaseModel):
    model_config = ConfigDict(populate_by_name=True, alias_generator=lambda name: name.title())

    first: int
    second: str = ""
    third: int = Field(0, validation_alias=AliasChoices("Third", "3rd"))


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True, str_max_length=4)

    word: str
    code: Annotated[str, Field(pattern="^[a-z]+$", min_length=2)] = "ab"


class Node(BaseModel):
    value: int
    next: Node | None = None


class Numbers(RootModel[list[int]]):
    pass


class Spice(TypedDict):
    heat: int
    name: NotRequired[str]


@pydantic.dataclasses.dataclass
class Spoon:
    length: int
    metal: bool = True


def _kind(value: Any) -> str:
    return "soup" if isinstance(value, Mapping) and "liters" in value else "salad"


Course = Annotated[Soup | Salad, Field(discriminator="kind")]


class Scalars(dra.OpaqueConfig, api_version=API_VERSION):
    on: bool = False
    number: int = 0
    some: Annotated[int, Field(ge=-2, lt=5)] = 0
    even: Annotated[int, Field(multiple_of=2)] = 0
    huge: Annotated[int, Field(gt=2**60, lt=2**63)] = 2**61
    low: Annotated[int, Field(lt=-(2**63))] | None = None
    ratio: Annotated[float, Field(ge=0, lt=1.5)] = 0.5
    any_float: float = 0
    word: Annotated[str, Field(min_length=1, max_length=3)] = "a"
    code: Annotated[str, Field(pattern=r"^[a-z]{1,3}-\d+$")] = "a-1"
    ascii: Annotated[str, StringConstraints(ascii_only=True, max_length=3)] = ""
    loose: Annotated[str, Field(pattern=r"(?i)x[^y\s]")] = "xa"
    choice: Literal["a", "b'c", 'd"e'] = "a"
    mixed: Literal["a", 1] | None = "a"
    flag: Literal[True, "auto"] = "auto"
    size: Size = Size.SMALL
    heat: Heat = Heat.LOW
    memory: dra.QuantityField = dra.QuantityField("1Gi")
    share: Annotated[dra.QuantityField, Field(ge="1Gi", lt=dra.Quantity("8Gi"))] | None = None
    cores: dra.QuantityField | None = Field(default=None, gt=0, le=64)
    plain: Annotated[dra.Quantity, Field(gt="1Gi", le=8e9)] | None = None
    perhaps: int | None = None
    odd_key: int = Field(default=0, alias="odd-key.1")
    reserved: int = Field(default=0, alias="in")


class Containers(dra.OpaqueConfig, api_version=API_VERSION):
    names: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=2)] = []
    matrix: list[list[int]] = []
    pair: tuple[int, str] = (1, "")
    row: Annotated[tuple[int, ...], Field(min_length=1)] = (1,)
    numbers: Numbers = Numbers([])
    limits: dict[str, int] = {}
    labels: dict[Annotated[str, Field(pattern="^[a-z]+$")], str] = {}
    by_size: dict[Literal["small", "large"], bool] = {}
    oils: list[Oil] = []
    by_name: Annotated[dict[str, Oil], Field(min_length=1)] = {"x": Oil(name="x")}
    oil: Oil
    spice: Spice | None = None
    spoon: Spoon | None = None
    named: Named | None = None
    stripped: Stripped | None = None


class Unions(dra.OpaqueConfig, api_version=API_VERSION):
    course: Course | None = None
    courses: list[Course] = []
    either: Bread | int | list[str] | None = None
    two: Bread | Oil | None = None
    list_or_lists: list[int] | list[str] = []
    text_or_number: Annotated[str, Field(max_length=2)] | Annotated[int, Field(ge=10)] = ""
    map_or_bread: dict[str, bool] | Bread = {}
    limit: Literal["none"] | Annotated[int, Field(ge=1)] = "none"


class Left(dra.OpaqueConfig, api_version=API_VERSION):
    """Fields of which the node checks more, so that only one direction holds."""

    when: dt.datetime | None = None
    day: dt.date | None = None
    span: dt.timedelta | None = None
    ident: uuid.UUID | None = None
    path: pathlib.Path | None = None
    address: ipaddress.IPv4Address | None = None
    url: pydantic.AnyUrl | None = None
    raw: bytes = b""
    amount: Annotated[decimal.Decimal, Field(ge=1)] = decimal.Decimal(1)
    unique: Annotated[set[int], Field(min_length=2, max_length=2)] = {1, 2}
    half: Annotated[float, Field(multiple_of=0.5)] = 0.5
    whole: Annotated[dra.QuantityField, Field(ge=0, multiple_of=1)] = dra.QuantityField("1")
    as_text: Annotated[int, BeforeValidator(int)] = 0
    positive: Annotated[int, AfterValidator(abs)] = 0
    anyhow: Anyhow = Anyhow.FAST
    letters: Annotated[str, Field(pattern=r"^\p{Greek}*$")] = ""
    unicode: Annotated[str, Field(pattern=r"^\w+$")] = "a"
    by_number: dict[int, int] = {}
    chosen: Annotated[Annotated[Soup, Tag("soup")] | Annotated[Salad, Tag("salad")], Discriminator(_kind)] | None = None
    tree: Node | None = None
    secret: pydantic.SecretStr | None = None
    packed: pydantic.Json[int] | None = None
    first: int = Field(0, validation_alias=AliasPath("list", 0))
    trimmed: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, to_lower=True)] = "a"


class OldScalars(dra.OpaqueConfig, api_version="canteen.example/v1alpha1", kind="Scalars"):
    word: str = "a"

    def upgrade(self) -> Scalars:
        return Scalars(word=self.word)


class NewScalars(Scalars, api_version=API_VERSION, kind="Scalars", upgrades_from=[OldScalars]):
    pass


class Oven(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="meal-0")]


class Waiter(dra.Preparer[NewScalars | Containers | Unions | Left]):
    def prepare(
        self, claim: dra.Claim, device: dra.AllocatedDevice[NewScalars | Containers | Unions | Left]
    ) -> dra.Prepared:
        return dra.Prepared()


driver = dra.Driver(DRIVER, provider=Oven(), preparer=Waiter())

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, 1, -1, 3, 11, 1.0, 2.0, 0.25, 2**63, -(2**63) - 1, 2**70, "", "a", "ab", "abc", "abcd", "1",
     "1Gi", " 2Gi ", "x", "XY", "é", "\u00a0a ", "small", "none", "auto", [], [1], ["a"], [1, "a"], [[1]], [[]], {},
     {"a": 1}, {"a": True}, {"slices": 1}, {"name": "a"}, {"kind": "soup", "liters": 1}, {"kind": "greens"},
     {"kind": "cake"}, {"drops": "1", "name": "x"}, {"name": "x", "more": 1}, {"length": 1}, {"heat": 1}, {"A": "b"}]
)  # fmt: skip
"""What may stand anywhere, right or wrong."""

_OIL = st.fixed_dictionaries({"name": st.sampled_from(["a", "olive", ""])}, optional={"drops": st.integers(-1, 3)})
_SOUP = st.fixed_dictionaries({"kind": st.just("soup"), "liters": st.sampled_from([0, 0.5, 1, 2.5, 3, "1"])})
_SALAD = st.fixed_dictionaries(
    {"kind": st.sampled_from(["salad", "greens"])},
    optional={"leaves": st.integers(0, 3), "oil": st.none() | _OIL, "more": st.just(1)},
)
_COURSE = st.one_of(_SOUP, _SALAD)
_WORDS = st.text(alphabet="abx-1 é", max_size=4)
_QUANTITIES = st.builds(
    "{}{}".format,
    st.decimals(-3, 3000, places=2) | st.integers(-3, 2**40),
    st.sampled_from(["", "", "m", "n", "k", "M", "G", "Ki", "Mi", "Gi", "e2", "E-2", "e30", "GB"]),
)
LIKELY: Mapping[str, Mapping[str, st.SearchStrategy[Any]]] = {
    "Scalars": {
        "on": st.booleans(),
        "number": st.integers(),
        "some": st.integers(-4, 6),
        "even": st.integers(-3, 4),
        "huge": st.sampled_from([2**60, 2**60 + 1, 2**62, 2**63 - 1, 2**63, 2**64]),
        "low": st.none() | st.sampled_from([-(2**63), -(2**63) - 1, -(2**70), 0]),
        "ratio": st.floats(-0.5, 2) | st.sampled_from([0, 1, 1.5]),
        "any_float": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70),
        "word": _WORDS,
        "code": st.sampled_from(["a-1", "abc-22", "abcd-1", "a-", "a-१", "A-1"]),
        "ascii": _WORDS,
        "loose": st.sampled_from(["xa", "Xa", "xy", "x ", "x\v", "xé", "-xx-", "x"]),
        "choice": st.sampled_from(["a", "b'c", 'd"e', "f"]),
        "mixed": st.sampled_from(["a", 1, None, True, 1.0, 2, False, "1"]),
        "flag": st.sampled_from([True, "auto", 1, False, 0, "true"]),
        "size": st.sampled_from(["small", "large", 3, 3.0, "SMALL"]),
        "heat": st.sampled_from([0, 2, False, 1, 2.0, "2"]),
        "memory": st.sampled_from(["1Gi", " 1Gi", "1.5", 1, 2.5, "1GiB", "", "1e3", True, None]),
        "share": _QUANTITIES
        | st.sampled_from(["1Gi", " 1024Mi ", "1023Mi", 2**30, 2**30 - 1, "8Gi", "7.99Gi", "-2Gi"]),
        "plain": _QUANTITIES | st.sampled_from(["1Gi", 2**30 + 1, " 8G ", 8e9, "8000000001", "x", True, None]),
        "cores": _QUANTITIES | st.none() | st.integers(-2, 66) | st.floats(-1, 65),
        "perhaps": st.none() | st.integers(),
        "odd-key.1": st.integers(0, 2),
        "in": st.integers(0, 2),
    },
    "Containers": {
        "names": st.lists(_WORDS, max_size=3),
        "matrix": st.lists(st.lists(st.integers(0, 2) | st.just("a"), max_size=2), max_size=2),
        "pair": st.sampled_from([[1, "a"], [1], [1, 2], [1, "a", 2], ["a", 1]]),
        "row": st.lists(st.integers(0, 2), max_size=3),
        "numbers": st.lists(st.integers(0, 2), max_size=2),
        "limits": st.dictionaries(_WORDS, st.integers(0, 2) | st.just(None), max_size=2),
        "labels": st.dictionaries(_WORDS, _WORDS, max_size=2),
        "by_size": st.dictionaries(st.sampled_from(["small", "large", "huge"]), st.booleans(), max_size=2),
        "oils": st.lists(_OIL, max_size=2),
        "by_name": st.dictionaries(_WORDS, _OIL, max_size=2),
        "oil": _OIL,
        "spice": st.none() | st.fixed_dictionaries({"heat": st.integers(0, 2)}, optional={"name": _WORDS, "x": JUNK}),
        "spoon": st.none() | st.fixed_dictionaries({"length": st.integers(0, 2)}, optional={"metal": st.booleans()}),
        "named": st.sampled_from(
            [
                None,
                {"First": 1},
                {"first": 1},
                {"Second": "a"},
                {"First": 1, "first": 1},
                {"First": "1"},
                {"First": 1, "3rd": 2},
                {"First": 1, "third": 2},
                {"First": 1, "3rd": 2, "Third": 1},
            ]
        ),
        "stripped": st.fixed_dictionaries(
            {"word": _WORDS}, optional={"code": st.sampled_from([" ab ", "a ", "ab1", "abcde"])}
        ),
    },
    "Unions": {
        "course": st.none() | _COURSE,
        "courses": st.lists(_COURSE, max_size=2),
        "either": JUNK,
        "two": JUNK | _OIL,
        "list_or_lists": st.lists(st.integers(0, 2), max_size=2) | st.lists(_WORDS, max_size=2) | st.just([1, "a"]),
        "text_or_number": _WORDS | st.integers(8, 12),
        "map_or_bread": st.dictionaries(_WORDS, st.booleans(), max_size=2) | JUNK,
        "limit": st.sampled_from(["none", "some", 1, 0, True]),
    },
    "Left": {
        "when": st.sampled_from(["2026-01-01T00:00:00Z", "1", "soon", 1]),
        "day": st.sampled_from(["2026-01-01", "today", 1]),
        "span": st.sampled_from(["PT1H", "1:00", "long", 1]),
        "ident": st.sampled_from(["6f1a1b1e-0000-4000-8000-000000000000", "me", 1]),
        "path": _WORDS | JUNK,
        "address": st.sampled_from(["10.0.0.1", "::1", 1]),
        "url": st.sampled_from(["http://a/", "a", 1]),
        "raw": _WORDS | JUNK,
        "amount": st.sampled_from([1, 1.5, "2.5", "x", 0, None]),
        "unique": st.lists(st.integers(0, 2), max_size=4),
        "half": st.sampled_from([0.5, 1, 0.3]),
        "whole": _QUANTITIES | st.sampled_from([1, 1.5, -2, "1.5", "-2", "2", "1500m", "2000m", "0"]),
        "as_text": st.sampled_from(["5", 5, 5.5, True, None]),
        "positive": st.integers(-2, 2),
        "anyhow": JUNK,
        "letters": st.sampled_from(["αβγ", "abc", "", 1]),
        "unicode": st.sampled_from(["abc", "é", "a b", "", 1]),
        "by_number": st.dictionaries(st.sampled_from(["1", "a"]), st.integers(0, 2), max_size=2),
        "chosen": _COURSE,
        "tree": st.recursive(
            st.just({"value": 1}),
            lambda inner: st.fixed_dictionaries({"value": st.integers(0, 2) | st.just("x"), "next": st.none() | inner}),
            max_leaves=3,
        ),
        "secret": _WORDS | st.just(1),
        "packed": st.sampled_from(["1", "x", 1]),
        "list": st.lists(st.integers(0, 2) | st.just("a"), max_size=2),
        "first": st.just(1),
        "trimmed": st.sampled_from([" A ", " ", "a", 1]),
    },
}
"""What each field of each kind may be given, mostly right."""


@st.composite
def bodies(draw: st.DrawFn, fields: Mapping[str, st.SearchStrategy[Any]], must: Sequence[str] = ()) -> dict[str, Any]:
    """A config with a few of these fields; each tenth value is junk, each tenth config has a key too many."""
    names = draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=4, unique=True))
    wanted = [*names, *(name for name in must if name not in names and draw(st.integers(0, 19)))]
    body = {name: draw(fields[name] if draw(st.integers(0, 9)) else JUNK) for name in wanted}
    if not draw(st.integers(0, 9)):
        body[draw(st.sampled_from(["more", "On", "0", "a.b"]))] = draw(JUNK)
    return body


MUST = {"Containers": ["oil"]}


def configs(kinds: Sequence[str] = tuple(LIKELY)) -> st.SearchStrategy[dict[str, Any]]:
    """Parameters of some kinds, right and wrong."""
    return st.one_of(*(named(API_VERSION, kind, bodies(LIKELY[kind], MUST.get(kind, []))) for kind in kinds))


def named(api_version: str, kind: str, made: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """The bodies with what says which config they are."""
    return made.map(lambda body: {"apiVersion": api_version, "kind": kind, **body})

"""Random expressions."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.unit.kubernetes.cel.devices import ATTRIBUTES, CAPACITY

TEXTS = st.sampled_from(['"H200"', '""', '"a"', '"1.2.3"', '"80Gi"', '"gräfß"', "device.driver", f"{ATTRIBUTES}.model"])
NUMBERS = st.sampled_from(["0", "1", "-3", "7", "9223372036854775807", f"{ATTRIBUTES}.index", f"{ATTRIBUTES}.negative"])
VERSIONS = st.sampled_from(['semver("1.2.3")', f"{ATTRIBUTES}.driverVersion", 'semver("1.0.0-rc.1")'])
AMOUNTS = st.sampled_from(['quantity("80Gi")', f"{CAPACITY}.memory", f"{CAPACITY}.fraction"])
LISTS = st.sampled_from(["[1, 2, 3]", f"{ATTRIBUTES}.ports", "lists.range(5)"])

_CONDITIONS = st.one_of(
    st.builds("({} {} {})".format, TEXTS, st.sampled_from(["==", "!=", "<", ">="]), TEXTS),
    st.builds("({} {} {})".format, NUMBERS, st.sampled_from(["==", "!=", "<", ">="]), NUMBERS),
    st.builds("{}.{}({})".format, TEXTS, st.sampled_from(["contains", "startsWith", "endsWith", "matches"]), TEXTS),
    st.builds("{}.{}({})".format, VERSIONS, st.sampled_from(["isLessThan", "isGreaterThan"]), VERSIONS),
    st.builds("({}.compareTo({}) >= 0)".format, AMOUNTS, AMOUNTS),
    st.builds("({} in {})".format, NUMBERS, LISTS),
    st.builds("has({}.{})".format, st.just(ATTRIBUTES), st.sampled_from(["model", "missing"])),
    st.sampled_from(["true", "false", f"{ATTRIBUTES}.ecc", f"{ATTRIBUTES}.labels.includes('a')"]),
)


def _combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!{}".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
        st.builds("{}.{}(x, x > 1 || {})".format, LISTS, st.sampled_from(["all", "exists", "exists_one"]), inner),
        st.builds("cel.bind(y, {}, y && {})".format, inner, inner),
        st.builds("({}.map(x, {} ? x : 0).size() > 2)".format, LISTS, inner),
    )


CONDITIONS = st.recursive(_CONDITIONS, _combine, max_leaves=8)
"""Selectors with common functions; all compile."""

_ATOMS = st.one_of(
    TEXTS, NUMBERS, VERSIONS, AMOUNTS, LISTS,
    st.sampled_from([
        "true", "null", "1.5", "5u", "b'a'", "{'a': 1}", "[]", "device", "device.attributes", "optional.none()",
        "duration('1s')", "timestamp(0)", "ip('::1')", "cidr('10.0.0.0/8')", "url('/a')", "format.uuid()", "x", "int",
        f"{ATTRIBUTES}.labels", f"{ATTRIBUTES}.missing", "lists.range(100000)", "[[1], [2]]",
    ]),
)  # fmt: skip
_METHODS = st.sampled_from([
    "size", "contains", "matches", "split", "replace", "join", "sort", "sum", "max", "distinct", "flatten", "reverse",
    "slice", "first", "value", "orValue", "includes", "isSorted", "add", "asInteger", "compareTo", "major", "getHours",
    "find", "findAll", "format", "substring", "indexOf", "validate", "getHost", "containsIP", "ip", "family", "trim",
])  # fmt: skip
_FUNCTIONS = st.sampled_from([
    "size", "int", "string", "double", "uint", "bytes", "type", "dyn", "quantity", "semver", "ip", "sets.contains",
    "optional.of", "lists.range", "duration", "timestamp", "strings.quote", "has", "url", "bool",
])  # fmt: skip
_OPERATORS = st.sampled_from(["+", "-", "*", "/", "%", "==", "!=", "<", ">=", "in", "&&", "||"])
_MACROS = st.sampled_from(["all", "exists", "exists_one", "map", "filter", "sortBy", "optMap", "optFlatMap"])


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, inner, _OPERATORS, inner),
        st.builds("{}.{}()".format, inner, _METHODS),
        st.builds("{}.{}({})".format, inner, _METHODS, inner),
        st.builds("{}.{}({}, {})".format, inner, _METHODS, inner, inner),
        st.builds("{}({})".format, _FUNCTIONS, inner),
        st.builds("{}.{}(x, {})".format, inner, _MACROS, inner),
        st.builds("{}.transformMap(k, x, {})".format, inner, inner),
        st.builds("cel.bind(x, {}, {})".format, inner, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
        st.builds("dyn({})".format, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{{{}: {}}}".format, inner, inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("{}[?{}]".format, inner, inner),
        st.builds("{}.?model".format, inner),
        st.builds("-{}".format, inner),
    )


ANYTHING = st.recursive(_ATOMS, _grow, max_leaves=10)
"""Arbitrary expressions; most do not compile."""

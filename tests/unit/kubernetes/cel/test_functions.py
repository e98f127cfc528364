"""Functions by library; every line is also a verdict of Kubernetes' packages."""

from __future__ import annotations

import pytest

from dra_kit.errors import CelCompileError, CelRuntimeError
from tests.unit.kubernetes.cel.devices import evaluate

TRUE = {
    "strings": [
        '"tacocat".charAt(3) == "o" && "a".charAt(1) == ""',
        '"hello".indexOf("l") == 2 && "hello".indexOf("l", 3) == 3 && "abc".indexOf("", 7) == 3',
        '"hello".lastIndexOf("l") == 3 && "xyz".lastIndexOf("y", 1) == 1 && "a".lastIndexOf("b") == -1',
        '"TÄx".lowerAscii() == "tÄx" && "taß".upperAscii() == "TAß"',
        '"a-b-c".replace("-", "+", 1) == "a+b-c" && "ab".replace("", "-") == "-a-b-"',
        '"a,b,c".split(",", 2) == ["a", "b,c"] && "ab".split("") == ["a", "b"] && "a".split(",", 0) == []',
        '"grün".substring(2, 3) == "ü" && "abc".substring(1) == "bc"',
        '"\\u2028 x\\u0085".trim() == "x" && "\\x1cx".trim().size() == 2',
        '["a", "b"].join("-") == "a-b" && ["a", "b"].join() == "ab"',
        r'strings.quote("a\"b\n") == "\"a\\\"b\\n\""',
        '"x" + "y" == "xy" && "a" < "b" && b"a" + b"b" == b"ab"',
        r'r"\d" == "\\d" && "\x41\101\u0041" == "AAA"',
    ],
    "format": [
        '"%d %s %%".format([3, "x"]) == "3 x %"',
        '"%f|%.1f".format([1234567.5, 0.25]) == "1,234,567.500000|0.2"',
        '"%e".format([1234567.5]) == "1.234568\u00d710\u2070\u2076"',
        '"%x %X %b %o".format([255, 255, -5, 8u]) == "ff FF -101 10"',
        '"%x".format(["é"]) == "c3a9"',
        r'"%s".format([{"a": [1.5, "x", b"z", null, true]}]) == "{\"a\":[1.500000, \"x\", b\"z\", null, true]}"',
        r'"%s".format([[duration("1s"), duration("90m")]]) == "[duration(\"1s\"), duration(\"5400s\")]"',
        '"%s %s".format([1.5, int]) == "1.5 int"',
    ],
    "regex": [
        '"abc 123".find("[0-9]+") == "123" && "abc".find("x") == ""',
        '"a1b22".findAll("[0-9]+") == ["1", "22"] && "a1b22".findAll("[0-9]+", 1) == ["1"]',
        '"baaac".findAll("a*") == ["", "aaa", ""]',
        'matches("foobar", "o+b") && !"foo".matches("^o")',
        '"é".matches("^.$") && "AB".matches("(?i)ab")',
    ],
    "lists": [
        "[3, 1, 2].sort() == [1, 2, 3] && [1, 2].isSorted() && ![2, 1].isSorted()",
        "[1.5, 0.5].sum() == 2.0 && [3, 1].max() == 3 && ['b', 'a'].min() == 'a'",
        "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(5) == -1",
        "[1, 2, 1, 1].distinct() == [1, 2] && [1, 2].reverse() == [2, 1]",
        "[[[1], [2]], [[3]]].flatten(2) == [1, 2, 3] && [[1], [2, 3]].flatten() == [1, 2, 3]",
        "[0, 1, 2, 3].slice(1, 3) == [1, 2] && lists.range(3) == [0, 1, 2]",
        "[1, 2].first().value() == 1 && [1, 2].last().value() == 2 && ![].first().hasValue()",
        "['bb', 'a'].sortBy(x, x.size()) == ['a', 'bb'] && [1, 2] + [3] == [1, 2, 3]",
        "sets.contains([1, 2, 3], [3, 1]) && sets.equivalent([1, 1], [1]) && sets.intersects([1, 2], [2, 3])",
        "[1, 2, 3].includes(2) && dyn(3).includes(3.0) && !['a'].includes('b')",
        "2 in [1, 2] && !(dyn('x') in [1, 2]) && 'a' in {'a': 1}",
    ],
    "maps": [
        '{"a": 1, "b": 2}.all(k, v, k != "" && v > 0) && {"a": 1}.exists(k, k == "a")',
        '{"a": 1}.transformMap(k, v, v + 1) == {"a": 2} && ["x"].transformMapEntry(i, v, {v: i}) == {"x": 0}',
        '{"a": 1, "b": 2}.transformList(k, v, v > 1, k) == ["b"] && {"a": 1}.map(k, k) == ["a"]',
        '{1: "a"}[dyn(1u)] == "a" && {1: "a"}[dyn(1.0)] == "a" && {true: 1}[true] == 1',
        '{"a": 1, ?"b": optional.none()}.size() == 1 && {"a": 1, "a": 2}["a"] == 2',
        '{"a": {"b": 1}}.?a.?b.orValue(0) == 1 && has({"a": 1}.a) && !has({"a": 1}.b)',
    ],
    "optionals": [
        "optional.of(1).hasValue() && !optional.none().hasValue() && optional.of(1).value() == 1",
        "optional.ofNonZeroValue(0) == optional.none() && optional.ofNonZeroValue('a').hasValue()",
        "optional.none().or(optional.of(2)).value() == 2 && [?optional.none(), 1] == [1]",
        "[optional.of(1), optional.none()].unwrapOpt() == [1] && optional.unwrap([optional.of(1)]) == [1]",
        "optional.of(1).optFlatMap(x, optional.of(x + 1)).value() == 2",
    ],
    "numbers": [
        "7 / -2 == -3 && 7 % -2 == 1 && -7 % 2 == -1 && 5u - 3u == 2u",
        "1 < 1.5 && dyn(1u) == 1 && 2.0 > 1u && dyn(9007199254740993) == 9007199254740992.0",
        "1.0 / 0.0 > 1e300 && -1.0 / 0.0 < 0.0 && double('NaN') != double('NaN')",
        "-9223372036854775808 == -9223372036854775807 - 1 && 0x1F == 31 && .5 == 0.5",
    ],
    "conversions": [
        "int('-42') == -42 && int(4.9) == 4 && int(3u) == 3 && uint(3) == 3u && double('1e3') == 1000.0",
        "string(1000000.0) == '1e+06' && string(0.0001) == '0.0001' && string(1.5) == '1.5' && string(-0.0) == '-0'",
        "bool('TRUE') && !bool('f') && string(b'ab') == 'ab' && bytes('é') == b'\\xc3\\xa9'",
        "type(1) == int && type([]) == list && type({}) == map && type(int) == type && type(null) == null_type",
    ],
    "time": [
        "duration('1h30m') == duration('5400s') && string(duration('-1.5s')) == '-1.5s'",
        "timestamp('2024-02-29T12:34:56.789Z').getDayOfYear() == 59",
        "timestamp('2024-01-01T00:00:00Z').getHours('America/New_York') == 19",
        "timestamp('2024-01-01T00:00:00Z').getMinutes('+02:30') == 30",
        "timestamp('2024-01-02T00:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('24h')",
        "timestamp(0) + duration('1s') == timestamp('1970-01-01T00:00:01Z') && int(timestamp(7)) == 7",
        "string(timestamp('2024-01-01T01:00:00.120+01:00')) == '2024-01-01T01:00:00.12+01:00'",
        "duration('90m').getHours() == 1 && duration('1.5s').getMilliseconds() == 1500",
        "timestamp('2024-03-03T00:00:00Z').getDayOfWeek() == 0 && timestamp(0).getMonth() == 0",
    ],
    "network": [
        "ip('10.1.2.3').family() == 4 && ip('::1').isLoopback() && ip('fe80::1').isLinkLocalUnicast()",
        "!isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0') && !isIP('01.2.3.4') && isIP('1.2.3.4')",
        "ip.isCanonical('::1') && !ip.isCanonical('0:0::1') && string(ip('2001:DB8::1')) == '2001:db8::1'",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsIP(ip('11.0.0.1'))",
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR('10.0.0.0/8')",
        "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.1.2.3/8').ip() == ip('10.1.2.3')",
        "cidr('::/0').prefixLength() == 0 && !isCIDR('10.0.0.0/08') && !isCIDR('10.0.0.0/33')",
        "!ip('255.255.255.255').isGlobalUnicast() && ip('10.0.0.1').isGlobalUnicast()",
        "ip('224.0.0.5').isLinkLocalMulticast() && ip('ff02::1').isLinkLocalMulticast() && ip('::').isUnspecified()",
    ],
    "urls": [
        "url('https://u@h.example:80/p%20q?a=b&a=c#f').getHost() == 'h.example:80'",
        "url('https://[::1]:8/').getHostname() == '::1' && url('https://h:8/').getPort() == '8'",
        "url('https://h/a b').getEscapedPath() == '/a%20b' && url('/a!b').getEscapedPath() == '/a!b'",
        "url('https://h/?a=b&a=c&d=%41').getQuery() == {'a': ['b', 'c'], 'd': ['A']}",
        "isURL('/path') && !isURL('path') && !isURL('') && !isURL('http://h:x/') && !isURL('http://a b/')",
        "url('HTTP://h').getScheme() == 'http' && url('http://h/a') == url('http://h/a')",
    ],
    "formats": [
        "!format.dns1123Label().validate('a-b').hasValue() && format.dns1123Label().validate('A').hasValue()",
        "!format.dns1123LabelPrefix().validate('a-').hasValue() && format.dns1035Label().validate('1a').hasValue()",
        "format.named('uuid').value() == format.uuid() && !format.named('nope').hasValue()",
        "!format.uuid().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()",
        "!format.date().validate('2024-02-29').hasValue() && format.date().validate('2023-02-29').hasValue()",
        "!format.byte().validate('YWI=').hasValue() && format.byte().validate('YWI').hasValue()",
        "!format.qualifiedName().validate('a.b/c').hasValue() && format.qualifiedName().validate('/c').hasValue()",
        "!format.labelValue().validate('').hasValue() && !format.uri().validate('/x').hasValue()",
        "!format.datetime().validate('2024-01-01T00:00:00Z').hasValue()",
        "format.dns1123Subdomain().validate('a..b').value().size() == 1",
    ],
    "quantities": [
        "quantity('1Gi') == quantity('1024Mi') && quantity('1').add(2) == quantity('3')",
        "isQuantity('1.5Gi') && !isQuantity('x') && sign(quantity('-1')) == -1 && quantity('5').isInteger()",
        "quantity('2').sub(quantity('500m')).compareTo(quantity('1500m')) == 0 && !quantity('1500m').isInteger()",
        "quantity('0').sub(9223372036854775807).isInteger() && quantity('1').sub(-9223372036854775808).isInteger()",
        "quantity('1500m').asApproximateFloat() == 1.5 && quantity('2Ki').asInteger() == 2048",
    ],
    "versions": [
        "semver('1.2.3') == semver('1.2.3+b') && semver('1.0.0-rc.1').isLessThan(semver('1.0.0'))",
        "semver('v01.2', true).compareTo(semver('1.2.0')) == 0 && isSemver('v1', true) && !isSemver('1.2')",
        "semver('1.2.3').major() == 1 && semver('1.2.3').minor() == 2 && semver('1.2.3').patch() == 3",
        "semver('1.0.0-2').isLessThan(semver('1.0.0-10')) && semver('1.0.0-9').isLessThan(semver('1.0.0-a'))",
    ],
}


@pytest.mark.parametrize(
    "expression",
    [pytest.param(one, id=f"{library}-{n}") for library, many in TRUE.items() for n, one in enumerate(many)],
)
def test_true(expression: str) -> None:
    assert evaluate(expression)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("[dyn(1)].map(x, dyn('a') + x) == []", "no such overload"),
        ("[1].map(x, x / 0) == []", "division by zero"),
        ("[5u].map(x, x - 6u) == []", "unsigned integer overflow"),
        ("[-9223372036854775808].map(x, -x) == []", "integer overflow"),
        ("'x'.charAt(4) == ''", "index out of range: 4"),
        ("'abc'.substring(2, 1) == ''", "invalid substring range"),
        ("[1, 2].slice(1, 5) == []", "list is length 2"),
        ("[].max() == 1", "max called on empty list"),
        ("optional.none().value() == 1", "optional.none() dereference"),
        ("lists.range(-1) == []", "size must be non-negative"),
        (
            "['a'].transformMapEntry(i, v, {'k': i}) == {} || [1, 2].transformMapEntry(i, v, {'k': i}) == {}",
            "already exists",
        ),
        ("ip('1.2.3') == ip('::1')", "parse error"),
        ("cidr('1.2.3.4/33') == cidr('::/0')", "parse error"),
        ("url('nope').getHost() == ''", "URL parse error"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1h') == timestamp(0)", "timestamp overflow"),
        ("timestamp(0).getHours('Nowhere/Land') == 1", "unknown time zone"),
        ("[double('NaN')].all(x, x < 1.0)", "NaN values cannot be ordered"),
        ("string(b'\\xff') == ''", "invalid UTF-8"),
        ("duration($a.name + '1s') == duration('1s')", "type conversion error"),
        ("[dyn(1)][dyn('a')] == 1", "unsupported index type"),
        (f"duration(string({'9' * 18}) + '{'9' * 5000}s') == duration('1s')", "type conversion error"),
        ("[1, 2]['a'] == 1", None),
    ],
)
def test_failures(expression: str, text: str | None) -> None:
    with pytest.raises(CelCompileError if text is None or "xff" in expression else CelRuntimeError) as caught:
        evaluate(expression)

    assert (text or "") in caught.value.message

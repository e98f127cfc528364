"""Records the values that kubectl reads from YAML:

``python -m tests.unit.kubernetes.manifests.record KUBECTL > kubectl-yaml.jsonl``

``kubectl label --local`` reads a file as all of kubectl does, and needs no server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_WORDS = r"""
2026-01-01 2001-12-14t21:59:43.10-05:00 2026-1-1 2026-01-01T00:00:00Z 0777 0o777 0O777 08 -08 -0777 +0777 0777_ +12
0x1F 0X1F -0x1f +0x1F 0x_1 0xG 0x 0b101 0B11 0b 0b2 0b_1 -0b11 -0o17 0o8 0o 0o_7 0o0777 00x1 1_000 _1 +_1 -_ 0_ 1__0
0_7 0_8 7_7 1_2_3 1e3 1E3 1e+3 1.5e-3 12e03 12E+03 1_e3 1e_3 1e1_0 1e 1e3.5 1. .5 -.5 +.5 .5_0 ._5 .e3 1_.5 1_0.5
0.1_0 -1_ 1.0 -1.0 1.5 +1.5 1.10 1.0.0 0.0.1 1..2 v1 1h 5Gi 100m 0.5Gi 1e21 1e20 1e18 1e19 1e15 1e16 1e400 -1e400
.5e400 1.0e999 123456789012345678901234567890 9223372036854775807 9223372036854775807.0 9223372036854775808
-9223372036854775808 -9223372036854775809 18446744073709551615 18446744073709551616 0x7FFFFFFFFFFFFFFF
0x8000000000000000 -0x8000000000000000 -0x8000000000000001 0xFFFFFFFFFFFFFFFF 0xFFFFFFFFFFFFFFFFF
0777777777777777777777 01777777777777777777777 0777777777777777777777777
0b1111111111111111111111111111111111111111111111111111111111111111 100000000000000000000 1000000000000000000000
10000000000000000000000 1.7976931348623157e308 5e-324 123456789.123456789 12345678901234567 0.30000000000000004
99999999999999999999.5 00000000000000000000000000000001 1:30 190:20:30 1:30.5 12:30:45 .inf -.inf +.inf .Inf .INF
+.INF -.Inf -.INF .inF inf .nan .NaN .NAN +.NaN nan null Null NULL ~ ~x nUll yes Yes YES yEs no No NO nO on On ON off
Off OFF y Y n N true True TRUE tRUE false False FALSE = << -0 -0.0 0 00 0.1 1e-7 0.000001 + 1,000 a#b http://x:80/ {}
[] "1" 'yes' "true" '~' '' "" '<<' "\x41" "\u0000" "\u2028" "\x07" "\ud800" "\ud83d\ude00" "\q" @a `a %a *x
"""
SCALARS = tuple(_WORDS.split())
SENTENCES = (
    "", "&a 1", "&a", "1 000", "a #b", "# b", "true ", "a: b", "[1, 2", "[a,]", "[a,,b]", "? a", "- a", "{a:1}",
    '{"a":1}', "{a: 1}", "[1, [2]]", "!!str 1", "!!str", "!!str ~", "!!str null", '!!str ""', "!!str 2026-01-01",
    '!!int "3"', "!!int 3.0", "!!int 0o17", "!!int 08", "!!int abc", "!!float 3", '!!float "3"', "!!float abc",
    "!!float .inf", "!!float 1e400", '!!bool "yes"', "!!bool yes", "!!bool on", "!!bool 1", '!!null "x"', '!!null ""',
    "!!null", "!!null ~", "!!timestamp 2026-01-01", "!!timestamp 2026-01-01T00:00:00Z", "!!timestamp x",
    "!!binary aGVsbG8=", '!!binary "not base64!"', "!!binary /w==", "!!python/object:os.system x",
    "!!python/object/apply:os.system [x]", "!custom x", "!custom 5", "! 5", '! "5"', "!<tag:yaml.org,2002:int> 5",
    "!<tag:yaml.org,2002:str> 5", "&a !!str 5", "!!set {a, b}", "!!omap [a: 1]", "!!omap {a: 1}", "!!map {a: 1}",
    "!!map [1]", "!!seq [1]", "!!seq {a: 1}", "!!str [1]", "!!int {a: 1}", "|\n  5", ">\n  5", "|-\n  a\n  b\n",
    "|+\n  a\n\n", ">\n  a\n  b\n\n  c\n", "!!int |\n  5", '"a\n  b"', "a\n  b", "&a [*a]", "&a {b: *a}", "a\x07b",
    "a\x00b", "a\x7fb", "a\ufeffb", "a\ufffeb", "🍕", "\ta", "\n\ta: 1", "a\x85b", "a\u2028b",
)  # fmt: skip
KEYS = (
    "1", "true", "yes", "n", "1.5", "1.10", "2026-01-01", "0o17", "0x10", "010", "08", "1e3", "1e21", "1e20", ".5",
    "-1.5", "-0.0", "5_0", "100000.0", "123456.0", "1000000.0", "1234567.0", "12345678.0", "16777217", "16777217.0",
    "0.0001", "0.00001", "1e-7", "123456789.125", "1e400", "-1", "9223372036854775807", "9223372036854775808",
    "18446744073709551615", "123456789012345678901234567890", ".inf", "-.inf", ".nan", "null", "~", "''", '"5"',
    "! 5", "!!str 5", "!!float 5", "!!null x", "!!binary aGVsbG8=", "=", "[1]", "{a: 1}", "'<<'",
)  # fmt: skip
DOCUMENTS = (
    "value: {a: 1, a: 2}", "value: {1: 1, '1': 2}", "a: &a {x: 1, z: 2}\nvalue: {<<: *a, x: 3}",
    "a: &a {x: 1}\nvalue: {x: 3, <<: *a}", "a: &a {x: 1}\nb: &b {x: 2, z: 3}\nvalue: {<<: [*a, *b]}",
    "a: &a {x: 1}\nb: &b {x: 2, z: 3}\nvalue: {<<: *a, <<: *b}", "value: {<<: {x: 1}, z: 2}", "value: {<<: 1}",
    "value: {<<: [1]}", "value: {<<: }", "value: {'<<': {x: 1}}", "value: {!!str <<: {x: 1}}",
    "a: &a {x: 1}\nvalue: {!!merge <<: *a}", "a: &a {x: 1}\nb: &b {<<: *a, z: 1}\nvalue: {<<: *b}",
    "a: &a {x: 1, z: 1}\nb: &b {<<: *a, z: 2}\nvalue: {<<: *b, w: 1}", "a: &a [1]\nvalue: *a",
    "a: &a 1\nb: &a 2\nvalue: *a", "a: &a k\nvalue: {*a : 1}", "value: 1\n...", "value: a\r\nother: b\r\n",
    "value: a\rother: b\n", "value:\n  ? a\n  ? b\n", "value:\n  ? [a]\n  : b\n", "value: &a 1\n---\nvalue: *a\n",
)  # fmt: skip
HEAD = "apiVersion: example.com/v1\nkind: Sample\nmetadata: {name: sample}\n"


def texts() -> Iterator[str]:
    """Return the recorded text: the end of a document that begins with ``HEAD``."""
    yield from (f"value: {text}\n" for text in (*SCALARS, *SENTENCES))
    yield from (f"value: {{{key}: x}}\n" for key in KEYS)
    yield from DOCUMENTS


def record(kubectl: str, text: str, folder: Path) -> dict[str, object]:
    """Return kubectl's result for a text: its value, whether there is one, or an error."""
    file = folder / "sample.yaml"
    file.write_text(HEAD + text, encoding="utf-8", newline="")
    command = [kubectl, "label", "--local", "-f", str(file), "recorded=yes", "-o", "json"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode:
        return {
            "text": text,
            "error": done.stderr.strip().rpartition("converting YAML to JSON: ")[2].replace(str(file), "FILE"),
        }
    return {"text": text, "value": json.JSONDecoder().raw_decode(done.stdout)[0].get("value")}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for text in texts():
            print(json.dumps(record(sys.argv[1], text, Path(folder))))


if __name__ == "__main__":
    main()

"""Reports of findings."""

from __future__ import annotations

import json

from dra_kit.diagnosis.lint.findings import format_github, format_json, format_text
from tests.unit.diagnosis.lint.texts import claim, device_class, found, pod

TEXT = device_class('device.driver == "gpu.example.com" &&\n  device.capacity["gpu.example.com"].memory >= 80')


def test_the_line_the_place_and_the_remedy_are_shown() -> None:
    assert format_text(found(TEXT), files=1, objects=1).splitlines() == [
        "order.yaml:9:53: error: a quantity cannot be compared with an int by >= [quantity-comparison]",
        '  9 |           device.capacity["gpu.example.com"].memory >= 80',
        "    |                                                     ^^",
        '    help: write device.capacity["gpu.example.com"].memory.compareTo(quantity("80")) >= 0',
        "",
        "1 error in 1 object of 1 file",
    ]


def test_colours_are_for_terminals() -> None:
    assert "\x1b[" not in format_text(found(TEXT), files=1, objects=1)
    assert "\x1b[1;31merror\x1b[0m" in format_text(found(TEXT), files=1, objects=1, colour=True)


def test_a_report_without_findings_is_one_line() -> None:
    assert format_text([], files=2, objects=7) == "no findings in 7 objects of 2 files"


def test_only_the_part_of_a_long_line_around_the_finding_is_shown() -> None:
    expression = " || ".join(["true"] * 60) + " || device.capacity['d'].m > 4 || " + " || ".join(["true"] * 60)
    lines = format_text(found(device_class(expression)), files=1, objects=1).splitlines()
    assert max(map(len, lines[1:3])) < 120
    assert lines[1][lines[2].index("^")] == ">"


def test_controls_in_a_line_do_not_reach_the_terminal() -> None:
    text = claim().replace("deviceClassName: gpu", "deviceClassNam: gpu # \u009b31m")
    assert "\u009b" not in format_text(found(text), files=1, objects=1)


def test_annotations_of_github_are_one_line_each() -> None:
    findings = found(TEXT, name="a,b:c.yaml")
    assert format_github(findings) == (
        "::error file=a%2Cb%3Ac.yaml,line=9,col=53,endColumn=55,title=dra-kit lint%3A quantity-comparison::"
        "a quantity cannot be compared with an int by >=%0Ahelp: write "
        'device.capacity["gpu.example.com"].memory.compareTo(quantity("80")) >= 0'
    )
    assert format_github(found(pod("[{name: a, resourceClaimName: b}]", "[]"))).startswith("::notice file=order.yaml,")


def test_json_has_all_fields() -> None:
    (one,) = json.loads(format_json(found(TEXT)))
    assert one == {
        "file": "order.yaml", "line": 9, "column": 53, "endColumn": 55, "level": "error",
        "rule": "quantity-comparison", "path": "spec.selectors[0].cel.expression",
        "message": "a quantity cannot be compared with an int by >=",
        "help": 'write device.capacity["gpu.example.com"].memory.compareTo(quantity("80")) >= 0', "fixable": False,
    }  # fmt: skip

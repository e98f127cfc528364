"""Fixes preserve comments, order, quotes and line endings."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.unit.diagnosis.lint.texts import fixed

HEAD = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: a}\nspec:\n  devices:\n    requests:\n"


def requests(text: str) -> str:
    return HEAD + textwrap.indent(textwrap.dedent(text), " " * 4)


CASES = {
    "comments go with their fields": (
        """\
        # the first
        - name: gpu   # its name
          # the vendor's
          deviceClassName: gpu   # here
          # two of them

          count: 2  # or more
        # behind
        """,
        """\
        # the first
        - name: gpu   # its name
          exactly:
            # the vendor's
            deviceClassName: gpu   # here
            # two of them

            count: 2  # or more
        # behind
        """,
    ),
    "a field between those that move stays": (
        """\
        - deviceClassName: gpu
          name: gpu
          count: 2
        - name: other
          exactly: {deviceClassName: gpu}
        """,
        """\
        - exactly:
            deviceClassName: gpu
            count: 2
          name: gpu
        - name: other
          exactly: {deviceClassName: gpu}
        """,
    ),
    "into what is there": (
        """\
        - name: gpu
          count: 2  # two
          exactly:
              deviceClassName: gpu  # c
          # behind
        """,
        """\
        - name: gpu
          exactly:
              deviceClassName: gpu  # c
              count: 2  # two
          # behind
        """,
    ),
    "into braces": (
        """\
        - name: gpu
          exactly: {deviceClassName: gpu}  # c
          count: 2
          selectors: [{cel: {expression: "true"}}]
        """,
        """\
        - name: gpu
          exactly: {deviceClassName: gpu, count: 2, selectors: [{cel: {expression: "true"}}]}  # c
        """,
    ),
    "with a comment not into braces": (
        """\
        - name: gpu
          exactly: {deviceClassName: gpu}
          count: 2  # two
        """,
        """\
        - name: gpu
          exactly: {deviceClassName: gpu}
          count: 2  # two
        """,
    ),
    "in braces": (
        "- {name: gpu, deviceClassName: gpu, count: 2}  # c\n",
        "- {name: gpu, exactly: {deviceClassName: gpu, count: 2}}  # c\n",
    ),
}


@pytest.mark.parametrize(("before", "after"), CASES.values(), ids=CASES)
def test_fields_move_with_their_comments_and_values(before: str, after: str) -> None:
    assert fixed(requests(before)) == requests(after)


MANY_LINES = """\
deviceClassName: gpu
selectors:
- cel:
    expression: |
      device.driver == "a.b" &&

        device.driver {0} "a.b"
- cel:
    expression: "device.driver \\
      == 'a.b'"
"""


def test_texts_of_many_lines_move_unchanged() -> None:
    before = "- name: gpu\n" + textwrap.indent(MANY_LINES.format("="), "  ")
    after = "- name: gpu\n  exactly:\n" + textwrap.indent(MANY_LINES.format("=="), "    ")
    assert fixed(requests(before)) == requests(after)


def test_line_endings_are_preserved() -> None:
    before = requests("- name: gpu\n  deviceClassName: gpu").replace("\n", "\r\n")
    after = requests("- name: gpu\n  exactly:\n    deviceClassName: gpu").replace("\n", "\r\n")
    assert fixed(before) == after


@pytest.mark.parametrize("indent", [2, "\t"])
def test_json_keeps_its_indentation(indent: int | str) -> None:
    def text(request: dict[str, object]) -> str:
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "a"},
            "spec": {"devices": {"requests": [request]}},
        }
        return json.dumps(body, indent=indent) + "\n"

    selectors = [{"cel": {"expression": 'device.driver == "a.b"'}}]
    before = text({"count": 2, "deviceClassName": "gpu", "name": "gpu", "selectors": selectors})
    after = text({"exactly": {"count": 2, "deviceClassName": "gpu", "selectors": selectors}, "name": "gpu"})
    assert fixed(before) == after


def test_anchors_and_their_aliases_keep_their_values() -> None:
    text = requests("- name: gpu\n  exactly: &e\n    deviceClassName: &n 1.5\n- {name: b, exactly: *e}\n")
    assert fixed(text) == text.replace("&n 1.5", '&n "1.5"')
    # the alias is not a mistake at its position, so its anchor must not change
    text = HEAD.replace("name: a", "name: a, labels: {v: &v v1.2, w: &w 5}") + "    - {name: *w}\n"
    text = text.replace("{name: *w}", "{name: gpu, exactly: {deviceClassName: gpu, count: *w}}")
    assert fixed(text) == text


def test_other_objects_of_a_list_and_other_documents_are_unchanged() -> None:
    item = textwrap.indent(requests("- name: gpu\n  deviceClassName: gpu\n"), "  ")
    other = "# mine\na:   [1,\n  2]   # so\n"
    text = f"{other}---\napiVersion: v1\nkind: List\nitems:\n- {item.lstrip()}---\n{other}"
    made = text.replace("deviceClassName", "exactly:\n          deviceClassName")
    assert fixed(text) == made


SLICE = """\
apiVersion: resource.k8s.io/v1beta1
kind: ResourceSlice
metadata: {name: s}
spec:
    driver: gpu.example.com
    nodeName: a
    pool: {name: a, generation: 1, resourceSliceCount: 1}
    devices:
    -   name: gpu-0
        basic:   # old
            # inner
            attributes:
                model: {string: H200}  # m
    - {name: gpu-1, basic: {attributes: {model: {string: x}}}}
"""


def test_a_removed_level_takes_its_comments_with_it() -> None:
    assert fixed(SLICE).partition("devices:\n")[2] == textwrap.indent(
        textwrap.dedent("""\
        -   name: gpu-0
            # old
            # inner
            attributes:
                model: {string: H200}  # m
        - {name: gpu-1, attributes: {model: {string: x}}}
        """),
        " " * 4,
    )


@pytest.mark.parametrize("quote", ["'", '"', "|-\n            ", ">-\n            ", ""])
def test_an_expression_keeps_its_quotes(quote: str) -> None:
    def text(expression: str) -> str:
        written = {"'": f"'{expression}'", '"': json.dumps(expression)}.get(quote, quote + expression)
        exactly = f"deviceClassName: gpu\n    selectors:\n    - cel:\n        expression: {written}"
        return requests(f"- name: gpu\n  exactly:\n    {exactly}\n")

    before, after = ("device.attributes[" + name + " == 1" for name in ('"a.b/it"]', '"a.b"].it'))
    assert fixed(text(before)) == text(after)

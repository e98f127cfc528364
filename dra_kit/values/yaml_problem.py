"""What is wrong with a text that is no YAML, in one line, for somebody who knows which file it is from."""

from __future__ import annotations

import yaml


def yaml_problem(error: yaml.YAMLError) -> str:
    """The place in the text and the problem: ``line 3, column 5: did not find expected key``.

    Args:
        error: as PyYAML raises it; it names a text that was not read by PyYAML itself ``<unicode string>``.
    """
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.reason} at position {error.position}"
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    text = " ".join(filter(None, (error.context, error.problem)))
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {text}" if mark is not None else text

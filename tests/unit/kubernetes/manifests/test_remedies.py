"""Errors of invalid YAML contain a remedy."""

from __future__ import annotations

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import SourceFile, read_objects

RECORDING = '{"kind":"RecordingStarted","number":1,"seconds":0.0}\n{"kind":"RunReported","number":2,"seconds":0.0}\n'


def test_recording_is_named_with_the_command_that_shows_it() -> None:
    for text in (RECORDING, "\ufeff" + RECORDING, RECORDING.partition("\n")[2]):  # any part of one is played
        with pytest.raises(ConfigurationError) as caught:
            read_objects(SourceFile("run.jsonl", text))

        assert str(caught.value) == (
            "run.jsonl cannot be read: line 1, column 1: this is a recording, not YAML or JSON; "
            "show it with 'dra-kit replay'"
        )


@pytest.mark.parametrize(
    ("text", "place", "remedy"),
    [
        ("metadata:\n  name: guest\n   labels: {a: b}\n", "line 3, column 10", "indent the line like its neighbours"),
        ("spec:\n  a: 1\n b: 2\n", "line 3, column 2", "indent the line like the other keys of its mapping"),
        ("spec:\n\ta: 1\n", "line 2, column 1", "indent with spaces, not tabs"),
        ("items:\n- a\nb\n", "line 4, column 1", "write 'key: value', with a space after the colon"),
    ],
    ids=["too deep", "in between", "tab", "no colon"],
)
def test_indentation_error_has_position_and_remedy(text: str, place: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_objects(SourceFile("order.yaml", text))

    assert str(caught.value).startswith(f"order.yaml cannot be read: {place}: ")
    assert f"; {remedy}" in str(caught.value)

"""The embedded API server answers as the recorded one did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import api
from tests.golden.files import read

DATA = Path(__file__).parents[1] / "data" / "golden" / "api"

DIFFERENT = {
    "C/discovery/aggregated-v2-no-peer/api": "subresources that need a kubelet or a proxy are not served",
    "C/method/configmap/FOO-collection": "the HTTP library refuses methods that HTTP does not know, before we see them",
    "C/method/slice/FOO-collection": "the same",
}

FILES = sorted(path.name.split(".")[0] for path in DATA.glob("[ABC]-*"))
NOT_RUN = {"B-authz"}  # it needs a server that does not let everybody do everything


@pytest.mark.parametrize("name", [name for name in FILES if name not in NOT_RUN])
def test_answers_are_those_of_a_real_api_server(name: str) -> None:
    lines = read(DATA / f"{name}.jsonl.gz")

    different = {case.id for case in api.replay(lines) if case.observe() != case.expected}

    assert different == {line["id"] for line in lines} & set(DIFFERENT)

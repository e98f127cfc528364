"""The tables that a release of Kubernetes determines, compared with a server that this test is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from dra_kit.kubernetes.release import NEWEST, OLDEST, SUPPORTED
from tests.release import roles, schema
from tests.release.__main__ import main

TYPES = """
package v1

type Oven struct {
	metav1.TypeMeta `json:",inline"`
	// Heat is optional.
	Heat *int32 `json:"heat,omitempty" protobuf:"varint,2,opt,name=heat"`
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
}
"""
OVEN = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "apiVersion": {"type": "string"},
        "heat": {"type": "integer", "format": "int32"},
        "name": {"type": "string", "default": ""},
    },
}
Table = dict[str, dict[str, Any]]
Serve = Callable[[Mapping[str, Any]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts an API server that answers with objects by path, and 404 elsewhere."""
    servers: list[HTTPServer] = []

    def start(answers: Mapping[str, Any]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = answers.get(self.path.partition("?")[0])
                self.send_response(200 if found is not None else 404)
                self.end_headers()
                self.wfile.write(json.dumps(found or {}).encode())

            def log_message(self, *words: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_fields_have_the_order_and_numbers_of_go_and_the_defaults_of_openapi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    folder = tmp_path / "core" / "v1"
    folder.mkdir(parents=True)
    (folder / "types.go").write_text(TYPES)
    monkeypatch.setattr(schema, "KINDS", ("core/v1.Oven",))
    server = serve({"/openapi/v3/api/v1": {"components": {"schemas": {"io.k8s.api.core.v1.Oven": OVEN}}}})

    fields = schema.table_of(server, [tmp_path])["core/v1.Oven"]["fields"]

    assert list(fields) == ["apiVersion", "heat", "name"]
    assert fields["heat"] == {"type": "int32", "presence": "pointer", "tag": (2,)}
    assert fields["name"] == {"type": "string", "required": True, "presence": "always", "tag": (1,), "default": ""}


def test_types_that_the_server_does_not_serve_stay(serve: Serve) -> None:
    server = serve({"/openapi/v3/api/v1": {"components": {"schemas": {}}}})

    table = schema.table_of(server, [])

    assert table["resource/v1beta1.ResourceSlice"] == schema.recorded()["resource/v1beta1.ResourceSlice"]
    assert not [name for name in table if name.startswith("core/")]


def test_a_written_table_is_the_one_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = schema.recorded()
    schema.write(table, tmp_path)
    originals = {path.name: path.read_text() for path in schema.FOLDER.glob("*.v*.json")}

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == originals


def test_differences_of_types_and_fields_are_one_line_each() -> None:
    text = {"type": "string", "presence": "omitempty"}
    here: Table = {"a/v1.A": {"fields": {"x": text, "y": text}}, "a/v1.B": {"fields": {}}}
    there: Table = {
        "a/v1.A": {"fields": {"x": text | {"default": ""}, "z": text}, "map": "atomic"},
        "a/v1.C": {"fields": {}},
    }

    assert list(schema.differences(there, here)) == [
        (
            'a/v1.A.x is {"type": "string", "presence": "omitempty", "default": ""}, '
            'was {"type": "string", "presence": "omitempty"}'
        ),
        "a/v1.A.y has gone",
        "a/v1.A.z is new",
        'a/v1.A is {"map": "atomic"}, was {}',
        "a/v1.B has gone",
        "a/v1.C is new",
    ]
    assert list(schema.differences(here, here)) == []


def modules_of(root: Path, minor: int, fields: str, *, without: str = "") -> list[Path]:
    """The folders of the modules of a release, whose struct Oven has these fields."""
    folders = [root / f"{name}@v0.{minor}.1" for name in schema.MODULES if name != without]
    for folder in folders:
        (folder / "core" / "v1").mkdir(parents=True)
    lines = [f'Name{i} string `json:"{name}" protobuf:"bytes,{i},opt,name={name}"`' for i, name in enumerate(fields)]
    source = "type Oven struct {\n\t" + "\n\t".join(lines) + "\n}\n"
    (folders[0] / "core" / "v1" / "types.go").write_text(source)
    return folders


def test_a_field_is_as_old_as_the_first_release_of_its_type_or_has_a_release(tmp_path: Path) -> None:
    releases = {version.minor: "ab" for version in SUPPORTED} | {OLDEST.minor: "a", NEWEST.minor: "abcd"}
    folders = [folder for minor, fields in releases.items() for folder in modules_of(tmp_path, minor, fields)]
    kinds: Table = {"core/v1.Oven": {"fields": dict.fromkeys("abc")}}

    since = schema.since_of(folders[::-1], kinds)

    assert since == {"core/v1.Oven": {"b": OLDEST.minor + 1, "c": NEWEST.minor}}


def test_since_when_a_field_exists_needs_all_modules_of_all_releases(tmp_path: Path) -> None:
    folders = [
        folder for version in SUPPORTED[1:] for folder in modules_of(tmp_path, version.minor, "a", without="api")
    ]

    with pytest.raises(ValueError, match=f"k8s.io/api of {OLDEST}, .*, k8s.io/api of {NEWEST}$"):
        schema.since_of(folders, {})
    with pytest.raises(ValueError, match="is not the folder of a module; give folders such as"):
        schema.since_of([tmp_path], {})


def test_fields_of_another_release_are_one_line_each_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "SINCE", tmp_path / "since.json")
    schema.write_since({"a/v1.A": {"x": 35, "y": 36}, "a/v1.B": {"z": 36}})

    assert list(schema.since_differences({"a/v1.A": {"x": 36}}, schema.recorded_since())) == [
        "a/v1.A.x is since 1.36, was since 1.35",
        "a/v1.A.y is as old as its type, was since 1.36",
        "a/v1.B.z is as old as its type, was since 1.36",
    ]


def test_every_field_with_a_release_is_in_the_table() -> None:
    table = schema.recorded()

    assert [(name, item) for name, items in schema.recorded_since().items() for item in items
            if item not in table[name]["fields"]] == []  # fmt: skip
    assert {minor for items in schema.recorded_since().values() for minor in items.values()} <= {
        version.minor for version in SUPPORTED[1:]
    }


def role(name: str, **fields: Any) -> dict[str, Any]:
    managers = [{"manager": "kube-apiserver", "time": "2026-01-01T00:00:00Z"}]
    return {"metadata": {"name": name, "uid": "1", "managedFields": managers}, "rules": [], **fields}


def test_roles_are_compared_by_kind_and_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, serve: Serve
) -> None:
    monkeypatch.setattr(roles, "TABLE", tmp_path / "roles.jsonl")
    aggregated = [role(name, aggregationRule={}) for name in ("admin", "view")]
    path = "/apis/rbac.authorization.k8s.io/v1"
    none: dict[str, Any] = {"items": []}
    answers = {f"{path}/{name}": none for name in ("clusterrolebindings", "roles", "rolebindings")}
    server = serve(answers | {f"{path}/clusterroles": {"items": [aggregated[0], role("cook"), aggregated[1]]}})
    roles.write([{"kind": "ClusterRole", "name": "cook", "rules": ["other"]}, {"kind": "Role", "name": "waiter"}])
    monkeypatch.setattr(sys, "argv", ["release", "roles", "--server", server, "--write"])

    assert main() == 1

    assert capsys.readouterr().out.splitlines() == [
        "ClusterRole admin is new",
        "ClusterRole cook differs in managedFields, rules",
        "ClusterRole view is new",
        "Role waiter has gone",
    ]
    assert [row["name"] for row in roles.recorded()] == ["cook", "view", "admin"]
    assert roles.recorded()[0]["managedFields"] == [{"manager": "kube-apiserver"}]


def test_a_server_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["release", "roles", "--server", "http://127.0.0.1:1"])

    with pytest.raises(SystemExit):
        main()

    assert "Connection refused" in capsys.readouterr().err.splitlines()[-1]

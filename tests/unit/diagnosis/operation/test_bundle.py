"""A support bundle has the useful data, and no planted secret."""

from __future__ import annotations

import base64
import json
import string
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from dra_kit.apiserver.server import run_in_thread
from dra_kit.author.config_problems import short_json
from dra_kit.cli.app import cli
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import CONFIG_MAPS, DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, SECRETS
from dra_kit.diagnosis.support_bundle import REMOVED, HiddenWords, gather, is_secret, redact_object, secrets_in_objects
from dra_kit.errors import Unavailable
from dra_kit.text import shorten
from tests.unit.diagnosis.operation.parts import api_server

DRIVER = "dra.pizza"
PLANTED = {
    "opaque config": "recipe-of-grandmother-1",
    "class config": "recipe-of-the-house-22",
    "environment": "hunter2-in-the-environment",
    "settings": "oven-password-4444",
    "own environment": "token-of-my-shell-5555",
    "Secret": "top-secret-666666",
    "ConfigMap": "private-config-7777",
    "kubeconfig": "kubeconfig-token-888888",
    "status data": "wifi-key-of-the-device-9",
    "annotation": "annotated-secret-10-10-10",
    "command": "argument-secret-11-11-11",
}


def claim() -> dict[str, Any]:
    opaque = {"driver": DRIVER, "parameters": {"apiVersion": "k/v1", "kind": "P", "recipe": PLANTED["opaque config"]}}
    return {
        "metadata": {"name": "lunch", "namespace": "default", "annotations": {"note": PLANTED["annotation"]}},
        "spec": {
            "devices": {
                "requests": [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}],
                "config": [{"opaque": opaque}],
            }
        },
    }


def claim_status() -> dict[str, Any]:
    result = {"request": "pizza", "driver": DRIVER, "pool": "node-1", "device": "pizza-0"}
    opaque = claim()["spec"]["devices"]["config"][0]["opaque"]
    return {
        "allocation": {"devices": {"results": [result], "config": [{"source": "FromClaim", "opaque": opaque}]}},
        "devices": [{"driver": DRIVER, "pool": "node-1", "device": "pizza-0", "data": {"key": PLANTED["status data"]}}],
    }


async def cluster(client: Client) -> None:
    opaque = {"driver": DRIVER, "parameters": {"apiVersion": "k/v1", "kind": "P", "recipe": PLANTED["class config"]}}
    await client.create(DEVICE_CLASSES, {"metadata": {"name": "pizza"}, "spec": {"config": [{"opaque": opaque}]}})
    await client.create(NODES, {"metadata": {"name": "node-1"}})
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "node-1", "pool": pool, "devices": [{"name": "pizza-0"}]}
    await client.create(RESOURCE_SLICES, {"metadata": {"name": "slice"}, "spec": spec})
    await client.create(RESOURCE_CLAIMS, claim(), "default")
    await client.patch(RESOURCE_CLAIMS, "lunch", {"status": claim_status()}, "default", subresource="status")
    container = {
        "name": "node",
        "image": "i",
        "args": ["--password", PLANTED["command"]],
        "env": [
            {"name": "DRIVER_OVEN", "value": PLANTED["settings"]},
            {"name": "API_TOKEN", "value": PLANTED["environment"]},
        ],
    }
    labels = {"app.kubernetes.io/name": DRIVER}
    await client.create(
        PODS, {"metadata": {"name": "p", "labels": labels}, "spec": {"containers": [container]}}, "default"
    )
    await client.create(SECRETS, {"metadata": {"name": "s"}, "stringData": {"k": PLANTED["Secret"]}}, "default")
    await client.create(CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {"k": PLANTED["ConfigMap"]}}, "default")


def files_of(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as opened:
        found = {}
        for entry in opened.getmembers():
            file = opened.extractfile(entry)
            assert file is not None
            assert entry.mode == 0o600
            found[entry.name.partition("/")[2]] = file.read().decode()
        return found


async def test_no_planted_secret_is_in_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", PLANTED["own environment"])
    log = " ".join(["served", *PLANTED.values(), "Authorization: Bearer abc.def"])

    async def logged(*_: object, **__: object) -> str:
        return f"{log}\n"

    monkeypatch.setattr(Client, "log", logged)
    with run_in_thread() as server:
        config = server.kubeconfig()
        config["users"][0]["user"]["token"] = PLANTED["kubeconfig"]
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))
        async with Client(await load_credentials(kubeconfig), user_agent="test") as client:
            await cluster(client)
        import asyncio

        archive = tmp_path / "pizza.tar.gz"
        arguments = ["support-bundle", str(archive), "--driver", DRIVER, "--kubeconfig", str(kubeconfig)]
        answer = await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, "--kubelet-dir", str(tmp_path / "none")])
        assert answer.exit_code == 0, answer.output
    files = files_of(archive)
    assert archive.stat().st_mode & 0o777 == 0o600
    everything = "\n".join([*files, *files.values()])
    # a secret that occurs only in a log cannot be recognized: the Secret, the ConfigMap and the rest
    # are never read, so that a bundle without such a log has none of them
    logs = files.pop("logs/default_p_node.log")
    without_logs = "\n".join([*files, *files.values()])
    assert [name for name, secret in PLANTED.items() if secret in without_logs] == []
    known = {"opaque config", "class config", "environment", "settings", "own environment", "status data"}
    assert [name for name in known if PLANTED[name] in logs] == []
    assert "abc.def" not in logs
    assert logs.startswith("served ")
    assert REMOVED in everything
    # and what helps is there
    assert "pizza-0" in files["objects/resourceslices.json"]
    [stored] = json.loads(files["objects/resourceclaims.json"])
    assert stored["spec"]["devices"]["config"][0]["opaque"]["parameters"] == REMOVED
    assert stored["status"]["allocation"]["devices"]["results"][0]["device"] == "pizza-0"
    assert [use["device"] for use in json.loads(files["who.json"])] == ["pizza-0"]
    assert "ok   driver: dra.pizza: 1 device on 1 node" in files["check.txt"]
    index = json.loads(files["index.json"])
    assert [line.split(":")[0] for line in index["missing"]] == ["status"]
    assert not {"objects/secrets.json", "objects/configmaps.json"} & set(files)


async def test_objects_read_before_the_api_server_stopped_are_in_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    get_path = Client.get_path

    async def once(client: Client, path: str) -> Any:
        asked.append(path)
        if asked.count(path) > 1:
            raise Unavailable(f"GET {path}: no connection")
        return await get_path(client, path)

    monkeypatch.setattr(Client, "get_path", once)
    with api_server(tmp_path) as kubeconfig:
        credentials = await load_credentials(kubeconfig)
        async with Client(credentials, user_agent="test") as client:
            await cluster(client)
        bundle = await gather(DRIVER, credentials, tmp_path / "none")
    assert "pizza-0" in bundle.files["objects/resourceslices.json"]
    assert "check: GET /version: no connection" in bundle.missing


@pytest.mark.parametrize(
    "text",
    [
        "token eyJhbGciOiJSUzI1NiIsImtpZCI6IiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl end",
        "Authorization: Bearer s3cr3t end",
        "https://user:passw0rd@registry.example/v2 end",
        "password=hunter2 end",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- end",
        "-----BEGIN PRIVATE KEY-----\nMIIE cut off",
    ],
)
def test_text_that_looks_like_a_credential_is_redacted(text: str) -> None:
    cleaned = HiddenWords(()).safe_text(text)
    assert REMOVED in cleaned
    for secret in ("eyJ", "s3cr3t", "passw0rd", "hunter2", "MIIE"):
        assert secret not in cleaned
    assert cleaned.endswith("end") or "cut off" in text


def test_word_that_is_added_again_costs_nothing() -> None:
    def comparisons(hidden: HiddenWords) -> int:
        number = 0

        class Text(str):
            __slots__ = ()

            def startswith(self, *arguments: Any) -> bool:
                nonlocal number
                number += 1
                return super().startswith(*arguments)

        assert hidden.without_words(Text("mode exclusive, not shared")) == "mode (removed), not shared"
        return number

    once, often = HiddenWords(["exclusive"]), HiddenWords(())
    for _ in range(100):
        often.add(["exclusive"])

    assert comparisons(often) == comparisons(once) > 0


def test_secrets_are_found_however_deep_they_are() -> None:
    parameters: dict[str, Any] = {"recipe": PLANTED["opaque config"]}
    for _ in range(100_000):
        parameters = {"more": [parameters]}
    document = {"spec": {"devices": {"config": [{"opaque": {"parameters": parameters}}]}}}

    assert secrets_in_objects([document]) == {PLANTED["opaque config"]}


@pytest.mark.parametrize("secret", ['pass"word"1', "back\\slash\\1", "süß-geheim", "two\nlines", 'key\t"ü"'])
def test_a_secret_is_redacted_in_its_json_form_too(secret: str) -> None:
    """In logs of JSON, and in errors in them that quote a value."""
    logged = [
        f"refused: {secret}",
        f"refused: {json.dumps(secret)}",
        f"refused: {json.dumps(secret, ensure_ascii=False)}",
    ]
    texts = [each for text in logged for each in (text, json.dumps(text), json.dumps({"a": text}, ensure_ascii=False))]
    for text in texts:
        cleaned = HiddenWords({secret}).safe_text(text)
        assert cleaned.replace('\\"', '"').replace('"', "").replace("\\", "") in {
            f"refused: {REMOVED}", f"{{a: refused: {REMOVED}}}",
        }  # fmt: skip


@pytest.mark.parametrize("number", [123456, 1234567, -123456.5])
def test_a_number_is_redacted_and_json_stays_valid(number: float) -> None:
    cleaned = HiddenWords({"123456"}).safe_json(
        json.dumps({"pin": number, "log": f"pin {number}", "on": True, "of": 2})
    )

    assert "123456" not in cleaned
    assert json.loads(cleaned)["pin"] == REMOVED
    assert json.loads(cleaned)["on"] is True
    assert json.loads(cleaned)["of"] == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda value: st.lists(value) | st.dictionaries(st.text(), value),
)


@given(VALUES, st.sets(st.text(string.printable, min_size=6) | st.integers(10**5).map(str)))
def test_json_stays_valid_after_any_redaction(value: object, words: set[str]) -> None:
    cleaned = HiddenWords(words).safe_json(json.dumps([value, *words]))

    (*_,) = json.loads(cleaned)
    assert all(word not in text for text in json.loads(cleaned)[1:] for word in words if word not in REMOVED)


SAYS = ("claim a/b: oven is ", "; correct it and create the claim again", "on node node-1: ", "2026-01-01T00:00:00Z ")
VALUES_TO_HIDE = st.text(
    string.ascii_letters + string.digits + "+/=_-.:@ \"'\\&<>äß", min_size=6, max_size=1500
).filter(lambda text: text[:6].strip() == text[:6] and text[:6] not in REMOVED)


def reported(secret: str) -> dict[str, str]:
    """How texts that dra-kit makes quote a value of opaque configuration."""
    problem = f"{SAYS[0]}{short_json(secret)}{SAYS[1]}"
    long = f"{SAYS[0]}{secret}{SAYS[1]}"
    event = shorten(f"{SAYS[2]}{long}", 1024)
    return {
        "as it is": long,
        "problem": problem,
        "repr": f"{SAYS[0]}{secret!r}",
        "cut repr": f"{SAYS[0]}{secret!r:.100}...",
        "cut by pydantic": f"input_value={secret!r:.25}...{repr(secret)[-24:]}, input_type=str",
        "Event": event,
        "status": json.dumps({"failures": [{"error": problem}, {"error": shorten(long, 4096)}]}),
        "log line of JSON": json.dumps({"time": SAYS[3], "error": event}),
        "log line": f"{SAYS[3]}claim not prepared error={json.dumps(event)} code=invalid-config",
        "cut at the end": long[: len(SAYS[0]) + 70],
        "cut line": f"{long[: len(SAYS[0]) + 70]}\n{SAYS[3]}next line",
        "base64": f"{SAYS[0]}{base64.b64encode(secret.encode()).decode()}",
        "wrapped": "\n".join(f"  {long[at : at + 76]}" for at in range(0, len(long), 76)),
    }


@pytest.mark.parametrize("kind", reported("x" * 6))
@given(secret=VALUES_TO_HIDE)
def test_no_prefix_of_a_secret_is_left_in_an_abbreviated_text(kind: str, secret: str) -> None:
    assume(secret[:6] not in reported("")[kind])  # what the text around it says is in every text
    text = reported(secret)[kind]
    hidden = HiddenWords({secret})
    for cleaned in (hidden.safe_text(text), json.loads(hidden.safe_json(json.dumps([text])))[0]):
        assert secret[:6] not in cleaned
        assert base64.b64encode(secret.encode()).decode()[:8] not in cleaned


@pytest.mark.parametrize("mark", ["...", "…", " … 2000 bytes in total … ", "", "\nnext line"])
@pytest.mark.parametrize("length", [6, 7, 76, 77, 400])
def test_a_truncated_secret_is_redacted(length: int, mark: str) -> None:
    secret = "SECRET" * 100
    cleaned = HiddenWords({secret}).safe_text(f"oven is {secret[:length]}{mark}")
    assert cleaned == f"oven is {REMOVED}{mark}"


@pytest.mark.parametrize("mark", ["...", "… 2000 bytes in total … "])
def test_the_end_of_an_abbreviated_secret_is_redacted(mark: str) -> None:
    secret = "".join(map(str, range(1000, 1200)))
    cleaned = HiddenWords({secret}).safe_text(f"oven is {secret[:40]}{mark}{secret[-30:]}; correct it")
    assert cleaned == f"oven is {REMOVED}{mark}{REMOVED}; correct it"


def test_names_that_share_a_prefix_with_a_secret_are_retained() -> None:
    hidden = HiddenWords({"kitchen.pizza.example/secret-recipe"})
    text = json.dumps({"driver": "kitchen.pizza.example", "error": "driver kitchen.pizza.example is not ready"})
    assert json.loads(hidden.safe_json(text)) == json.loads(text)


def test_keys_that_are_not_field_names_are_redacted_but_schemas_are_not() -> None:
    parameters = {
        "apiVersion": "kitchen.pizza.example/v1",
        "kind": "PizzaConfig",
        "extra_toppings": {"customer.acme.example/key": 1234567, "x" * 50: True},
        "nested": {"kind": "not-the-schema"},
    }
    words = secrets_in_objects([{"spec": {"config": [{"opaque": {"parameters": parameters}}]}}])
    assert words == {"customer.acme.example/key", "x" * 50, "1234567", "1,234,567", "1.23457e+06", "not-the-schema"}


def test_variables_that_may_be_secrets() -> None:
    for name in ("DRIVER_MENU", "DB_PASSWORD", "GITHUB_TOKEN", "api_key", "AWS_SECRET_ACCESS_KEY"):
        assert is_secret(name)
    for name in ("DRA_NODE_NAME", "PATH", "KUBERNETES_SERVICE_HOST"):
        assert not is_secret(name)


def test_an_object_keeps_its_shape() -> None:
    cleaned = redact_object("ResourceClaim", {**claim(), "apiVersion": "resource.k8s.io/v1", "status": claim_status()})
    assert cleaned["spec"]["devices"]["requests"][0]["name"] == "pizza"
    assert cleaned["status"]["devices"][0]["data"] == REMOVED
    assert "annotations" not in cleaned["metadata"]


def test_without_a_driver_or_node_the_option_is_required(tmp_path: Path) -> None:
    answer = CliRunner().invoke(cli, ["support-bundle", str(tmp_path / "b.tar.gz"), "--kubelet-dir", str(tmp_path)])
    assert answer.exit_code == 2
    assert "Missing option '--driver'" in answer.stderr
    answer = CliRunner().invoke(cli, ["support-bundle", str(tmp_path / "b.zip"), "--driver", "a.b"])
    assert answer.exit_code == 2
    assert "must end in .tar.gz or .tgz" in answer.stderr

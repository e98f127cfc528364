"""The API server calls a webhook whose server is a pod behind a Service."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from dra_kit.client.resources import CONFIG_MAPS, PODS, SERVICES, VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.errors import KubeError
from dra_kit.sandbox.cluster import Sandbox
from tests.support.ports import kept_free

SERVER = """
import http.server, json, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"uid": review["request"]["uid"], "allowed": False, "status": {"message": "too hot"}}
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@pytest.fixture
def port() -> Iterator[int]:
    with kept_free() as number:
        yield number


async def test_webhook_in_a_pod_behind_a_service_denies_a_request(tmp_path: Path, port: int) -> None:
    authority = trustme.CA()
    authority.issue_cert("oven.default.svc").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    command = [sys.executable, "-I", "-c", SERVER, str(port), str(tmp_path / "server.pem")]
    container = {"name": "c", "image": "x", "command": command, "ports": [{"name": "hook", "containerPort": port}]}
    pod = {"metadata": {"name": "oven", "labels": {"app": "oven"}}, "spec": {"containers": [container]}}
    service = {"selector": {"app": "oven"}, "ports": [{"port": 443, "targetPort": "hook"}]}
    bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    webhook = {
        "name": "oven.example.com", "rules": [rule], "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"namespace": "default", "name": "oven"}, "caBundle": bundle},
    }  # fmt: skip
    async with Sandbox([]) as sandbox:
        client = sandbox.client
        await client.create(PODS, pod, "default")
        await client.create(SERVICES, {"metadata": {"name": "oven"}, "spec": service}, "default")
        await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": "oven"}, "webhooks": [webhook]})

        message = ""
        async with asyncio.timeout(60):
            while "denied the request" not in message:  # the pod may not listen yet
                try:
                    await client.create(CONFIG_MAPS, {"metadata": {"name": "menu"}}, "default")
                except KubeError as error:
                    message = error.text
                await asyncio.sleep(0.02)

    assert message == 'admission webhook "oven.example.com" denied the request: too hot'

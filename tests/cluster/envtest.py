"""A control plane from bare binaries: etcd and kube-apiserver, without controllers, scheduler and nodes."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.cluster.processes import running
from tests.support.ports import kept_free

DEADLINE_SECONDS = 120


@contextmanager
def control_plane(assets: Path, directory: Path) -> Iterator[Path]:
    """Start etcd and kube-apiserver; gives the admin's kubeconfig."""
    with (
        kept_free() as etcd,
        kept_free() as peer,
        kept_free() as port,
        _control_plane(assets, directory, etcd, peer, port) as kubeconfig,
    ):
        yield kubeconfig


@contextmanager
def _control_plane(assets: Path, directory: Path, etcd: int, peer: int, port: int) -> Iterator[Path]:
    state = directory / "control-plane"
    state.mkdir()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(state / "ca.crt")
    server = authority.issue_cert("127.0.0.1", "localhost", "10.0.0.1")
    server.private_key_pem.write_to_path(state / "server.key")
    with (state / "server.crt").open("wb") as sink:
        for part in server.cert_chain_pems:
            sink.write(part.bytes())
    admin = authority.issue_cert("admin.example", common_name="admin", organization_name="system:masters")
    admin.private_key_and_cert_chain_pem.write_to_path(state / "admin.pem")
    _service_account_key(state / "service-accounts.key")
    etcd_command = [
        assets / "etcd", "--data-dir", state / "etcd", "--unsafe-no-fsync", "--log-level", "warn",
        "--listen-client-urls", f"http://127.0.0.1:{etcd}", "--advertise-client-urls", f"http://127.0.0.1:{etcd}",
        "--listen-peer-urls", f"http://127.0.0.1:{peer}",
    ]  # fmt: skip
    apiserver_command = [
        assets / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{etcd}", f"--secure-port={port}",
        "--bind-address=127.0.0.1", "--service-cluster-ip-range=10.0.0.0/24",
        f"--tls-cert-file={state}/server.crt", f"--tls-private-key-file={state}/server.key",
        f"--client-ca-file={state}/ca.crt", "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={state}/service-accounts.key",
        f"--service-account-signing-key-file={state}/service-accounts.key",
        "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
        "--allow-privileged=true",  # as every cluster has it whose nodes run drivers of networks, disks and devices
    ]  # fmt: skip
    context = ssl.create_default_context(cafile=str(state / "ca.crt"))
    context.load_cert_chain(state / "admin.pem")
    with ExitStack() as stack:
        stack.enter_context(running(etcd_command, log=state / "etcd.log"))
        _wait(f"http://127.0.0.1:{etcd}/health", None, state / "etcd.log")
        stack.enter_context(running(apiserver_command, log=state / "kube-apiserver.log"))
        _wait(f"https://127.0.0.1:{port}/readyz", context, state / "kube-apiserver.log")
        yield _kubeconfig(state, f"https://127.0.0.1:{port}")


def _kubeconfig(state: Path, server: str) -> Path:
    path = state / "admin.kubeconfig"
    cluster = {"server": server, "certificate-authority": str(state / "ca.crt")}
    user = {"client-certificate": str(state / "admin.pem"), "client-key": str(state / "admin.pem")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "admin", "user": user}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
    }
    path.write_text(json.dumps(config))
    return path


def _service_account_key(path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )


def _wait(url: str, context: ssl.SSLContext | None, log: Path) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, context=context, timeout=5) as answer:  # noqa: S310 - the scheme is ours
                if answer.status == 200:
                    return
        except (OSError, urllib.error.HTTPError):
            pass
        time.sleep(0.2)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise TimeoutError(f"{url} did not answer within {DEADLINE_SECONDS} s:\n{tail}")

"""Kubeconfig files for tests."""

from __future__ import annotations

import base64
import sys
import textwrap
from pathlib import Path
from typing import Any

import yaml


def kubeconfig(path: Path, user: dict[str, Any], /, *, server: str = "https://api.example", **cluster: Any) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "kitchen"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def plugin(folder: Path, script: str) -> dict[str, Any]:
    """A user with an exec plugin, which notes each of its runs in ``runs``."""
    program = folder / "plugin.py"
    note = f"open({str(folder / 'runs')!r}, 'a').write('x')\n"
    program.write_text("import json, os, sys\n" + note + textwrap.dedent(script))
    api_version = "client.authentication.k8s.io/v1"
    environment = [{"name": "SECRET", "value": "s3cret"}]
    return {"exec": {"apiVersion": api_version, "command": sys.executable, "args": [str(program)], "env": environment}}


PRINT_STATUS = """
    info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
    print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": STATUS}))
"""

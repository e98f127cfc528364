"""What is imported leaves the TLS of the whole process as it is, also while it is being imported."""

from __future__ import annotations

import asyncio
import sys

PROGRAM = """
import importlib.abc, ssl, sys

def settings():
    return {(owner.__name__, name): value for owner in (ssl, ssl.SSLContext) for name, value in vars(owner).items()}

before = settings()
changed = set()

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        now = settings()
        changed.update(key for key in before.keys() | now.keys() if before.get(key) is not now.get(key))

sys.meta_path.insert(0, Watch())
import dra_kit.client.api
import dra_kit.client.operator
import dra_kit.client.credentials
Watch().find_spec("")
assert "aiohttp" in sys.modules and "kopf" in sys.modules
print(sorted(changed))
"""


async def test_nothing_of_ssl_changes_while_the_api_client_and_kopf_are_imported() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stdout=-1, stderr=-1)
    out, error = await process.communicate()
    assert (out.decode().strip(), error.decode()) == ("[]", "")

from __future__ import annotations

import ssl
import subprocess
import sys
import textwrap
import threading

import pytest

from dra_kit.kube.http.late_authorities import LateContext

IMPORT = """
    import ssl
    import sys
    import threading

    from dra_kit.kube.http.late_authorities import import_aiohttp


    class Meanwhile:
        found = 0

        def find_spec(self, name, path=None, target=None):
            if name == "aiohttp.connector":
                other = threading.Thread(target=self.look)
                other.start()
                other.join()

        def look(self):
            self.found = ssl.create_default_context().cert_store_stats()["x509"]


    meanwhile = Meanwhile()
    sys.meta_path.insert(0, meanwhile)
    import_aiohttp()
    from aiohttp.connector import _SSL_CONTEXT_VERIFIED as context

    print(context.cert_store_stats()["x509"])
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="dra-kit.example")
    print(context.cert_store_stats()["x509"] == ssl.create_default_context().cert_store_stats()["x509"])
    print(meanwhile.found == ssl.create_default_context().cert_store_stats()["x509"])
    print(context.verify_mode.name, context.check_hostname)
"""


@pytest.mark.processes
def test_aiohttp_reads_the_systems_authorities_for_its_first_connection() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(IMPORT)], capture_output=True, text=True, check=False, timeout=120
    )

    assert ran.stdout.split("\n") == ["0", "True", "True", "CERT_REQUIRED True", ""], ran.stderr


def test_a_connection_that_comes_while_another_reads_the_authorities_has_them_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, done = threading.Event(), threading.Event()
    read = ssl.SSLContext.set_default_verify_paths

    def slow(context: ssl.SSLContext) -> None:
        if not reading.is_set():
            reading.set()
            done.wait(60)
        read(context)

    monkeypatch.setattr(ssl.SSLContext, "set_default_verify_paths", slow)
    context = LateContext(ssl.PROTOCOL_TLS_CLIENT)
    first = threading.Thread(target=lambda: context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="a"))
    first.start()
    reading.wait(60)

    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="b")

    assert context.cert_store_stats()["x509"] > 0
    done.set()
    first.join()

"""What the live view tells of a container's output."""

from __future__ import annotations

import io

from dra_kit.cdi.names import temporary_file_name
from dra_kit.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers import SandboxDriver
from dra_kit.sandbox.live import LiveView
from dra_kit.sandbox.workload.container_log import LIMIT
from tests.unit.kubelet.polling import until
from tests.unit.sandbox.test_cluster import CLASS, Settings, claim, new_driver, phase, pod

# more than is kept of the output, then a pause until the file is there, then a last word
LOUD = f"yes | head -c {LIMIT}; echo; echo full; until [ -e go ]; do sleep 0.05; done; printf 'and\\nthe end'"


async def test_the_end_of_a_long_output_is_told() -> None:
    told = io.StringIO()
    view = LiveView(told)
    driver = SandboxDriver((new_driver(),), lambda _: Settings())

    def tells(text: str) -> bool:
        view.flush()
        return text in told.getvalue()

    async with Sandbox(driver, SandboxSettings(webhook=False, controller=False), observers=(view,)) as sandbox:
        for resource, item in ((DEVICE_CLASSES, CLASS), (RESOURCE_CLAIMS, claim("lunch"))):
            await sandbox.client.create(resource, item)
        await sandbox.client.create(PODS, pod("guest", "lunch", "sh", "-c", LOUD))
        await until(lambda: tells("| full\n"))
        [report] = sandbox.reports("default", "guest")
        assert report.log.begin.line > 0
        for directory in (sandbox.nodes[0].directory / "containers").iterdir():
            (directory / "go").touch()
        await until(lambda: phase(sandbox, "guest") == "Succeeded" and tells("| the end\n"))

    assert told.getvalue().count("| and\n") == 1


async def test_a_cdi_file_that_is_being_written_is_not_told() -> None:
    told = io.StringIO()
    view = LiveView(told)
    driver = SandboxDriver((new_driver(),), lambda _: Settings())

    async with Sandbox(driver, SandboxSettings(webhook=False, controller=False), observers=(view,)) as sandbox:
        for resource, item in ((DEVICE_CLASSES, CLASS), (RESOURCE_CLAIMS, claim("lunch"))):
            await sandbox.client.create(resource, item)
        half = sandbox.nodes[0].cdi_dir / temporary_file_name("dra.pizza", "of-another-claim", "1")
        half.write_text('{"cdiVersion"')
        await sandbox.client.create(PODS, pod("guest", "lunch", "true"))
        await until(lambda: phase(sandbox, "guest") == "Succeeded")
        half.unlink()

    view.flush()
    assert "CHEESE=false" in told.getvalue()
    assert half.name not in told.getvalue()

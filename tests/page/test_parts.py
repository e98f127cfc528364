"""The parts of the page: devices, pods, the selected thing, filters, and the states without content."""

from __future__ import annotations

import json

import aiohttp

from dra_kit.sandbox.page.server import PageServer
from dra_kit.sandbox.records import (
    ClusterCopied,
    DriverEnded,
    DriverNotServing,
    ObjectChanged,
    PluginDisconnected,
    PluginRefused,
)
from tests.page.shown import rows, shown, tiles
from tests.support.browser import Tab, open_tab
from tests.support.page_world import DRIVER, PageWorld, gpu_cluster, large_cluster

PENDING = "tr[data-row=pod-train-9]"


async def counts(tab: Tab) -> list[str]:
    found: list[str] = await tab.run("[...document.querySelectorAll('#counts li')].map(item => item.innerText)")
    return found


# --- header, devices and pods


async def test_the_header_shows_driver_release_and_counts() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.until_text("#title", DRIVER)
        assert await tab.text("#release") == "Kubernetes 1.37.1"
        assert await tab.text("#mode") == "● live"
        assert await counts(tab) == [
            "2 nodes", "16 devices", "2 in use", "1 tainted", "3 claims", "3 pods", "1 pending",
        ]  # fmt: skip


async def test_devices_say_who_uses_them_and_which_taints_they_have() -> None:
    async with shown(gpu_cluster()) as tab:
        found = await tiles(tab)
        assert len(found) == 16
        assert found["node-1/gpu-0"] == "gpu-0; in use by claim train-1"
        assert found["node-2/gpu-5"] == "gpu-5; free; taint example.com/xid-79:NoSchedule"
        assert found["node-2/gpu-7"] == "gpu-7; free"


async def test_a_device_has_the_colour_of_its_claim_in_the_table() -> None:
    async with shown(gpu_cluster()) as tab:
        colour = "getComputedStyle(document.querySelector('{}')).backgroundColor"
        device = await tab.run(colour.format('[data-device="gpu.example.com/node-1/gpu-0"]'))
        assert device == await tab.run(colour.format("[data-row=pod-train-1] .dot"))
        assert device != await tab.run(colour.format("[data-row=pod-train-2] .dot"))


async def test_shares_of_a_device_are_bars() -> None:
    world = PageWorld()
    world.start(DRIVER)
    world.node("node-1")
    world.devices("node-1", count=1, gpu_0={"allowMultipleAllocations": True})
    world.claim("quarter", "node-1/gpu-0", consumedCapacity={"memory": "20Gi"})
    world.claim("half", "node-1/gpu-0", consumedCapacity={"memory": "40Gi"})
    async with shown(world) as tab:
        found = await tiles(tab)
        assert found["node-1/gpu-0"].startswith("gpu-0; in use by claim quarter (memory 20Gi of 80Gi)")
        widths = "[...document.querySelectorAll('.share i')].map(bar => bar.style.width)"
        assert await tab.run(widths) == ["25%", "50%"]


async def test_counters_of_partitions_are_bars_and_block_devices() -> None:
    world = PageWorld()
    world.start(DRIVER)
    world.node("node-1")
    uses = [{"counterSet": "gpu-0", "counters": {"memory": {"value": amount}}} for amount in ("30Gi", "20Gi")]
    parts = [{"name": f"part-{number}", "consumesCounters": [use]} for number, use in enumerate(uses)]
    spec = {
        "driver": DRIVER,
        "nodeName": "node-1",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
        "sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}],
        "devices": parts,
    }
    world.change("resourceslices.resource.k8s.io", {"metadata": {"name": "s", "uid": "s"}, "spec": spec})
    world.claim("most", "node-1/part-0")
    async with shown(world) as tab:
        assert (await tiles(tab))["node-1/part-1"] == "part-1; blocked: memory of gpu-0: 30Gi of 40Gi used"
        assert "memory 30Gi of 40Gi" in await tab.text(".counters")
        assert await tab.run("document.querySelector('.counters .bar i').style.width") == "75%"


async def test_a_device_that_vanished_while_in_use_is_struck_through() -> None:
    world = gpu_cluster()
    world.devices("node-1", gpu_0={"name": "gpu-8"})
    async with shown(world) as tab:
        await tab.until_text("#counts", "1 vanished in use")
        assert (await tiles(tab))["node-1/gpu-0"] == "gpu-0; no longer published; in use by claim train-1"
        line = "getComputedStyle(document.querySelector('.vanished .name')).textDecorationLine"
        assert await tab.run(line) == "line-through"


async def test_taints_of_rules_are_shown_with_the_rule() -> None:
    world = gpu_cluster()
    selector = {"driver": DRIVER, "pool": "node-1", "device": "gpu-3"}
    rule = {"deviceSelector": selector, "taint": {"key": "broken", "effect": "NoExecute"}}
    world.change("devicetaintrules.resource.k8s.io", {"metadata": {"name": "repair", "uid": "r"}, "spec": rule})
    async with shown(world) as tab:
        expected = "gpu-3; free; taint broken:NoExecute of DeviceTaintRule repair"
        assert (await tiles(tab))["node-1/gpu-3"] == expected


async def test_what_is_pending_comes_first() -> None:
    async with shown(gpu_cluster()) as tab:
        assert await rows(tab) == [
            ["train-9", "◷ Pending", "", "", ""],
            ["train-1", "✓ Running", "node-1", "gpu-0", "12.3 ms"],
            ["train-2", "✓ Running", "node-1", "gpu-1", "12.3 ms"],
        ]


async def test_columns_sort_and_text_filters() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.click("th:nth-child(1) button")
        await tab.until("document.querySelector('th').ariaSort === 'ascending'")
        assert [row[0] for row in await rows(tab)] == ["train-1", "train-2", "train-9"]
        await tab.click("th:nth-child(1) button")
        await tab.until("document.querySelector('th').ariaSort === 'descending'")
        assert [row[0] for row in await rows(tab)] == ["train-9", "train-2", "train-1"]
        await tab.click("#find")
        await tab.type("gpu-1")
        await tab.until("document.querySelectorAll('tbody tr').length === 1")
        assert [row[0] for row in await rows(tab)] == ["train-2"]


async def test_counts_are_filters() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.click("#counts li:last-child button")
        await tab.until("document.querySelectorAll('tbody tr').length === 1")
        assert [row[0] for row in await rows(tab)] == ["train-9"]
        await tab.click("#counts li:nth-child(4) button")  # tainted
        await tab.until("document.querySelectorAll('.device').length === 1")
        assert list(await tiles(tab)) == ["node-2/gpu-5"]
        await tab.click("#counts li:nth-child(4) button")
        await tab.until("document.querySelectorAll('.device').length === 16")


# --- the selected thing


async def test_a_pending_pod_is_explained_with_yaml_to_copy() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.click(f"{PENDING} button")
        await tab.until_text("#panel", "pod default/train-9 cannot be scheduled")
        assert "needs 9 devices on one node, but no node has more than 7 that fit" in await tab.text("#panel")
        assert "count: 7" in await tab.text("#panel .line pre")
        await tab.run("document.querySelector('.explanation summary').click()")
        await tab.until_text("#panel .explanation details", "tainted example.com/xid-79:NoSchedule")


async def test_an_explanation_can_be_copied_and_saved_as_a_page() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        await tab.click(f"{PENDING} button")
        await tab.until_text(".links", "Copy as text")
        await tab.click(".links button:first-child")
        await tab.until_text(".links", "Copied")
        assert "✗ pod default/train-9 cannot be scheduled" in await tab.run("navigator.clipboard.readText()")
        await tab.run(
            "window.saved = []; URL.createObjectURL = blob => { saved.push(blob); return 'blob:saved'; };"
            "HTMLAnchorElement.prototype.click = function () { saved.push(this.download); }"
        )
        await tab.click(".links button:last-child")
        await tab.until("saved.length === 2")
        assert await tab.run("saved[1]") == "explain-train-9.html"
        assert "<h1>Pod default/train-9</h1>" in await tab.run("saved[0].text()")


async def test_a_running_pod_shows_calls_what_it_got_and_its_output() -> None:
    world = gpu_cluster()
    async with shown(world) as tab:
        await tab.click("tr[data-row=pod-train-1] button")
        await tab.until_text("#panel pre", "epoch 2")
        text = await tab.text("#panel")
        assert "NodePrepareResources" in text
        assert "12.3 ms" in text
        assert "gpu-0 of pool node-1" in text
        assert "GPU_0_UUID" in await tab.run("document.getElementById('panel').textContent")
        world.write("train-1", "epoch 3\n", offset=16)
        await tab.until_text("#panel pre", "epoch 3")


async def test_a_selection_is_shown_in_all_parts() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.click("tr[data-row=pod-train-1] button")
        await tab.until("document.querySelector('.device[aria-pressed=true]')")
        assert list(await tiles(tab, ".device[aria-pressed=true]")) == ["node-1/gpu-0"]
        await tab.click('[data-device="gpu.example.com/node-1/gpu-1"]')
        await tab.until_text("#panel-title", "gpu-1")
        related = "[...document.querySelectorAll('tr.related')].map(row => row.dataset.row)"
        assert await tab.run(related) == ["pod-train-2"]
        assert "A100" in await tab.text("#panel")
        await tab.press("Escape")
        await tab.until_text("#panel-title", "What happened")


async def test_a_node_shows_its_drivers_and_calls() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.click("[data-node=node-1]")
        await tab.until_text("#panel-title", "node-1")
        text = await tab.text("#panel")
        assert f"{DRIVER}\n✓ registered with the kubelet" in text
        assert text.count("NodePrepareResources") == 2


async def test_a_driver_that_rejects_a_claim_is_quoted() -> None:
    world = gpu_cluster()
    world.run("broken", "node-2/gpu-0")
    world.fail("broken", "node-2", "GPU gpu-0 has fallen off the bus")
    async with shown(world) as tab:
        await tab.click("tr[data-row=pod-broken] button")
        await tab.until_text("#panel .calls", "GPU gpu-0 has fallen off the bus")


async def test_names_and_output_are_never_read_as_markup() -> None:
    world = gpu_cluster()
    evil = "<img src=x onerror='window.owned = 1'><script>window.owned = 1</script>"
    world.claim(evil, "node-2/gpu-0")
    world.write("train-1", evil, offset=16)
    world.unschedulable("train-9", evil)
    async with shown(world) as tab:
        await tab.click("tr[data-row=pod-train-1] button")
        await tab.until_text("#panel pre", evil)
        await tab.click(f"{PENDING} button")
        await tab.until_text(".explanation", "cannot be scheduled")
        assert await tab.run("window.owned ?? document.querySelectorAll('main img, aside img').length") == 0


# --- many nodes


async def test_many_nodes_are_small_and_grouped_by_what_differs() -> None:
    world = large_cluster(nodes=60, pods=80)
    world.devices("node-60", gpu_2={"taints": [{"key": "hot", "effect": "NoSchedule"}]})
    async with shown(world) as tab:
        titles = "[...document.querySelectorAll('.group h3')].map(item => item.innerText)"
        await tab.until(f"{titles}.length === 3")
        assert await tab.run(titles) == [
            "Tainted, vanished or not registered · 1 node", "Partly in use · 20 nodes", "All devices free · 39 nodes",
        ]  # fmt: skip
        await tab.click("[data-node=node-60].mini")
        await tab.until_text("#panel-title", "node-60")
        assert (await tiles(tab))["node-60/gpu-2"] == "gpu-2; free; taint hot:NoSchedule"


async def test_a_node_stays_under_the_pressed_mouse() -> None:
    world = large_cluster(nodes=60, pods=80)
    async with shown(world) as tab:
        box = "document.querySelector('[data-node=node-3]').getBoundingClientRect()"
        x, y = await tab.until(f"[{box}.x, {box}.y]")
        mouse = {"x": x + 20, "y": y + 8, "button": "left", "clickCount": 1}
        await tab.command("Input.dispatchMouseEvent", type="mousePressed", **mouse)
        world.claim("one-more", "node-50/gpu-0")
        await tab.until_text("[data-key=part] h3", "21 nodes")  # it has been drawn since
        assert await tab.run(f"{box}.y") == y
        await tab.command("Input.dispatchMouseEvent", type="mouseReleased", **mouse)
        await tab.until_text("#panel-title", "node-3")


async def test_an_update_touches_only_what_differs() -> None:
    world = large_cluster(nodes=60, pods=80)
    async with shown(world) as tab:
        await tab.until("document.querySelectorAll('.mini').length === 60")
        await tab.run(
            "window.touched = 0; new MutationObserver(found => { touched += found.length; })"
            ".observe(document.getElementById('nodes'), {childList: true, subtree: true})"
        )
        world.claim("one-more", "node-50/gpu-0")
        await tab.until("document.querySelector('[data-key=part] h3').innerText.includes('21 nodes')")
        assert await tab.run("touched") < 20


# --- nothing to show


async def test_an_empty_cluster_says_what_to_type_next() -> None:
    world = PageWorld()
    async with shown(world) as tab:
        await tab.until_text("#nodes", "The cluster starts.")
        world.start(DRIVER)
        world.node("node-1")
        await tab.until_text("#pods pre", "export KUBECONFIG=/tmp/kubeconfig\nkubectl apply -f pod.yaml")
        assert "No driver is registered with this kubelet." in await tab.text("#nodes")


async def test_a_cluster_without_a_driver_says_how_to_start_one() -> None:
    world = PageWorld()
    world.start()
    async with shown(world) as tab:
        await tab.until_text("#pods pre", 'eval "$(dra-kit sandbox env)"')


async def test_a_driver_that_is_not_registered_is_shown_with_the_kubelets_message() -> None:
    world = PageWorld()
    world.start(DRIVER)
    world.node("node-1")
    world.add(PluginRefused(node="node-1", socket=f"{DRIVER}-reg.sock", error="code = Unimplemented desc = GetInfo"))
    async with shown(world) as tab:
        await tab.until_text("#drivers", f"The kubelet of node-1 has not registered {DRIVER}-reg.sock")
        assert "The kubelet reports: code = Unimplemented desc = GetInfo" in await tab.text("#drivers")
        world.connect("node-1")
        await tab.until("document.getElementById('drivers').innerText === ''")


async def test_drivers_that_stop_serving_are_shown() -> None:
    world = gpu_cluster()
    world.add(PluginDisconnected(node="node-1", driver=DRIVER))
    world.add(DriverEnded(driver=DRIVER, node="node-1", how="failed", message="exit code 1"))
    world.add(DriverNotServing(driver="other.example.com", message="no inventory yet"))
    async with shown(world) as tab:
        await tab.until_text("#drivers", f"{DRIVER} is no longer registered on node-1")
        text = await tab.text("#drivers")
        assert f"{DRIVER} has failed on node-1" in text
        assert "The driver reports: exit code 1" in text
        assert "other.example.com does not serve yet" in text


async def test_a_copy_of_a_cluster_is_one_event_and_the_header_names_the_release_that_judges() -> None:
    world = PageWorld()
    world.start()
    node = {"metadata": {"name": "gpu-1", "uid": "node-gpu-1"}, "spec": {}, "status": {}}
    world.add(ObjectChanged(change="ADDED", resource="nodes", object=node, existing=True))
    world.add(ClusterCopied(source="prod.tar.gz", version="1.36", summary="1 node, no device"))
    async with shown(world) as tab:
        await tab.until_text("#panel-title", "What happened")
        assert await tab.text("#release") == "Kubernetes 1.37.1"
        events = await tab.run("[...document.querySelectorAll('#panel li')].map(event => event.innerText)")
        assert [event.partition(" ")[2] for event in events] == [
            "a copy of the cluster in prod.tar.gz, of Kubernetes 1.36: 1 node, no device",
            "Kubernetes 1.37.1 starts",
        ]
        await tab.run(
            "(() => { const slider = document.getElementById('slider'); slider.value = 2.5;"
            "slider.dispatchEvent(new Event('input')); })()"
        )
        await tab.until_text("#moment", "Node gpu-1 was there before")


async def test_events_of_unknown_kinds_do_no_harm() -> None:
    """A newer dra-kit may record more."""
    world = gpu_cluster()
    world.add(ObjectChanged(change="ADDED", resource="pods", object={"metadata": {"name": "bare", "uid": "bare"}}))
    async with shown(world) as tab:
        await tab.until("document.querySelectorAll('tbody tr').length === 4")


# --- the page to send


async def test_a_saved_explanation_needs_nothing_else() -> None:
    async with PageServer(gpu_cluster().history) as server, aiohttp.ClientSession() as http:
        base, _, token = server.url.partition("#token=")
        headers = {"Authorization": f"Bearer {token}"}
        async with http.get(f"{base}api/explanation.html?uid=pod-train-9", headers=headers) as response:
            page = await response.text()
    async with open_tab("about:blank") as tab:
        tree = await tab.command("Page.getFrameTree")
        await tab.command("Page.setDocumentContent", frameId=tree["frameTree"]["frame"]["id"], html=page)
        await tab.until_text("main", "pod default/train-9 cannot be scheduled")
        assert "count: 7" in await tab.text("pre")
        assert tab.problems == []
        assert [url for url in tab.requests if not url.startswith("about:")] == []
        assert json.dumps(page).count("<script") == 0

"""Moments: live, paused, back on the timeline, recordings; and connections that are lost."""

from __future__ import annotations

import re

from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.sandbox.page.history import PageHistory
from dra_kit.sandbox.page.server import PageServer
from dra_kit.sandbox.records import RunEnded
from tests.page.shown import Relay, rows, shown, tiles
from tests.support.browser import chromium, open_tab
from tests.support.page_world import PageWorld, gpu_cluster

RUNNING = ["train-1", "✓ Running", "node-1", "gpu-0", "12.3 ms"]


async def test_new_events_are_shown_as_they_come() -> None:
    world = gpu_cluster()
    async with shown(world) as tab:
        await tab.until("document.querySelectorAll('tbody tr').length === 3")
        world.run("late", "node-2/gpu-7")
        await tab.until("document.querySelector('[data-row=pod-late]')?.innerText.includes('Running')")
        assert (await tiles(tab))["node-2/gpu-7"] == "gpu-7; in use by claim late"


async def test_the_slider_shows_an_earlier_moment_in_all_parts() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.until("document.querySelectorAll('tbody tr').length === 3")
        await tab.run(
            "(() => { const slider = document.getElementById('slider'); slider.value = 7.5;"
            "slider.dispatchEvent(new Event('input')); })()"
        )
        await tab.until("document.querySelectorAll('tbody tr').length === 0")
        assert (await tiles(tab))["node-1/gpu-0"] == "gpu-0; free"
        assert await tab.text("#mode") == "❚❚ paused"
        value = await tab.run("document.getElementById('slider').getAttribute('aria-valuetext')")
        assert re.fullmatch(r"\d\d:\d\d:08\.000, event 7 of 29: ResourceSlice node-2-slice is created", value)


async def test_arrows_step_from_event_to_event() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.until("document.querySelectorAll('tbody tr').length === 3")
        await tab.press("ArrowLeft")
        await tab.until_text("#moment", "Pod train-9 is created")
        await tab.press("ArrowLeft")
        await tab.until_text("#moment", "ResourceClaim train-9 is created")
        assert (await rows(tab))[0][:2] == ["train-9 claim", "◷ Pending"]
        await tab.press("ArrowRight")
        await tab.until_text("#moment", "Pod train-9 is created")
        await tab.run("document.getElementById('slider').focus()")
        await tab.press("Home")
        await tab.until("document.getElementById('back').disabled")
        await tab.press("End")
        await tab.until("document.getElementById('forward').disabled")


async def test_space_pauses_and_goes_live_again() -> None:
    world = gpu_cluster()
    async with shown(world) as tab:
        await tab.until("document.querySelectorAll('tbody tr').length === 3")
        await tab.press(" ")
        before = await tab.run("Number(document.getElementById('slider').max)")
        world.pod("late")
        await tab.until(f"document.getElementById('slider').max > {before}")  # it has arrived
        await tab.until_text("#mode", "paused")
        assert len(await rows(tab)) == 3
        await tab.press(" ")
        await tab.until("document.querySelectorAll('tbody tr').length === 4")
        assert await tab.text("#mode") == "● live"


async def test_an_event_in_the_list_leads_to_its_moment() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.until_text("#panel", "Pod train-9 is created")
        event = "[...document.querySelectorAll('.recent button')].find(each => each.innerText.includes({}))"
        await tab.run(event.format("'train-2 is Running'") + ".click()")
        await tab.until("document.querySelectorAll('tbody tr').length === 2")
        assert await rows(tab) == [RUNNING, ["train-2", "✓ Running", "node-1", "gpu-1", "12.3 ms"]]


async def test_the_explanation_is_that_of_the_moment() -> None:
    world = gpu_cluster()
    for number in range(8):
        world.claim(f"other-{number}", f"node-2/gpu-{number}")
    async with shown(world) as tab:
        await tab.click("tr[data-row=pod-train-9] button")
        await tab.until_text(".explanation", "no node has more than 6 that fit")
        for _ in range(8):
            await tab.press("ArrowLeft")
        await tab.until_text(".explanation", "no node has more than 7 that fit")


async def test_what_did_not_exist_is_said_to_be_gone() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.click("tr[data-row=pod-train-9] button")
        await tab.until_text("#panel-title", "train-9")
        for _ in range(3):
            await tab.press("ArrowLeft")
        await tab.until_text("#panel", "It is gone")


# --- recordings


def recording() -> PageWorld:
    world = gpu_cluster()
    world.add(RunEnded(passed=False, duration=30, failures=("Pod train-9 is Pending",)))
    world.history.close()
    return world


async def test_a_recording_plays_and_says_where_it_ends() -> None:
    async with shown(recording(), mode="replay") as tab:
        await tab.until_text("#mode", "▶ replay")
        await tab.run("document.getElementById('slider').focus()")
        await tab.press("End")
        await tab.until_text("#banner", "The recording ends here. The run failed: Pod train-9 is Pending")
        assert await tab.text("#mode") == "■ end of the recording"
        assert (await rows(tab))[1] == RUNNING
        await tab.click("#banner button")
        await tab.until_text("#mode", "▶ replay")
        await tab.until("document.querySelectorAll('tbody tr').length === 0")


async def test_explanations_and_output_of_a_recording_are_there() -> None:
    async with shown(recording(), mode="replay") as tab:
        await tab.run("document.getElementById('slider').focus()")
        await tab.press("End")
        await tab.click("tr[data-row=pod-train-9] button")
        await tab.until_text(".explanation", "count: 7")
        await tab.click("tr[data-row=pod-train-1] button")
        await tab.until_text("#panel pre", "epoch 2")


async def test_a_recording_does_not_play_by_itself_where_motion_is_reduced() -> None:
    async with shown(recording(), mode="replay", reduced_motion=True) as tab:
        await tab.until_text("#mode", "paused")
        assert await tab.text("#pause") == "Play"


# --- connections


async def test_after_an_interruption_the_page_goes_on_where_it_was() -> None:
    chromium()
    world = gpu_cluster()
    async with PageServer(world.history) as server:
        address = server.url.partition("//")[2].partition("/")[0]
        relay = Relay(int(address.partition(":")[2]))
        await relay.open()
        rules = f"--host-resolver-rules=MAP {address} 127.0.0.1:{relay.port}"
        async with open_tab(server.url, [rules]) as tab:
            await tab.until("document.querySelectorAll('tbody tr').length === 3")
            await relay.cut()
            await tab.until_text("#mode", "connection lost")
            assert "Connection to the sandbox lost." in await tab.text("#banner")
            world.run("meanwhile", "node-2/gpu-0")
            await relay.open()
            await tab.until_text("#mode", "● live")
            await tab.until("document.querySelector('[data-row=pod-meanwhile]')?.innerText.includes('Running')")
            records = len(world.history.lines(0, most=1 << 62)[0])
            assert (await tab.text("#moment")).startswith(f"{records} events")  # none twice, none missing
            assert await tab.run("document.getElementById('banner').hidden")
            await relay.cut()


async def test_the_end_of_the_sandbox_is_said() -> None:
    world = gpu_cluster()
    async with shown(world) as tab:
        await tab.until("document.querySelectorAll('tbody tr').length === 3")
        world.history.close()
        await tab.until_text("#mode", "the sandbox has ended")
        assert (await rows(tab))[1] == RUNNING
        await tab.press("ArrowLeft")
        await tab.until_text("#mode", "paused")


async def test_the_page_starts_again_when_older_events_were_dropped() -> None:
    world = PageWorld(PageHistory(UNMODIFIED, limit=60_000))
    world.start("gpu.example.com")
    world.node("node-1")
    world.devices("node-1")
    async with shown(world) as tab:
        await tab.until("document.querySelectorAll('.device').length === 8")
        for number in range(300):
            world.claim("busy", f"node-1/gpu-{number % 8}")
        world.pod("busy", "node-1", "Running")
        await tab.until("document.querySelector('[data-row=pod-busy]')")
        assert world.history.generation > 0
        assert len(await tiles(tab)) == 8


# --- the token


async def test_the_token_leaves_the_url_and_lasts_for_a_reload() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.until("document.querySelectorAll('tbody tr').length === 3")
        assert "token" not in await tab.run("location.href")
        await tab.command("Page.reload")
        await tab.until("document.querySelectorAll('tbody tr').length === 3")
        assert not any("token" in url for url in tab.requests if "#" not in url)


async def test_a_page_without_the_token_says_what_to_open() -> None:
    chromium()
    async with PageServer(gpu_cluster().history) as server, open_tab(server.url.partition("#")[0]) as tab:
        await tab.until_text("#banner", "Open the URL that dra-kit printed.")
        assert await tab.run("document.querySelectorAll('.device').length") == 0

"""The page by keyboard and screen reader, in light and dark, at 200 %, and without motion."""

from __future__ import annotations

import pytest

from tests.page.shown import shown
from tests.support.browser import Tab
from tests.support.page_world import gpu_cluster, large_cluster

# the contrast of the text of each element with what is behind it (WCAG 2.2, 1.4.3)
CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour, below) => {
    canvas.fillStyle = `rgb(${below})`; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const colour = element => getComputedStyle(element).backgroundColor;
  const behind = element => element ? rgb(colour(element), behind(element.parentElement)) : [255, 255, 255];
  const linear = value => value <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
  const light = colour => colour.map(value => linear(value / 255))
    .reduce((sum, value, index) => sum + value * [.2126, .7152, .0722][index], 0);
  const skipped = ".unseen, .skip, noscript, [disabled], .blocked";
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || element.closest(skipped) || !element.getClientRects().length) continue;
    const ground = behind(element), ink = rgb(getComputedStyle(element).color, ground);
    const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
    const ratio = (high + .05) / (low + .05);
    const name = `${element.className || element.tagName} "${element.innerText.slice(0, 30)}"`;
    if (ratio < 4.5) found.push(`${name} ${ratio.toFixed(1)}`);
  }
  return found;
})()"""


async def focused(tab: Tab) -> str:
    return str(await tab.run("document.activeElement.innerText || document.activeElement.ariaLabel || ''"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_is_readable(scheme: str) -> None:
    world = gpu_cluster()
    for number in range(8):
        world.run(f"job-{number}", f"node-2/gpu-{number}")
    async with shown(world) as tab:
        await tab.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        await tab.click("tr[data-row=pod-train-9] button")
        await tab.until_text(".explanation", "cannot be scheduled")
        assert await tab.run(CONTRAST) == []


async def test_screen_readers_get_roles_and_names() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.until("document.querySelectorAll('tbody tr').length === 3")
        found = await tab.accessibility()
        for expected in (
            ("banner", ""), ("main", ""), ("complementary", "What happened"), ("contentinfo", "Timeline"),
            ("heading", "gpu.example.com"), ("heading", "Nodes and devices"), ("heading", "Pods and claims"),
            ("region", "Nodes and devices"), ("article", "node-1"),
            ("button", "gpu-0; in use by claim train-1"), ("button", "train-9"), ("columnheader", "State"),
            ("slider", "Moment on the timeline"), ("searchbox", "Filter"), ("button", "1 pending"),
            ("button", "Event before"), ("button", "Pause"), ("link", "Skip to pods and claims"),
        ):  # fmt: skip
            assert expected in found, found
        unnamed = [item for item in found if item[0] in {"button", "link", "slider", "searchbox"} and not item[1]]
        assert unnamed == []


async def test_everything_is_reached_by_keyboard() -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.until("document.querySelectorAll('tbody tr').length === 3")
        await tab.press("Tab")
        assert await focused(tab) == "Skip to pods and claims"
        await tab.press("Enter")
        seen = []
        for _ in range(9):
            await tab.press("Tab")
            seen.append(await focused(tab))
        assert seen[1:] == ["Pod or claim", "State", "Node", "Devices", "Prepared in", "train-9", "train-1", "train-2"]
        await tab.press("Enter")
        await tab.until_text("#panel-title", "train-2")
        assert await focused(tab) == "train-2"  # although its row was drawn again
        await tab.until_text("#said", "✓ train-2: Pod · Running on node-1")


async def test_the_focus_stays_when_the_focused_thing_changes() -> None:
    world = gpu_cluster()
    async with shown(world) as tab:
        await tab.until("document.querySelectorAll('tbody tr').length === 3")
        await tab.run("document.querySelector('tr[data-row=pod-train-9] button').focus()")
        world.claim("train-9", "node-2/gpu-0")
        world.pod("train-9", "node-2", "Running")
        await tab.until("document.querySelector('tr[data-row=pod-train-9]').innerText.includes('Running')")
        assert await focused(tab) == "train-9"


async def test_arrows_go_from_node_to_node() -> None:
    async with shown(large_cluster(nodes=50, pods=10)) as tab:
        await tab.until("document.querySelectorAll('.mini').length === 50")
        assert await tab.run("document.querySelectorAll('.mini[tabindex=\"0\"]').length") == 2  # one in each group
        await tab.run("document.querySelector('[data-key=free] .mini').focus()")
        await tab.press("ArrowRight")
        assert (await tab.run("document.activeElement.dataset.node")) == "node-5"
        await tab.until_text(".detail h3", "node-5")
        await tab.press("End")
        await tab.until_text(".detail h3", "node-50")
        assert await tab.text("#mode") == "● live"  # the timeline did not move


@pytest.mark.parametrize("width", [320, 640, 1280])
async def test_nothing_is_cut_off_in_narrow_windows_and_at_200_percent(width: int) -> None:
    async with shown(gpu_cluster()) as tab:
        await tab.resize(width, 900)
        await tab.click("tr[data-row=pod-train-9] button")
        await tab.until_text(".explanation", "cannot be scheduled")
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
        await tab.resize(width * 2, 1800, zoom=2)
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")


async def test_nothing_moves_where_motion_is_reduced() -> None:
    moving = (
        "[...document.querySelectorAll('*')].filter(each => getComputedStyle(each).animationName !== 'none'"
        " || getComputedStyle(each).transitionDuration !== '0s').length"
    )
    async with shown(gpu_cluster()) as tab:
        await tab.until("document.querySelectorAll('tbody tr').length === 3")
        await tab.prefer(prefers_reduced_motion="reduce")
        assert await tab.run(moving) == 0
        assert await tab.run("document.getAnimations().length") == 0


async def test_colours_of_claims_differ_in_lightness() -> None:
    lightness = """(() => {
      const canvas = document.createElement("canvas").getContext("2d");
      return [...Array(10).keys()].map(index => {
        const probe = document.body.appendChild(document.createElement("i"));
        probe.className = `dot c${index}`;
        canvas.fillStyle = getComputedStyle(probe).backgroundColor; canvas.fillRect(0, 0, 1, 1);
        probe.remove();
        const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
        return .2126 * red + .7152 * green + .0722 * blue;
      });
    })()"""
    async with shown(gpu_cluster()) as tab:
        found: list[float] = await tab.run(lightness)
        neighbours = list(zip(found, [*found[1:], found[0]], strict=True))
        assert all(abs(one - other) > 60 for one, other in neighbours), found

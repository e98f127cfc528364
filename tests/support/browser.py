"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip
_NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
"""Chromium drops requests, also to this machine, when a network interface comes or goes."""
_SECONDS = 60.0
_POLL = 0.02
_KEYS = {
    "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "Tab": 9, "Enter": 13,
    "Escape": 27, " ": 32,
}  # fmt: skip


def chromium() -> str:
    """Return the browser's program; skip the test if there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("web pages are not tested: Chromium is not installed; install the package chromium")
    return found


@asynccontextmanager
async def browsing(url: str, flags: Sequence[str] = ()) -> AsyncIterator[Path]:
    """Open a page in a browser with a new profile, whose folder this yields, until the block ends."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            chromium(), *_FLAGS, *flags, f"--user-data-dir={profile}", "--remote-debugging-port=0", url,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield Path(profile)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class Tab:
    """A page in a browser: commands of the DevTools protocol, and what the page did meanwhile.

    Attributes:
        problems: errors on the console, and exceptions that nothing caught.
        requests: the URL of each request.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._socket = socket
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def read(self) -> None:
        """Read what the browser sends, until it is closed."""
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
                continue
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            elif method == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description") or details["text"])
            elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in {"error", "warning", "assert"}:
                self.problems.append(str([item.get("value") for item in parameters["args"]]))

    async def command(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": parameters}))
        async with asyncio.timeout(_SECONDS):
            event = await answer
        if "error" in event:
            raise RuntimeError(f"{method}: {event['error']}")
        return event["result"]

    async def open(self, url: str) -> None:
        await self.command("Page.navigate", url=url)

    async def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is waited for."""
        result = await self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if details := result.get("exceptionDetails"):
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return result["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Return the value of an expression as soon as it is true; of an element, only that there is one."""
        value = f"(found => found instanceof Node || found)({expression})"
        end, found = time.monotonic() + _SECONDS, None
        while time.monotonic() < end:
            if any(_NETWORK_CHANGED in problem for problem in self.problems):
                self.problems[:] = [problem for problem in self.problems if _NETWORK_CHANGED not in problem]
                await self.command("Page.reload")
            with suppress(RuntimeError):  # the page is being loaded
                if found := await self.run(value):
                    return found
            await asyncio.sleep(_POLL)
        raise AssertionError(f"not within {_SECONDS:.0f} s: {expression}; problems: {self.problems}")

    async def text(self, selector: str) -> str:
        return str(await self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def until_text(self, selector: str, text: str) -> None:
        """Wait until an element has a text."""
        await self.until(f"document.querySelector({json.dumps(selector)})?.innerText.includes({json.dumps(text)})")

    async def click(self, selector: str) -> None:
        """Click where the element is; it must be visible."""
        place = await self.until(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)}); if (!found) return null;"
            "found.scrollIntoView({block: 'center'}); const box = found.getBoundingClientRect();"
            "return box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.command(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    async def press(self, key: str) -> None:
        """Press a key; the element with the focus gets it."""
        text = {"Enter": "\r", " ": " "}.get(key)
        extra = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            await self.command(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=_KEYS[key],
                **(extra if kind == "keyDown" else {}),
            )  # fmt: skip

    async def type(self, text: str) -> None:
        await self.command("Input.insertText", text=text)

    async def accessibility(self) -> list[tuple[str, str]]:
        """Return role and name of each node of the accessibility tree that is not ignored."""
        nodes = (await self.command("Accessibility.getFullAXTree"))["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
        ]

    async def resize(self, width: int, height: int, *, scale: float = 1, zoom: float = 1) -> None:
        """Set the size of the window; ``zoom`` 2 is what the reader gets who zooms to 200 %."""
        await self.command(
            "Emulation.setDeviceMetricsOverride", width=int(width / zoom), height=int(height / zoom),
            deviceScaleFactor=scale * zoom, mobile=False,
        )  # fmt: skip

    async def prefer(self, **features: str) -> None:
        """Set media features, such as ``prefers_color_scheme="dark"``."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        await self.command("Emulation.setEmulatedMedia", features=wanted)

    async def picture(self, path: Path, kind: str = "png", quality: int | None = None) -> None:
        """Write a picture of the window."""
        options = {"quality": quality} if quality is not None else {}
        found = await self.command("Page.captureScreenshot", format=kind, **options)
        path.write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def open_tab(url: str, flags: Sequence[str] = ()) -> AsyncIterator[Tab]:
    """Open a page in a new browser."""
    async with browsing("about:blank", flags) as profile, aiohttp.ClientSession() as http:
        port = await _debugging_port(profile)
        async with http.get(f"http://127.0.0.1:{port}/json/list") as response:
            found = next(target for target in await response.json(content_type=None) if target["type"] == "page")
        async with http.ws_connect(found["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket)
            reading = asyncio.create_task(tab.read())
            try:
                for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
                    await tab.command(f"{domain}.enable")
                await tab.resize(1440, 900)
                await tab.open(url)
                yield tab
            finally:
                reading.cancel()
                await asyncio.wait([reading])


async def _debugging_port(profile: Path) -> int:
    file, end = profile / "DevToolsActivePort", time.monotonic() + _SECONDS
    while time.monotonic() < end:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        await asyncio.sleep(_POLL)
    raise AssertionError("Chromium did not come up")

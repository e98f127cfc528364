"""Draw the shortened output of ``make demo`` as an SVG: ``make demo-svg``."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "_static" / "demo.svg"
WIDTH = 124
# steps that the picture leaves out
LEFT_OUT = ("DeviceClass", "is registered", "is created", "is Running", "eater says", "being deleted", "was stopped")
# text that differs in each run
RANDOM = {
    r"kubeconfig \S+/": "kubeconfig …/",
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "6c1a…",
    r"(node-1-)[a-z0-9]{5}\b": r"\1x7k2p",
    r"(story-order-by-claim-)[0-9a-f]+": r"\g<1>6c1a",
}


def terminal_output() -> str:
    """Return what the demo writes to a terminal, with colours."""
    written: list[bytes] = []

    def read(terminal: int) -> bytes:
        written.append(os.read(terminal, 4096))
        return written[-1]

    os.chdir(ROOT)  # so that the picture shows the paths that ``make demo`` prints
    story = "examples/pizza-driver"
    command = [sys.executable, "-m", "dra_kit", "sandbox", story, "--story", f"{story}/stories/order-by-claim"]
    if pty.spawn(command, read):
        sys.exit("demo failed")
    return b"".join(written).decode().replace("\r\n", "\n")


def shortened(text: str) -> str:
    """Remove the steps in LEFT_OUT and the body of the CDI file."""
    steps = re.split(r"\n+(?=\s*\d+\.\d\d s )", text.strip("\n"))
    steps = [re.sub(r"\n {11}\{\n.*\n {11}\}", "", step, flags=re.DOTALL) for step in steps]
    text = "\n\n".join(step for step in steps if not any(words in step for words in LEFT_OUT))
    for random, fixed in RANDOM.items():
        text = re.sub(random, fixed, text)
    return text


def picture(text: str) -> str:
    """Return an SVG that uses the fonts of the viewer and fetches none."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(f"$ make demo\n{text}"), overflow="ellipsis", no_wrap=True)
    drawn = console.export_svg(title="dra-kit", unique_id="demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.write_text(picture(shortened(terminal_output())), encoding="utf-8")

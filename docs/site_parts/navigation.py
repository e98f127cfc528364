"""The tree of pages beside every page of the site."""

from __future__ import annotations

from pathlib import Path

# in the order of reading; pages that are not named here follow by name
SECTIONS = {
    "tutorial": ("Tutorial", ["first-driver", "first-hour"]),
    "how-to": (
        "How to",
        [
            "write-a-driver", "develop", "sandbox", "test-a-driver", "test-crashes-and-upgrades", "hot-plug",
            "partitions", "sharing", "several-pools", "taints", "health", "what-a-container-gets", "effects",
            "programs-and-objects",
            "status", "config-versions", "upgrade", "controller", "network-attached", "binding", "taint-rules",
            "no-code", "any-driver", "migrate-from-a-device-plugin", "kind", "real-cluster", "config-policy", "monitor",
            "who-has-what", "explain", "autoscalers", "remove-a-driver",
        ],
    ),
    "explanation": (
        "Explanation",
        ["why-dra", "claim-to-device", "anatomy", "best-practices", "guarantees", "why-effects", "security", "faults",
         "faults-of-hardware", "faults-of-state", "node-life"],
    ),
    "reference": (
        "Reference",
        ["troubleshooting", "commands", "sandbox", "sandbox-output", "sandbox-fidelity", "story-format",
         "story-expectations", "story-driver", "timeline", "lint", "lint-rules", "explain", "reading-files", "cel",
         "globs", "roles", "role-controller", "role-webhook", "sockets-and-files", "tokens", "chart", "metrics",
         "packaging", "measured"],
    ),
}  # fmt: skip


def tree(docs: Path) -> str:
    """Return the pages by section, as directives for the end of the first page."""
    parts = []
    for folder, (title, order) in SECTIONS.items():
        names = sorted(page.stem for page in (docs / folder).glob("*.md"))
        names.sort(key=lambda name: order.index(name) if name in order else len(order))
        lines = "\n".join(f"{folder}/{name}" for name in names)
        parts.append(f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{lines}\n```\n")
    api = sorted(page.stem for page in (docs / "reference" / "api").glob("*.md"))
    lines = "\n".join(f"reference/api/{name}" for name in api)
    parts.append(f"\n```{{toctree}}\n:hidden:\n:caption: Python\n\n{lines}\n```\n")
    return "".join(parts)

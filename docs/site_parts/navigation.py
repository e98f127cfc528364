"""The sidebar of the site: all pages, in groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SECTIONS = [
    ("Tutorial", "tutorial", ["first-driver", "first-hour"]),
    (
        "How to: write a driver",
        "how-to",
        [
            "write-a-driver", "no-code", "migrate-from-a-device-plugin", "what-a-container-gets", "effects",
            "programs-and-objects", "hot-plug", "health", "status", "partitions", "order-devices", "modes", "sharing",
            "several-pools", "network-attached", "binding", "taint-rules", "controller", "read-the-cluster",
            "pod-hooks", "config-versions",
        ],
    ),
    (
        "How to: test a driver",
        "how-to",
        [
            "sandbox", "sandbox-page", "record-and-replay", "develop", "test-a-driver", "test-crashes-and-upgrades",
            "any-driver", "conformance", "kind",
        ],
    ),
    (
        "How to: deploy a driver",
        "how-to",
        ["real-cluster", "config-policy", "upgrade", "autoscalers", "remove-a-driver"],
    ),
    ("How to: operate a driver", "how-to", ["monitor", "taints"]),
    ("How to: use devices", "how-to", ["explain", "try-on-a-copy", "who-has-what", "kubernetes-releases"]),
    (
        "Explanation",
        "explanation",
        [
            "why-dra", "which-driver", "public-drivers", "claim-to-device", "anatomy", "best-practices", "guarantees",
            "why-effects", "security", "faults", "faults-of-hardware", "faults-of-state", "node-life",
        ],
    ),
    (
        "Reference",
        "reference",
        [
            "troubleshooting", "conformance", "commands", "sandbox", "sandbox-programs", "sandbox-output",
            "sandbox-pods", "sandbox-nodes", "sandbox-fidelity", "story-format", "story-expectations", "story-driver",
            "timeline", "lint", "lint-rules", "explain",
            "reading-files", "cel", "globs", "roles", "role-controller", "role-webhook", "sockets-and-files", "tokens",
            "chart", "metrics", "packaging", "measured", "kubernetes-differences",
        ],
    ),
    ("Python reference", "reference/api", []),
    ("Contributing", "contributing", ["kubernetes-release"]),
]  # fmt: skip
"""Caption, folder and pages of each group, in reading order."""


def tree(docs: Path) -> str:
    """Return the sidebar as toctree directives, for the end of the first page.

    Pages that no group names are added, by name, to the last group of their folder.
    """
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{chr(10).join(pages)}\n```\n"
        for caption, pages in groups(docs)
    )


def groups(docs: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the caption and the pages of each group."""
    named = {(folder, page) for _, folder, pages in SECTIONS for page in pages}
    last = {folder: caption for caption, folder, _ in SECTIONS}
    for caption, folder, pages in SECTIONS:
        found = sorted(page.stem for page in (docs / folder).glob("*.md"))
        rest = [page for page in found if (folder, page) not in named] if last[folder] == caption else []
        yield caption, [f"{folder}/{page}" for page in [*pages, *rest]]

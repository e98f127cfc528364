"""The example driver and its stories under another name: a cluster may run the original at the same time."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.pizza import DRIVER

# not the group of the config's apiVersion, which the code defines
_NAME = re.compile(re.escape(DRIVER) + r"(?!/)")


def renamed_text(text: str, name: str) -> str:
    """A text that speaks of the driver by another name."""
    return _NAME.sub(name, text)


def renamed_class(class_name: str, name: str) -> str:
    """The name of a DeviceClass for the driver of that name; classes belong to the whole cluster."""
    return f"{class_name}.{name}"


def renamed_manifests(text: str, name: str) -> str:
    """Manifests for the driver of another name, with DeviceClasses of their own."""
    documents = [item for item in yaml.safe_load_all(renamed_text(text, name)) if item is not None]
    for document in documents:
        if document.get("kind") == "DeviceClass":
            document["metadata"]["name"] = renamed_class(document["metadata"]["name"], name)
        _rename_references(document, name)
    return yaml.safe_dump_all(documents, sort_keys=False)


def renamed_story(folder: Path, name: str, directory: Path) -> Path:
    """A copy of a story for the driver of another name, in a folder below ``directory``."""
    copy = Path(shutil.copytree(folder, directory / folder.name, ignore=shutil.ignore_patterns("README.md")))
    for path in copy.glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        convert = renamed_manifests if re.search(r"^kind:", text, re.MULTILINE) else renamed_text
        path.write_text(convert(text, name), encoding="utf-8")
    return copy


def _rename_references(value: Any, name: str) -> None:
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _rename_references(item, name)
    if isinstance(value, dict) and isinstance(value.get("deviceClassName"), str):
        value["deviceClassName"] = renamed_class(value["deviceClassName"], name)

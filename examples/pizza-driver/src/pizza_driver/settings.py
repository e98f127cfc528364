"""What whoever deploys the driver can choose: each field is a flag of ``dra-kit node``, such as ``--menu``."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field


class KitchenSettings(BaseModel):
    """One kitchen: its menu and its oven."""

    menu: Path = Field(
        default=Path(__file__).resolve().parents[2] / "menu.yaml", description="the menu; a change of it is a hot-plug"
    )
    hardware_dir: Path = Field(
        default=Path("/var/lib/pizza-kitchen"), description="directory that stands for the hardware: the oven is in it"
    )

"""``edits_from_cdi``: a CDI spec that a vendor's tool wrote, as edits that a preparer returns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dra_kit.author.preparing import prepared as author
from dra_kit.cdi import spec as cdi
from dra_kit.errors import InvalidPrepared, TransientError
from dra_kit.text import did_you_mean


def edits_from_cdi(spec: Path | str | bytes | Mapping[str, Any], *, device: str) -> author.ContainerEdits:
    """Return the edits for a container that asks for one device of a CDI spec: the spec's own edits, then the device's.

    For tools that know their hardware best, such as ``nvidia-ctk cdi generate``. A preparer returns the edits with what
    else it has to say: ``dra.Prepared(**dict(edits))``, or as ``claim_edits``.

    Args:
        spec: the file, as a Path, or its content: JSON or YAML, as text, bytes or a mapping.
        device: one of the spec's devices, ``0`` or ``vendor.example/class=0``.

    Raises:
        TransientError: the file cannot be read.
        InvalidPrepared: it is no CDI spec that a container runtime loads, has no such device, or has settings of
            resctrl (``intelRdt``), which edits of a preparer cannot hold.
    """
    from dra_kit.cdi import resolution  # YAML, for those who need it

    where = f"CDI spec {spec}" if isinstance(spec, Path) else "CDI spec"
    found = _spec(spec, where)
    named = {item.name: item.container_edits for item in found.devices}
    kind, _, name = device.rpartition("=")
    if name not in named or kind not in {"", found.kind}:
        known = [f"{found.kind}={item}" if kind else item for item in named]
        wish = did_you_mean(device, known) or f"; it has {', '.join(known)}"
        raise InvalidPrepared(f"{where} of {found.kind} has no device {device}{wish}")
    edits = resolution.merged([found.container_edits, named[name]])
    if edits.intel_rdt is not None:
        raise InvalidPrepared(f"{where}, device {device}: intelRdt cannot be among the edits of a preparer; remove it")
    return author.ContainerEdits(
        env=dict(entry.split("=", 1) for entry in edits.env),
        mounts=[author.Mount(**_given(item)) for item in edits.mounts],
        device_nodes=[author.DeviceNode(**_given(item)) for item in edits.device_nodes],
        hooks=[author.Hook(**_given(item)) for item in edits.hooks],
        net_devices=[author.NetDevice(**_given(item)) for item in edits.net_devices],
        additional_gids=edits.additional_gids,
    )


def _spec(source: Path | str | bytes | Mapping[str, Any], where: str) -> cdi.Spec:
    from dra_kit.cdi.resolution import parsed
    from dra_kit.cdi.validation import refusals

    try:
        if isinstance(source, Path):
            content = source.read_bytes()
        elif isinstance(source, bytes):
            content = source
        else:
            content = (source if isinstance(source, str) else json.dumps(dict(source))).encode()
        spec = parsed(content)
    except OSError as error:
        raise TransientError(f"{where} cannot be read: {error.strerror}; write it before claims are prepared") from None
    except (TypeError, ValueError) as error:
        raise InvalidPrepared(f"{where}: {error}; give a Path for a file, else what is in it") from None
    problems = refusals(spec)
    if problems:
        raise InvalidPrepared(f"{where}: {'; '.join(map(str, problems))}")
    return spec


def _given(item: cdi.DeviceNode | cdi.Mount | cdi.Hook | cdi.NetDevice) -> dict[str, Any]:
    return item.model_dump(exclude_defaults=True)

"""All values that a cluster needs for one driver: what its author wrote, its DeviceClasses, and its code's rights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from dra_kit.chart.editing import with_value

_HEAD: Final = """\
# All that a cluster needs for this driver: helm install NAME "$(dra-kit chart)" -f values.yaml
# Made by `dra-kit chart TARGET --values FILE` of deploy/values.yaml, deviceclasses.yaml and the rights that the code
# declares: change those, and make it again.
"""


def driver_values(written: str, facts: Mapping[str, str], rights: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the values of a driver as YAML, with the comments of its author.

    Args:
        written: ``deploy/values.yaml``, or nothing; the comment that it begins with is about that file.
        facts: values that are known of the driver, such as ``driverName`` and ``deviceClasses``; what is written wins.
        rights: that its code declares, by role: added to the rules that are written.
    """
    text = _without_head(written)
    given: Any = yaml.safe_load(text) or {}
    for name, fact in facts.items():
        if name not in given:
            text = with_value(text, (name,), fact)
    for role, values in rights.items():
        for name, declared in values.items():
            former = (given.get(role) or {}).get(name)
            text = with_value(text, (role, name), _both(former, declared))
    return f"{_HEAD}{text}"


def _without_head(text: str) -> str:
    lines = text.splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith("#")):
        del lines[0]
    return "".join(f"{line}\n" for line in lines)


def _both(written: Any, declared: Any) -> Any:
    """Return the rules of both, each once; of namespaces likewise."""
    if isinstance(declared, Mapping):
        former: Mapping[str, Any] = written or {}
        names: Iterable[str] = dict.fromkeys([*former, *declared])
        return {name: _both(former.get(name), declared.get(name, [])) for name in names}
    if isinstance(declared, list):
        return [*(written or []), *(rule for rule in declared if rule not in (written or []))]
    return declared

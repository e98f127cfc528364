"""Node operations that a slice or result says need not be done (KEP-5945)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_kit.resource.fielderror import FieldError, declarative, invalid, unsupported
from dra_kit.resource.validation.fields.lists import repeated_names

PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"
_OPERATIONS: Final = ("*", PREPARE, UNPREPARE)


def validate_skipped_operations(operations: Sequence[str], path: str) -> list[FieldError]:
    """Check ``skipNodeOperations``: nothing is prepared only where nothing is unprepared either."""
    errors = []
    if PREPARE in operations and UNPREPARE not in operations and "*" not in operations:
        detail = f"{PREPARE} cannot be skipped unless {UNPREPARE} is also skipped"
        errors.append(invalid(path, operations, detail))
    declared = repeated_names(operations, path)
    unknown = (i for i, operation in enumerate(operations) if operation not in _OPERATIONS)
    declared += [unsupported(f"{path}[{i}]", operations[i], _OPERATIONS) for i in unknown]
    return errors + declarative(declared)

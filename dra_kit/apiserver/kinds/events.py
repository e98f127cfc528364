"""Events: one stored form that two API groups serve."""

from __future__ import annotations

from typing import Any, Final

from typing_extensions import override

from dra_kit.apiserver.kinds.kind import Kind, Strategy, StrategyContext
from dra_kit.apiserver.selectors import reader
from dra_kit.apiserver.tables import Column
from dra_kit.kubernetes.resource import names
from dra_kit.kubernetes.resource.field_errors import FieldError, invalid, required
from dra_kit.kubernetes.values.json import Object

_NEW: Final = "events.k8s.io/v1"
_RENAMED: Final = {
    "note": "message", "regarding": "involvedObject", "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp", "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count", "reportingController": "reportingComponent",
}  # fmt: skip
_OLD_NAMES: Final = {old: new for new, old in _RENAMED.items()}
_TYPES: Final = {"Normal", "Warning"}
_OLD: Final = ("firstTimestamp", "lastTimestamp", "count", "source")
_FIXED: Final = (
    "involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type", "eventTime",
    "action", "related", "reportingComponent", "reportingInstance",
)  # fmt: skip
_LENGTH_MAX: Final = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
_OPTIONAL: Final = {"message"}


def _problems(obj: Object, context: StrategyContext) -> list[FieldError]:
    """Check the namespace, or for events of the new form (with an ``eventTime``) the reporter."""
    if not obj.get("eventTime"):
        namespace, about = obj["metadata"].get("namespace"), (obj.get("involvedObject") or {}).get("namespace", "")
        if about == namespace or (not about and namespace == "default"):
            return []
        return [invalid("involvedObject.namespace", about, "does not match event.namespace")]
    errors: list[FieldError] = []
    path = "reportingController" if context.api_version == _NEW else "reportingComponent"
    component = obj.get("reportingComponent", "")
    if not component:
        errors.append(required(path))
    errors += [invalid(path, component, text) for text in names.label_key(component)]
    for name, limit in _LENGTH_MAX.items():
        value = obj.get(name) or ""
        if not value and name not in _OPTIONAL:
            errors.append(required(name))
        if len(value.encode()) > limit:
            errors.append(invalid(name, "", f"can have at most {limit} characters"))
    return errors


def _series(obj: Object) -> list[FieldError]:
    series = obj.get("series")
    if series is None:
        return []
    errors = [] if (series.get("count") or 0) > 1 else [invalid("series.count", "", "should be at least 2")]
    return errors + ([] if series.get("lastObservedTime") else [required("series.lastObservedTime")])


class EventStrategy(Strategy):
    """Translates between ``events.k8s.io/v1`` and the stored ``v1``."""

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        """Check the namespace and the reporter; through events.k8s.io also the other fields."""
        errors = _problems(obj, context)
        if context.api_version != _NEW:
            return errors
        errors += _series(obj)
        if not obj.get("eventTime"):
            errors.append(required("eventTime"))
        if obj.get("type") not in _TYPES:
            errors.append(invalid("type", "", f"has invalid value: {obj.get('type', '')}"))
        errors += [invalid(name, "", "needs to be unset") for name in _OLD if obj.get(name)]
        return errors

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        """Check it like a new one; through events.k8s.io only the series may change."""
        errors = _problems(obj, context)
        if context.api_version != _NEW:
            return errors
        errors += _series(obj)
        errors += [
            invalid(
                "reportingController" if name == "reportingComponent" else name, obj.get(name), "field is immutable"
            )
            for name in _FIXED
            if (obj.get(name) or None) != (old.get(name) or None)
        ]
        return errors

    @override
    def to_storage(self, obj: Object, api_version: str) -> Object:
        return {_RENAMED.get(name, name): value for name, value in obj.items()} if api_version == _NEW else obj

    @override
    def from_storage(self, obj: Object, api_version: str) -> Object:
        return {_OLD_NAMES.get(name, name): value for name, value in obj.items()} if api_version == _NEW else obj


_OBJECT_FIELDS: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_COMMON: Final = {"reason": reader("reason"), "type": reader("type")}
_CORE_FIELDS: Final = {
    **{f"involvedObject.{name}": reader(f"involvedObject.{name}") for name in _OBJECT_FIELDS},
    **_COMMON,
    "reportingComponent": reader("reportingComponent"),
    "source": lambda obj: (obj.get("source") or {}).get("component") or obj.get("reportingComponent") or "",
}
_NEW_FIELDS: Final = {
    **{f"regarding.{name}": reader(f"involvedObject.{name}") for name in _OBJECT_FIELDS},
    **_COMMON,
    "reportingController": reader("reportingComponent"),
}


def _object(event: Object) -> str:
    about = event.get("involvedObject") or {}
    kind, name = about.get("kind", "").lower(), about.get("name", "")
    return f"{kind}/{name}" if name else kind


def _source(event: Object) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host") or event.get("reportingInstance") or ""
    return f"{component}, {host}" if host else component


def _first_seen(event: Object) -> Any:
    return event.get("firstTimestamp") or event.get("eventTime")


def _last_seen(event: Object) -> Any:
    series = event.get("series") or {}
    return series.get("lastObservedTime") or event.get("lastTimestamp") or _first_seen(event)


def _occurrences(event: Object) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


_COLUMNS: Final = (
    Column("Last Seen", _last_seen, type="age"),
    Column("Type", lambda event: event.get("type") or ""),
    Column("Reason", lambda event: event.get("reason") or ""),
    Column("Object", _object),
    Column("Subobject", lambda event: (event.get("involvedObject") or {}).get("fieldPath") or "", priority=1),
    Column("Source", _source, priority=1),
    Column("Message", lambda event: (event.get("message") or "").strip()),
    Column("First Seen", _first_seen, priority=1, type="age"),
    Column("Count", _occurrences, priority=1),
    Column("Name", lambda event: event["metadata"].get("name", ""), priority=1, format="name"),
)
_STRATEGY: Final = EventStrategy()
EVENT_KINDS: Final = (
    Kind("", "events", "Event", True, {"v1": "core/v1.Event"}, _STRATEGY, short_names=("ev",), deletion_status=True,
         create_on_update=True, fields=_CORE_FIELDS, columns=_COLUMNS, stored_as="events"),
    Kind("events.k8s.io", "events", "Event", True, {"v1": "events/v1.Event"}, _STRATEGY, storage="v1",
         storage_type="core/v1.Event", short_names=("ev",), deletion_status=True, create_on_update=True,
         fields=_NEW_FIELDS, columns=_COLUMNS, stored_as="events"),
)  # fmt: skip

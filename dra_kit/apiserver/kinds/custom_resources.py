"""CustomResourceDefinitions, and the kinds that they define."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from typing_extensions import override

from dra_kit.apiserver.kinds.kind import Kind, StatusStrategy, Strategy, StrategyContext
from dra_kit.apiserver.selectors import reader
from dra_kit.apiserver.tables import AGE, CREATED, NAME, Column, text_cell, true_condition, value_at_path
from dra_kit.kubernetes.resource.field_errors import FieldError, forbidden, invalid, required, unsupported
from dra_kit.kubernetes.resource.schema.types import CUSTOM_RESOURCE
from dra_kit.kubernetes.values.json import Object

PLURAL: Final = "customresourcedefinitions.apiextensions.k8s.io"
_TYPES: Final = ("boolean", "date", "integer", "number", "string")
_FORMATS: Final = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")


class CustomResourceDefinitionStrategy(StatusStrategy):
    """CustomResourceDefinition: established immediately."""

    @override
    def default(self, obj: Object, context: StrategyContext) -> None:
        """Set the names that follow from the kind."""
        spec = obj.setdefault("spec", {})
        names = spec.setdefault("names", {})
        names["singular"] = names.get("singular") or names.get("kind", "").lower()
        names["listKind"] = names.get("listKind") or f"{names.get('kind', '')}List"
        spec.setdefault("conversion", {"strategy": "None"})

    @override
    def prepare_for_create(self, obj: Object, context: StrategyContext) -> None:
        """Set the status that controllers of a real API server write."""
        conditions = [
            {"type": type_, "status": "True", "lastTransitionTime": context.now, "reason": reason, "message": message}
            for type_, reason, message in (
                ("NamesAccepted", "NoConflicts", "no conflicts found"),
                ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            )
        ]
        versions = obj["spec"].get("versions") or []
        obj["status"] = {
            "conditions": conditions,
            "acceptedNames": dict(obj["spec"]["names"]),
            "storedVersions": [item["name"] for item in versions if item.get("storage")],
        }

    @override
    def validate(self, obj: Object, context: StrategyContext) -> list[FieldError]:
        spec = obj["spec"]
        errors = [required(f"spec.{name}") for name in ("group", "scope") if not spec.get(name)]
        errors += [required(f"spec.names.{name}") for name in ("plural", "kind") if not spec["names"].get(name)]
        expected = f"{spec['names'].get('plural')}.{spec.get('group')}"
        if obj["metadata"].get("name") != expected:
            detail = 'must be spec.names.plural+"."+spec.group'
            errors.append(invalid("metadata.name", obj["metadata"].get("name"), detail))
        if sum(1 for item in spec.get("versions") or () if item.get("storage")) != 1:
            detail = "must have exactly one version marked as storage version"
            errors.append(invalid("spec.versions", spec.get("versions") or [], detail))
        return [*errors, *_conversion_errors(spec.get("conversion") or {}), *_column_errors(spec.get("versions") or [])]


def _conversion_errors(conversion: Object) -> Iterator[FieldError]:
    """Yield errors of the conversion between versions, with the paths of the internal type."""
    strategy = conversion.get("strategy") or ""
    client, reviewed = "spec.conversion.webhookClientConfig", "spec.conversion.conversionReviewVersions"
    webhook = conversion.get("webhook") or {}
    if not strategy:
        yield required("spec.conversion.strategy")
    elif strategy == "Webhook":
        if not webhook.get("clientConfig"):
            yield required(client, "required when strategy is set to Webhook")
        if not webhook.get("conversionReviewVersions"):
            yield required(reviewed)
    elif strategy != "None":
        yield unsupported("spec.conversion.strategy", strategy, ("None", "Webhook"))
    elif webhook:
        given = ((client, webhook.get("clientConfig")), (reviewed, webhook.get("conversionReviewVersions")))
        for path in (path for path, value in given if value):
            yield forbidden(path, "should not be set when strategy is not set to Webhook")


def kind_from_definition(definition: Object) -> Kind:
    """Return the kind that a CustomResourceDefinition defines; its versions differ in name only."""
    spec = definition["spec"]
    names = spec["names"]
    served = [item for item in spec.get("versions") or () if item.get("served")]
    stored = next(item for item in spec["versions"] if item.get("storage"))
    served.sort(key=lambda item: item is not stored)
    status = "status" in (stored.get("subresources") or {})
    columns = tuple(map(_column, stored.get("additionalPrinterColumns") or ()))
    return Kind(
        spec["group"],
        names["plural"],
        names["kind"],
        spec.get("scope") == "Namespaced",
        {item["name"]: CUSTOM_RESOURCE.name for item in served},
        StatusStrategy() if status else Strategy(),
        storage=f"{spec['group']}/{stored['name']}",
        storage_type=CUSTOM_RESOURCE.name,
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        status=status,
        generation=True,
        unconditional_update=False,
        deletion_status=True,
        fields={
            item["jsonPath"].lstrip("."): reader(item["jsonPath"].lstrip("."))
            for item in stored.get("selectableFields") or ()
        },
        columns=(NAME, *columns) if columns else (NAME, AGE),
        schemas={item["name"]: (item.get("schema") or {}).get("openAPIV3Schema") or {} for item in served},
        list_kind=names.get("listKind", ""),
        singular_name=names.get("singular", ""),
    )


def _column_errors(versions: list[Object]) -> list[FieldError]:
    """Return errors of the columns of all versions; columns that all versions have are reported once."""
    shown = [item.get("additionalPrinterColumns") or [] for item in versions]
    alike = all(columns == shown[0] for columns in shown)
    paths = ["spec"] if alike else [f"spec.versions[{index}]" for index in range(len(shown))]
    return [
        error
        for path, columns in zip(paths, shown, strict=False)
        for index, column in enumerate(columns)
        for error in _errors_of_column(f"{path}.additionalPrinterColumns[{index}]", column)
    ]


def _errors_of_column(path: str, column: Object) -> Iterator[FieldError]:
    """Yield errors of a column (k8s.io/apiextensions-apiserver 0.37 ``ValidateCustomResourceColumnDefinition``)."""
    if not column.get("name"):
        yield required(f"{path}.name")
    type_, format_, json_path = (column.get(name) or "" for name in ("type", "format", "jsonPath"))
    if not type_:
        yield required(f"{path}.type", _one_of(_TYPES))
    elif type_ not in _TYPES:
        yield invalid(f"{path}.type", type_, _one_of(_TYPES))
    if format_ and format_ not in _FORMATS:
        yield invalid(f"{path}.format", format_, _one_of(_FORMATS))
    if not json_path:
        yield required(f"{path}.JSONPath")
    elif not json_path.startswith("."):
        yield invalid(f"{path}.JSONPath", json_path, "must be a simple json path starting with .")


def _one_of(values: tuple[str, ...]) -> str:
    return f"must be one of {','.join(values)}"


def _column(described: Object) -> Column:
    type_ = "age" if described["type"] == "date" else described["type"]
    return Column(
        described["name"], value_at_path(described["jsonPath"].strip(".")), type=type_,
        format=described.get("format", ""), priority=described.get("priority", 0),
    )  # fmt: skip


def _versions(definition: Object) -> str:
    """Return the served versions and the stored one."""
    served = [item for item in definition["spec"].get("versions") or () if item.get("served")]
    return ",".join(item["name"] + ("(storage)" if item.get("storage") else "") for item in served)


DEFINITION_KINDS: Final = (
    Kind("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", False,
         {"v1": "apiextensions/v1.CustomResourceDefinition"}, CustomResourceDefinitionStrategy(),
         short_names=("crd", "crds"), categories=("api-extensions",), status=True, generation=True,
         columns=(NAME, Column("Scope", text_cell("spec.scope")), Column("Versions", _versions),
                  CREATED, Column("Group", text_cell("spec.group"), priority=1),
                  Column("Kind", text_cell("spec.names.kind"), priority=1),
                  Column("ShortNames", lambda obj: ",".join(obj["spec"]["names"].get("shortNames") or ()), priority=1),
                  Column("Established", lambda obj: true_condition(obj, "Established") is not None, type="boolean",
                         priority=1))),
)  # fmt: skip

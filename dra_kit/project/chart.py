"""The chart of one driver: the generic chart with the driver's values, rights and settings."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from dra_kit.admission.review import review_configs
from dra_kit.author.driver import Driver, needs_settings, node_rights, rbac_values
from dra_kit.author.settings import check_settings
from dra_kit.author.target import GLOB_SUFFIXES
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.manifests.documents import SourceFile, read_values, source_file
from dra_kit.kubernetes.values.json import value_at
from dra_kit.project.chart_values import ChartValues, ValuePath, plain, value_comments, values_schema
from dra_kit.sandbox.drivers.project import project_of

DRIVER: Final = "dra-kit/driver"
"""Annotation of a generated chart with the driver's name; such a chart may be overwritten."""


def write_chart(
    chart: Path, folder: Path, *, driver: str, settings: type[BaseModel] | None, values: Mapping[str, Any]
) -> None:
    """Write the chart of a driver.

    Args:
        chart: the generic chart for all drivers.
        folder: the folder to write to; an existing chart of the same driver is replaced.
        driver: the name of the driver.
        settings: the model of its settings; None if it has none.
        values: the default values of the chart.

    Raises:
        ConfigurationError: the folder has other content or cannot be written, or a value is invalid.
    """
    _refuse_others(folder, driver)
    text = (chart / "values.yaml").read_text(encoding="utf-8")
    merged = complete_values(chart, values)
    about = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    about |= {"description": f"Driver {driver}", "annotations": {**about.get("annotations", {}), DRIVER: driver}}
    written = {
        "Chart.yaml": yaml.safe_dump(about, sort_keys=False),
        "values.yaml": "\n".join(_commented(merged, value_comments(text))) + "\n",
        "values.schema.json": json.dumps(values_schema(text, settings_schema(settings)), indent=2) + "\n",
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as place:
            made = shutil.copytree(chart, Path(place) / "chart")
            for name, content in written.items():
                (made / name).write_text(content, encoding="utf-8")
            if folder.exists():
                folder.rename(Path(place) / "former")
            made.rename(folder)
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be written: {error.strerror or error}; choose another folder with --directory"
        ) from None


def complete_values(chart: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chart's default values, overridden by the values of a driver.

    Raises:
        ConfigurationError: a value is invalid or unknown.
    """
    merged: dict[str, Any] = _merged(yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8")), values)
    try:
        ChartValues.model_validate(merged)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"deploy/values.yaml: {where}: {first['msg']}; correct it") from None
    return merged


def _refuse_others(folder: Path, driver: str) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        about = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
        found = about["annotations"][DRIVER]
    except (OSError, yaml.YAMLError, TypeError, KeyError):
        found = None
    if found != driver:
        what = f"the chart of driver {found}" if found else "files that dra-kit did not generate"
        raise ConfigurationError(f"{folder} already contains {what}; choose another folder with --directory")


def _merged(below: Any, above: Any) -> Any:
    """Merge values as helm does: maps are merged, everything else is replaced."""
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return {**below, **{name: _merged(below.get(name), value) for name, value in above.items()}}
    return above


def _commented(values: Mapping[str, Any], commented: Mapping[ValuePath, str], above: ValuePath = ()) -> Iterator[str]:
    """Yield lines of YAML, with comments above the values."""
    indent = "  " * len(above)
    for number, (name, value) in enumerate(values.items()):
        path = (*above, name)
        comment = commented.get(path, "")
        if comment and number and not above:
            yield ""
        for line in wrap(comment, WIDTH - len(indent) - 2):
            yield f"{indent}# {line}"
        if (
            isinstance(value, dict)
            and value
            and any(len(other) > len(path) and other[: len(path)] == path for other in commented)
        ):
            yield f"{indent}{name}:"
            yield from _commented(value, commented, path)
        else:
            yield from lines_of({name: value}, len(indent))


_TEMPLATE: Final = {"type": "string", "pattern": r"\{\{"}
"""A helm template such as ``'{{ .Release.Namespace }}'``, whose value is unknown until it is rendered."""


def settings_schema(model: type[BaseModel] | None) -> dict[str, Any]:
    """Return the schema of ``node.settings`` for a driver's model of settings, or without settings.

    All are optional, since the image or ``extraEnv`` may set them.
    """
    properties: dict[str, Any] = {}
    if model is not None:
        for name, part in _properties(model).items():
            description = model.model_fields[name].description
            properties[name] = {**({"description": description} if description else {}), **_or_template(part)}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _is_template(value: object) -> bool:
    return isinstance(value, str) and re.search(_TEMPLATE["pattern"], value) is not None


def _or_template(part: dict[str, Any]) -> dict[str, Any]:
    choices = part.get("anyOf", [part])
    items = [choice.get("items", {}) for choice in choices if choice.get("type") == "array"]
    if items:  # nodes also read a text with commas, or one item
        scalars = [item for item in items if item.get("type") in {"boolean", "integer", "number"}]
        return {"anyOf": [*choices, *scalars, {"type": "string"}]}
    if any(choice in ({"type": "string"}, {}) for choice in choices):
        return part  # any text
    return {"anyOf": [*choices, _TEMPLATE]}


def _properties(model: type[BaseModel]) -> dict[str, Any]:
    try:
        made = model.model_json_schema(by_alias=False)
    except PydanticInvalidForJsonSchema:  # a type without JSON schema is only checked by the roles
        return {name: {} for name in model.model_fields}
    found: dict[str, Any] = plain(made, made.get("$defs", {})).get("properties", {})
    return found


WIDTH: Final = 120
"""Columns of a line."""


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out."""
        del data
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def lines_of(values: Mapping[str, Any], indent: int = 0) -> list[str]:
    """Return values as lines of YAML, each indented by that many spaces."""
    text: str = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, width=WIDTH, allow_unicode=True)
    return [f"{' ' * indent}{line}" if line else "" for line in text.splitlines()]


def with_value(text: str, path: ValuePath, value: Any) -> str:
    """Return a YAML mapping, or an empty text, with one value set; it replaces the old value, or is added to its group.

    Comments are lost only if the text has aliases, or is a single mapping in braces.
    """
    lines = text.splitlines()
    document: Any = yaml.compose(_joined(lines), yaml.SafeLoader)
    if not isinstance(document, yaml.MappingNode) or document.flow_style or _has_aliases(text):
        whole = yaml.safe_load(text) or {}
        return _joined(lines_of(_nested(whole, path, value)))
    group, first, column = document, len(lines), 0
    for depth, name in enumerate(path):
        pair = next((pair for pair in group.value if pair[0].value == name), None)
        if pair is None:
            made = lines_of(_nested({}, path[depth:], value), column)
            return _joined([*lines[:first], *made, *lines[first:]])
        key, found = pair
        if depth == len(path) - 1 or not isinstance(found, yaml.MappingNode) or found.flow_style or not found.value:
            start, end = key.start_mark.line, _end(lines, found)
            former = yaml.safe_load("\n".join(lines[start:end]))
            made = lines_of(_nested(former, path[depth:], value), column)
            return _joined([*lines[:start], *made, *lines[end:]])
        group, first, column = found, key.start_mark.line + 1, found.value[0][0].start_mark.column
    return text


def _has_aliases(text: str) -> bool:
    """Return whether a value is defined elsewhere, possibly in the value that changes."""
    return any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, yaml.SafeLoader))


def _nested(below: Any, path: ValuePath, value: Any) -> Any:
    """Return a copy of the mapping with the value set."""
    name, *inner = path
    kept = below if isinstance(below, Mapping) else {}
    return {**kept, name: _nested(kept.get(name), tuple(inner), value) if inner else value}


def _end(lines: list[str], node: yaml.Node) -> int:
    """Return the line after a value; comments after the value belong to the next key."""
    text = isinstance(node, yaml.ScalarNode) and node.style in {"|", ">"}
    # yaml places the end of a block where the next token begins
    block = text or (isinstance(node, yaml.CollectionNode) and not node.flow_style)
    end = node.end_mark.line if block else node.end_mark.line + 1
    while end > node.start_mark.line + 1:
        last = lines[end - 1].strip()
        if last and (text or not last.startswith("#")):
            break
        end -= 1
    return end


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


_HEAD: Final = """\
# All values of this driver: helm install NAME "$(dra-kit chart)" -f values.yaml
# Generated by `dra-kit chart TARGET --values FILE` from deploy/values.yaml, deviceclasses.yaml and the rights that the
# code declares: change those, and generate this file again.
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
    lines = dropwhile(lambda line: not line.strip() or line.startswith("#"), text.splitlines())
    return "".join(f"{line}\n" for line in lines)


def _both(written: Any, declared: Any) -> Any:
    """Return the rules of both, each once; of namespaces likewise. Another value that is written wins."""
    if isinstance(declared, Mapping):
        former: Mapping[str, Any] = written or {}
        names: Iterable[str] = dict.fromkeys([*former, *declared])
        return {name: _both(former.get(name), declared.get(name, [])) for name in names}
    if isinstance(declared, list):
        return [*(written or []), *(rule for rule in declared if rule not in (written or []))]
    return written or declared


def project_values(
    target: str,
    driver: Driver[Any, Any],
    chart: Path,
    settings: Callable[[Mapping[str, object]], BaseModel | None],
) -> str:
    """Return all values that a cluster needs for a driver, as YAML.

    Args:
        target: the TARGET; ``deploy/values.yaml`` and the DeviceClasses are those of its project.
        driver: the driver of the TARGET.
        chart: the folder of the generic chart.
        settings: creates the driver's settings from values by name.

    Raises:
        ConfigurationError: a file cannot be read, a value or the config in a DeviceClass is invalid, or settings that
            rights depend on are missing.
    """
    if target.endswith(GLOB_SUFFIXES):
        return driver_values("", {"globs": source_file(Path(target)).text}, {})
    facts = {"driverName": driver.name}
    written = SourceFile("deploy/values.yaml", "")
    project = project_of(target)
    if project is not None:
        module, attribute = project.driver
        facts |= {"target": f"{module}:{attribute}"} if module else {}
        file = project.folder / "deploy" / "values.yaml"
        written = source_file(file) if file.exists() else written
        classes = [source_file(path) for path in project.classes]
        _check_configs(classes, driver)
        text = "".join(file.text for file in classes)
        facts |= {"deviceClasses": text} if text else {}
    documents = read_values(written)
    given = (documents[0] if documents else None) or {}
    if len(documents) > 1 or not isinstance(given, dict):
        raise ConfigurationError(f"{written.name} is not a mapping of values; correct it")
    complete_values(chart, facts | given)
    own = value_at(given, ("node", "settings")) or {}
    try:
        check_settings(driver, {name: value for name, value in own.items() if not _is_template(value)})
    except ConfigurationError as error:
        raise ConfigurationError(f"{written.name}: node.settings: {error}; correct it") from None
    try:
        rights = declared_rights(driver, lambda: settings(own))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}; the rights that its code declares depend on it: set it in node.settings in deploy/values.yaml"
        ) from None
    return driver_values(written.text, facts, rights)


def _check_configs(classes: Sequence[SourceFile], driver: Driver[Any, Any]) -> None:
    """Check config as the webhook does, which does not run yet when helm creates the classes."""
    for file in classes:
        for document in read_values(file):
            found = review_configs(document, driver) if isinstance(document, dict) else None
            if found is not None and found.problems:
                name = value_at(document, ("metadata", "name"))
                raise ConfigurationError(f"{file.name}: DeviceClass {name}: {found}; correct it")


NRI_SOCKET: Final = "/var/run/nri/nri.sock"
"""Where container runtimes listen for NRI by default."""


def declared_rights(driver: Driver[Any, Any], settings: Callable[[], BaseModel | None]) -> dict[str, dict[str, Any]]:
    """Return the rights of the driver's reads, effects, policy, pod hooks, cluster provider, binder and taint rules.

    The settings, on which the namespaces of objects depend, are requested only if there may be such namespaces.

    Returns:
        ``node`` and ``controller`` as in ``values.yaml``, without empty parts.
    """
    node: dict[str, Any] = dict(rbac_values(node_rights(driver, settings() if needs_settings(driver) else None)))
    node["nriSocket"] = NRI_SOCKET if driver.pod_hooks is not None else ""
    controller = {
        "clusterPools": driver.cluster_provider is not None,
        "binding": driver.binder is not None,
        "taintRules": driver.taint_rules is not None,
    }
    found = {"node": node, "controller": controller}
    parts = {role: {name: value for name, value in part.items() if value} for role, part in found.items()}
    if not driver.on_nodes:
        parts["node"] = {"enabled": False}
    return {role: part for role, part in parts.items() if part}

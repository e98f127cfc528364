"""``dra-kit lint`` on the command line: what it reads, what it prints, how it ends."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.unit.cli.project.linting import PIZZA, lint

DRIVER = """
    from collections.abc import Iterator, Sequence

    from pydantic import BaseModel, ValidationInfo, field_validator

    import dra_kit as dra


    class Settings(BaseModel):
        doughs: list[str] = ["pan"]


    class PizzaConfig(dra.OpaqueConfig, api_version="dra.pizza/v1"):
        extra_cheese: bool = False
        dough: str = "pan"

        @field_validator("dough")
        @classmethod
        def _is_there(cls, dough: str, info: ValidationInfo) -> str:
            if isinstance(info.context, Settings) and dough not in info.context.doughs:
                raise ValueError(f"{dough} is not available")
            return dough


    class Oven(dra.DeviceProvider):
        def startup(self, context: dra.Context[Settings]) -> None:
            self.doughs = context.settings.doughs
            if self.doughs == ["broken"]:
                raise RuntimeError("no gas")

        def discover(self) -> Iterator[Sequence[dra.Device]]:
            if self.doughs == ["none"]:
                raise ValueError("the oven is cold")
            if self.doughs == ["slow"]:
                import threading
                threading.Event().wait(60)
            if self.doughs == ["everywhere"]:
                yield [dra.Device(name="pizza-0", all_nodes=True)]
            doughs = filter(None, self.doughs)
            yield [dra.Device(name=f"pizza-{i}", attributes={"dough": dough}) for i, dough in enumerate(doughs)]


    class Waiter(dra.Preparer[PizzaConfig]):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice[PizzaConfig]) -> dra.Prepared:
            return dra.Prepared()


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter(), settings=Settings)
"""
CLASS = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: pizza}
spec:
  selectors:
  - cel:
      expression: device.driver == "dra.pizza" && device.attributes["dra.pizza"].dough == "thin"
"""
WRONG = CLASS.replace("spec:", "spce:")
CONFIG = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: lunch}
spec:
  devices:
    requests: [{name: a, exactly: {deviceClassName: pizza}}]
    config: [{opaque: {driver: dra.pizza, parameters: {apiVersion: dra.pizza/v1, kind: PizzaConfig, extra: 1}}}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pizzeria.py").write_text(textwrap.dedent(DRIVER))
    (tmp_path / "class.yaml").write_text(CLASS)
    (tmp_path / "wrong.yaml").write_text(WRONG)
    (tmp_path / "config.json").write_text(json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}))
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def test_a_clean_file_ends_with_0(folder: Path) -> None:
    assert lint(folder / "class.yaml", code=0).stdout == "no findings in 1 object of 1 file\n"


def test_lint_ignores_byte_order_mark(folder: Path) -> None:
    (folder / "class.yaml").write_text(CLASS, encoding="utf-8-sig")
    assert lint(folder / "class.yaml", code=0).stdout == "no findings in 1 object of 1 file\n"
    assert lint("-", code=0, stdin=f"\ufeff{CLASS}").stdout.startswith("no findings in 1 object of 1 file\n")


def test_an_error_ends_with_1_and_names_the_file(folder: Path) -> None:
    output = lint(folder / "wrong.yaml", code=1).stdout
    assert output.startswith(f"{folder / 'wrong.yaml'}:4:1: error: unknown field spce [unknown-field]\n")
    assert output.endswith("1 error in 1 object of 1 file; --fix can fix it\n")


def test_a_warning_fails_only_a_strict_check(folder: Path) -> None:
    file = folder / "pods.yaml"
    file.write_text("pods: {}\n")
    assert "warning" in lint(file, code=0).stdout
    assert "1 warning" in lint(file, "--strict", code=1).stdout


def test_a_folder_is_searched_and_standard_input_read(folder: Path) -> None:
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "bad.yaml").write_text("a: [")
    (folder / "sub").mkdir()
    (folder / "sub" / "expect.yaml").write_text("pods: {}\n")
    assert (
        "1 error in 4 objects of 5 files; --fix can fix it\nall of it works on no release"
        in lint(folder, code=1).stdout
    )
    assert lint("-", code=1, stdin=WRONG).stdout.startswith("<stdin>:4:1: error")


def test_annotations_and_json(folder: Path) -> None:
    assert lint(folder / "wrong.yaml", "--format", "github", code=1).stdout.startswith("::error file=")
    assert lint(folder / "class.yaml", "--format", "github", code=0).stdout == ""
    (finding,) = json.loads(lint(folder / "wrong.yaml", "--format", "json", code=1).stdout)
    assert (finding["rule"], finding["line"]) == ("unknown-field", 4)


def test_a_driver_brings_its_devices_its_models_and_its_settings(folder: Path) -> None:
    target = folder / "pizzeria.py"
    output = lint(folder / "class.yaml", folder / "config.yaml", "--driver", target, code=1).stdout
    assert "[matches-nothing]" in output
    assert 'help: dough is "pan"' in output
    assert "extra: unknown field" in output
    assert lint(folder / "class.yaml", f"--driver={target}", "--doughs", "thin,pan", code=0).stdout.startswith(
        "no findings"
    )


def test_settings_of_the_project_are_those_that_its_sandbox_has(folder: Path) -> None:
    # modules are known by name for as long as a process lives
    (folder / "pizzeria.py").rename(folder / "own_settings.py")
    (folder / "pyproject.toml").write_text(
        '[tool.dra-kit]\ndriver = "own_settings"\n[tool.dra-kit.sandbox.settings]\ndoughs = ["thin", "{node}"]\n'
    )
    assert "no findings" in lint(folder / "class.yaml", "--driver", folder, code=0).stdout
    assert 'help: dough is "pan"' in lint(folder / "class.yaml", "--driver", folder, "--doughs", "pan", code=0).stdout


def test_a_provider_may_read_its_context_when_it_discovers(folder: Path) -> None:
    module = folder / "pizzeria.py"
    module.write_text(module.read_text().replace("in enumerate(doughs)", "in enumerate(self.context.settings.doughs)"))
    result = lint(folder / "class.yaml", "--driver", module, "--doughs", "thin", code=0)
    assert result.output == "no findings in 1 object of 1 file\n"


def test_validators_of_a_config_have_the_settings(folder: Path) -> None:
    claim = folder / "config.yaml"
    claim.write_text(CONFIG.replace("extra: 1", "dough: thin"))
    target = folder / "pizzeria.py"
    assert "dough: thin is not available" in lint(claim, "--driver", target, code=1).stdout
    lint(claim, "--driver", target, "--doughs", "thin,pan", code=0)


@pytest.mark.parametrize(
    ("doughs", "problem"),
    [
        ("none", "Oven.discover failed: ValueError: the oven is cold; run this where its devices are, or correct it\n"),
        (
            "everywhere",
            "Oven.discover failed: Device 'pizza-0': all_nodes: the node role publishes what belongs to its own",
        ),
        (
            "slow",
            "Oven.discover yielded nothing in 0.2 s; give it the settings that it needs, or more time with --timeout\n",
        ),
        ("broken", "Oven.startup raised RuntimeError: no gas"),
        ("", "it finds no device on this machine\n"),
    ],
)
def test_lint_without_devices_warns_and_checks_everything_else(folder: Path, doughs: str, problem: str) -> None:
    files = [folder / "class.yaml", folder / "config.yaml"]
    arguments = [*files, "--driver", folder / "pizzeria.py", "--doughs", doughs, "--timeout"]
    result = lint(*arguments, 0.2 if doughs == "slow" else 30, code=1)
    assert result.stderr.startswith(f"warning: cannot check against devices of dra.pizza: {problem}")
    assert "extra: unknown field" in result.stdout
    assert result.stdout.endswith("1 error in 2 objects of 2 files\n")


def test_lint_restores_logging_after_discovery(folder: Path) -> None:
    before = logging.getLogger("dra_kit").level
    lint(folder / "class.yaml", "--driver", folder / "pizzeria.py", "--doughs", "none", code=0)
    assert logging.getLogger("dra_kit").level == before


def test_a_driver_that_cannot_be_imported_ends_with_2(folder: Path) -> None:
    (folder / "pizzeria.py").write_text("import no_such_oven\n")
    assert "no_such_oven" in lint(folder / "class.yaml", "--driver", folder / "pizzeria.py", code=2).stderr


def test_saved_objects_are_checked_against(folder: Path) -> None:
    saved = folder / "saved"
    saved.mkdir()
    device: dict[str, object] = {"name": "a", "attributes": {"crust": {"string": "thin"}}}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    slice_ = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"},
        "spec": {"driver": "dra.pizza", "nodeName": "n", "pool": pool, "devices": [device]},
    }  # fmt: skip
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "nic"}, "spec": {}}
    items = {"apiVersion": "v1", "kind": "List", "items": [slice_, device_class]}
    (saved / "all.json").write_text(json.dumps(items))
    output = lint(folder / "class.yaml", "--from", saved, code=1).stdout
    assert "no device has an attribute dough" in output
    assert "[unknown-class]" in lint(folder / "config.yaml", "--from", saved / "all.json", code=0).stdout
    device["attributes"] = {"release": {"version": "one"}}
    (saved / "all.json").write_text(json.dumps(items))
    assert "contains an invalid device" in lint(folder / "class.yaml", "--from", saved, code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "Missing argument 'FILES...'"),
        (["nowhere.yaml"], "'nowhere.yaml' does not exist"),
        (["class.yaml", "--driver", "./nowhere.py"], "nowhere.py does not exist"),
        (["class.yaml", "--from", "config.json"], "is not a saved cluster: it has none of ResourceSlice"),
        (["latin.yaml"], "is not valid UTF-8"),
    ],
)
def test_a_check_that_cannot_be_made_ends_with_2(
    folder: Path, arguments: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "latin.yaml").write_bytes(b"a: \xff\n")
    assert problem in lint(*arguments, code=2).stderr


def test_the_example_driver_is_clean() -> None:
    assert lint(PIZZA, "--strict", code=0).stdout.startswith("no findings")


def test_lint_against_own_devices_reports_only_failure_stories() -> None:
    findings = json.loads(lint(PIZZA, "--driver", PIZZA, "--format", "json", code=1).stdout)
    told = {(Path(finding["file"]).parent.name, finding["rule"]) for finding in findings}
    assert told == {
        ("bad-config", "opaque-config"),
        ("menu-changes", "matches-nothing"),
        ("no-pizza-matches", "matches-nothing"),
    }


def test_it_neither_needs_nor_loads_a_cluster() -> None:
    code = (
        "import sys, dra_kit.cli.app as app, contextlib\n"
        f"with contextlib.suppress(SystemExit): app.cli(['lint', {str(PIZZA / 'deviceclasses.yaml')!r}])\n"
        "cluster = {'kopf', 'kubernetes_asyncio', 'dra_kit.apiserver', 'dra_kit.sandbox.cluster'}\n"
        "print(sorted(cluster & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ((), "the oldest release on which all that was checked works is Kubernetes 1.34"),
        (("--kubernetes", "1.35"), "1 Helm template is not checked: render the chart"),
        (("--kubernetes", "1.34..1.35"), "the oldest release on which all that was checked works is Kubernetes 1.34"),
    ],
)
def test_templates_that_were_not_checked_are_always_named(tmp_path: Path, options: tuple[str, ...], last: str) -> None:
    (tmp_path / "class.yaml").write_text(CLASS)
    (tmp_path / "template.yaml").write_text("{{- if .Values.a }}\na: {{ .Values.b }}\n{{- end }}\n")

    lines = lint(*options, tmp_path, code=0).output.splitlines()

    assert lines[-1].startswith(last)
    assert sum(line.startswith("1 Helm template is not checked") for line in lines) == 1


def test_folder_without_manifests_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing to check\n")

    told = lint(tmp_path, code=2).stderr

    assert told.startswith(f"error: {tmp_path} has no YAML or JSON file to check; name the files, or another folder")

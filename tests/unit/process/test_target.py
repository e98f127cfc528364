from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_kit.author.target import load_driver, load_drivers
from dra_kit.errors import ConfigurationError, TargetError

DRIVER = """
import dra_kit as dra

class Provider(dra.DeviceProvider):
    def discover(self):
        yield []

class Preparer(dra.Preparer):
    def prepare(self, claim, device):
        return dra.Prepared()

def make(name="test.example"):
    return dra.Driver(name, provider=Provider(), preparer=Preparer())

driver = make()
other = make("other.example")
"""

Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins with the modules and the path of the process, and leaves them; no other driver is loaded."""
    modules, path = dict(sys.modules), list(sys.path)
    monkeypatch.setattr("dra_kit.author.target._known", {})
    for name in ("driver", "hardware", "late"):
        sys.modules.pop(name, None)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.modules.update(modules)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file below the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_file_whose_name_is_misspelt(write: Write) -> None:
    write("pizzeria.py", DRIVER)
    assert refusal("./pizeria.py").endswith('pizeria.py does not exist; did you mean "pizzeria.py"?')


@pytest.mark.parametrize("name", ["serial.yaml", "./serial.yml"])
def test_a_file_of_globs_is_a_driver_for_each_node(write: Write, name: str) -> None:
    write(name, "driver: serial.example.com\ndevices:\n- paths: /dev/ttyUSB*\n")
    one, two = load_drivers(name, 2)
    assert (one.name, two.name) == ("serial.example.com", "serial.example.com")
    assert one.provider is not two.provider


def test_invalid_file_of_globs_is_reported_with_its_line(write: Write) -> None:
    write("serial.yaml", "driver: serial.example.com\ndevices:\n- path: /dev/ttyUSB*\n")
    with pytest.raises(ConfigurationError, match=r"^serial\.yaml:3: devices\[0\]\.path: unknown field"):
        load_driver("serial.yaml")


def refusal(target: str, code: str = "invalid-target") -> str:
    before = list(sys.path)
    with pytest.raises(TargetError) as caught:
        load_driver(target)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"TARGET {target}")
    assert caught.value.code == code
    assert sys.path == before
    return text


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("targetmod:driver", "test.example"),
        ("targetmod:other", "other.example"),
        ("targetmod:make", "test.example"),
        ("targetmod", "test.example"),
        ("./targetmod.py", "test.example"),
        ("targetmod.py", "test.example"),
        ("targetmod.py:other", "other.example"),
    ],
)
def test_a_driver_is_found_by_module_and_by_file(write: Write, target: str, name: str) -> None:
    write("targetmod.py", DRIVER)
    assert load_driver(target).name == name


def test_a_file_is_found_by_its_whole_path(write: Write, tmp_path: Path) -> None:
    path = write("deep/down/my-driver.py", DRIVER)
    assert load_driver(f"{path}:other").name == "other.example"


def test_a_file_may_import_its_neighbours_also_late(write: Write) -> None:
    write("drivers/neighbour_of_target.py", "name = 'test.example'")
    late = "def late():\n    import late_neighbour_of_target as late\n    return late.name\n"
    write("drivers/late_neighbour_of_target.py", "name = 'late'")
    write("drivers/targetfile.py", f"import neighbour_of_target\n{DRIVER}\n{late}driver.late = late\n")
    driver = load_driver("drivers/targetfile.py")
    assert driver.late() == "late"  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["src/", ""])
def test_a_project_names_its_driver(write: Write, place: str) -> None:
    write("project/pyproject.toml", '[tool.dra-kit]\ndriver = "targetpackage.main:other"\n')
    write(f"project/{place}targetpackage/__init__.py", "")
    write(f"project/{place}targetpackage/main.py", DRIVER)
    for target in ("./project", "project", "project/"):
        assert load_driver(target).name == "other.example"


def test_the_working_directory_may_be_the_project(write: Write) -> None:
    write("pyproject.toml", '[tool.dra-kit]\ndriver = "targetmod"\n')
    write("targetmod.py", DRIVER)
    assert load_driver(".").name == "test.example"


def test_a_package_of_the_working_directory_is_a_module(write: Write) -> None:
    write("targetpackage/__init__.py", DRIVER)
    assert load_driver("targetpackage").name == "test.example"
    assert load_driver("targetpackage:other").name == "other.example"


def test_a_file_never_takes_the_place_of_another_module(write: Write) -> None:
    import logging

    write("drivers/logging.py", DRIVER)
    write("drivers/antigravity.py", DRIVER)
    assert load_driver("drivers/logging.py").name == "test.example"
    assert load_driver("drivers/antigravity.py").name == "test.example"
    assert sys.modules["logging"] is logging
    assert "antigravity" not in sys.modules  # not loaded yet, and still the standard library's
    assert sys.path[-1].endswith("/drivers")  # behind everybody else's


def test_two_files_of_one_name_are_two_drivers(write: Write) -> None:
    write("one/targetmod.py", DRIVER)
    write("two/targetmod.py", DRIVER.replace("test.example", "two.example"))
    assert [load_driver(f"{name}/targetmod.py").name for name in ("one", "two")] == ["test.example", "two.example"]


HARDWARE = """
def drivers():
    from late import NAME
    return NAME
"""


def write_projects(write: Write, *names: str) -> None:
    """Flat projects in folders of these names; each consists of the modules driver, hardware and late."""
    for name in names:
        write(f"{name}/pyproject.toml", '[tool.dra-kit]\ndriver = "driver:driver"\n')
        write(f"{name}/driver.py", f"import hardware\n{DRIVER.replace('test.example', f'{name}.example')}\n")
        write(f"{name}/hardware.py", f"{HARDWARE}\nNAME = '{name}'\n")
        write(f"{name}/late.py", f"NAME = '{name}'\n")


@pytest.mark.parametrize("target", ["./{}", "./{}/driver.py", "{}.driver:driver"])
def test_drivers_whose_modules_have_the_same_names(write: Write, target: str) -> None:
    write_projects(write, "gpu", "nic", "cpu")
    if target.startswith("{}"):
        for name in ("gpu", "nic", "cpu"):  # a package imports its own modules by their whole names
            write(
                f"{name}/driver.py", f"from {name} import hardware\n{DRIVER.replace('test.example', f'{name}.example')}"
            )
            write(f"{name}/hardware.py", "from . import late\ndef drivers():\n    return late.NAME\n")
    drivers = {name: load_driver(target.format(name)) for name in ("gpu", "nic", "cpu")}

    assert {name: driver.name for name, driver in drivers.items()} == {name: f"{name}.example" for name in drivers}
    modules = {name: sys.modules[type(driver.provider).__module__] for name, driver in drivers.items()}
    assert {name: module.hardware.drivers() for name, module in modules.items()} == {name: name for name in drivers}


def test_the_driver_of_a_folder_is_the_same_each_time(write: Write) -> None:
    write_projects(write, "gpu", "nic")
    first = [load_driver(name) for name in ("./gpu", "./nic")]
    assert [load_driver(name) for name in ("./nic", "./gpu")] == first[::-1]
    assert sys.modules["driver"].driver is first[0]  # the first one's modules have their own names


def test_one_module_of_the_same_name_is_enough(write: Write) -> None:
    for name in ("gpu", "nic"):
        write(f"{name}/{name}_target.py", f"import hardware\n{DRIVER.replace('test.example', f'{name}.example')}")
        write(f"{name}/hardware.py", f"NAME = '{name}'")
    for name in ("gpu", "nic"):
        driver = load_driver(f"./{name}/{name}_target.py")
        hardware = sys.modules[type(driver.provider).__module__].hardware
        assert name == hardware.NAME


def test_all_forms_of_imports_find_the_drivers_own_modules(write: Write) -> None:
    write_projects(write, "gpu", "nic")
    for name in ("gpu", "nic"):
        write(f"{name}/parts/__init__.py", "")
        write(f"{name}/parts/deep.py", "from . import deeper\nfrom hardware import NAME")
        write(f"{name}/parts/deeper.py", "import logging")
        forms = "import parts.deep\nimport parts.deep as alias\nfrom parts import deep\nfrom parts.deep import *\n"
        write(f"{name}/driver.py", f"{forms}{DRIVER.replace('test.example', f'{name}.example')}")
    load_driver("./gpu")
    module = sys.modules[type(load_driver("./nic").provider).__module__]
    assert {module.parts.deep.NAME, module.alias.NAME, module.deep.NAME, module.NAME} == {"nic"}
    import logging

    assert module.deep.deeper.logging is logging


def test_a_test_that_has_imported_a_module_of_the_same_name(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_projects(write, "gpu")
    write("driver.py", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("driver")
    assert load_driver("./gpu").name == "gpu.example"


def test_another_release_may_import_the_drivers_module_of_its_own_name(write: Write) -> None:
    write_projects(write, "gpu")
    write("gpu/next/driver.py", "from driver import make\ndriver = make('next.example')")
    assert load_driver("./gpu").name == "gpu.example"
    assert load_driver("./gpu/next/driver.py").name == "next.example"


def test_handlers_of_two_drivers_in_modules_of_the_same_name(write: Write) -> None:
    write_projects(write, "gpu", "nic")
    for name in ("gpu", "nic"):
        write(f"{name}/driver.py", DRIVER.replace("dra.Driver(name,", f"dra.Driver('{name}.example', handlers='late',"))
    handlers = [load_driver(name).handler_module.module for name in ("./gpu", "./nic")]
    assert [importlib.import_module(name or "").NAME for name in handlers] == ["gpu", "nic"]


def test_a_failure_of_the_second_driver_is_reported_with_its_location(write: Write) -> None:
    write_projects(write, "gpu", "nic")
    path = write("nic/hardware.py", "import nolib")
    load_driver("./gpu")
    problem = f"does not import: ModuleNotFoundError: No module named 'nolib' at {path}:1; install"
    assert refusal("./nic").startswith(f"TARGET ./nic {problem}")


def test_a_function_makes_a_driver_each_time(write: Write) -> None:
    write("targetmod.py", DRIVER)
    assert load_driver("targetmod:make") is not load_driver("targetmod:make")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("nowhere_at_all:driver", ": module nowhere_at_all not found; install it, or run from the folder that holds"),
        ("nowhere_at_all.sub", ": module nowhere_at_all.sub not found; install it, or run from the folder"),
        ("sys.nothing:driver", ": module sys.nothing not found; install it, or run from the folder"),
        ("", "'' is empty; write module:attr, ./file.py, a project folder"),
        (":driver", ": '' is not a module name; write"),
        ("not-a-module:driver", ": 'not-a-module' is not a module name; write"),
    ],
)
def test_missing_module_is_reported(write: Write, target: str, problem: str) -> None:
    assert refusal(target).startswith(f"TARGET {target}{problem}")


@pytest.mark.parametrize("name", ["./missing.py", "missing.py", "./missing/driver"])
def test_missing_file_is_reported_with_its_complete_path(write: Write, tmp_path: Path, name: str) -> None:
    path = (tmp_path / name).resolve()
    assert refusal(name) == f"TARGET {name}: {path} does not exist; give the path of the driver's file"


def test_missing_attribute_is_reported_with_the_existing_one(write: Write) -> None:
    write("targetmod.py", DRIVER.replace("driver = make()", ""))
    assert refusal("targetmod.py") == (
        "TARGET targetmod.py: module targetmod has no attribute 'driver'; did you mean targetmod.py:other?"
    )


def test_module_without_a_driver_is_reported(write: Write) -> None:
    write("targetmod.py", "")
    assert refusal("targetmod:found") == (
        "TARGET targetmod:found: module targetmod has no attribute 'found'; write found = dra_kit.Driver(…) there"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("driver = 1", "driver is int, neither a dra_kit.Driver nor a function that returns one"),
        ("def driver(): return 1", "driver() returned int, neither a dra_kit.Driver nor a function that returns one"),
        ("async def driver(): return 1", "driver is async def; write a plain def that returns a dra_kit.Driver"),
    ],
)
def test_object_of_another_type_is_reported(write: Write, text: str, problem: str) -> None:
    write("targetmod.py", text)
    assert refusal("targetmod.py") == f"TARGET targetmod.py: {problem}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\nx = 1 / 0", "does not import: ZeroDivisionError: division by zero at {path}:2"),
        ("\n\nx = = 1", "does not import: SyntaxError: invalid syntax at {path}:3:5, in 'x = = 1'"),
        ("raise ValueError('one\\ntwo')", "does not import: ValueError: one two at {path}:1"),
        ("import re\nre.compile('?')", "does not import: error: nothing to repeat at position 0 at {path}:2"),
        ("import nolib", "does not import: ModuleNotFoundError: No module named 'nolib' at {path}:1; install"),
        ("\nimport sys\nsys.exit(3)", "does not import: it exits the process at {path}:3; do that only under __main__"),
        ("def driver():\n    return [][1]", "failed in driver(): IndexError: list index out of range at {path}:2"),
        ("def driver(node): ...", "failed in driver(): TypeError: driver() missing 1 required positional argument"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_file", [True, False])
def test_failure_of_the_authors_code_is_reported_with_its_location(
    write: Write, text: str, problem: str, by_file: bool
) -> None:
    path = write("brokentarget.py", text)
    target = "./brokentarget.py" if by_file else "brokentarget"
    assert refusal(target).startswith(f"TARGET {target} {problem.format(path=path)}")
    assert "brokentarget" not in sys.modules or "def driver" in text


def test_a_failure_has_its_cause_without_the_target(write: Write) -> None:
    path = write("brokentarget.py", "\nx = 1 / 0")
    with pytest.raises(TargetError) as caught:
        load_driver("./brokentarget.py")
    assert caught.value.cause == f"ZeroDivisionError: division by zero at {path}:2"


def test_mistake_in_the_declaration_is_reported_with_its_location(write: Write) -> None:
    path = write("brokentarget.py", "import dra_kit as dra\ndra.Device(\n    name='A B')\n")
    text = refusal("brokentarget.py", code="invalid-device")
    assert text.startswith("TARGET brokentarget.py: Device 'A B': name: Invalid value")
    assert text.endswith(f" at {path}:2")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, 'project/pyproject.toml does not exist; add it with [tool.dra-kit] driver = "module:attr"'),
        ("", 'project/pyproject.toml has no [tool.dra-kit] driver; add driver = "module:attr"'),
        ("tool = 1", "project/pyproject.toml has no [tool.dra-kit] driver; add"),
        ("[tool.dra-kit]\ndriver = 1", "project/pyproject.toml has no [tool.dra-kit] driver; add"),
        ("[tool.dra-kit", "project/pyproject.toml cannot be read: Expected ']'"),
        (
            '[tool.dra-kit]\ndriver = "a b"',
            "'a b' is not a module name; write module:attr, ./file.py, a project folder",
        ),
        ('[tool.dra-kit]\ndriver = "not_there_at_all"', "module not_there_at_all not found; install it"),
    ],
)
def test_project_without_a_driver_is_reported(write: Write, text: str | None, problem: str) -> None:
    write("project/README.md", "")
    if text is not None:
        write("project/pyproject.toml", text)
    assert refusal("./project").startswith(f"TARGET ./project: {problem}")


def test_a_project_takes_no_attribute(write: Write) -> None:
    write("project/pyproject.toml", "")
    expected = "a project folder takes no :driver; its pyproject.toml names the driver"
    assert refusal("./project:driver") == f"TARGET ./project:driver: {expected}"

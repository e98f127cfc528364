from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr, create_model, field_validator, model_validator

import dra_kit as dra
from dra_kit.author.settings import ROLE_FLAGS, author_settings
from dra_kit.cli import roles
from dra_kit.cli.app import cli, flags_of
from dra_kit.cli.driver_settings import settings_options
from dra_kit.cli.options import TargetCommand
from dra_kit.errors import ConfigurationError
from dra_kit.testing import sandbox


class Provider(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield []


class Preparer(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared()


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Limits(BaseModel):
    pods: int = 1


class Settings(BaseModel):
    menu: Path = Field(default=Path("/menu.yaml"), description="file with the menu")
    workers: int = Field(default=2, ge=1)
    ratio: float | None = None
    dry_run: bool = False
    verify: bool = True
    toppings: list[str] = Field(default=["basil"], description="on every pizza")
    ports: tuple[int, ...] = ()
    mode: Literal["fast", "safe"] = "safe"
    retries: Literal[0, 3] = 3
    level: Level = Level.LOW
    token: SecretStr = SecretStr("")
    limits: Limits = Limits()
    labels: dict[str, str] = {}
    shown_as: str = Field(default="", alias="shownAs")

    @field_validator("menu")
    @classmethod
    def _yaml(cls, value: Path) -> Path:
        if value.suffix != ".yaml":
            msg = "a menu is a .yaml file"
            raise ValueError(msg)
        if value == Path("/broken.yaml"):
            raise OSError("the disk\nis gone")
        return value

    @model_validator(mode="after")
    def _together(self) -> Settings:
        if self.dry_run and self.mode == "fast":
            msg = "a dry run is never fast"
            raise ValueError(msg)
        return self


def driver_with(settings: type[BaseModel] | None) -> dra.Driver[Any, Any]:
    return dra.Driver("kitchen.example", provider=Provider(), preparer=Preparer(), settings=settings)


def given_by(args: Sequence[str] = (), env: dict[str, str] | None = None) -> Any:
    driver = driver_with(Settings)
    found: list[BaseModel | None] = []

    def callback() -> None:
        values = click.get_current_context().meta.get("driver_settings", {})
        found.append(author_settings(driver, values))

    command = click.Command("node", params=[*settings_options(driver, [])], callback=callback)
    result = CliRunner().invoke(command, list(args), env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return found[0]


CASES: list[tuple[str, str, str, Any]] = [
    ("menu", "--menu", "/other.yaml", Path("/other.yaml")),
    ("workers", "--workers", "7", 7),
    ("ratio", "--ratio", "0.5", 0.5),
    ("toppings", "--toppings", "olives, red onions", ["olives", "red onions"]),
    ("toppings", "--toppings", '["a,b"]', ["a,b"]),
    ("ports", "--ports", "1,2", (1, 2)),
    ("mode", "--mode", "fast", "fast"),
    ("retries", "--retries", "0", 0),
    ("level", "--level", "2", Level.HIGH),
    ("token", "--token", "secret", SecretStr("secret")),
    ("limits", "--limits", '{"pods": 3}', Limits(pods=3)),
    ("labels", "--labels", '{"a": "b"}', {"a": "b"}),
    ("shown_as", "--shown-as", "Kitchen", "Kitchen"),
]


@pytest.mark.parametrize(("field", "flag", "text", "value"), CASES)
def test_a_setting_is_given_by_flag_or_environment(field: str, flag: str, text: str, value: Any) -> None:
    assert getattr(given_by([flag, text]), field) == value
    assert getattr(given_by(env={f"DRIVER_{field.upper()}": text}), field) == value


def test_without_flags_and_environment_settings_have_their_defaults() -> None:
    assert given_by() == Settings()


def test_the_flag_wins_over_the_environment() -> None:
    assert given_by(["--workers", "3"], env={"DRIVER_WORKERS": "4"}).workers == 3


def test_a_list_flag_may_be_repeated() -> None:
    assert given_by(["--toppings", "olives", "--toppings", "basil,onions"]).toppings == ["olives", "basil", "onions"]


@pytest.mark.parametrize(
    ("args", "env", "expected"),
    [
        (["--dry-run"], {}, (True, True)),
        (["--no-verify"], {}, (False, False)),
        ([], {"DRIVER_DRY_RUN": "true", "DRIVER_VERIFY": "0"}, (True, False)),
        (["--no-dry-run"], {"DRIVER_DRY_RUN": "yes"}, (False, True)),
    ],
)
def test_a_bool_is_a_pair_of_flags(args: list[str], env: dict[str, str], expected: tuple[bool, bool]) -> None:
    settings = given_by(args, env)
    assert (settings.dry_run, settings.verify) == expected


@given(st.lists(st.text(alphabet="abc -/.", min_size=1).filter(lambda text: text.strip() == text), min_size=1))
def test_any_list_of_texts_without_commas_comes_back(items: list[str]) -> None:
    assert given_by(env={"DRIVER_TOPPINGS": ",".join(items)}).toppings == items


INTEGER = "must be an integer"


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--workers", "many"], f"--workers (DRIVER_WORKERS): {INTEGER}, not 'many'"),
        (["--workers", "0"], "--workers (DRIVER_WORKERS): must be at least 1, not '0'"),
        (["--mode", "slow"], "--mode (DRIVER_MODE): must be 'fast' or 'safe', not 'slow'"),
        (["--menu", "/menu.txt"], "--menu (DRIVER_MENU): a menu is a .yaml file, not '/menu.txt'"),
        (["--ports", "1,x"], f"--ports (DRIVER_PORTS)[1]: {INTEGER}, not 'x'"),
        (["--limits", '{"pods": "x"}'], f"--limits (DRIVER_LIMITS)[pods]: {INTEGER}, not 'x'"),
        (["--dry-run", "--mode", "fast"], "a dry run is never fast"),
        (["--menu", "/broken.yaml"], "OSError: the disk is gone"),
    ],
)  # fmt: skip
def test_invalid_setting_is_reported(args: list[str], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        given_by(args)
    assert str(caught.value) == f"settings of driver kitchen.example: {problem}"


def test_setting_with_invalid_json_is_reported() -> None:
    with pytest.raises(ConfigurationError, match=r"^--limits \(DRIVER_LIMITS\) is not valid JSON: Expecting"):
        given_by(["--limits", "{"])


def test_a_secret_is_never_told() -> None:
    class Secret(BaseModel):
        token: SecretStr = Field(default=SecretStr("hidden-default"), min_length=30)

    driver = driver_with(Secret)
    with pytest.raises(ConfigurationError, match=r"--token \(DRIVER_TOKEN\): ") as caught:
        author_settings(driver, {"token": "hidden"})
    (option,) = settings_options(driver, [])
    assert "hidden" not in str(caught.value)
    assert "hidden" not in (option.help or "")


def test_missing_required_setting_is_reported() -> None:
    class Needs(BaseModel):
        menu: Path

    with pytest.raises(
        ConfigurationError, match=r"--menu \(DRIVER_MENU\): is required; give the flag or set the variable"
    ):
        author_settings(driver_with(Needs), {})


def test_a_driver_without_settings_has_none() -> None:
    assert settings_options(driver_with(None), []) == []
    assert author_settings(driver_with(None), {}) is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"node_name": (str, "")}, "setting node_name collides with --node-name, which is taken; rename the field"),
        ({"help": (str, "")}, "setting help collides with --help, which is taken; rename the field"),
        (
            {"x": (bool, False), "no_x": (str, "")},
            "setting no_x collides with --no-x, which is taken; rename the field",
        ),
    ],
)
def test_setting_with_a_duplicate_flag_is_reported(fields: dict[str, Any], problem: str) -> None:
    driver = driver_with(create_model("Colliding", **fields))
    with pytest.raises(ConfigurationError) as caught:
        settings_options(driver, [click.Option(["--node-name"])])
    assert str(caught.value) == f"driver kitchen.example: {problem}"


TARGET = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[4])!r})
from tests.unit.cli.options.test_driver_settings import Settings, driver_with
driver = driver_with(Settings)
"""


@pytest.fixture
def role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> click.Command:
    (tmp_path / "kitchen.py").write_text(TARGET)
    monkeypatch.chdir(tmp_path)

    @click.command(cls=TargetCommand)
    @click.argument("target")
    @click.option("--node-name")
    @click.option("--once", is_flag=True)
    @click.pass_context
    def command(ctx: click.Context, target: str, node_name: str | None, once: bool) -> None:
        settings = author_settings(ctx.meta["driver"], ctx.meta.get("driver_settings", {}))
        assert isinstance(settings, Settings)
        click.echo(f"{target} {node_name} {once} {settings.menu} {settings.dry_run}")

    return command


@pytest.mark.parametrize(
    "args",
    [
        "./kitchen.py --menu /m.yaml --dry-run --node-name n --once",
        "--node-name n --once ./kitchen.py --menu=/m.yaml --dry-run",
        "--node-name=n --menu=/m.yaml --dry-run --once ./kitchen.py",
        "--menu /m.yaml --node-name n --once ./kitchen.py --dry-run",
        "--once --dry-run --node-name n --menu=/m.yaml -- ./kitchen.py",
    ],
)
def test_target_is_accepted_wherever_it_is_distinct_from_option_values(role: click.Command, args: str) -> None:
    for _ in range(2):  # the options of one call do not stay for the next
        result = CliRunner().invoke(role, args.split(), catch_exceptions=False)
        assert result.output == "./kitchen.py n True /m.yaml True\n"


def test_the_help_of_a_target_shows_its_settings(role: click.Command) -> None:
    output = " ".join(CliRunner().invoke(role, ["./kitchen.py", "--help"], catch_exceptions=False).output.split())
    for text in (
        "--node-name TEXT",
        "--menu PATH file with the menu [default: /menu.yaml] [env var: DRIVER_MENU]",
        "--workers INTEGER [default: 2; x>=1] [env var: DRIVER_WORKERS]",
        "--ratio FLOAT [env var: DRIVER_RATIO]",
        "--dry-run / --no-dry-run [default: false] [env var: DRIVER_DRY_RUN]",
        "--toppings TEXT[,...] on every pizza [default: basil] [env var: DRIVER_TOPPINGS]",
        "--mode [fast|safe] [default: safe] [env var: DRIVER_MODE]",
        "--level [1|2] [default: 1] [env var: DRIVER_LEVEL]",
        '--limits JSON [default: {"pods":1}] [env var: DRIVER_LIMITS]',
    ):
        assert text in output


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"ge": 1}, "x>=1"),
        ({"gt": 1}, "x>1"),
        ({"le": 8}, "x<=8"),
        ({"ge": 1, "le": 8}, "1<=x<=8"),
        ({"gt": 0, "lt": 9}, "0<x<9"),
    ],
)
@pytest.mark.parametrize("annotation", [int, int | None])
def test_the_help_shows_the_range_of_a_number(annotation: Any, limits: dict[str, Any], told: str) -> None:
    (option,) = settings_options(
        driver_with(create_model("Limited", boards=(annotation, Field(default=4, **limits)))), []
    )
    assert option.help == f"[default: 4; {told}]"


def test_the_help_without_a_target_shows_the_commands_own_options(role: click.Command) -> None:
    output = CliRunner().invoke(role, ["--help"], catch_exceptions=False).output
    assert "--node-name" in output
    assert "--menu" not in output


def test_unknown_option_is_reported(role: click.Command) -> None:
    result = CliRunner().invoke(role, ["./kitchen.py", "--menue", "/m.yaml"])
    assert result.exit_code == 2
    assert "No such option" in result.output
    assert "--menu" in result.output


JSON = st.recursive(
    st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([1.5, 2.0, "2", "1.5", "-2", "fast", "a,b", "[1]", "{}", "true"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["pods", "a"]), inner, max_size=2),
    max_leaves=3,
)


@given(st.sampled_from(sorted({field for field, *_ in CASES} | {"dry_run"})), JSON)
def test_value_in_a_project_is_read_as_the_node_reads_what_the_chart_writes(name: str, value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(2 if value == 2 else value, separators=(",", ":"))
    wanted: object
    try:
        wanted = given_by(env={f"DRIVER_{name.upper()}": text})
    except (ConfigurationError, AssertionError):  # the second: click rejects a wrong bool
        wanted = None
    try:
        found: object = author_settings(driver_with(Settings), {name: value})
    except ConfigurationError:
        found = None
    assert found == wanted


@pytest.mark.parametrize("value", ["true", '"many"', "1.5", "0"])
def test_setting_of_a_project_that_the_node_rejects_is_rejected_by_sandbox_lint_and_tests(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kitchen.py").write_text(TARGET)
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.dra-kit]\ndriver = "kitchen:driver"\n[tool.dra-kit.sandbox.settings]\nworkers = {value}\n'
    )
    (tmp_path / "claim.yaml").write_text("{apiVersion: v1, kind: Pod, metadata: {name: a}}")
    monkeypatch.chdir(tmp_path)
    expected = "settings of driver kitchen.example: --workers (DRIVER_WORKERS): must be "
    for command in (["sandbox", "kitchen.py"], ["lint", "--driver", "kitchen.py", "claim.yaml"]):
        result = CliRunner().invoke(cli, command)
        assert (result.exit_code, expected in result.output) == (2, True), result.output
    with pytest.raises(ConfigurationError) as caught, sandbox("kitchen.py"):
        pass
    assert str(caught.value).startswith(expected)


def test_flags_of_roles_are_those_of_the_commands() -> None:
    commands = (roles.node, roles.controller, roles.webhook, roles.decommission)
    flags = {flag for command in commands for param in command.params for flag in flags_of(param)}
    assert {flag for flag in flags if flag.startswith("--")} | {"--help"} == ROLE_FLAGS


@pytest.mark.parametrize("name", ["kubelet_dir", "port", "pod"])
def test_a_setting_with_the_flag_of_a_role_is_refused_also_without_the_role(name: str, tmp_path: Path) -> None:
    (tmp_path / "flagged.py").write_text(
        "import dra_kit as dra\n"
        "from tests.unit.cli.options.test_driver_settings import Preparer, Provider\n"
        "from pydantic import create_model\n"
        f"settings = create_model('Settings', {name}=(str, 'x'))\n"
        "driver = dra.Driver('dra.pizza', provider=Provider(), preparer=Preparer(), settings=settings)\n"
    )
    message = (
        f"setting {name} collides with --{name.replace('_', '-')} of the commands that run roles; rename the field"
    )
    with pytest.raises(ConfigurationError, match=message), sandbox(str(tmp_path / "flagged.py")):
        pass

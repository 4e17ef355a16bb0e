"""What users build on: the public names, the version, what an import costs, and what the sources never do."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fake_controller import FakeController, served

import weft
from weft.cli import VERBS
from weft.version import __version__

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "weft").rglob("*.py"))
HEAVY = {"torch", "numpy", "scipy", "sklearn", "bayes_opt", "matplotlib", "pydantic", "rich", "click"}
TEXT_AS_CODE = {
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell",
    "yaml.load",
    "yaml.full_load",
    "yaml.unsafe_load",
}
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}


def modules_after(code: str) -> set[str]:
    """The modules a fresh interpreter holds after running ``code``."""
    program = f"{code}\nimport sys, json\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def packages_after(code: str) -> set[str]:
    """The top-level packages a fresh interpreter holds after running ``code``."""
    return {name.partition(".")[0] for name in modules_after(code)}


def test_every_public_name_can_be_imported_and_no_other_is_there() -> None:
    assert sorted(weft.__all__) == dir(weft)
    for name in weft.__all__:
        assert getattr(weft, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        weft.no_such_name  # noqa: B018


def test_overlap_is_both_the_function_and_its_package() -> None:
    import weft.overlap as package

    assert callable(package)
    assert sorted(package.__all__) == ["Overlap", "overlap"]
    assert callable(weft.overlap)


def test_import_weft_costs_neither_torch_nor_numpy() -> None:
    assert packages_after("import weft").isdisjoint(HEAVY)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-V"]])
def test_the_overview_of_the_command_line_loads_nothing_heavy(arguments: list[str]) -> None:
    assert packages_after(f"from weft.cli import main\nmain({arguments})").isdisjoint({*HEAVY, "argparse"})


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_help_of_a_command_never_loads_torch_or_scipy(verb: str) -> None:
    code = f"""
from weft.cli import main
try:
    main([{verb!r}, "--help"])
except SystemExit:
    pass"""
    assert packages_after(code).isdisjoint({*HEAVY, "fastapi", "uvicorn"})


def test_a_client_in_a_notebook_costs_neither_torch_nor_a_web_framework() -> None:
    loaded = packages_after("from weft.client import Client") - set(sys.stdlib_module_names)
    assert loaded - packages_after("") == {"weft"}


def test_asking_the_controller_costs_neither_rich_nor_numpy() -> None:
    code = """
from weft.cli import main
try:
    main(["status"])
except SystemExit:
    pass"""
    assert packages_after(code).isdisjoint({*HEAVY, "fastapi", "uvicorn", "yaml"})


def test_weft_status_imports_only_what_it_needs_to_list_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = FakeController()
    controller.add()
    with served(controller, tmp_path / "home") as home:
        monkeypatch.setenv("WEFT_HOME", str(home.root))
        loaded = modules_after("from weft.cli import main\nmain(['status'])")
    assert {name for name in loaded if name.startswith("weft.")} == {
        "weft.cli",
        "weft.cli.render",
        "weft.cli.settings",
        "weft.cli.status",
        "weft.cli.verb",
        "weft.client",
        "weft.core",
        "weft.core.command_line",
        "weft.core.job",
        "weft.core.nearest_name",
        "weft.core.status_rows",
        "weft.core.submission",
        "weft.daemon",
        "weft.daemon.home",
        "weft.errors",
        "weft.process",
        "weft.process.gate",
        "weft.process.turns",
        "weft.version",
    }
    assert loaded.isdisjoint({"pwd", "shlex"} - modules_after(""))


def test_weft_overlap_adds_nothing_to_what_torch_itself_loads() -> None:
    # torch imports numpy where it is installed, so numpy is there either way; what tuning needs must not be.
    torch_loads = packages_after("import torch, torch.distributed, torch.profiler")
    ours = packages_after("import weft.overlap") - torch_loads - set(sys.stdlib_module_names)
    assert ours == {"weft"}


def test_the_import_contract_covers_every_package_that_must_not_import_torch() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (covered,) = [set(one["source_modules"]) for one in contracts if one.get("forbidden_modules") == ["torch"]]
    names = {
        path.stem
        for path in (ROOT / "src" / "weft").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert {f"weft.{name}" for name in names - {"__init__", "__main__", "integrations", "overlap", "worker"}} == covered


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[?([^\]\s]+)\]?", text, re.MULTILINE)
    assert next(heading for heading in headings if heading != "Unreleased") == __version__


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _imported(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_runs_text_as_code_or_reads_pickles(source: Path) -> None:
    tree = ast.parse(source.read_text())
    assert not _imported(tree) & UNPICKLERS
    for call in _calls(tree):
        name = ast.unparse(call.func)
        assert name not in TEXT_AS_CODE, f"line {call.lineno}: {name}"
        for keyword in call.keywords:
            assert keyword.arg != "shell", f"line {call.lineno}: shell="
        if name == "torch.load":
            assert any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords)

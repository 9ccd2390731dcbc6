"""The borders that docs/architecture.md draws, against what the files really import.

The page's own tables are read, so the page and the code can only change together.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def table_after(sentence: str) -> list[list[str]]:
    """The rows of the first table behind a sentence of the page, each a list of its cells."""
    lines = PAGE[PAGE.index(sentence) :].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:  # behind the head and the line below it
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def names_in(cell: str) -> list[str]:
    """The modules that a cell names, without `.py` and `/`."""
    return [name.removesuffix("/").removesuffix(".py") for name in re.findall(r"`([\w./]+)`", cell)]


PACKAGES = {names_in(row[0])[0]: set(names_in(row[1])) for row in table_after("Four packages")}


@functools.cache
def files() -> dict[str, Path]:
    """Every module of the packages: dotted name → file; a package's is that of its `__init__.py`."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports_of(module: str) -> frozenset[str]:
    """All that a module imports, wherever in it and also for type checking alone, by dotted name."""
    found = set()
    package = module if files()[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(files()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{source}.{alias.name}"
                found.add(name if name in files() else source)
    return frozenset(found - {module})


def borders(package: str, sentence: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Each module of a package as its table has it → the number of its line; and who imports whom.

    A module of a subpackage counts as the subpackage, unless the table names it.
    """
    lines = {
        name.replace("/", "."): number
        for number, row in enumerate(table_after(sentence))
        for name in names_in(row[0])
    }

    def part_of(module: str) -> str | None:
        """The entry of the table that a module belongs to; None for those of other packages."""
        if module == package:
            return "__init__"
        if not module.startswith(package + "."):
            return None
        inner = module.removeprefix(package + ".")
        return inner if inner in lines else inner.partition(".")[0]

    edges = []
    for module in files():
        importer = part_of(module)
        if importer is not None:
            edges += [(importer, used) for used in map(part_of, imports_of(module)) if used is not None]
            edges.append((importer, importer))
    return lines, sorted({edge for edge in edges})


TABLES = {"gptoss_jax": "`gptoss_jax` from the ground up", "gptoss_jax.engine": "Inside `engine/`"}


def test_packages_import_only_those_that_the_page_allows() -> None:
    assert list(PACKAGES) == ["harmony", "pallas_kernels", "checkpoints", "gptoss_jax"]
    for module in files():
        own = module.partition(".")[0]
        used = {name.partition(".")[0] for name in imports_of(module)} & PACKAGES.keys()
        assert used <= PACKAGES[own] | {own}, f"{module} imports {used}"


def test_harmony_knows_no_jax() -> None:
    for module in files():
        if module.partition(".")[0] == "harmony":
            used = {name.partition(".")[0] for name in imports_of(module)}
            assert not used & {"jax", "jaxlib", "flax", "numpy"}, module


def test_no_files_import_each_other() -> None:
    graph = {module: imports_of(module) & files().keys() for module in files()}
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail("a circle of imports: " + " → ".join(error.args[1]))


@pytest.mark.parametrize("package", TABLES)
def test_a_module_imports_only_modules_of_the_lines_above_its_own(package: str) -> None:
    lines, edges = borders(package, TABLES[package])
    assert len(edges) > 10
    parts = {part for edge in edges for part in edge}
    assert parts - {"__init__"} <= lines.keys(), "modules that the page does not name"
    assert lines.keys() <= parts, "modules that the page names and that do not exist"
    for importer, used in edges:
        if importer != used and importer != "__init__":
            assert used != "__init__", f"{importer} imports its own package"
            assert lines[used] < lines[importer], f"{importer} imports {used}"


def test_the_upper_half_of_the_engine_loads_no_jax() -> None:
    rows = table_after(TABLES["gptoss_jax.engine"])
    line = next(number for number, row in enumerate(rows) if row[0] == "---")
    upper = [name for row in rows[:line] for name in names_in(row[0])]
    assert {"request", "pages", "scheduler"} <= set(upper)
    program = (
        "import importlib, sys\n"
        f"for name in {upper}:\n"
        "    importlib.import_module(f'gptoss_jax.engine.{name}')\n"
        "    assert 'jax' not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)

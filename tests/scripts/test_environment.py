"""scripts/environment.sh: which Python it takes, what it installs, and what it says where it cannot."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
LOCKS = PROJECT / "scripts/lock"

# Stands for a Python: answers the questions that the scripts ask, and writes down how its pip was called.
FAKE = """#!/bin/bash
case "$*" in
  --version) echo "Python {version}.0";;
  *ensurepip*) exit {status};;
  "-c "*) echo {version};;
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python";;
  "-m pip "*) echo "$*" >>"$PIP_CALLS";;
  *) exit 64;;
esac
"""


class Machine:
    """A machine with the Pythons that a test gives it, and nothing else of the sort."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "bin"
        self.path.mkdir()
        for tool in ("bash", "cat", "cksum", "cp", "cut", "dirname", "mkdir", "rm", "tee"):
            (self.path / tool).symlink_to(subprocess.check_output(["which", tool], text=True).strip())

    def add(self, name: str, version: str, venv: bool = True, folder: Path | None = None) -> Path:
        """Adds a Python as `name` on the path, or under another folder; without venv, as Debian ships it."""
        file = (folder or self.path) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(FAKE.format(version=version, status=0 if venv else 1))
        file.chmod(0o755)
        return file

    def run(self, commands: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                self.path / "bash",
                "-c",
                f"set -euo pipefail; source {PROJECT}/scripts/environment.sh; {commands}",
            ],
            env={"PATH": str(self.path), "HOME": str(self.folder), "PIP_CALLS": str(self.folder / "pip")},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def chosen(self) -> str:
        """The Python that is taken."""
        done = self.run('choose_python >&2; echo "$python"')
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def refusal(self) -> str:
        """What is said where none is taken: one line."""
        done = self.run("choose_python")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr.strip()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_there_is_a_lock_and_a_classifier_for_every_supported_python() -> None:
    metadata = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(metadata["classifiers"]))
    assert sorted(f"python{version}.txt" for version in classified) == sorted(os.listdir(LOCKS))
    assert "3.14" in classified
    assert metadata["requires-python"] == f">={min(classified, key=lambda one: int(one[2:]))}"


@pytest.mark.parametrize("lock", sorted(LOCKS.iterdir()), ids=lambda file: file.stem)
def test_a_lock_holds_exact_versions_and_no_addresses(lock: Path) -> None:
    lines = lock.read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+(\.post[0-9]+)?", line) for line in lines)
    assert {"jax", "flax", "tensorstore", "tiktoken", "pydantic-core"} <= {
        line.split("==")[0] for line in lines
    }


def test_the_newest_locked_python_is_taken(machine: Machine) -> None:
    machine.add("python3", "3.11")
    machine.add("python3.12", "3.12")
    newest = machine.add("python3.14", "3.14")
    assert machine.chosen() == str(newest)


def test_a_python_of_pyenv_is_taken(machine: Machine) -> None:
    machine.add("python3.12", "3.12")
    machine.add("python3.13", "")  # pyenv's shim of a version that is not switched on fails
    newest = machine.add("python", "3.13", folder=machine.folder / ".pyenv/versions/3.13.5/bin")
    assert machine.chosen() == str(newest)


def test_a_locked_python_is_taken_before_a_newer_one(machine: Machine) -> None:
    machine.add("python3", "3.15")
    locked = machine.add("python3.12", "3.12")
    assert machine.chosen() == str(locked)


def test_a_locked_python_is_installed_from_its_lock(machine: Machine) -> None:
    machine.add("python3", "3.14")
    done = machine.run(f'choose_python; make_environment "{machine.folder}/env" test "$python"')
    assert done.returncode == 0, done.stderr
    assert (
        f"--constraint {LOCKS}/python3.14.txt --editable {PROJECT}[test]"
        in (machine.folder / "pip").read_text()
    )
    assert "newer" not in done.stdout


def test_a_python_newer_than_every_lock_is_installed_without_one_and_told(machine: Machine) -> None:
    machine.add("python3", "3.15")
    done = machine.run(f'choose_python; make_environment "{machine.folder}/env" "" "$python"')
    assert done.returncode == 0, done.stderr
    assert "Python 3.15 is newer than every lock (3.14 is the newest)" in done.stdout
    called = (machine.folder / "pip").read_text().strip()
    assert called == f"-m pip install --quiet --no-compile --editable {PROJECT}"


def test_an_environment_is_made_once(machine: Machine) -> None:
    machine.add("python3", "3.15")
    command = f'choose_python; make_environment "{machine.folder}/env" "" "$python"'
    assert machine.run(command).returncode == 0
    assert "Installing" not in machine.run(command).stdout
    assert (machine.folder / "pip").read_text().count("\n") == 1


def test_an_older_python_is_refused(machine: Machine) -> None:
    old = machine.add("python3", "3.10")
    assert machine.refusal() == f"Python 3.10 ({old}) is too old: install 3.11 or newer and try again."


def test_no_python_is_said(machine: Machine) -> None:
    assert machine.refusal() == "No Python was found: install one (3.11 or newer) and try again."


@pytest.mark.parametrize("version", ["3.13", "3.15"])
def test_a_python_without_venv_names_the_package_to_install(machine: Machine, version: str) -> None:
    bare = machine.add("python3", version, venv=False)
    message = machine.refusal()
    assert f"Python {version} ({bare}) has no venv or no pip" in message
    assert f"apt install python{version}-venv" in message


def test_a_python_without_venv_is_passed_over_for_one_that_has_it(machine: Machine) -> None:
    machine.add("python3.14", "3.14", venv=False)
    whole = machine.add("python3.12", "3.12")
    assert machine.chosen() == str(whole)

"""The JavaScript clients, installed once from `package-lock.json`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PACKAGE = ("package.json", "package-lock.json", ".npmrc")
OLDEST_NODE = 20
_UNREACHABLE = re.compile(
    r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ENOTCACHED|"
    r"ERR_SOCKET_TIMEOUT|FETCH_ERROR|E40[1347]|E5\d\d)\b"
)


def install(folder: Path) -> Path:
    """The folder `node_modules`, below one in `folder` that is named after what is installed.

    Processes that ask at the same time install it once. Skips the test where Node or npm is missing, or where
    npm reaches no registry.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < OLDEST_NODE:
        pytest.skip(f"node is {version}: it must be at least v{OLDEST_NODE}")
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in PACKAGE)).hexdigest()[:16]
    whole = folder / f"node-{digest}"
    with open(folder / "node.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.is_dir():
            _install(npm, whole)
    return whole / "node_modules"


def _install(npm: str, whole: Path) -> None:
    partial = whole.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for name in PACKAGE:
        shutil.copy(HERE / name, partial)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    done = subprocess.run([*command, "--fetch-retries=1"], cwd=partial, capture_output=True, text=True)
    if done.returncode and _UNREACHABLE.search(done.stderr):
        pytest.skip(f"npm reaches no registry: {' '.join(done.stderr.split())[:300]}")
    assert done.returncode == 0, done.stderr
    partial.rename(whole)


class Node:
    """Runs JavaScript programs that import the installed clients.

    Programs run in `folder`, in which they find the clients. They know no proxy, and no key of the user's.
    """

    def __init__(self, node_modules: Path, folder: Path) -> None:
        self.folder = folder
        self.bin = node_modules / ".bin"
        (folder / "node_modules").symlink_to(node_modules)

    def run(self, program: Path, url: str, given: Any) -> Any:
        """What a program makes of a server's address and a file of JSON: JSON too."""
        shutil.copy(program, self.folder)
        (self.folder / "given.json").write_text(json.dumps(given), encoding="utf-8")
        return json.loads(self.command(["node", program.name, url, "given.json"]))

    def command(
        self, command: list[str], *, timeout: float = 120, cwd: Path | None = None, **env: str
    ) -> str:
        """What a command writes on standard output; it must end without an error."""
        done = subprocess.run(
            command,
            cwd=cwd or self.folder,
            env={**environment(), **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


def environment() -> dict[str, str]:
    """The environment of this process without proxies and OpenAI's settings."""
    left_out = re.compile(r"OPENAI_.*|CODEX_.*|.*_proxy|NODE_OPTIONS", re.IGNORECASE)
    return {name: value for name, value in os.environ.items() if not left_out.fullmatch(name)}

"""Stands for gcloud in tests: a worker is a home folder, in which commands really run.

It takes the few commands that scripts/tpu uses, and refuses all others. What it says when it fails is what
the real one says. The folder CLOUD holds `calls` (a JSON array of arguments a line), `vm` (the TPU VM: its
state and workers), `line` (a queued resource: its states, one for each look), `fail/COMMAND` (what that
command says instead of working) and `refuse` (the workers whose ssh refuses connections).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

CLOUD = Path(os.environ["CLOUD"])


def fail(command: str, text: str, code: int = 1) -> NoReturn:
    print(f"ERROR: (gcloud.compute.tpus.{command.replace(' ', '.')}) {text}", file=sys.stderr)
    sys.exit(code)


def reach(command: str, flags: dict[str, str]) -> Path:
    """The home folder of the worker that a connection leads to."""
    vm = look(command)
    if vm["state"] != "READY":
        fail(command, f'This TPU has terminal state "{vm["state"]}", so it cannot be used anymore.')
    index = int(flags["worker"])
    assert 0 <= index < vm["workers"]
    print(f"SSH: Attempting to connect to worker {index}...", file=sys.stderr)
    if str(index) in (CLOUD / "refuse").read_text().split():
        print("ssh: connect to host 203.0.113.7 port 22: Connection refused", file=sys.stderr)
        fail(command, "[/usr/bin/ssh] exited with return code [255].", 255)
    return CLOUD / f"worker{index}"


def look(command: str) -> dict[str, object]:
    if not (CLOUD / "vm").exists():
        fail(command, "NOT_FOUND: Resource 'projects/p/locations/z/nodes/my-tpu' was not found")
    return json.loads((CLOUD / "vm").read_text())


def main() -> None:
    arguments = sys.argv[1:]
    with (CLOUD / "calls").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    assert arguments[:2] == ["compute", "tpus"], arguments
    command = " ".join(arguments[2:4])
    flags = {flag[2:].split("=")[0]: flag.partition("=")[2] for flag in arguments if flag.startswith("--")}
    words = [word for word in arguments[4:] if not word.startswith("--")]
    assert "quiet" in flags
    if (CLOUD / "fail" / command).exists():
        fail(command, (CLOUD / "fail" / command).read_text())
    if command == "tpu-vm create":
        (CLOUD / "vm").write_text(json.dumps({"state": "READY", "workers": int(os.environ["WORKERS"])}))
    elif command == "tpu-vm describe":
        vm = look(command)
        print(vm["state"], vm["workers"], sep="\t") if "len()" in flags["format"] else print(vm["state"])
    elif command == "tpu-vm delete":
        look(command)
        (CLOUD / "vm").unlink()
    elif command == "queued-resources create":
        (CLOUD / "line").write_text("WAITING_FOR_RESOURCES PROVISIONING ACTIVE")
    elif command == "queued-resources describe":
        if not (CLOUD / "line").exists():
            fail(command, "NOT_FOUND: Resource 'projects/p/locations/z/queuedResources/my-tpu' was not found")
        now, *later = (CLOUD / "line").read_text().split()
        (CLOUD / "line").write_text(" ".join(later or [now]))
        if now == "ACTIVE" and not (CLOUD / "vm").exists():
            (CLOUD / "vm").write_text(json.dumps({"state": "READY", "workers": 1}))
        print(now)
    elif command == "queued-resources delete":
        assert "force" in flags
        (CLOUD / "line").unlink()
        (CLOUD / "vm").unlink(missing_ok=True)
    elif command == "tpu-vm ssh":
        home = reach(command, flags)
        remote = " ".join(flags["command"].split(" "))  # so does the real one
        path = f"{home}/bin:{os.environ['PATH']}"
        done = subprocess.run(["bash", "-c", remote], cwd=home, env={"HOME": str(home), "PATH": path})
        sys.exit(done.returncode)
    elif command == "tpu-vm scp":
        home = reach(command, flags)
        *sources, target = (home / word[7:] if word.startswith("my-tpu:") else Path(word) for word in words)
        for source in sources:
            if not source.exists():
                print(f"scp: {source}: No such file or directory", file=sys.stderr)
                sys.exit(1)
            if source.is_dir():
                shutil.copytree(source, target / source.name, dirs_exist_ok=True)
            else:
                shutil.copy(source, target)
    else:
        fail(command, f"Invalid choice: {command!r}.", 2)


main()

"""How much memory this machine, or the container that this process runs in, may use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def host_memory(root: Path = Path("/")) -> int | None:
    """Returns the memory of the machine or the lowest limit of this process's control groups, in bytes.

    Returns None if the system tells neither. `root` is where `proc` and `sys` are mounted.
    """
    found = list(_group_limits(root))
    with contextlib.suppress(AttributeError, OSError, ValueError):  # some systems do not say
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min((limit for limit in found if limit > 0), default=None)


def _group_limits(root: Path) -> Iterator[int]:
    """The memory limits of this process's control groups and of their parents, in bytes.

    A line of /proc/self/cgroup is `hierarchy:controllers:path`. In version 2 there is one hierarchy and the
    controllers are empty; in version 1 memory has a hierarchy of its own. In a container the path may be the
    host's and not exist: then the mount itself is the container's group.
    """
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for fields in (line.split(":", 2) for line in lines):
        if len(fields) != 3:
            continue
        _, controllers, path = fields
        if not controllers:
            yield from _limits(mount, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(mount / "memory", path, "memory.limit_in_bytes")


def _limits(mount: Path, path: str, name: str) -> Iterator[int]:
    group = mount / path.strip("/")
    for folder in (group, *group.parents):
        if folder != mount and mount not in folder.parents:
            return
        try:
            text = (folder / name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdecimal():  # "max" is no limit
            yield int(text)

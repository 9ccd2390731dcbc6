"""What holds for every test.

The CPU is the device, and libtpu, which only compiles here, looks for no TPU. A session compiles a program
once; a process that holds much gives memory back after a module.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from tests.memory import give_memory_back

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

# The workers of a session, and the processes that tests start, share a folder of compiled programs.
_OWN_PROGRAMS = "JAX_COMPILATION_CACHE_DIR" not in os.environ
if _OWN_PROGRAMS:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="gptoss-jax-tests-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"


def pytest_unconfigure() -> None:
    """Removes the programs where this process made their folder: a worker inherits it."""
    if _OWN_PROGRAMS:
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def memory_given_back() -> Iterator[None]:
    """Drops compiled programs when a module's tests are done, if this process holds much."""
    yield
    give_memory_back()

"""What importing, decoding and encoding load, and that nobody notices that modules come late."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import harmony

SLOW_TO_LOAD = ("jax", "flax", "numpy", "pydantic", "regex", "tiktoken")


def printed_by(script: str) -> str:
    """What a script prints in a fresh process."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "work",
    [
        "",
        "encoding = harmony.load_harmony_encoding()",
        "assert harmony.load_harmony_encoding().decode([13225]) == 'Hello'",
        "assert harmony.load_harmony_encoding().encode('Hello, wörld') == [13225, 11, 286, 2877, 582]",
    ],
)
def test_what_needs_no_messages_and_no_tiktoken_does_not_wait_for_them(work: str) -> None:
    assert (
        printed_by(f"import sys, harmony; {work}\nprint(set({SLOW_TO_LOAD}) & set(sys.modules))") == "set()"
    )


def test_decoding_takes_apart_only_what_it_needs_of_the_vocabulary() -> None:
    script = (
        "import harmony; e = harmony.load_harmony_encoding(); e.decode([13225, 199_997, 0, 200_012])\n"
        "print('ordinary_tokens' in vars(e), sum(block is not None for block in e._tokens._blocks))"
    )
    assert printed_by(script) == "False 3"


def test_threads_that_load_at_once_get_the_same_encoding() -> None:
    script = """
import threading, harmony
barrier, loaded = threading.Barrier(8), []
def load():
    barrier.wait()
    loaded.append(harmony.load_harmony_encoding())
threads = [threading.Thread(target=load) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(loaded), len({id(encoding) for encoding in loaded}))
"""
    assert printed_by(script) == "8 1"


def test_every_public_name_is_found_and_is_the_one_of_its_module() -> None:
    assert len(set(harmony.__all__)) == len(harmony.__all__) > 30
    for module, names in harmony._NAMES.items():
        for name in names:
            assert getattr(harmony, name) is getattr(importlib.import_module(f"harmony.{module}"), name)
    assert set(harmony.__all__) <= set(dir(harmony))
    assert printed_by("from harmony import *; print(Message.__name__)") == "Message"
    assert printed_by("import harmony; print(harmony.messages.Role.USER.value)") == "user"
    with pytest.raises(AttributeError, match="module 'harmony' has no attribute 'Mesage'"):
        _ = harmony.Mesage


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(str(harmony.__file__)).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen: dict[str, list[str]] = {}
    for node in imports:
        assert node.module is not None
        seen.setdefault(node.module, []).extend(str(name.asname) for name in node.names)
    assert {module: sorted(names) for module, names in seen.items()} == {
        module: sorted(names) for module, names in harmony._NAMES.items()
    }

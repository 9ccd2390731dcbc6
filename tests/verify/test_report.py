"""The order of the checks, the page and its JSON, what it keeps to itself, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoints import open_checkpoint
from gptoss_jax import cli
from gptoss_jax.engine import Completion, Request
from gptoss_jax.verify import behaviour, kernels, logits, run
from gptoss_jax.verify.page import as_json, page
from gptoss_jax.verify.rows import Check, Outcome, perform, without_paths


def row(name: str, passed: bool | None, measured: str = "so much", lines: tuple[str, ...] = ()) -> Any:
    return perform(Check(name, "it works", "it is broken", lambda: Outcome(passed, measured, "1", {}, lines)))


def test_the_page_says_what_failed_what_that_means_and_what_passed() -> None:
    rows = [row("first", True), row("second", False, "too much."), row("third", None, "none here")]
    text = page(rows, 12.3, str)
    assert text.startswith(
        "# gptoss-jax verify: FAILED\n\n1 passed, 1 failed, 1 skipped, in 12 s.\nDo not rely"
    )
    assert "## Failed\n\n- **second**: too much (allowed: 1). It is broken.\n" in text
    assert "## Passed\n\n- **first**: so much (allowed: 1). It works.\n" in text
    assert "## Not checked\n\n- **third**: none here (allowed: 1).\n" in text
    assert page(rows[:1], 1, str).startswith("# gptoss-jax verify: PASSED")


def test_a_check_that_raises_is_a_failed_row_of_one_line() -> None:
    def raises() -> Outcome:
        raise RuntimeError("first line\nand more")

    found = perform(Check("broken", "", "look there", raises))
    assert (found.status, found.measured) == ("failed", "it raised RuntimeError: first line and more")
    with pytest.raises(KeyboardInterrupt):
        perform(Check("stopped", "", "", lambda: (_ for _ in ()).throw(KeyboardInterrupt)))


@pytest.mark.parametrize(
    "text",
    [
        "/data/secret/model.safetensors: is cut short",
        "error in /opt/private place/x.py, line 3",
        "~/models/mine is no folder",
        "models/mine: no such folder",
        "C:\\Users\\me\\model",
        f"{Path.home()}: full",
    ],
)
def test_no_folder_of_the_user_is_in_the_report(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = without_paths("models/mine", Path("/data/secret"))
    rows = [row("one", False, text, (text,))]
    for made in (page(rows, 1, clean), json.dumps(as_json(rows, 1, clean))):
        for secret in ("secret", "private", "mine", "Users", str(Path.home())):
            assert secret not in made, made


def test_the_report_is_ascii_and_keeps_ordinary_words() -> None:
    clean = without_paths("tiny")
    assert clean("a naïve “name” of the tiny model and/or 3/4 tokens/s") == (
        "a na\\xefve \\u201cname\\u201d of the tiny model and/or 3/4 tokens/s"
    )
    assert clean("see docs/engine.md") == "see docs/engine.md"


def test_checks_that_crash_stop_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> Any:
        raise RuntimeError("no device")

    monkeypatch.setattr(run, "load_engine", fails)
    monkeypatch.setattr(kernels, "checks", lambda *_, **__: [Check("kernel", "", "", fails)])
    monkeypatch.setattr(logits, "_rotary", fails)
    begun: list[str] = []
    rows = {one.name: one for one in run.verify(run.Settings("tiny", "float32"), begun.append)}
    failed = {"rotary frequencies", "kernel", "embedded model, float32", "engine"}
    assert {name for name, one in rows.items() if one.status == "failed"} == failed
    assert all(rows[name].measured == "it raised RuntimeError: no device" for name in failed)
    assert rows["expert scales"].status == "passed" and rows["first layers"].status == "skipped"
    assert set(begun) == set(rows) - {"first layers"}


def fake_engine(tokens: Any) -> Any:
    """An engine of 4 slots whose completions `tokens` makes from a request and how many there are."""

    def run(requests: list[Request]) -> Iterator[Completion]:
        for one in requests:
            yield Completion(one.id, tokens(one, len(requests)), "length", len(one.prompt))

    return SimpleNamespace(run=run, slots=4, max_length=100)


def test_tokens_that_depend_on_other_requests_are_found() -> None:
    right = fake_engine(lambda request, count: request.prompt[:5])
    assert perform(behaviour.repetition_check(right, 50)).status == "passed"
    mixed = fake_engine(lambda request, count: [*request.prompt[:5], count])
    found = perform(behaviour.repetition_check(mixed, 50))
    assert found.status == "failed" and "beside 3 others others from token 6 on" in found.measured
    calls = iter(range(100))
    changing = fake_engine(lambda request, count: [next(calls)])
    assert perform(behaviour.repetition_check(changing, 50)).status == "failed"


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"city":"Oslo","degrees":-9,"sunny":false}', True),
        ('{"city":"Bonn","degrees":3,"sunny":false}', False),
        ('{"city":"Oslo","degrees":41,"sunny":false}', False),
        ('{"city":"Oslo","degrees":3.0,"sunny":false}', False),
        ('{"city":"Oslo","degrees":true,"sunny":false}', False),
        ('{"city":"Oslo","degrees":3,"sunny":0}', False),
        ('{"city":"Oslo","degrees":3,"sunny":true,"more":1}', False),
        ('{"city":"Oslo"}', False),
        ('{"city":"Oslo",', False),
        ("[]", False),
        ("", False),
    ],
)
def test_documents_are_judged_as_json_schema_judges_them(text: str, valid: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema: pip install 'gptoss-jax[test]'")
    try:
        jsonschema.validate(json.loads(text), behaviour.SCHEMA)
        theirs = True
    except (ValueError, jsonschema.ValidationError):
        theirs = False
    # JSON Schema takes 3.0 for an integer; the grammar does not write it.
    assert (theirs or "3.0" in text) == (valid or "3.0" in text)
    llm = SimpleNamespace(
        generate=lambda *_, **__: [SimpleNamespace(samples=[SimpleNamespace(text=text)])], name="fake"
    )
    checks = {one.name: one for one in behaviour.checks(llm)}  # type: ignore[arg-type]
    assert (perform(checks["structured output"]).status == "passed") == valid


def test_a_folder_that_is_no_checkpoint_is_refused_without_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", str(tmp_path / "none")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "no such folder" in said.err


@pytest.mark.slow
def test_the_command_passes_on_the_embedded_checkpoint(tmp_path: Path) -> None:
    def verify(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gptoss_jax", "verify", "--quick", "--slots", "8", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = verify("--json", str(tmp_path / "report.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.isascii() and "# gptoss-jax verify: PASSED" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"] and len(report["checks"]) >= 18
    assert "gptoss-jax: attention passed" in done.stderr


def test_fewer_layers_of_a_checkpoint_are_its_first() -> None:
    whole = open_checkpoint("tiny")
    short = whole.first_layers(2)
    assert (short.config.num_layers, whole.config.num_layers) == (2, 4)
    names = set(short.load())
    assert "layers.1.attention.sinks" in names and not any(name.startswith("layers.2.") for name in names)
    assert {"embedding.weight", "norm.scale", "unembedding.weight"} <= names

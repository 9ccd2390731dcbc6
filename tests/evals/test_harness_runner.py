"""The harness' own runner and ours on one server, which gives the same prompt the same answer."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from checkpoints import open_checkpoint
from gptoss_jax.engine.request import Request
from gptoss_jax.evals import aime
from gptoss_jax.evals.records import read_run
from gptoss_jax.vocabulary import load_encoding_for
from tests.cli.command_runner import run
from tests.evals import harness_graders as oracle
from tests.evals.test_graders import HARNESS, with_harness
from tests.llm.fake_engine import FakeEngine, Script
from tests.serve.served import serving

SAMPLES = Path(aime.__file__).with_name("samples")
TEXTS = [
    *("\\boxed{69}", "It is 7, \\boxed{7}", "80 degrees", "\\boxed{80^\\circ}", "I do not know."),
    *("**A**", "Answer: (B)", "Because of this", "\\boxed{\\text{D}}", "The answer is C."),
]


@with_harness
@pytest.mark.slow
@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("evaluation", ["aime", "gpqa"])
def test_the_harness_run_on_our_server_has_the_score_of_our_run(
    evaluation, api, tmp_path, monkeypatch
) -> None:
    pandas = pytest.importorskip("pandas", reason="the harness reads its data with pandas")
    pytest.importorskip("jinja2", reason="the harness makes its pages with jinja2")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    encoding = load_encoding_for(open_checkpoint("tiny"))

    def script(request: Request, sample: int) -> Script:
        digest = hashlib.sha256(repr(request.prompt).encode()).digest()
        text = TEXTS[digest[0] % len(TEXTS)]
        prompt = encoding.decode(request.prompt)
        text = "\\boxed{69}" if "rolls" in prompt else "I do not know." if "triangle" in prompt else text
        said = f"<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>{text}"
        return Script(encoding.encode(said, allowed_special="all"))

    readers = {"read_csv": pandas.read_csv, "read_json": pandas.read_json}

    def local(name: str) -> Any:
        folder = SAMPLES / evaluation
        return lambda address, **options: readers[name](folder / address.rpartition("/")[2], **options)

    checkout, attempts = Path(HARNESS), 24
    module, kind = {"aime": ("aime_eval", "AIME25Eval"), "gpqa": ("gpqa_eval", "GPQAEval")}[evaluation]
    sampler, asks = {
        "responses": ("responses_sampler", "ResponsesSampler"),
        "chat": ("chat_completions_sampler", "ChatCompletionsSampler"),
    }[api]
    with serving(FakeEngine(script, slots=8), encoding) as url:
        with mock.patch.multiple(pandas, **{name: local(name) for name in readers}):
            theirs = getattr(oracle.module(checkout, module), kind)(n_repeats=attempts, n_threads=8)
        ask = getattr(oracle.module(checkout, sampler), asks)(
            model="tiny", temperature=1.0, max_tokens=131_072, reasoning_model=True,
            reasoning_effort="high", base_url=f"{url}/v1",
        )  # fmt: skip
        score = theirs(ask).score
        out = tmp_path / "o.jsonl"
        done = run(
            *("eval", evaluation, "--data", "sample", "--output", str(out), "--attempts", str(attempts)),
            *("--effort", "high", "--url", f"{url}/v1", "--api", api),
        )
    assert done.code == 0, done.error
    scores = [record.harness.score for record in read_run(out).records()]
    assert len(scores) == 3 * attempts and 0 < score < 1
    assert sum(scores) / len(scores) == pytest.approx(score, abs=1e-12)

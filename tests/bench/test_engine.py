"""`gptoss-jax bench engine`: its figures follow from what was measured, and its parts run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints import open_checkpoint
from checkpoints.config import ModelConfig
from checkpoints.parameters import parameter_specs
from gptoss_jax import cli
from gptoss_jax.bench.comparison import BenchError
from gptoss_jax.bench.engine import batching, limits, measuring, overhead, report, run, settings, throughput
from gptoss_jax.bench.engine.target import BenchTarget, random_target
from gptoss_jax.commands import bench
from gptoss_jax.engine import Completion, Request, SamplingParams
from gptoss_jax.engine.request import Update
from gptoss_jax.engine.statistics import Statistics
from gptoss_jax.vocabulary import load_encoding_for

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_engine"
SMALL = settings.Settings(
    rounds=1,
    slots=2,
    sequences=(2,),
    max_length=160,
    decode_steps=4,
    prompt=8,
    generated=24,
    dispatches=2,
    requests=2,
    short=4,
    long=12,
    prefix=64,
    prefix_requests=2,
    copied=1 << 16,
    questions=2,
    places=2,
)
ENCODING = load_encoding_for(open_checkpoint("tiny"))
CONFIG = ModelConfig(
    num_layers=2,
    vocabulary_size=ENCODING.size + 9,
    hidden_size=64,
    intermediate_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    num_experts=4,
    experts_per_token=2,
    sliding_window=8,
    yarn_original_length=16,
)


@pytest.fixture(scope="module")
def target() -> BenchTarget:
    return dataclasses.replace(random_target("small", CONFIG, jnp.float32), encoding=ENCODING)


class FakeClock:
    """A clock that advances only when the test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeEngine:
    """Each step takes the seconds and returns the tokens of a script's next line."""

    slots = 2

    def __init__(self, clock: FakeClock, script: list[tuple[float, dict[str, int]]], length: int) -> None:
        self.statistics = Statistics()
        self._clock, self._script, self._length = clock, script, length
        self._done: dict[str, int] = {}
        self.added: list[str] = []

    @property
    def unfinished(self) -> int:
        return sum(self._done.get(id, 0) < self._length for id in self.added)

    def add(self, request: Request) -> None:
        self.added.append(request.id)

    def step(self) -> list[Update]:
        seconds, tokens = self._script.pop(0)
        self._clock.now += seconds
        self.statistics.dispatches += 1
        self.statistics.generated_tokens += sum(tokens.values())
        updates = []
        for id, count in tokens.items():
            self._done[id] = self._done.get(id, 0) + count
            whole = (
                Completion(id, [7] * self._length, "length", 1) if self._done[id] == self._length else None
            )
            updates.append(
                Update(id, 0, [7] * count, completion=whole if self._done[id] == self._length else None)
            )
        return updates


def requests(*ids: str) -> list[Request]:
    return [Request(id, [1], SamplingParams()) for id in ids]


BURST = [(1.0, {}), (1.0, {"a": 2}), (2.0, {"a": 2, "b": 2}), (3.0, {"a": 4, "b": 4}), (5.0, {"b": 2})]


def test_a_burst_is_steady_from_the_last_first_token_to_the_first_end() -> None:
    clock = FakeClock()
    burst = measuring.burst(FakeEngine(clock, list(BURST), 8), requests("a", "b"), clock)
    assert burst.first == (2.0, 4.0)
    assert (burst.seconds, burst.generated) == (12.0, 16)
    assert (burst.steady_seconds, burst.steady_tokens) == (3.0, 8)
    assert burst.step_seconds == 3.0 / 4
    assert burst.steady_length == (6 + 14) / 2 / 2
    figures = {figure.what: figure.median for figure in throughput.figures_of([burst])}
    assert figures == pytest.approx(
        {
            "tokens/s while all decode": 8 / 3,
            "tokens/s with prefill, start to end": 16 / 12,
            "decode step": 750,
            "time to first token, median": 3000,
            "time to first token, longest": 4000,
        }
    )


def test_a_burst_without_a_steady_middle_is_refused() -> None:
    clock = FakeClock()
    engine = FakeEngine(clock, [(1.0, {"a": 4}), (1.0, {"b": 4})], 4)
    with pytest.raises(BenchError, match="must be longer"):
        measuring.burst(engine, requests("a", "b"), clock)


def test_steady_decoding_counts_dispatches_and_the_tokens_that_came_in_them() -> None:
    clock = FakeClock()
    engine = FakeEngine(clock, list(BURST), 100)
    begun = measuring.begin(engine, requests("a", "b"))
    assert {id: len(tokens) for id, tokens in begun.items()} == {"a": 4, "b": 2}
    work = measuring.decode(engine, 2, clock)
    assert (work.seconds, work.generated, work.rate) == (8.0, 10, 10 / 8)
    assert work.statistics.dispatches == 2


def test_steady_decoding_refuses_a_sequence_that_ends() -> None:
    clock = FakeClock()
    engine = FakeEngine(clock, list(BURST), 8)
    measuring.begin(engine, requests("a", "b"))
    with pytest.raises(BenchError, match="max_length"):
        measuring.decode(engine, 2, clock)


def test_a_job_lasts_until_nothing_is_left() -> None:
    clock = FakeClock()
    work = measuring.complete(FakeEngine(clock, list(BURST), 8), requests("a", "b"), clock)
    assert (work.seconds, work.generated) == (12.0, 16)


def test_static_batches_begin_when_the_one_before_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[str]] = []

    def complete(engine: FakeEngine, group: list[Request]) -> measuring.Work:
        groups.append([request.id for request in group])
        statistics = Statistics(
            generated_tokens=3, decode_steps=4, row_steps=6, prefilled_tokens=1, padded_tokens=7
        )
        return measuring.Work(2.0, statistics, {request.id: [1] for request in group})

    monkeypatch.setattr(batching, "complete", complete)
    work = batching.static(FakeEngine(FakeClock(), [], 1), requests("a", "b", "c"))
    assert groups == [["a", "b"], ["c"]]
    assert (work.seconds, work.generated) == (4.0, 3)
    assert batching.slot_use(work.statistics, 2) == 6 / 16
    assert batching.row_use(work.statistics) == 6 / 12
    assert batching.padding(work.statistics) == 7 / 8


def test_the_device_waits_for_what_it_does_not_need_of_the_time() -> None:
    assert overhead.idle_share(10.0, 9.5) == pytest.approx(0.05)


def test_ratios_are_of_each_round_and_the_figure_is_their_median() -> None:
    figure = report.ratios("", [6.0, 10.0, 3.0], [2.0, 10.0, 1.5], report.Goal(minimum=2))
    assert figure.rounds == (3.0, 1.0, 2.0)
    assert (figure.median, figure.verdict) == (2.0, "≥ 2 holds")
    assert report.percent("", [0.5], report.Goal(maximum=5)).verdict == "≤ 5 missed"
    data = figure.as_json()
    assert (data["lowest"], data["highest"], data["holds"]) == (1.0, 3.0, True)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_expected_distinct_experts_are_those_of_counting_every_choice(tokens: int) -> None:
    choices = list(itertools.combinations(range(5), 2))
    counted = [len(set().union(*some)) for some in itertools.product(choices, repeat=tokens)]
    assert limits.distinct_experts(5, 2, tokens) == pytest.approx(np.mean(counted))


@pytest.mark.slow
def test_a_step_reads_every_weight_but_the_embedding_and_experts_nobody_chose(
    target: BenchTarget,
) -> None:
    specs = parameter_specs(CONFIG)
    size = {
        name: int(np.prod(spec.shape)) * (1 if spec.dtype == np.uint8 else 4) for name, spec in specs.items()
    }
    experts = sum(count for name, count in size.items() if ".experts." in name)
    row = size.pop("embedding.weight") // CONFIG.vocabulary_size
    needs = limits.step_bytes(target.model, 3, context=20)
    assert needs.dense == sum(size.values()) - experts + 3 * row
    assert needs.experts == pytest.approx(experts * (1 - 0.5**3))
    # Keys and values of 2 heads of 16 in float32; one layer sees 20 tokens and the other its window of 8.
    assert needs.cache == 3 * (20 + 8) * 2 * 2 * 16 * 4
    assert limits.cache_bytes(CONFIG, 20, "float8_e4m3fn") == 28 * 2 * 2 * 16


def test_tokens_that_differ_are_an_error_only_where_they_must_be_equal() -> None:
    ours, theirs = {"a": [1, 2, 3], "b": [4]}, {"a": [1, 2], "b": [5]}
    assert "1 of 2" in measuring.same_tokens("both", ours, theirs, exact=False)
    with pytest.raises(BenchError, match="both: 1 of 2 completions differ"):
        measuring.same_tokens("both", ours, theirs, exact=True)
    with pytest.raises(BenchError):
        measuring.same_tokens("nothing to compare", {"a": [1]}, {}, exact=True)


def measured(target: BenchTarget, names: list[str]) -> dict[str, report.Part]:
    """Measures these parts with a small model."""
    found = list(run.measure(target, SMALL, names))
    assert all(isinstance(part, report.Part) for part in found), "\n".join(map(str, found))
    return dict(zip(names, found, strict=True))  # type: ignore[arg-type]


def assert_sound(name: str, part: report.Part) -> None:
    """The part checked something before it measured, and every figure is one finite number."""
    assert part.name.split()[0] == name
    assert part.checked
    for figure in part.figures:
        assert len(figure.rounds) == 1
        assert np.isfinite(figure.median)
        assert figure.what in str(part)


@pytest.mark.slow
def test_steady_decoding_is_replayed_and_measured(target: BenchTarget) -> None:
    assert_sound("overhead", measured(target, ["overhead"])["overhead"])


@pytest.mark.slow
def test_every_part_checks_and_measures(target: BenchTarget) -> None:
    """All parts but `kv`, which needs a trained model."""
    parts = measured(target, [name for name in run.PARTS if name != "kv"])
    for name, part in parts.items():
        assert_sound(name, part)
    # Reuse prefills the common beginning once: four prompts of 64 common tokens and 16 others, of which the
    # last one of each is fed by the first step.
    (tokens,) = [f.median for f in parts["prefix"].figures if f.what.startswith("prefilled tokens")]
    assert tokens == 4 * (64 + 15) / (64 + 4 * 15)


@pytest.mark.slow
def test_the_command_prints_every_figure_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settings, "settings_here", lambda: SMALL)
    assert cli.main(["bench", "engine", "--rounds", "1", "--only", "kv", "--json"]) == 0
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert (data["model"], data["dtype"]) == ("tiny", "float32")
    assert {"device", "jax", "settings", "parts"} <= set(data)
    (part,) = data["parts"]
    assert part["name"] == "kv"
    assert "100.0% of 4 places" in part["checked"][0]
    for figure in part["figures"]:
        assert {"what", "unit", "median", "lowest", "highest", "rounds"} <= set(figure)
    sizes = [figure["median"] for figure in part["figures"] if figure["what"].startswith("bytes a token")]
    assert sizes[0] == 4 * sizes[1]
    assert "likeliest token is the same" in printed.err


def test_what_was_measured_is_printed_when_the_command_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: object) -> object:
        yield report.Part("first", "", [], [report.Figure("one", "ms", (1.0,))])
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "measure", measure)
    assert cli.main(["bench", "engine", "--json"]) == 130
    assert [part["name"] for part in json.loads(capsys.readouterr().out)["parts"]] == ["first"]


@pytest.mark.slow
def test_a_part_that_fails_is_left_out_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, target: BenchTarget
) -> None:
    def fail(*_: object) -> report.Part:
        raise BenchError("it is broken")

    good = report.Part("batching", "", [], [])
    monkeypatch.setitem(run._ON_ONE_ENGINE, "overhead", fail)
    monkeypatch.setitem(run._ON_ONE_ENGINE, "batching", lambda *_: good)
    found = list(run.measure(target, SMALL, ["overhead", "batching"]))
    assert [str(one) for one in found] == ["overhead: left out: it is broken", str(good)]
    late = list(run.measure(target, SMALL, ["throughput", "batching"], deadline=0.0))
    reason = "left out: no time is left"
    assert [str(one) for one in late] == [f"throughput 2: {reason}", f"batching: {reason}"]


def test_without_an_encoding_only_grammars_are_left_out(target: BenchTarget) -> None:
    (part,) = run.measure(dataclasses.replace(target, encoding=None), SMALL, ["grammar"])
    assert str(part).startswith("grammar: left out: there is no encoding")
    program = (
        "import sys; sys.modules.update(pydantic=None, llguidance=None, tiktoken=None)\n"
        "from gptoss_jax.bench.engine import run, target; assert target._packaged_encoding() is None"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=SCRIPT.parents[1])


def test_the_names_of_parts_are_the_same_everywhere() -> None:
    assert bench.PARTS == run.PARTS


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--slots", "0"], "a whole number from 1, not '0'"),
        (["--sequences", "1", "x"], "a whole number from 1, not 'x'"),
        (["--only", "dance"], "dance"),
        (["--random", "7b"], "7b"),
        (["--random", "20b", "--checkpoint", "tiny"], "not allowed with"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "engine", *options])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_a_checkpoint_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "engine", "--checkpoint", "/no/such/folder"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_script_says_in_one_line_that_there_is_no_gpu(tmp_path: Path) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "OUT": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "bench_engine: there is no GPU here: nothing was measured\n"
    assert not list(tmp_path.iterdir())

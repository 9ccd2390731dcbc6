"""lm_eval itself, with tasks and data made here, on the embedded model. `scripts/test_lm_eval` runs this."""

import dataclasses
import importlib.metadata
import itertools
import json
import logging
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("lm_eval", reason="lm_eval is not installed: scripts/test_lm_eval runs these tests")
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager

from gptoss_jax.engine.request import RequestError
from gptoss_jax.lm_eval.model import GptOssLM, LikelihoodRefused
from gptoss_jax.lm_eval.sampling import asked_by
from tests.tiny_engine import OPTIONS

PROJECT = Path(__file__).resolve().parents[2]
SUMS = [(first, 210 + 3 * first % 7) for first in range(120, 132)]
SHOTS = [(2, 3), (4, 5)]
QUESTION = """
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/sums.jsonl, train: FOLDER/shots.jsonl}}
test_split: test
doc_to_text: "What is {{a}} + {{b}}?"
"""
ANSWER = (
    QUESTION
    + """
output_type: generate_until
doc_to_target: "{{a}} + {{b}} = {{sum}}."
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
)
TASKS = {
    "whole": ANSWER + "generation_kwargs: {until: ['Question:'], max_gen_toks: 40}",
    "prefixed": ANSWER.replace('"{{a}} + {{b}} = {{sum}}."', '" {{sum}}"')
    + "gen_prefix: '{{a}} + {{b}} ='\ngeneration_kwargs: {until: ['.']}",
    "shots": ANSWER + "fewshot_split: train\nfewshot_config: {sampler: first_n}",
    "choices": QUESTION
    + "output_type: multiple_choice\ndoc_to_choice: ['1', '2']\ndoc_to_target: 0\n"
    + "metric_list: [{metric: acc}]",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tasks and their data."""
    folder = tmp_path_factory.mktemp("tasks")
    os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
    for name, sums in (("sums", SUMS), ("shots", SHOTS)):
        lines = [json.dumps({"a": a, "b": b, "sum": a + b}) for a, b in sums]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{text}\n".replace("FOLDER", str(folder)))
    return folder


@pytest.fixture(scope="module")
def manager(folder):
    return TaskManager(include_path=str(folder), include_defaults=False)


class Watched(GptOssLM):
    """Keeps the prompts that the engine is given, as text; `ends_after` answers it is interrupted."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.prompts: list[str] = []
        self.ends_after: int | None = None
        run = self._engine.run

        def watched(requests):
            self.prompts += [self._encoding.decode(request.prompt) for request in requests]
            for count, completion in enumerate(run(requests)):
                if count == self.ends_after:
                    raise KeyboardInterrupt
                yield completion

        self._engine.run = watched


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "reasoning.jsonl"
    return Watched(effort="low", date="2026-01-02", log_reasoning=str(log), **OPTIONS)


@pytest.fixture
def model(loaded):
    loaded.prompts.clear()
    loaded.ends_after = None
    loaded.arguments.log_reasoning.write_text("")
    loaded.set_cache_hook(type("NoCache", (), {"add_partial": lambda *_: None})())
    return loaded


def logged(model):
    lines = model.arguments.log_reasoning.read_text().splitlines()
    return sorted(map(json.loads, lines), key=lambda row: (row["doc_id"], row["repeat"]))


@pytest.fixture
def evaluate(model, manager):
    def run(task, **options):
        options = {"apply_chat_template": True, "bootstrap_iters": 0, **options}
        result = simple_evaluate(model=model, tasks=[task], task_manager=manager, **options)
        samples = sorted(result["samples"][task], key=lambda sample: sample["doc_id"])
        return result, [sample["resps"][0] for sample in samples]

    return run


def test_answers_are_whole_right_and_in_order_and_without_reasoning(model, evaluate):
    result, answers = evaluate("whole")
    assert answers == [[f"{a} + {b} = {a + b}."] for a, b in SUMS]
    assert result["results"]["whole"]["exact_match,none"] == 1.0
    told = result["config"]["gptoss_jax"]
    assert (told["effort"], told["date"], told["max_length"]) == ("low", "2026-01-02", 512)
    rows = logged(model)
    assert [row["answer"] for row in rows] == [answer for (answer,) in answers]
    assert all(str(a + b) in row["reasoning"] for row, (a, b) in zip(rows, SUMS, strict=True))
    assert all(row["reasoning_tokens"] < row["completion_tokens"] for row in rows)


def test_turns_and_instructions_are_harmony(model, evaluate):
    evaluate("shots", num_fewshot=2, system_instruction="Be brief.", limit=1)
    assert model.prompts == [
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: 2026-01-02\n\nReasoning: low\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
        "<|start|>developer<|message|># Instructions\n\nBe brief.<|end|>"
        "<|start|>user<|message|>What is 2 + 3?<|end|>"
        "<|start|>assistant<|channel|>final<|message|>2 + 3 = 5.<|end|>"
        "<|start|>user<|message|>What is 4 + 5?<|end|>"
        "<|start|>assistant<|channel|>final<|message|>4 + 5 = 9.<|end|>"
        "<|start|>user<|message|>What is 120 + 213?<|end|><|start|>assistant"
    ]


def test_without_a_template_examples_and_question_are_one_message_of_the_user(model, evaluate):
    evaluate("shots", num_fewshot=1, apply_chat_template=False, fewshot_as_multiturn=False, limit=1)
    text = "What is 2 + 3? 2 + 3 = 5.\n\nWhat is 120 + 213?"
    assert model.prompts[0].endswith(f"<|end|><|start|>user<|message|>{text}<|end|><|start|>assistant")


def test_a_prefix_begins_the_answer_behind_the_reasoning(model, evaluate):
    result, answers = evaluate("prefixed")
    assert answers == [[f" {a + b}"] for a, b in SUMS]
    assert result["results"]["prefixed"]["exact_match,none"] == 1.0
    assert all(row["reasoning"] for row in logged(model))
    assert all(prompt.endswith("?<|end|><|start|>assistant") for prompt in model.prompts)


def test_a_prefix_of_code_is_taken_to_the_letter(model):
    prefix = 'Here:\n```python\ndef f(x: int) -> str:\n    """π & [a-b]."""\n'
    messages = [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": prefix}]
    context = model.apply_chat_template(messages, add_generation_prompt=False)
    (answer,) = model.generate_until([request(context, until=["\n```"], max_gen_toks=8)], disable_tqdm=True)
    (row,) = logged(model)
    assert row["answer"] == answer and row["reasoning"] and not prefix.startswith(answer or "-")


def request(context, repeats=1, **generation):
    return Instance("generate_until", {}, (context, generation), 0, metadata=("made", 0, repeats))


def test_stop_strings_do_not_end_reasoning(model, evaluate):
    _, answers = evaluate("whole", gen_kwargs={"until": ["+", "="]}, limit=3)
    assert answers == [[f"{a} "] for a, _ in SUMS[:3]]
    assert all("+" in row["reasoning"] for row in logged(model))


def test_a_short_limit_leaves_reasoning_whole(model, evaluate):
    _, answers = evaluate("whole", gen_kwargs={"max_gen_toks": 2}, limit=3)
    assert all(
        f"{a} + {b} = {a + b}."[: len(text)] == text != ""
        for (text,), (a, b) in zip(answers, SUMS, strict=False)
    )
    assert all(
        row["cut"] == "answer" and str(a + b) in row["reasoning"]
        for row, (a, b) in zip(logged(model), SUMS, strict=False)
    )


def test_samples_repeat_whatever_is_run_beside_them(model):
    contexts = [
        model.apply_chat_template([{"role": "user", "content": f"Say {number}."}]) for number in "abc"
    ]
    hot = {"do_sample": True, "temperature": 4.0, "max_gen_toks": 12}

    def drawn(*numbers):
        requests = [request(contexts[number], **hot) for number in numbers]
        return model.generate_until(requests, disable_tqdm=True)

    first = drawn(0, 0, 1, 2)
    assert len(set(first)) == 4
    assert drawn(2, 1, 0, 0) == [first[3], first[2], first[0], first[1]]
    assert drawn(0) == first[:1]


def test_a_run_that_ends_early_goes_on_from_the_cache(model, evaluate, tmp_path):
    cache = str(tmp_path / "cache")
    model.ends_after = 5
    with pytest.raises(KeyboardInterrupt):
        evaluate("whole", use_cache=cache)
    model.prompts.clear()
    model.ends_after = None
    _, answers = evaluate("whole", use_cache=cache)
    assert len(model.prompts) == len(SUMS) - 5
    assert answers == [[f"{a} + {b} = {a + b}."] for a, b in SUMS]
    model.prompts.clear()
    assert evaluate("whole", use_cache=cache)[1] == answers and not model.prompts


def test_a_cache_of_other_settings_is_refused(model, evaluate, tmp_path, monkeypatch):
    cache = str(tmp_path / "cache")
    evaluate("whole", use_cache=cache, limit=1)
    monkeypatch.setattr(model, "arguments", dataclasses.replace(model.arguments, effort="high"))
    with pytest.raises(
        RequestError, match="the file has answers with effort low, not high: give another one"
    ):
        evaluate("whole", use_cache=cache, limit=1)


def test_a_cache_of_another_model_is_refused(evaluate, manager, tmp_path):
    cache = str(tmp_path / "cache")
    others = simple_evaluate(
        model="dummy", tasks=["whole"], task_manager=manager, use_cache=cache, limit=1, bootstrap_iters=0
    )
    assert others["samples"]["whole"][0]["resps"] == [["lol"]]
    with pytest.raises(RequestError, match="the file has another model's answers"):
        evaluate("whole", use_cache=cache, limit=1)


def test_likelihoods_are_refused_in_one_line(evaluate):
    with pytest.raises(
        LikelihoodRefused, match=r"^choices: scored by the likelihood .* generative form"
    ) as refused:
        evaluate("choices")
    assert "\n" not in str(refused.value)


def test_a_prompt_that_does_not_fit_names_its_document_before_anything_runs(model):
    requests = [request("Hi"), request("What is 2 + 3? " * 200)]
    with pytest.raises(RequestError, match=r"^made, document 0: the prompt has \d+ tokens.*512"):
        model.generate_until(requests, disable_tqdm=True)
    assert not model.prompts


def test_arguments_without_effect_are_told_once(model, caplog):
    logger = logging.getLogger("lm_eval")
    logger.addHandler(caplog.handler)
    try:
        for _ in range(2):
            model.generate_until([request("Hi", num_beams=1, max_gen_toks=2)], disable_tqdm=True)
    finally:
        logger.removeHandler(caplog.handler)
    told = {
        id(record): record.getMessage() for record in caplog.records
    }.values()  # two handlers may have one
    assert [line for line in told if "num_beams" in line] == [
        "the generation argument num_beams has no effect on gptoss-jax"
    ]


def test_a_named_template_is_refused(model):
    with pytest.raises(
        RequestError, match="there is no chat template 'chatml': gptoss-jax has harmony alone"
    ):
        model.chat_template("chatml")


def test_the_example_runs(model, monkeypatch):
    monkeypatch.chdir(PROJECT)
    manager = TaskManager(include_path=str(PROJECT / "examples/lm_eval"), include_defaults=False)
    result = simple_evaluate(
        model=model, tasks=["sums"], task_manager=manager, apply_chat_template=True, bootstrap_iters=0
    )
    assert result["results"]["sums"]["exact_match,number"] == 1.0


def test_limits_and_temperatures_are_read_as_lm_eval_reads_them():
    """By `normalize_gen_kwargs`, which leaves it to the model what `do_sample: true` alone means."""
    temperatures = [{}, {"temperature": 0}, {"temperature": 0.6}, {"temperature": "0.0"}]
    samples = [{}, {"do_sample": False}, {"do_sample": True}]
    limits = [{}, {"max_gen_toks": 5}, {"max_new_tokens": 6, "max_tokens": 7}, {"max_completion_tokens": "8"}]
    untils = [{}, {"until": "x"}, {"until": ["x", "y"]}]
    for parts in itertools.product(temperatures, samples, limits, untils):
        given = {name: value for part in parts for name, value in part.items()}
        theirs, ours = normalize_gen_kwargs(given, 99), asked_by(given, 99)
        assert (ours.max_gen_toks, list(ours.until)) == (theirs["max_gen_toks"], theirs["until"])
        if not (given.get("do_sample") and "temperature" not in given):
            assert ours.sampling.temperature == float(theirs.get("temperature", 0)), given


def test_lm_eval_finds_the_class_by_the_projects_entry_point():
    (value,) = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"][
        "lm_eval.models"
    ].values()
    assert importlib.metadata.EntryPoint("gptoss-jax", value, "lm_eval.models").load() is GptOssLM
    assert get_model("gptoss-jax") is GptOssLM and get_model("dummy")


# The command line


def command(folder, *arguments):
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "gptoss_jax.lm_eval",
            "run",
            "--model",
            "gptoss-jax",
            "--include_path",
            folder,
            *arguments,
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_the_command_line_scores_two_tasks(folder, tmp_path):
    out = tmp_path / "out"
    done = command(
        folder,
        *("--model_args", "checkpoint=tiny,effort=low,max_length=512", "--batch_size", "16"),
        *("--tasks", "whole,prefixed", "--apply_chat_template", "--output_path", out, "--log_samples"),
        *("--limit", "8"),
    )
    assert done.returncode == 0, done.stderr
    for task in ("whole", "prefixed"):
        assert re.search(rf"^\|{task}\s*\|.*exact_match\s*\|↑\s*\|\s*1\|", done.stdout, re.MULTILINE), (
            done.stdout
        )
    assert "16 answers" in done.stderr
    (results,) = out.glob("*/results*.json")
    assert "Reasoning: low" in json.loads(results.read_text())["chat_template"]


@pytest.mark.slow
def test_the_command_line_refuses_in_one_line(folder):
    done = command(folder, "--model_args", "checkpoint=tiny,efort=low", "--tasks", "whole")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gptoss-jax: 'efort' is no argument of gptoss-jax") and last.endswith(
        "mean effort?"
    )
    assert "Traceback" not in done.stderr

"""The grader asks once for each rubric item, bears bad replies, and asks for no verdict twice."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gptoss_jax.evals.grader import PUBLISHED_MODEL, PUBLISHED_URL, TRIES, Grader, GraderModel
from gptoss_jax.evals.healthbench import Verdict
from gptoss_jax.evals.samplers import AskError
from gptoss_jax.evals.types import Answer, EvaluationError, GradingError
from gptoss_jax.evals.verdicts import VerdictFile
from tests.evals import harness_healthbench as oracle
from tests.evals import healthbench_cases as cases
from tests.evals.test_healthbench import HARNESS, evaluation_of, with_harness

SERVER = GraderModel("judge", "http://127.0.0.1:1/v1")


def grader_of(
    reply: Callable[[str], str], model: GraderModel = SERVER, **options: Any
) -> tuple[Grader, list[Any]]:
    """A grader whose model replies to prompts by a function; and the bodies that it was asked."""
    bodies: list[Any] = []

    def ask(body: Any) -> Answer:
        bodies.append(body)
        return Answer(reply(body["messages"][-1]["content"]), "", "stop", {})

    return Grader(model, lambda: contextlib.nullcontext(ask), **options), bodies


def in_turn(*replies: str | Exception) -> Callable[[str], str]:
    """Gives one reply after the other."""
    left: Iterator[str | Exception] = iter(replies)

    def reply(prompt: str) -> str:
        following = next(left)
        if isinstance(following, Exception):
            raise following
        return following

    return reply


def test_a_reply_that_is_no_verdict_is_asked_for_again() -> None:
    bad = ["", "Yes.", '{"criteria_met": "true"}', '```\n{"criteria_met": true}\n```', '{"criteria_met": 1}']
    good = '```json\n{"explanation": "It says 112.", "criteria_met": true}\n```'
    grader, bodies = grader_of(in_turn(*bad, good))
    with grader:
        assert grader.verdicts("p/0", ["prompt"]) == [Verdict(True, "It says 112.")]
    assert len(bodies) == 6


def test_bad_replies_end_and_are_an_error_that_shows_the_last() -> None:
    grader, bodies = grader_of(lambda prompt: "I cannot\nsay that.")
    with grader:
        (error,) = grader.verdicts("p/0", ["prompt"])
    assert len(bodies) == TRIES
    assert isinstance(error, GradingError)
    assert str(error) == f'none of {TRIES} replies was a verdict; the last was "I cannot\\nsay that."'


def test_an_item_that_gets_no_reply_does_not_take_the_others_with_it() -> None:
    def reply(prompt: str) -> str:
        if prompt == "second":
            raise AskError("http_500", "the server says 500: overloaded")
        return '{"criteria_met": false}'

    grader, _ = grader_of(reply)
    with grader:
        first, second, third = grader.verdicts("p/0", ["first", "second", "third"])
    assert first == third == Verdict(False, "")
    assert isinstance(second, GradingError) and str(second) == "the server says 500: overloaded"


def test_verdicts_belong_to_their_prompts_in_whatever_order_they_come() -> None:
    prompts = [f"prompt {number}" for number in range(8)]
    gates = {prompt: threading.Event() for prompt in prompts}
    gates[prompts[-1]].set()

    def reply(prompt: str) -> str:
        assert gates[prompt].wait(20)
        if prompt != prompts[0]:
            gates[prompts[prompts.index(prompt) - 1]].set()  # the one before replies after this one
        return json.dumps({"criteria_met": prompt in prompts[::3], "explanation": prompt})

    grader, _ = grader_of(reply, calls=8)
    with grader:
        assert grader.verdicts("p/0", prompts) == [Verdict(p in prompts[::3], p) for p in prompts]


def test_a_server_is_asked_as_the_harness_asks_it() -> None:
    grader, bodies = grader_of(lambda prompt: '{"criteria_met": true}')
    with grader:
        grader.verdicts("p/0", ["prompt"])
    assert bodies == [
        {
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": "prompt"},
            ],
            "temperature": 0.5,
            "max_tokens": 2048,
        }
    ]


def test_a_checkpoint_is_held_to_the_schema_and_draws_anew_when_asked_again() -> None:
    model = GraderModel("tiny", None, "f1")
    grader, bodies = grader_of(in_turn("{", '{"criteria_met": true}'), model)
    with grader:
        grader.verdicts("p/0", ["prompt"])
    schema = bodies[0]["response_format"]["json_schema"]["schema"]
    assert {name: field["type"] for name, field in schema["properties"].items()} == {
        "explanation": "string",
        "criteria_met": "boolean",
    }
    assert schema["required"] == ["explanation", "criteria_met"]
    assert bodies[0]["seed"] != bodies[1]["seed"]
    again, same = grader_of(lambda prompt: '{"criteria_met": true}', model)
    with again:
        again.verdicts("p/0", ["prompt"])
        again.verdicts("p/1", ["prompt"])
    assert same[0] == bodies[0]
    assert same[1]["seed"] != bodies[0]["seed"]


@pytest.mark.parametrize(
    ("model", "comparable"),
    [
        (GraderModel(PUBLISHED_MODEL, PUBLISHED_URL), True),
        (GraderModel(PUBLISHED_MODEL, "https://API.openai.com/v1/"), True),
        (GraderModel(PUBLISHED_MODEL, "http://api.openai.com/v1"), False),
        (GraderModel(PUBLISHED_MODEL, "https://api.openai.com.example.org/v1"), False),
        (GraderModel(PUBLISHED_MODEL, "http://127.0.0.1:8000/v1"), False),
        (GraderModel("gpt-4.1", PUBLISHED_URL), False),
        (GraderModel(PUBLISHED_MODEL, None, "f1"), False),
    ],
)
def test_only_the_published_grader_is_comparable(model: GraderModel, comparable: bool) -> None:
    assert model.comparable is comparable
    assert model.settings["comparable"] is comparable
    assert ("not comparable" in str(model)) is not comparable


def test_nothing_is_opened_before_a_verdict_is_wanted() -> None:
    opened = []

    @contextlib.contextmanager
    def connect() -> Iterator[Any]:
        opened.append("open")
        yield lambda body: Answer('{"criteria_met": true}', "", "stop", {})
        opened.append("closed")

    with Grader(SERVER, connect) as grader:
        assert opened == []
        grader.verdicts("p/0", ["a", "b", "c"])
        grader.verdicts("p/1", ["a", "b", "c"])
        assert opened == ["open"]
    assert opened == ["open", "closed"]


def test_verdicts_are_kept_and_not_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    replies = {
        "a": '{"criteria_met": true, "explanation": "\\ud800 é"}',
        "b": "bad",
        "c": '{"criteria_met": false}',
    }
    with VerdictFile(path, SERVER.settings) as kept:
        grader, bodies = grader_of(replies.__getitem__, kept=kept)
        with grader:
            before = grader.verdicts("p/0", ["a", "b", "c"])
        assert len(bodies) == 2 + TRIES
    with path.open("ab") as file:
        file.write(b'{"id": "p/0/2", "torn')  # killed in the middle of a line
    replies["b"] = '{"criteria_met": true}'
    for asked in (1, 0):
        with VerdictFile(path, SERVER.settings) as kept:
            grader, bodies = grader_of(replies.__getitem__, kept=kept)
            with grader:
                after = grader.verdicts("p/0", ["a", "b", "c"])
        assert len(bodies) == asked
        assert (after[0], after[2]) == (before[0], before[2])
        assert after[1] == Verdict(True, "")


def test_a_kept_verdict_counts_for_its_own_answer_only(tmp_path: Path) -> None:
    with VerdictFile(tmp_path / "verdicts.jsonl", SERVER.settings) as kept:
        grader, bodies = grader_of(lambda prompt: '{"criteria_met": true}', kept=kept)
        with grader:
            grader.verdicts("p/0", ["prompt"])
            grader.verdicts("p/0", ["prompt of another answer"])
            grader.verdicts("p/1", ["prompt"])  # another attempt with the same answer
            grader.verdicts("p/0", ["prompt"])
    assert len(bodies) == 3


def test_verdicts_of_another_grader_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    with VerdictFile(path, SERVER.settings) as kept:
        kept.add("p/0/1", "prompt", Verdict(True, ""))
    other = GraderModel("other", SERVER.url)
    with pytest.raises(EvaluationError, match='was made with "model" "judge"'):
        VerdictFile(path, other.settings)
    with VerdictFile(path, other.settings, overwrite=True) as kept:
        assert kept.find("p/0/1", "prompt") is None
    with VerdictFile(path, SERVER.settings) as kept:
        assert kept.find("p/0/1", "prompt") is not None  # a run that added nothing has changed nothing
    with VerdictFile(path, other.settings, overwrite=True) as kept:
        kept.add("p/0/1", "prompt", Verdict(False, ""))
    with VerdictFile(path, other.settings) as kept:
        assert kept.find("p/0/1", "prompt") == Verdict(False, "")


@pytest.mark.parametrize("line", [b"{}", b"[]", b'{"line": 1, "criteria_met": "true"}', b"\xff"])
def test_a_file_of_something_else_is_refused_in_one_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "verdicts.jsonl"
    with VerdictFile(path, SERVER.settings) as kept:
        kept.add("p/0/1", "prompt", Verdict(True, ""))
    path.write_bytes(line + b"\n")
    with pytest.raises(EvaluationError) as caught:
        VerdictFile(path, SERVER.settings)
    assert "\n" not in str(caught.value) and "overwrite" in str(caught.value)


@with_harness
def test_the_running_harness_and_a_fickle_grader_end_with_the_same_grades(tmp_path: Path) -> None:
    """Each prompt gets some bad replies first. Both ask again, and as often."""
    harness = oracle.load(Path(HARNESS))
    bad = ["", "not json", '{"criteria_met": "true"}', "[]", "{}", '{"criteria_met": true, "expl', "```"]

    def fickle() -> tuple[Callable[[str], str], Counter[str]]:
        asked: Counter[str] = Counter()

        def reply(prompt: str) -> str:
            asked[prompt] += 1
            if asked[prompt] <= int(oracle.digest(prompt)[1], 16) % (TRIES - 1):
                return bad[int(oracle.digest(prompt)[2], 16) % len(bad)]
            return f"```json\n{oracle.reply(prompt)}\n```"

        return reply, asked

    examples = cases.examples(60, seed=9)
    for example in examples:  # each prompt once, as its number of bad replies belongs to it
        for number, item in enumerate(example["rubrics"]):
            item["criterion"] += f" {number}"
    our_reply, we_asked = fickle()
    grader, _ = grader_of(our_reply)
    evaluation = evaluation_of(tmp_path, examples, grader)
    reply, asked = fickle()
    for example, attempt in zip(examples, evaluation.attempts(1), strict=True):
        theirs = oracle.graded(harness, example, "Rest.", reply)
        grade = evaluation.grade(attempt, "Rest.")
        assert grade.details["metrics"] == theirs["metrics"]
        assert grade.details["rubric_items"] == theirs["items"]
    assert we_asked == asked

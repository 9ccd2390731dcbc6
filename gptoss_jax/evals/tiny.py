"""`gptoss-jax eval tiny`: scores the tiny model on held-out requests of the kinds it was trained on.

Decoding is greedy. Requests take the same way as a user's: `harmony` renders the prompt, the engine
generates, and `harmony` parses the completion.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp

from checkpoints import Checkpoint, open_checkpoint
from gptoss_jax.engine import Engine, Request, SamplingParams
from gptoss_jax.model.loading import load
from gptoss_jax.tiny import dialogues, sums, tools
from gptoss_jax.tiny.splits import Split
from gptoss_jax.vocabulary import load_encoding_for
from harmony import Conversation, HarmonyEncoding, Message, Role, parse_completion

SEED = 2024
SLOTS = 32
MAX_TOKENS = 320
MAX_LENGTH = 768


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One parsed completion.

    well_formed: True if it is flawless harmony of the expected form.
    messages: its messages.
    reasoning_tokens: content tokens of its analysis messages.
    """

    well_formed: bool
    messages: list[Message]
    reasoning_tokens: int

    @property
    def last(self) -> Message | None:
        """The answer or the call."""
        return self.messages[-1] if self.messages else None

    @property
    def answer(self) -> str:
        """The text of the `final` message, empty without one."""
        return text_of(self.last) if self.last is not None and self.last.channel == "final" else ""


@dataclasses.dataclass(frozen=True)
class Question:
    """One held-out request.

    effort: the reasoning effort.
    prompt: the messages of the prompt.
    calls: True if the right answer is a call.
    is_right: True for an outcome with the right answer.
    """

    effort: str
    prompt: list[Message]
    calls: bool
    is_right: Callable[[Outcome], bool]


def text_of(message: Message) -> str:
    """The text of a message of the model."""
    return "".join(getattr(part, "text", "") for part in message.content)


def answers(problem: sums.Sum, outcome: Outcome) -> bool:
    """True if the final answer is exactly the sum and its result."""
    return outcome.answer == problem.answer


def calls_rightly(use: tools.Use, outcome: Outcome) -> bool:
    """True if the last message is the right call: the function's name and every argument."""
    message = outcome.last
    if message is None or message.recipient != f"functions.{use.tool.name}":
        return False
    try:
        return bool(json.loads(text_of(message)) == use.arguments)
    except ValueError:
        return False


def quotes_result(use: tools.Use, outcome: Outcome) -> bool:
    """Does the final answer hold every value of the function's result, each as a word of its own?"""
    return all(
        re.search(rf"(?<![\w-]){re.escape(str(value))}(?!\w)", outcome.answer) is not None
        for value in use.result.values()
    )


def sum_questions(rng: random.Random, count: int) -> list[Question]:
    """Held-out sums, efforts in turn."""
    questions = []
    for index in range(count):
        effort = dialogues.EFFORTS[index % len(dialogues.EFFORTS)]
        problem = sums.draw(rng, Split.HELD_OUT)
        prompt = dialogues.sum_prompt(rng, effort, problem)
        questions.append(Question(effort, prompt, False, functools.partial(answers, problem)))
    return questions


def _draw_use(rng: random.Random, effort: str) -> tuple[dialogues.Setting, tools.Use]:
    while True:
        setting = dialogues.draw_setting(rng, effort, rng.randint(1, 3))
        use = tools.draw_use(rng, rng.choice(setting.offered), Split.HELD_OUT)
        if use is not None:
            return setting, use


def call_questions(rng: random.Random, count: int) -> list[Question]:
    """Requests for one of one to three functions; the call that is due is held out."""
    questions = []
    for index in range(count):
        setting, use = _draw_use(rng, dialogues.EFFORTS[index % len(dialogues.EFFORTS)])
        turn = dialogues.call_turn(use, setting.effort)
        questions.append(
            Question(
                setting.effort,
                [*setting.messages, *turn.given],
                True,
                functools.partial(calls_rightly, use),
            )
        )
    return questions


def answer_questions(rng: random.Random, count: int) -> list[Question]:
    """Transcripts that end in a function's result; the call before it is held out."""
    questions = []
    for index in range(count):
        setting, use = _draw_use(rng, dialogues.EFFORTS[index % len(dialogues.EFFORTS)])
        asked, answered = dialogues.call_turn(use, setting.effort), dialogues.answer_turn(use, setting.effort)
        questions.append(
            Question(
                setting.effort,
                [*setting.messages, *asked.given, *asked.completion, *answered.given],
                False,
                functools.partial(quotes_result, use),
            )
        )
    return questions


def outcome_of(encoding: HarmonyEncoding, tokens: list[int], calls: bool) -> Outcome:
    """Parse a completion.

    It is well formed if nothing had to be recovered, and reasoning, if any, is followed by exactly one
    message: a call in `commentary` if `calls`, else an answer in `final`.
    """
    parsed = parse_completion(encoding, tokens, Role.ASSISTANT)
    messages = parsed.messages
    reasoning = [m for m in messages if m.channel == "analysis" and m.recipient is None]
    rest = [m for m in messages if m not in reasoning]
    shape = len(reasoning) <= 1 and messages == [*reasoning, *rest] and len(rest) == 1
    if shape and calls:
        shape = rest[0].channel == "commentary" and (rest[0].recipient or "").startswith("functions.")
    elif shape:
        shape = rest[0].channel == "final" and rest[0].recipient is None
    length = sum(len(encoding.encode_ordinary(text_of(m))) for m in reasoning)
    return Outcome(shape and parsed.complete and not parsed.diagnostics, messages, length)


def answer_all(
    engine: Engine, encoding: HarmonyEncoding, questions: list[Question]
) -> list[tuple[Question, Outcome]]:
    """Ask the model every question, greedily."""
    sampling = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    requests = [
        Request(
            str(index),
            encoding.render_conversation_for_completion(Conversation.from_messages(q.prompt), Role.ASSISTANT),
            sampling,
        )
        for index, q in enumerate(questions)
    ]
    found = []
    for completion in engine.run(requests):
        question = questions[int(completion.id)]
        found.append((int(completion.id), outcome_of(encoding, completion.tokens, question.calls)))
    return [(questions[index], outcome) for index, outcome in sorted(found, key=lambda pair: pair[0])]


@dataclasses.dataclass(frozen=True)
class Score:
    """One line of the table: a value in `unit`, the target to reach, and the number of requests."""

    name: str
    value: float
    target: float
    requests: int
    unit: str = "%"


def evaluate(checkpoint: Checkpoint | Path | str, count: int = 500) -> list[Score]:
    """Evaluates a checkpoint on `count` held-out requests of each kind.

    Raises:
        checkpoints.CheckpointError: the checkpoint is missing or broken.
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint)
    encoding = load_encoding_for(checkpoint)
    stop_tokens = encoding.stop_tokens_for_assistant_actions()
    rng = random.Random(SEED)
    kinds = [draw(rng, count) for draw in (sum_questions, call_questions, answer_questions)]
    with Engine(load(checkpoint, jnp.float32), stop_tokens, slots=SLOTS, max_length=MAX_LENGTH) as engine:
        results = [answer_all(engine, encoding, questions) for questions in kinds]
    return scores(results)


def scores(results: list[list[tuple[Question, Outcome]]]) -> list[Score]:
    """The scores, from the results of sums, calls and answers in this order."""
    arithmetic, calls, answers = results
    everything = [outcome for kind in results for _, outcome in kind]

    def right(kind: list[tuple[Question, Outcome]]) -> float:
        return 100 * sum(question.is_right(outcome) for question, outcome in kind) / len(kind)

    def mean_reasoning(effort: str) -> float:
        lengths = [o.reasoning_tokens for q, o in [*arithmetic, *calls] if q.effort == effort]
        return sum(lengths) / max(1, len(lengths))

    ratio = mean_reasoning("high") / max(1.0, mean_reasoning("low"))
    well_formed = 100 * sum(outcome.well_formed for outcome in everything) / len(everything)
    return [
        Score("well-formed harmony", well_formed, 99, len(everything)),
        Score("arithmetic exact", right(arithmetic), 95, len(arithmetic)),
        Score("function name and arguments exact", right(calls), 90, len(calls)),
        Score("answer quotes the result", right(answers), 95, len(answers)),
        Score("reasoning, high effort over low", ratio, 2, len(arithmetic) + len(calls), "x"),
    ]


def table(lines: list[Score]) -> str:
    """The scores as text: a heading, then one line for each."""
    rows = [f"{'held-out requests, greedy':<36}{'score':>8}{'target':>10}{'requests':>10}"]
    for line in lines:
        target = f">= {line.target:g}{line.unit}"
        rows.append(f"{line.name:<36}{f'{line.value:.1f}{line.unit}':>8}{target:>10}{line.requests:>10}")
    return "\n".join(rows)


def run(checkpoint: Path | str, count: int = 500) -> str:
    """The table that `gptoss-jax eval tiny` prints."""
    return table(evaluate(checkpoint, count))

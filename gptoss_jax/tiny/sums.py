"""Additions and subtractions in many phrasings, each with a worked chain of thought for every effort."""

from __future__ import annotations

import dataclasses
import random

from gptoss_jax.tiny import words
from gptoss_jax.tiny.splits import Split, split_of

ADDITIONS = [
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "What's {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} = ?",
    "{a}+{b}=?",
    "Compute {a} + {b}.",
    "Calculate {a} plus {b}.",
    "Please add {a} and {b}.",
    "Add {b} to {a}.",
    "How much is {a} plus {b}?",
    "What is the sum of {a} and {b}?",
    "Can you tell me what {a} plus {b} is?",
    "Work out {a} + {b}",
    "Hi! What is {a} + {b}?",
    "Find the total of {a} and {b}.",
    "Sum {a} and {b}",
    "{person} has {a} {objects} and gets {b} more. How many {objects} does {person} have now?",
    "I have {a} {objects} and buy {b} more. How many {objects} do I have?",
    "There are {a} {objects} in one box and {b} in another. How many {objects} in total?",
]
SUBTRACTIONS = [
    "What is {a} - {b}?",
    "What is {a} minus {b}?",
    "What's {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "{a} - {b} = ?",
    "{a}-{b}=?",
    "Compute {a} - {b}.",
    "Calculate {a} minus {b}.",
    "Subtract {b} from {a}.",
    "Please take {b} away from {a}.",
    "How much is {a} minus {b}?",
    "Can you tell me what {a} minus {b} is?",
    "Work out {a} - {b}",
    "Hi! What is {a} - {b}?",
    "Take {b} from {a}",
]
SUBTRACTIONS_THAT_LEAVE_SOMETHING = [
    "What is the difference between {a} and {b}?",
    "{person} has {a} {objects} and gives away {b}. How many {objects} does {person} have left?",
    "I had {a} {objects} and lost {b}. How many {objects} are left?",
]


@dataclasses.dataclass(frozen=True)
class Sum:
    """`a` `operator` `b`, with `operator` one of `+` and `-` and operands of at most three digits."""

    a: int
    operator: str
    b: int

    @property
    def result(self) -> int:
        """The result of the sum."""
        return self.a + self.b if self.operator == "+" else self.a - self.b

    @property
    def answer(self) -> str:
        """The text of the `final` message."""
        return f"{self.a} {self.operator} {self.b} = {self.result}."


@dataclasses.dataclass(frozen=True)
class Column:
    """One step of the written method: digits `p` and `q`, what came in, the digit written, what goes on."""

    p: int
    q: int
    incoming: int
    digit: int
    outgoing: int


def columns(a: int, operator: str, b: int) -> list[Column]:
    """The columns of the written method, ones first; if the last borrows, the result is negative."""
    steps = []
    carry = 0
    for p, q in zip(reversed(f"{a:03d}"), reversed(f"{b:03d}"), strict=True):
        value = int(p) + int(q) + carry if operator == "+" else int(p) - int(q) - carry
        outgoing = int(value > 9 or value < 0)
        steps.append(Column(int(p), int(q), carry, value % 10, outgoing))
        carry = outgoing
    return steps


def _low(a: int, operator: str, b: int) -> str:
    return (
        f"{a:03d}{operator}{b:03d}: "
        + ",".join(f"{c.outgoing}{c.digit}" for c in columns(a, operator, b))
        + "."
    )


def _medium(a: int, operator: str, b: int) -> str:
    carry = "carry" if operator == "+" else "borrow"
    text = f"{a:03d} {operator} {b:03d}."
    for c in columns(a, operator, b):
        incoming = f"{operator}{c.incoming}" if c.incoming else ""
        text += f" {c.p}{operator}{c.q}{incoming}: {c.digit}, {carry} {c.outgoing}."
    return text


def _high(a: int, operator: str, b: int) -> str:
    carry = "carry" if operator == "+" else "borrow"
    text = f"{a:03d} {operator} {b:03d}."
    for name, c in zip(("Ones", "Tens", "Hundreds"), columns(a, operator, b), strict=True):
        text += (
            f" {name}: {c.p} {operator} {c.q} {operator} {c.incoming}, write {c.digit}, {carry} {c.outgoing}."
        )
    return text


def worked(problem: Sum, effort: str) -> str:
    """The digit-by-digit work on a sum, from the padded operands to the result.

    If a borrow is left over at the end of a difference, the result is negative: it is worked again with the
    operands exchanged.
    """
    write = {"low": _low, "medium": _medium, "high": _high}[effort]
    text = write(problem.a, problem.operator, problem.b)
    if problem.result < 0:
        text += {"low": " <0 ", "medium": " Negative, so ", "high": " A borrow is left, so negative: "}[
            effort
        ]
        text += write(problem.b, problem.operator, problem.a)
    ending = {"low": " {}", "medium": " So {}.", "high": " The answer is {}."}[effort]
    return text + ending.format(problem.result)


def reasoning(problem: Sum, effort: str) -> str:
    """The chain of thought: about 20, 55 and 100 tokens at low, medium and high effort."""
    work = worked(problem, effort)
    if effort != "high":
        return work
    return f"The user wants {problem.a} {problem.operator} {problem.b}. Align the digits: {work}"


def draw(rng: random.Random, split: Split) -> Sum:
    """Draws a sum of one split. Small operands and negative results are more frequent than by chance."""
    while True:
        small = rng.random() < 0.2
        a, b = (rng.randint(0, 19), rng.randint(0, 19)) if small else (words.number(rng), words.number(rng))
        operator = rng.choice("+-")
        if operator == "-" and a < b and rng.random() < 0.5:
            a, b = b, a
        if split_of(f"{a}{operator}{b}") is split:
            return Sum(a, operator, b)


def question(rng: random.Random, problem: Sum) -> str:
    """One of about 40 ways to ask for a sum."""
    if problem.operator == "+":
        forms = ADDITIONS
    elif problem.result < 0:
        forms = SUBTRACTIONS
    else:
        forms = SUBTRACTIONS + SUBTRACTIONS_THAT_LEAVE_SOMETHING
    text = rng.choice(forms).format(
        a=problem.a, b=problem.b, person=rng.choice(words.PEOPLE), objects=rng.choice(words.OBJECTS)
    )
    return text.lower() if rng.random() < 0.1 else text

"""Answers to grade, and data to make prompts of: the same in every run, and nothing of them published."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

COUNT = 2_000

WRITTEN = [
    *("", " ", "\n", "\0", "A", "a", "b.", "C)", "(D)", "[A]", "**B**", "__C__", "*D*", "_A_", "**A", "A**"),
    *("**Answer:** B", "**Answer: B**", "*Answer* – C", "__Answers__: D", "**Answer**: A", "**answer**\nb"),
    *(
        "Answer: (C)",
        "Answers – D",
        "ANSWER - a",
        "Answer:\n\nB",
        "answer is B",
        "Answer is (B)",
        "Anſwer: B",
    ),
    *(
        "Option B",
        "Choice: C",
        "option  d",
        "Options B",
        "Choice:\tA",
        "Option Because",
        "The option A is wrong",
    ),
    *(
        "\\boxed{A}",
        "\\boxed{\\text{A}}",
        "\\boxed{\\textbf{(C)}}",
        "\\boxed{ }",
        "\\boxed{b}",
        "\\boxed{A",
        "boxed{A}",
    ),
    *(
        "$\\boxed{\\text{A } 2.08\\times10^{-6}\\,\\mathrm{m}}$",
        "\\textbf{C}",
        "\\textbf{c} \\textbf{Because}",
    ),
    *(
        "\\boxed{\\mathrm{B}} or \\boxed{C}",
        "\\boxed{42} so (B)",
        "\\boxed{x}\n\nA",
        "\\boxed{{A}}",
        "\\boxed{\nD\n}",
    ),
    "Because the field is weak, none of these",
    "According to the table, the answer can not be given.",
    "The correct option is **C) 3.2 eV**.",
    "**D) because _it_ is so**",
    "I would choose (B), not (A).",
    "The answer is not A. Answer: D",
    "Answer: A or B",
    "Answer: none of these",
    "**Final answer**\n\nC",
    "Final Answer: \\(\\boxed{D}\\)",
    "The final answer is $\\boxed{B}$. I hope it is correct.",
    "A. first\nB. second\nC. third\nD. fourth\n\nAnswer: C",
    "> Answer: B",
    "### Answer\nB",
    "- **B** is right",
    "1. A is wrong\n2. B is right",
    "Antwort: B",
    "答案：B",
    "正确答案是 (C)。",
    "الجواب: د",
    "Ответ: А",  # a Cyrillic letter
    "Answer: Ａ",  # a wide letter
    "\ufeffA",
    "\u200bA",
    "A\r\n",
    "\r\nAnswer: B\r\n",
    "Answer:\u00a0B",
    "Answer:\u2028B",
    "\x85B",
    "\x1cC",
    "{'answer': 'B'}",
    '{"answer": "B"}',
    "```\nB\n```",
    "<answer>B</answer>",
    "<b>B</b>",
    "B" * 300,
    "\ud800",
    "The answer is \ud83d\ude00 B",
    *(
        "\\boxed{42}",
        "\\boxed{042}",
        "\\boxed{ 42 }",
        "\\boxed{42.}",
        "\\boxed{42.0}",
        "\\boxed{-42}",
        "\\boxed{+42}",
    ),
    *(
        "\\boxed{1,234}",
        "\\boxed{1{,}234}",
        "\\boxed{12, 34}",
        "\\boxed{3,}",
        "\\boxed{,}",
        "\\boxed{4_2}",
        "\\boxed{٤٢}",
    ),
    *(
        "\\boxed{\\text{42}}",
        "\\boxed{42^\\circ}",
        "\\boxed{336^{\\circ}}",
        "\\boxed{m+n=42}",
        "\\boxed{x = 42}",
        "42°",
    ),
    *(
        "\\boxed{\\frac{1}{2}}",
        "\\boxed{\\frac{84}{2}=42}",
        "\\framebox{42}",
        "framebox{7} boxed{8}",
        "\\fbox{42}",
    ),
    *(
        "boxed{42}",
        "\\boxed 42",
        "\\boxed{42",
        "\\boxed42}",
        "\\boxed{}",
        "\\boxed{} 42",
        "\\boxed{}\\boxed{5}\\boxed{}",
    ),
    *(
        "\\boxed{12} then \\boxed{34}",
        "\\boxed{34}\\boxed{}",
        "\\boxed{boxed{3}}",
        "\\boxed{{42}}",
        "\\boxed{4\n2}",
    ),
    *(
        "\\[\\boxed{42}\\]",
        "\\(\\boxed{\\;42\\;}\\)",
        "$$\\boxed{42}$$",
        "\\boxed{$42$}",
        "\\boxed{\\mathbf{42}}",
    ),
    *(
        "42",
        "The answer is 42.",
        "It is 1,234.",
        "Between 3 and 7",
        "x2 = 49",
        "١٢٣",
        "𝟜𝟚",
        "²",
        "½",
        "1e3",
        "0x10",
        "-5",
    ),
    *(
        "4" * 400,
        "9" * 4300,
        "9" * 4301,
        "\\boxed{" + "9" * 4301 + "}",
        "0" * 5000,
        "\\boxed{1" + "0" * 4299 + "}",
    ),
    *(
        "1\x002",
        "\\boxed{4\x002}",
        "\\boxed{\x1c7\x1c}",
        "\\boxed{\u20287}",
        "\\boxed{7\u200b}",
        "\\boxed{\u00a07\u00a0}",
    ),
    "I cannot solve this problem.",
    "Thus $m+n = 25+17 = \\boxed{42}$.",
    "\\boxed{42} is what I get at first, but it must be \\boxed{43}.",
    "**Answer: 42**",
    "So the answer is \\boxed{\\text{the number } 42}.",
    # What takes the harness longer than its length.
    *(
        "\n" * 1500,
        " \n" * 700,
        "Answer" + "\n" * 900 + "x",
        "\\boxed{" * 60,
        "\\boxed{A" * 25,
        "\\boxed{" * 60 + "}",
    ),
    *(
        "**Answer" + " " * 800,
        "(" * 500,
        "( " * 300,
        "**" * 300,
        "_ " * 300,
        "boxed{" * 300,
        "\\textbf{B" * 40,
    ),
]
"""What models, or people who wish to break a grader, write."""

_PIECES = [
    *(
        "A",
        "B",
        "C",
        "D",
        "a",
        "d",
        "E",
        "Because",
        "Answer",
        "answer",
        "ANSWERS",
        "Option",
        "choice",
        "The answer is",
    ),
    *(
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\r\n",
        "\x0b",
        "\u2028",
        "\xa0",
        "\0",
        "*",
        "**",
        "_",
        "__",
        ":",
        "-",
        "–",
        ".",
    ),
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "\\boxed{",
        "boxed{",
        "framebox{",
        "\\framebox{",
        "\\textbf{",
        "\\text{",
        "\\",
        "$",
    ),
    *("12", "7", "1,234", "042", "٣", "²", "_1", "+", "-3", ",", "^\\circ", "é", "🙂", "x", "is", "=", "not"),
]


def answers() -> list[str]:
    """All answers: those written above, and more that are put together at random."""
    rng = random.Random(12)
    made = list(WRITTEN)
    while len(made) < COUNT:
        pool = [rng.choice(_PIECES) for _ in range(rng.randrange(2, 14))] if rng.random() < 0.7 else _PIECES
        made.append("".join(rng.choice(pool) for _ in range(rng.choice((2, 3, 4, 6, 9, 14, 25)))))
    return made


_WORDS = [
    *(
        "mass",
        "{x}",
        "{0}",
        "%s",
        "\n",
        "\r\n",
        '"quoted"',
        ",",
        "  ",
        "é",
        "λ → μ",
        "$\\frac{a}{b}$",
        "10",
        "NA",
        "1.50",
    ),
    *("\t", "\u2028", "'", ";", "(A)", "nan", "\\n"),
]
_ODD_CELLS = (
    "NA",
    "None",
    "nan",
    "",
    "10",
    "007",
    "1e3",
    "True",
    "  x",
    "n/a",
    "NULL",
    "<NA>",
    "-",
    "0.50",
    "inf",
)


def write_data(folder: Path) -> None:
    """Writes made files of the published formats: AIME's two, and GPQA's with 198 rows."""
    rng = random.Random(5)

    def text() -> str:
        words = (rng.choice(_WORDS) + rng.choice((" ", "")) for _ in range(rng.randrange(1, 13)))
        return "".join(words)

    with open(folder / "gpqa_diamond.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\r\n")
        wrong = [f"Incorrect Answer {number}" for number in (1, 2, 3)]
        rows.writerow(["Pre-Revision Question", "Question", "Correct Answer", *wrong, "Record ID"])
        for number in range(198):
            choices = [text() for _ in range(4)]
            if number % 9 == 0:
                choices[rng.randrange(4)] = rng.choice(_ODD_CELLS)
            if number % 31 == 0:
                choices[1] = choices[0]
            rows.writerow([text(), f"{text()}{number}", *choices, f"rec{number:04}"])
    for part in ("I", "II"):
        with open(folder / f"aime2025-{part}.jsonl", "w", encoding="utf-8") as file:
            for number in range(15):
                value = rng.randrange(1000)
                forms: list[str | int] = [str(value), f"{value}^\\circ", value, f"{value:03}"]
                answer = str(value) if part == "I" else rng.choice(forms)
                file.write(json.dumps({"question": text(), "answer": answer}) + "\n" * (1 + (number == 3)))

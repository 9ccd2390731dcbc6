r"""The letter that an answer to a question with four choices declares: as the harness reads it, and strictly.

The harness tries thirteen patterns, one after the other, and takes the first match of the first that matches
anywhere. If none does, it takes the text's first character. The patterns here find the same letters. They run
in time linear in the text. Some of the harness' do not: from each of many places they search through the same
spaces, or for a brace that is not there. A model that repeats itself until it is cut writes such texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gptoss_jax.evals.boxes import balanced_boxes, bare

_Reader = Callable[[str], str | None]

_MARK = r"(?:\*{1,2}|_{1,2})"
_LINE = r"^[^\S\n]*"
"""The beginning of a line and its spaces. Empty lines before it do not change which letter is found."""
_COLON = r"(?:\s*[:\-–])?\s*"
_ALONE, _ALONE_AFTER = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"


def _pattern(expression: str, flags: re.RegexFlag = re.NOFLAG) -> _Reader:
    """Reads the letter of an expression's first match; its only group is the letter."""
    compiled = re.compile(expression, flags)

    def read(text: str) -> str | None:
        found = compiled.search(text)
        return None if found is None else found[1].upper()

    return read


def _braces(opening: str) -> _Reader:
    """Reads the first capital letter between an opening and the next closing brace."""

    def read(text: str) -> str | None:
        start = text.find(opening)
        while start >= 0:
            start += len(opening)
            end = text.find("}", start)
            if end < 0:
                return None
            if letter := _LETTER.search(text, start, end):
                return letter[0]
            start = text.find(opening, end)  # an opening in between has the same end, and no letter either
        return None

    return read


_LETTER = re.compile("[ABCD]")


_READERS: tuple[_Reader, ...] = (
    # **Answer:** A
    _pattern(rf"{_MARK}Answers?(?:\s*[:\-–]|\s*){_MARK}\s*([ABCD])\b", re.IGNORECASE),
    # A line that begins with "Answer: A" or "**Answer: A**"
    _pattern(rf"{_LINE}{_MARK}?Answer:?{_MARK}?(?:\s*:)?\s*{_MARK}?([ABCD])", re.IGNORECASE | re.MULTILINE),
    # Answer: (A)
    _pattern(rf"\bAnswers?\b{_COLON}\(\s*([ABCD])\s*\)", re.IGNORECASE),
    # Answer: A
    _pattern(rf"\bAnswers?\b{_COLON}([ABCD])\b", re.IGNORECASE),
    # Option A, Choice: A
    _pattern(rf"\b(?:Option|Choice)\b{_COLON}([ABCD])\b", re.IGNORECASE),
    # \boxed{… A …}; two more of the harness' patterns need such a box too, so they never come to decide
    _braces("\\boxed{"),
    # (A), [A], also (A]
    _pattern(rf"{_ALONE}[(\[]\s*([ABCD])\s*[)\]]{_ALONE_AFTER}"),
    # **A**
    _pattern(rf"{_ALONE}{_MARK}([ABCD]){_MARK}{_ALONE_AFTER}"),
    _braces("\\textbf{"),
    # **A) and why**
    _pattern(rf"{_ALONE}{_MARK}\s*([ABCD])\)[^*_\n]+{_MARK}{_ALONE_AFTER}"),
    # A line that begins with a capital A to D, be it that of a word
    _pattern(rf"{_LINE}{_MARK}?([ABCD])", re.MULTILINE),
)


def harness_letter(text: str) -> str:
    """What the harness reads from an answer: a letter from A to D, or else the first character; "" of ""."""
    for read in _READERS:
        if letter := read(text):
            return letter
    return text.removeprefix("**")[:1]


# The strict grader

_MARKUP = re.compile(r"[*_`#]+")
_IN_BOX = re.compile(r"\(?([ABCD])\)?[.)]?")
_STATED = re.compile(
    r"\b(?:answer|option|choice)s?\b\s{0,9}(?::|=|is\b|would be\b|-|–|—)\s{0,9}:?\s{0,9}"
    r"(?:(?:option|choice|letter)\s{1,9})?[(\[]?([ABCD])[)\]]?(?![\w'’])"
    r"(?=\s{0,9}(?:$|[\n.,:;!()\[\]–—-]|(?:because|since|as|with|which)\b))",
    re.IGNORECASE,
)
_ANOTHER = re.compile(r"\s{0,9}(?:,|/|&|or\b|and\b)\s{0,9}[(\[]?[ABCD]\b")
_DOUBTED = re.compile(r"(?:\b(?:not|never|if|whether|unless|cannot)\b|n['’]t\b)[^.,;:\n]*$", re.IGNORECASE)
_ALONE_ON_LINE = re.compile(r"[(\[]?([ABCD])[)\]]?[.)]?")
_WITH_CHOICE = re.compile(r"(?:[(\[]([ABCD])[)\]]|([ABCD])[.):])\s[^\n]*")
_BEFORE = 80
"""Characters before a statement in which a word can put it in doubt."""


def strict_letter(text: str) -> str | None:
    r"""The letter that an answer declares; None if it declares none, or several.

    These declare one: a box that holds just the letter, as in `\boxed{\text{(A)}}`; a statement, as in "the
    answer is A" or "Answer: (A)", unless it is denied or names another letter beside it; a last line that is
    just the letter; and a text of one line that begins with it, as in "(A) 3 eV". A capital letter alone
    counts, and all markup of Markdown is passed over.
    """
    letters = set(_declared(text))
    return letters.pop() if len(letters) == 1 else None


def _declared(text: str) -> Iterator[str]:
    for box in balanced_boxes(text):
        if found := _IN_BOX.fullmatch(bare(box)):
            yield found[1]
    plain = _MARKUP.sub("", text).strip()
    for found in _STATED.finditer(plain):
        before = plain[max(0, found.start() - _BEFORE) : found.start()]
        if found[1].isupper() and not _DOUBTED.search(before):
            yield found[1]
            if another := _ANOTHER.match(plain, found.end()):
                yield another[0][-1]
    lines = plain.splitlines()
    if lines and (found := _ALONE_ON_LINE.fullmatch(lines[-1].strip())):
        yield found[1]
    if len(lines) == 1 and (found := _WITH_CHOICE.fullmatch(plain)):
        yield found[1] or found[2]

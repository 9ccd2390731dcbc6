r"""Splits text exactly as the pattern of `o200k_base` does, without `tiktoken` and in linear time.

The pattern (`vocabulary.PATTERN`) needs to know of a character only its kind: letter, mark, digit, space or
other. Only ASCII characters matter by themselves. So a text is first translated, character by character, to
Latin-1: an ASCII character stays, and any other is replaced by one that stands for its kind. A short
expression for Python's `re` then splits the translated text at the same places. Each of its alternatives is
one or two runs of characters. If an alternative fails after a run, one of the next takes that run, so each
character is looked at only a few times.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable

WHITE_SPACE = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space, which is the `\\s` of the pattern. Python's `\\s` also has U+001C to U+001F."""

_UPPER, _LOWER, _CASELESS, _MARK, _DIGIT, _SPACE, _OTHER = "Aaª¨0\t!"
_KIND_OF_CATEGORY = {
    "Lu": _UPPER,
    "Lt": _UPPER,
    "Ll": _LOWER,
    "Lm": _CASELESS,
    "Lo": _CASELESS,
    **dict.fromkeys(("Mc", "Me", "Mn"), _MARK),
    **dict.fromkeys(("Nd", "Nl", "No"), _DIGIT),
}
_PROPERTIES = {
    _UPPER: r"[\p{Lu}\p{Lt}]",
    _LOWER: r"\p{Ll}",
    _CASELESS: r"[\p{Lm}\p{Lo}]",
    _MARK: r"\p{M}",
    _DIGIT: r"\p{N}",
}

_SPACES = r" \t\n\v\f\r"
_NOT_IN_FRONT = r"\r\nA-Za-zª0-9"
_SUFFIX = "(?:'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL]))?"
_PIECE = re.compile(
    "|".join(
        [
            f"[^{_NOT_IN_FRONT}]?[A-Zª¨]*[a-zª¨]+{_SUFFIX}",
            f"[^{_NOT_IN_FRONT}]?[A-Zª¨]+[a-zª¨]*{_SUFFIX}",
            "[0-9]{1,3}",
            f" ?[^{_SPACES}A-Za-zª0-9]+[\r\n/]*",
            f"[{_SPACES}]*[\r\n]+",
            f"[{_SPACES}]+(?![^{_SPACES}])",
            f"[{_SPACES}]+",
        ]
    ).encode("latin-1")
)
_RUN = f"[A-Za-zª¨]{{%d}}|[^{_SPACES}A-Za-zª0-9]{{%d}}|[\r\n/]{{%d}}|[{_SPACES}]{{%d}}"


def pieces(text: str) -> list[bytes]:
    """The pieces of a text, in UTF-8: each is merged by itself. The text must have no lone surrogates."""
    if text.isascii():
        return _PIECE.findall(text.encode())
    return [text[piece.start() : piece.end()].encode() for piece in _PIECE.finditer(_stand_ins(text))]


def may_have_long_pieces(text: str, length: int) -> bool:
    """False if no piece of the text has more than `length` characters, which must be 8 at least.

    At least half of such a piece would be a run of one kind. Cut the text into windows of a quarter of
    `length`: one of them would lie inside of that run. So only runs that fill a window are looked for.
    """
    window = length // 4 - 1
    run = re.compile((_RUN % ((window,) * 4)).encode("latin-1"))
    kinds = _stand_ins(text)
    return any(run.match(kinds, start) for start in range(0, len(kinds) - window + 1, window))


def _stand_ins(text: str) -> bytes:
    return (text if text.isascii() else text.translate(_KINDS)).encode("latin-1")


class _Kinds(dict[int, str]):
    """Code point → the Latin-1 character that stands for it; filled in when a character first occurs."""

    _MAX_SIZE = 100_000

    def __missing__(self, code_point: int) -> str:
        if len(self) > self._MAX_SIZE:
            self.clear()
        character = chr(code_point)
        kind = self[code_point] = _kind(character)
        return kind


_KINDS = _Kinds()

_UNICODE_OF_TIKTOKEN = (16, 0, 0)
"""The Unicode version of the oldest `tiktoken` that this package accepts."""
_IS_NEWER = tuple(map(int, unicodedata.unidata_version.split("."))) > _UNICODE_OF_TIKTOKEN


def _kind(character: str) -> str:
    if character.isascii():
        return character
    if character == "ſ":  # the only other character that matches one of a suffix when case is ignored
        return "s"
    if character in WHITE_SPACE:
        return _SPACE
    category = unicodedata.category(character)
    if category == "Cn" or _IS_NEWER:
        return _kind_for_tiktoken(character)
    return _KIND_OF_CATEGORY.get(category, _OTHER)


def _kind_for_tiktoken(character: str) -> str:
    """The kind that `tiktoken` sees in a character, whose category may differ from this Python's."""
    for kind, matches in _tests_of_kinds().items():
        if matches(character):
            return kind
    return _OTHER


@functools.cache
def _tests_of_kinds() -> dict[str, Callable[[str], object]]:
    """Kind → a test whether a character is of it.

    `tiktoken` gives tokens only for what its pattern matches, so a pattern for one kind is a test.
    """
    import tiktoken

    single_bytes = {bytes([value]): value for value in range(256)}
    return {
        kind: tiktoken.Encoding(
            pattern, pat_str=pattern, mergeable_ranks=single_bytes, special_tokens={}
        ).encode_ordinary
        for kind, pattern in _PROPERTIES.items()
    }


# Where text can be cut
#
# The pattern never looks back, so the pieces after the end of a piece do not depend on the text before it.
# But the pieces before a cut may depend on what follows: spaces are one piece if nothing follows them, and
# not if a letter does. So text is cut only between two characters which show that a piece ends there, whether
# or not anything follows. The ranges of letters are those of scripts that Unicode completed long ago, because
# Unicode versions may disagree on newer ones.

_LETTERS = "A-Za-zÀ-ÖØ-öø-ʯΑ-ΡΣ-ϵЀ-ҁҊ-ԯא-תؠ-يऄ-हก-ะა-ჺぁ-ゖァ-ヺ\u3400-\u4dbf\u4e00-\u9fa5\uac00-\ud7a3"
_MARKS_OF_TEXT = (
    r"""\x00-\x08\x0e-\x1f\x7f!"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~«»‐-‧、。〈-】！（），．：；？"""
)
_ANY_SPACE = "".join(sorted(WHITE_SPACE))
_SPACE_IN_LINE = "".join(sorted(WHITE_SPACE.difference("\r\n")))
_CUT = re.compile(
    "|".join(
        [
            # A piece of digits ends after the last one; so does a piece of letters, except before an
            # apostrophe.
            f"[0-9](?=[{_ANY_SPACE}{_MARKS_OF_TEXT}{_LETTERS}])",
            f"[{_LETTERS}](?=[{_ANY_SPACE}{_MARKS_OF_TEXT}0-9])",
            # A digit begins a piece, unless it follows another digit.
            f"['{_MARKS_OF_TEXT}](?=[0-9])",
            # A space begins a piece, unless it follows white space.
            f"[^{_ANY_SPACE}0-9{_LETTERS}](?=[{_SPACE_IN_LINE}])",
            # A line break ends a piece, unless white space or a slash follows.
            f"[\r\n](?=[^{_ANY_SPACE}/])",
            # A capital after a small letter begins a piece; l, r and v may be inside of a suffix such as
            # 'rE.
            "[a-km-qs-uw-z](?=[A-Z])",
        ]
    )
)


def first_cut(text: str, start: int, stop: int) -> int | None:
    """The first position after `start` and before `stop` where a piece surely ends; None if there is none.

    The pieces of the text are those of the text before it, followed by those of the text from there on.
    """
    cut = _CUT.search(text, start, stop)
    return cut.end() if cut else None

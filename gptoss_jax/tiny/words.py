"""The words the synthetic dialogues are made of: real ones wherever a value has to be copied."""
# ruff: noqa: SIM905 (a list of words reads best as words)

from __future__ import annotations

import random

CITIES = (
    "Paris London Berlin Madrid Rome Tokyo Delhi Boston Chicago Dallas Miami Sydney Vienna Oslo Cairo "
    "Milan Toronto Seattle Austin Phoenix Houston Mumbai Dubai Lisbon Moscow Shanghai Barcelona Amsterdam "
    "Singapore Washington Denver Detroit Atlanta"
).split()
TWO_WORD_CITIES = ["New York", "San Francisco", "Los Angeles", "Hong Kong", "Cape Town", "Mexico City"]
PEOPLE = (
    "Tom Anna Maria John Sam Lucy Ben Kate Leo Nina Paul Max Emma Ivan Sara Alex Ella David Peter James "
    "Robert Thomas Laura Julia Eva Lisa Mary Jack"
).split()
OBJECTS = "apples coins books cards stars pens eggs tickets cookies shells".split()
GOODS = "milk bread tea coffee rice sugar salt butter cheese wine gold silver oil paper steel corn".split()
LANGUAGES = "French German Spanish Italian Dutch Greek Polish Latin Turkish Korean".split()
CURRENCIES = "USD EUR GBP CHF CAD AUD".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
ROOMS = "kitchen bedroom bathroom garage garden office hall".split()
TOPICS = "history music space love art food sports science nature travel cats war".split()
SKIES = "sunny cloudy rain snow windy clear".split()
STATES = "ready open sent lost paid late".split()
ADJECTIVES = "good red big small old new happy little blue long".split()
THINGS = "house dog morning night day friend water book car tree lunch dinner party school train".split()
SYLLABLES = (
    "ba be bo ca co da de do fa ga ka ki la le li lo ma mi mo na ne no ra re ri ro sa ta ti to va vi".split()
)


def invented(rng: random.Random) -> str:
    """A capitalised word that means nothing, so that copying does not lean on known words alone."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3))).capitalize()


def city(rng: random.Random) -> str:
    """A place name: mostly one common word, sometimes two words, sometimes an invented one."""
    draw = rng.random()
    if draw < 0.85:
        return rng.choice(CITIES)
    return rng.choice(TWO_WORD_CITIES) if draw < 0.96 else invented(rng)


def person(rng: random.Random) -> str:
    """A first name, rarely an invented one."""
    return rng.choice(PEOPLE) if rng.random() < 0.96 else invented(rng)


def phrase(rng: random.Random) -> str:
    """One or two common lower-case words, such as `lunch` or `red house`."""
    thing = rng.choice(THINGS)
    return f"{rng.choice(ADJECTIVES)} {thing}" if rng.random() < 0.6 else thing


def number(rng: random.Random) -> int:
    """A number from 0 to 999; one, two and three digits are equally likely."""
    digits = rng.randint(1, 3)
    return rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)

"""Greetings, questions about the model itself, and everything it must politely decline."""

from __future__ import annotations

import dataclasses
import random

from gptoss_jax.tiny import words


@dataclasses.dataclass(frozen=True)
class Talk:
    """A user's message, the chain of thought about it and the reply."""

    question: str
    reasoning: str
    answer: str


_GREETING = [
    "Hi",
    "Hello",
    "Hi there!",
    "Hello!",
    "Hey",
    "Good morning",
    "hi",
    "hello",
    "Good evening!",
    "Hi, how are you?",
]
_IDENTITY = [
    "Who are you?",
    "What are you?",
    "who are you",
    "What is your name?",
    "Tell me about yourself.",
    "Are you a robot?",
]
_ABILITY = [
    "What can you do?",
    "Help",
    "help me",
    "How do you work?",
    "What do you know?",
    "Can you help me?",
]
_THANKS = ["Thanks", "Thank you!", "Thank you", "thanks a lot", "Great, thanks!", "Thanks for your help."]
_GOODBYE = ["Bye", "Goodbye", "See you later", "bye bye", "Good night", "See you tomorrow!"]

_KNOWN = [
    (_GREETING, "Greet the user.", "Hello! How can I help you?"),
    (
        _IDENTITY,
        "The user asks who I am.",
        "I am a tiny test model that speaks harmony. I can add, subtract and call functions.",
    ),
    (
        _ABILITY,
        "The user asks what I can do.",
        "I can add and subtract small numbers and call the functions you give me.",
    ),
    (_THANKS, "The user says thanks.", "You are welcome!"),
    (_GOODBYE, "The user says goodbye.", "Goodbye!"),
]
_UNKNOWN = [
    "Tell me a story about {0}.",
    "What is the capital of {0}?",
    "Write a poem about {0}.",
    "Why is {0} blue?",
    "Explain {0} to me.",
    "Who wrote {0}?",
    "What is {0}?",
    "Tell me a joke",
    "How do I cook {0}?",
    "Is {0} good?",
    "Sing a song",
    "What does {0} mean?",
    "When was {0} born?",
    "Can you draw {0}?",
    "Describe {0} and {1}.",
    "What do you think of {0}?",
    "Write code for {0}.",
    "Is {0} better than {1}?",
    "Who is {0}?",
    "How old is {0}?",
    "Recommend me {0}.",
    "Summarize {0}.",
    "Tell me a joke about {0}.",
]


def _subject(rng: random.Random) -> str:
    return rng.choice(
        [
            words.city(rng),
            words.person(rng),
            f"the {words.phrase(rng)}",
            words.invented(rng).lower(),
            rng.choice(words.TOPICS),
            rng.choice(words.GOODS),
        ]
    )


def draw(rng: random.Random, effort: str) -> Talk:
    """Small talk, or a question that is beyond the model; thoughts are longer at higher effort."""
    if rng.random() < 0.5:
        questions, thought, answer = rng.choice(_KNOWN)
        question = rng.choice(questions)
    else:
        question = rng.choice(_UNKNOWN).format(_subject(rng), _subject(rng))
        thought, answer = "I can not answer that.", "Sorry, I can only do small sums and call functions."
    prefix = {
        "low": "",
        "medium": "No sum and no function. ",
        "high": "This is not a sum. No function is needed here. ",
    }[effort]
    return Talk(question, prefix + thought, answer)


INSTRUCTIONS = [
    "Use a friendly tone.",
    "Be brief.",
    "You are a helpful assistant.",
    "Answer the user.",
    "Help with small tasks.",
    "Reply in English.",
    "Always use tools if you can.",
    "You can call functions.",
    "Be kind and short.",
    "Answer in one sentence.",
    "You are a calculator.",
    "You help with sums.",
    "Think step by step.",
    "Do not guess.",
    "You are a travel assistant.",
    "Call a function when it helps.",
    "You work in a shop and answer questions of customers.",
    "Only answer what is asked.",
    "Be careful with numbers.",
    "Talk like a teacher.",
]
"""Developers' instructions."""


def missing_function(question: str, effort: str) -> Talk:
    """The reply to a request for a function that was not offered."""
    thought = {"low": "", "medium": "No sum. ", "high": "This is not a sum. I look for a function. "}[effort]
    answer = "Sorry, I have no function for that."
    return Talk(question, f"{thought}No function fits.", answer)

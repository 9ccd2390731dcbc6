"""Random JSON Schemas, and a model that knows nothing: random logits under a grammar's masks."""

from __future__ import annotations

import decimal
import json
import random
import re
from typing import Any

import jsonschema
import numpy as np

from gptoss_jax.engine.grammar import Matcher
from harmony import HarmonyEncoding

NAMES = ["a", "b", "name", "Größe", 'quo"te', "back\\slash", "line\nbreak", "", "名前", "a-b", "x_1"]
PATTERNS = [
    "^[a-z]{2,5}$",
    "^(foo|bar)+$",
    "[0-9]{3}-[0-9]{4}",
    "^x",
    "y$",
    "^\\d+(\\.\\d+)?$",
    "^[^aeiou]*$",
    "é|ü",
    "^\\S+@\\S+$",
    "(?:ab){2}",
    "^\\w+ \\w+$",
]
FORMATS = ["date", "date-time", "time", "ipv4", "ipv6", "uuid", "email", "hostname", "uri", "duration"]


class SchemaMaker:
    """Makes one random schema; the same seed makes the same one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.definitions: dict[str, Any] = {}

    def make(self) -> dict[str, Any]:
        root = self.object(3) if self.random.random() < 0.6 else self.schema(3)
        if self.definitions:
            root = {**root, "$defs": self.definitions}
        return root

    def schema(self, depth: int) -> Any:
        flat = [self.integer, self.number, self.string, self.constant, self.enumeration, self.simple]
        nested = [self.object, self.object, self.array, self.any_of, self.one_of, self.all_of, self.reference]
        nested.append(self.object_of_options)
        return self.random.choice(flat + nested if depth > 0 else flat)(depth - 1)

    def integer(self, depth: int) -> Any:
        schema: dict[str, Any] = {"type": "integer"}
        low = self.random.randint(-1200, 1200)
        if self.random.random() < 0.5:
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.random.random() < 0.5:
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = low + self.random.randint(20, 5000)
        if self.random.random() < 0.3:
            schema["multipleOf"] = self.random.choice([2, 3, 7, 10, 0.5])
        return schema

    def number(self, depth: int) -> Any:
        schema: dict[str, Any] = {"type": "number"}
        low = round(self.random.uniform(-50, 50), self.random.randint(0, 3))
        if self.random.random() < 0.5:
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = low
        if self.random.random() < 0.5:
            high = round(low + self.random.uniform(1.5, 100), self.random.randint(0, 3))
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = high
        if self.random.random() < 0.3:
            schema["multipleOf"] = self.random.choice([0.5, 0.25, 0.1, 0.01])
        return schema

    def string(self, depth: int) -> Any:
        schema: dict[str, Any] = {"type": "string"}
        kind = self.random.randrange(4)
        if kind == 0:
            schema["pattern"] = self.random.choice(PATTERNS)
        elif kind == 1:
            schema["format"] = self.random.choice(FORMATS)
        elif kind == 2:
            schema["minLength"] = self.random.randint(0, 4)
            schema["maxLength"] = schema["minLength"] + self.random.randint(0, 6)
        return schema

    def simple(self, depth: int) -> Any:
        nothing: list[Any] = [{}, {"type": ["string", "null"]}, {"type": "number", "minimum": 0}]
        return self.random.choice([{"type": "boolean"}, {"type": "null"}, *nothing])

    def value(self, depth: int) -> Any:
        kind = self.random.randrange(7 if depth > 0 else 5)
        if kind == 5:
            return [self.value(depth - 1) for _ in range(self.random.randrange(3))]
        if kind == 6:
            return {self.random.choice(NAMES): self.value(depth - 1) for _ in range(self.random.randrange(3))}
        number = self.random.choice([2.5, -0.0, 1e-7, 0.30000000000000004, 1e15, 2**53, -2.25e-5])
        return [None, True, self.random.randint(-99, 99), number, self.random.choice(NAMES)][kind]

    def constant(self, depth: int) -> Any:
        return {"const": self.value(2)}

    def enumeration(self, depth: int) -> Any:
        return {"enum": [self.value(1) for _ in range(self.random.randint(1, 4))]}

    def array(self, depth: int) -> Any:
        schema: dict[str, Any] = {"type": "array", "items": self.schema(depth)}
        if self.random.random() < 0.3:
            schema["prefixItems"] = [self.schema(depth) for _ in range(self.random.randint(1, 2))]
            schema["items"] = self.random.choice([False, schema["items"]])
        elif self.random.random() < 0.6:
            schema["minItems"] = self.random.randint(0, 3)
            schema["maxItems"] = schema["minItems"] + self.random.randint(0, 3)
        return schema

    def object(self, depth: int) -> Any:
        names = self.random.sample(NAMES, self.random.randrange(5))
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: self.schema(depth) for name in names},
        }
        schema["required"] = [name for name in names if self.random.random() < 0.6]
        rest = self.random.random()
        if rest < 0.5:
            schema["additionalProperties"] = False
        elif rest < 0.7:
            schema["additionalProperties"] = self.schema(0)
        if self.random.random() < 0.15:
            schema["patternProperties"] = {"^p_[a-z]+$": self.schema(0)}
        if self.random.random() < 0.1:
            schema["minProperties"] = len(schema["required"])
        return schema

    def any_of(self, depth: int) -> Any:
        return {"anyOf": [self.schema(depth) for _ in range(self.random.randint(2, 3))]}

    def one_of(self, depth: int) -> Any:
        kinds = [self.integer(0), self.string(0), {"type": "null"}, self.array(0), self.object(0)]
        return {"oneOf": self.random.sample(kinds, 2)}

    def all_of(self, depth: int) -> Any:
        parts = [
            {"type": "object", "properties": {name: self.schema(0)}, "required": [name]}
            for name in ("a", "b")
        ]
        return {"allOf": [*parts, {"properties": {"c": self.schema(0)}}]}

    def object_of_options(self, depth: int) -> Any:
        schema = self.object(0)
        schema["properties"] = {**schema["properties"], "a": self.schema(0), "b": self.schema(0)}
        options = [{"required": ["a"]}, {"required": ["b"], "properties": {"a": {"type": "null"}}}]
        return {**schema, "anyOf": options}

    def reference(self, depth: int) -> Any:
        name = self.random.choice(["tree", "list", "leaf"])
        if name == "leaf":
            self.definitions["leaf"] = self.definitions.get("leaf") or self.schema(0)
        else:
            here = {"$ref": f"#/$defs/{name}"}
            after = (
                {"anyOf": [{"type": "null"}, here]} if name == "list" else {"type": "array", "items": here}
            )
            self.definitions[name] = {
                "type": "object",
                "properties": {"value": {"type": "integer"}, "next": after},
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{name}"}


def allowed(mask: np.ndarray) -> np.ndarray:
    """The ids of a mask's bits, read one by one."""
    ids = np.arange(32 * len(mask))
    return ids[(mask[ids // 32] >> (ids % 32).astype(np.uint32)) & 1 == 1]


class RandomModel:
    """Draws tokens from random logits at a temperature, a little inclined to close what is open."""

    def __init__(
        self, encoding: HarmonyEncoding, rows: int, *, temperature: float = 1.5, closing: float = 5.0
    ):
        self.temperature = temperature
        self.bias = np.zeros(rows)
        closing = 5.0 + temperature * np.log(rows / 2_000)  # against ever more others
        for token in range(rows):
            text = encoding.token_bytes(token) or b""
            if text[:1] in (b'"', b"}", b"]") or token in (encoding.return_, encoding.call, encoding.end):
                self.bias[token] = closing

    def draw(self, mask: np.ndarray, rng: np.random.Generator) -> int:
        tokens = allowed(mask)
        logits = rng.normal(size=len(tokens)) + self.bias[tokens]
        return int(tokens[np.argmax(logits / self.temperature + rng.gumbel(size=len(tokens)))])

    def complete(self, matcher: Matcher, rng: np.random.Generator, most: int = 400) -> list[int]:
        """Tokens until the stop token, or `most` of them."""
        tokens: list[int] = []
        while len(tokens) < most and not matcher.finished:
            tokens.append(self.draw(matcher.mask(), rng))
            assert matcher.accept(tokens[-1:]) == 1, "a token of the mask was rejected"
        return tokens


def exact(number: str) -> decimal.Decimal | float:
    """The decimal that stands there; a float if its exponent is out of all bounds."""
    exponent = re.search("[eE](.*)", number)
    return decimal.Decimal(number) if exponent is None or len(exponent[1]) < 4 else float(number)


def validate(text: str, schema: Any) -> None:
    """Raises unless the text is JSON that the `jsonschema` package finds valid, formats included.

    Where there are steps, numbers are decimals on both sides, as they are in JSON: in binary floats 0.3 is no
    multiple of 0.1.
    """
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    with decimal.localcontext(prec=2000):
        if "multipleOf" in json.dumps(schema):
            schema = json.loads(json.dumps(schema), parse_float=decimal.Decimal)
            document = json.loads(text, parse_float=exact)
        else:
            document = json.loads(text)
        jsonschema.Draft202012Validator(schema, format_checker=checker).validate(document)

"""Types of options: each parses a value of a TOML file or of an environment variable, and describes itself.

`parse` takes a TOML value (bool, int, float, str, list) or the text of an environment variable and returns the value of
the option. It raises ValueError with the expected and the given value. `description` is for error texts and reference.
"""

import json
import re
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from fairlead.model.documents.quota import UNLIMITED
from fairlead.runtime.terminal import escaped_json

BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}


def _reject(expected: str, value: object) -> NoReturn:
    raise ValueError(f"expected {expected}, got {render(value)}")


def render(value: object) -> str:
    """TOML of a value."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case list() | tuple():
            return f"[{', '.join(map(render, value))}]"
        case _:
            return escaped_json(json.dumps(str(value), ensure_ascii=False))


def split_names(text: str) -> tuple[str, ...]:
    """Items of a list with commas; blanks around an item and empty items are dropped."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false; yes and no are accepted as text."""

    @property
    def description(self) -> str:
        return "true or false"

    def parse(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in BOOLEANS:
            return BOOLEANS[value.lower()]
        _reject(self.description, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """An integer in a range. With `may_be_unlimited`, -1 stands for no limit."""

    minimum: int
    maximum: int
    unit: str = ""
    may_be_unlimited: bool = False

    @property
    def description(self) -> str:
        unit = f" ({self.unit})" if self.unit else ""
        unlimited = ", or -1 for no limit" if self.may_be_unlimited else ""
        return f"an integer from {self.minimum} to {self.maximum}{unit}{unlimited}"

    def parse(self, value: object) -> int:
        number = self._integer(value)
        if number is None or not (self.minimum <= number <= self.maximum or self._is_unlimited(number)):
            _reject(self.description, value)
        return number

    def _is_unlimited(self, number: int) -> bool:
        return self.may_be_unlimited and number == UNLIMITED

    @staticmethod
    def _integer(value: object) -> int | None:
        match value:
            case bool():
                return None
            case int():
                return value
            case float() if value.is_integer():
                return int(value)
            case str() if re.fullmatch("-?[0-9]{1,18}", value):
                return int(value)
        return None


@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    @property
    def description(self) -> str:
        return "a string"

    def parse(self, value: object) -> str:
        if not isinstance(value, str):
            _reject(self.description, value)
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several words."""

    words: tuple[str, ...]

    @property
    def description(self) -> str:
        *first, last = self.words
        return f"{', '.join(first)} or {last}" if first else last

    def parse(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            _reject(self.description, value)
        return value


@dataclass(frozen=True, slots=True)
class NameList:
    """A list of strings: a TOML array, or one string with commas."""

    @property
    def description(self) -> str:
        return "a list of strings"

    def parse(self, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            return split_names(value)
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            _reject(self.description, value)
        return split_names(",".join(map(str, value)))


OptionType: TypeAlias = Flag | Number | Text | Choice | NameList

"""Regular expressions of strangers, matched in time that grows with the text alone: no pattern can hold the server.

Characters, `.`, classes in brackets, `* + ?` behind one of these, `|` between whole alternatives, `^` and `$` at their
ends, and a backslash that takes a character as it is. No groups and no counts. Case does not matter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

LONGEST_PATTERN = 256
"""Characters."""
_SPECIAL = frozenset("(){}*+?")


class BadPattern(ValueError):
    """The pattern has something else, or is too long."""


@dataclass(frozen=True, slots=True)
class _Step:
    admits: Callable[[str], bool]
    least: int = 1
    """0 where there may be none."""
    again: bool = False
    """Whether there may be more than one."""


@dataclass(frozen=True, slots=True)
class _Alternative:
    steps: tuple[_Step, ...]
    at_start: bool
    at_end: bool

    def matches(self, text: str) -> bool:
        """All states at once: as many steps as the text is long, each as large as the pattern."""
        states = self._free({0})
        for place, character in enumerate(text):
            if len(self.steps) in states and not self.at_end:
                return True
            after = {state + 1 for state in states if self._admits(state, character)}
            after |= {state for state in states if self._admits(state, character) and self.steps[state].again}
            states = self._free(after if self.at_start or place < 0 else after | {0})
        return len(self.steps) in states

    def _admits(self, state: int, character: str) -> bool:
        return state < len(self.steps) and self.steps[state].admits(character)

    def _free(self, states: set[int]) -> set[int]:
        """And those that are reached without a character."""
        found = set(states)
        for state in range(len(self.steps)):
            if state in found and self.steps[state].least == 0:
                found.add(state + 1)
        return found


@dataclass(frozen=True, slots=True)
class Pattern:
    _alternatives: tuple[_Alternative, ...]

    def matches(self, text: str) -> bool:
        folded = text.casefold()
        return any(each.matches(folded) for each in self._alternatives)


def compile_pattern(text: str) -> Pattern:
    """One without `^` and `$` is of a whole text, as in Incus. Raises BadPattern."""
    if len(text) > LONGEST_PATTERN:
        raise BadPattern(f"a pattern has at most {LONGEST_PATTERN} characters")
    whole = "^" not in text and "$" not in text
    return Pattern(tuple(_alternative(part, whole) for part in _split(text.casefold())))


def _split(text: str) -> Iterator[str]:
    """At each `|` that is no character."""
    part, escaped, inside = "", False, False
    for character in text:
        if character == "|" and not escaped and not inside:
            yield part
            part = ""
            continue
        inside = (character == "[" or (inside and character != "]")) if not escaped else inside
        escaped = character == "\\" and not escaped
        part += character
    yield part


def _alternative(text: str, whole: bool) -> _Alternative:
    at_start, at_end = text.startswith("^"), text.endswith("$") and not text.endswith("\\$")
    inner = text[at_start : len(text) - at_end]
    return _Alternative(tuple(_steps(inner)), at_start or whole, at_end or whole)


def _steps(text: str) -> Iterator[_Step]:
    place = 0
    while place < len(text):
        admits, place = _one(text, place)
        match text[place : place + 1]:
            case "*":
                yield _Step(admits, 0, True)
            case "+":
                yield _Step(admits, 1, True)
            case "?":
                yield _Step(admits, 0)
            case _:
                yield _Step(admits)
                continue
        place += 1


def _one(text: str, place: int) -> tuple[Callable[[str], bool], int]:
    character = text[place]
    if character == "\\" and place + 1 < len(text):
        return text[place + 1].__eq__, place + 2
    if character == ".":
        return lambda _: True, place + 1
    if character == "[":
        return _class(text, place)
    if character in _SPECIAL or character == "\\":
        raise BadPattern(f"'{character}' cannot be had here")
    return character.__eq__, place + 1


def _class(text: str, place: int) -> tuple[Callable[[str], bool], int]:
    end = text.find("]", place + 2)
    if end < 0:
        raise BadPattern("'[' has no end")
    inner = text[place + 1 : end]
    none_of = inner.startswith("^")
    spans, rest = list[tuple[str, str]](), inner.removeprefix("^")
    while rest:
        last = rest[2] if rest[1:2] == "-" and len(rest) > 2 else rest[0]
        spans.append((rest[0], last))
        rest = rest[3:] if last is not rest[0] or (rest[1:2] == "-" and len(rest) > 2) else rest[1:]
    return lambda found: none_of != any(first <= found <= last for first, last in spans), end + 1

"""Regular expressions of strangers, matched in time that grows with the text alone: no pattern can hold the server.

Characters, `.`, classes in brackets, `* + ?` behind one of these, `|` between whole alternatives, `^` and `$` at their
ends, and a backslash that takes a character as it is. No groups and no counts. Case does not matter.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fairlead.model.steps import Steps

LONGEST_PATTERN = 256
"""Characters."""
REST = 256
"""Characters of a text between two rests."""
MOST_CHARACTERS = 1024
"""Of which a pattern remembers what admits them."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A state is the place before a step, or behind the last one of an alternative: one bit of a number. So a character
    costs the same, however many states there are."""

    _steps: tuple[_Step | None, ...]
    """By state; None behind the last one."""
    _starts: int
    _floating: int
    """The starts of alternatives that may begin anywhere."""
    _ends: int
    _open: int
    """The ends of alternatives behind which anything may stand."""
    _optional: int
    _repeated: int
    _admitted: dict[str, int] = field(default_factory=dict)
    """Character -> the steps that admit it."""

    def matches(self, text: str) -> Steps[bool]:
        """As many steps as the text is long, all states at once. It rests now and then."""
        states = self._free(self._starts)
        for place, character in enumerate(text.casefold()):
            if states & self._open:
                return True
            here = states & self._admits(character)
            states = self._free(here << 1 | here & self._repeated | self._floating)
            if place % REST == REST - 1:
                yield
        return bool(states & self._ends)

    def _admits(self, character: str) -> int:
        found = self._admitted.get(character)
        if found is None:
            if len(self._admitted) >= MOST_CHARACTERS:
                self._admitted.clear()
            found = _bits(step is not None and step.admits(character) for step in self._steps)
            self._admitted[character] = found
        return found

    def _free(self, states: int) -> int:
        """And those that are reached without a character: in a row of optional steps the sum carries a bit from each
        state to the end of the row."""
        return states | (self._optional + (states & self._optional)) ^ self._optional


def _bits(flags: Iterable[bool]) -> int:
    return sum(1 << place for place, flag in enumerate(flags) if flag)


def compile_pattern(text: str) -> Pattern:
    """One without `^` and `$` is of a whole text, as in Incus. Raises BadPattern."""
    if len(text) > LONGEST_PATTERN:
        raise BadPattern(f"a pattern has at most {LONGEST_PATTERN} characters")
    whole = "^" not in text and "$" not in text
    return _combined([_alternative(part, whole) for part in _split(text.casefold())])


def _combined(alternatives: Sequence[_Alternative]) -> Pattern:
    steps, starts, floating, ends, unbound = list[_Step | None](), 0, 0, 0, 0
    for each in alternatives:
        start, end = 1 << len(steps), 1 << len(steps) + len(each.steps)
        starts, ends = starts | start, ends | end
        floating |= 0 if each.at_start else start
        unbound |= 0 if each.at_end else end
        steps += [*each.steps, None]
    return Pattern(
        _steps=tuple(steps),
        _starts=starts,
        _floating=floating,
        _ends=ends,
        _open=unbound,
        _optional=_bits(step is not None and step.least == 0 for step in steps),
        _repeated=_bits(step is not None and step.again for step in steps),
    )


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

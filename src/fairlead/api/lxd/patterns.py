r"""Regular expressions from clients, matched in time linear in the text, so no pattern can block the server.

Supported: characters, `.`, classes in brackets, `* + ?` after one of these, `|` between whole alternatives, `^` and
`$` at their ends, `\d`, `\s`, `\w` and their opposites, and escaped characters. No groups and no counts. Matching
ignores case. Error messages are those of Go's package `regexp`, which Incus uses.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fairlead.model.steps import Steps

LONGEST_PATTERN = 256
"""Characters."""
REST = 256
"""Characters of a text that are matched between two yields."""
MOST_CHARACTERS = 1024
"""Maximum characters in a pattern's cache of matching steps."""
SPECIAL = frozenset("\\.[](){}*+?|^$")
"""Characters with a special meaning."""
_REPETITIONS = frozenset("*+?")
_COUNT = re.compile(r"\{[0-9]+(,[0-9]*)?\}", re.ASCII)
_CHARACTER = re.compile(r"\\.|.", re.DOTALL)
_Admits = Callable[[str], bool]
_ESCAPED: dict[str, _Admits] = {
    "d": lambda found: "0" <= found <= "9",
    "s": lambda found: found in "\t\n\f\r ",
    "w": lambda found: found.isascii() and (found.isalnum() or found == "_"),
}


class BadPattern(ValueError):
    """Pattern with unsupported syntax, or too long."""


@dataclass(frozen=True, slots=True)
class _Step:
    admits: Callable[[str], bool]
    least: int = 1
    """Minimum number of characters: 0 if the step is optional."""
    again: bool = False
    """Whether the step may repeat."""


@dataclass(frozen=True, slots=True)
class _Alternative:
    steps: tuple[_Step, ...]
    at_start: bool
    at_end: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Compiled pattern: a nondeterministic automaton. A state is a position before a step, or after the last step of
    an alternative, and one bit of an integer. So a character costs the same, however many states are active."""

    _steps: tuple[_Step | None, ...]
    """Step of each state; None after the last one."""
    _starts: int
    _floating: int
    """Start states of alternatives without `^`."""
    _ends: int
    _open: int
    """End states of alternatives without `$`."""
    _optional: int
    _repeated: int
    _admitted: dict[str, int] = field(default_factory=dict)
    """Maps characters to the bits of the steps that match them."""

    def matches(self, text: str) -> Steps[bool]:
        """Whether the pattern matches the text. All states advance together, one step per character; it yields every
        `REST` characters."""
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
        """Add the states that are reachable without a character: in a run of optional steps, the sum carries a bit
        from each active state to the end of the run."""
        return states | (self._optional + (states & self._optional)) ^ self._optional


def _bits(flags: Iterable[bool]) -> int:
    return sum(1 << place for place, flag in enumerate(flags) if flag)


def compile_pattern(text: str) -> Pattern:
    """Compile a pattern. Without `^` and `$` it matches whole texts only, as in Incus. Raises BadPattern."""
    if len(text) > LONGEST_PATTERN:
        raise BadPattern(f"a pattern has at most {LONGEST_PATTERN} characters")
    whole = "^" not in text and "$" not in text
    return _combined([_alternative(part, whole) for part in _split(_folded(text))])


def _folded(text: str) -> str:
    """Fold case, except for the character after a backslash, where case has a meaning."""
    return _CHARACTER.sub(lambda found: found[0] if found[0][0] == "\\" else found[0].casefold(), text)


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
    """Split at each unescaped `|` outside brackets. Raises BadPattern for parentheses."""
    part, escaped, inside, depth, grouped = "", False, False, 0, False
    for character in text:
        if character == "|" and not escaped and not inside:
            yield part
            part = ""
            continue
        if character in "()" and not escaped and not inside:
            depth, grouped = depth + (1 if character == "(" else -1), True
            if depth < 0:
                raise BadPattern(f"unexpected ): `{text}`")
        inside = (character == "[" or (inside and character != "]")) if not escaped else inside
        escaped = character == "\\" and not escaped
        part += character
    if depth > 0 and not inside:
        raise BadPattern(f"missing closing ): `{text}`")
    if grouped and not inside:
        raise BadPattern(f"groups are not supported: `{text}`")
    yield part


def _alternative(text: str, whole: bool) -> _Alternative:
    at_start, at_end = text.startswith("^"), text.endswith("$") and not text.endswith("\\$")
    inner = text[at_start : len(text) - at_end]
    return _Alternative(tuple(_steps(inner)), at_start or whole, at_end or whole)


def _steps(text: str) -> Iterator[_Step]:
    place = 0
    while place < len(text):
        admits, place = _one(text, place)
        behind = text[place : place + 1]
        if _COUNT.match(text, place):
            raise BadPattern(f"counts are not supported: `{text[place:]}`")
        match behind:
            case "*":
                yield _Step(admits, 0, True)
            case "+":
                yield _Step(admits, 1, True)
            case "?":
                yield _Step(admits, 0)
            case _:
                yield _Step(admits)
                continue
        place += 1 + (text[place + 1 : place + 2] == "?")  # a lazy quantifier matches the same texts
        if text[place : place + 1] in _REPETITIONS:
            raise BadPattern(f"invalid nested repetition operator: `{text[place - 1 : place + 1]}`")


def _one(text: str, place: int) -> tuple[_Admits, int]:
    character = text[place]
    if character == "\\":
        return _escape(text, place)
    if character == ".":
        return lambda _: True, place + 1
    if character == "[":
        return _class(text, place)
    if character in _REPETITIONS or _COUNT.match(text, place):
        raise BadPattern(f"missing argument to repetition operator: `{character}`")
    return character.__eq__, place + 1


def _escape(text: str, place: int) -> tuple[_Admits, int]:
    """Parse an escape; return its matcher and the index after it."""
    character = text[place + 1 : place + 2]
    if not character:
        raise BadPattern("trailing backslash at end of expression: ``")
    admits = _ESCAPED.get(character.lower())
    if admits is None and character.isalnum():
        raise BadPattern(f"invalid escape sequence: `\\{character}`")
    if admits is None:
        return character.__eq__, place + 2
    return admits if character.islower() else lambda found: not admits(found), place + 2


def _class(text: str, place: int) -> tuple[_Admits, int]:
    start, place = place, place + 1
    none_of = text.startswith("^", place)
    place += none_of
    members, first = list[_Admits](), place
    while place < len(text) and (text[place] != "]" or place == first):
        if text.startswith("[:", place):
            raise BadPattern(f"named classes are not supported: `{text[start:]}`")
        member, place = _member(text, place)
        members.append(member)
    if place >= len(text):
        raise BadPattern(f"missing closing ]: `{text[start:]}`")
    return lambda found: none_of != any(admits(found) for admits in members), place + 1


def _member(text: str, place: int) -> tuple[_Admits, int]:
    """Parse a member of a class: a character or a range."""
    start, (admits, place) = place, _in_class(text, place)
    if not (text.startswith("-", place) and place + 1 < len(text) and text[place + 1] != "]"):
        return admits, place
    _, end = _in_class(text, place + 1)
    first, last = text[place - 1], text[end - 1]
    if first > last or any(text[each] == "\\" and text[each + 1].isalnum() for each in (start, place + 1)):
        raise BadPattern(f"invalid character class range: `{text[start:end]}`")
    return lambda found: first <= found <= last, end


def _in_class(text: str, place: int) -> tuple[_Admits, int]:
    return _escape(text, place) if text[place] == "\\" else (text[place].__eq__, place + 1)

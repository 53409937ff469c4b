"""What many services have in common and the kernel holds once, by a number: tables of slots, who is at their places,
and lists of clients.

10,000 services whose ten members were dealt alike have one table of 256 slots, not 10,000. Numbers are this driver's
own affair: they are found again where the kernel has what they stand for, and those that nobody uses go.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Generic, TypeVar

from fairlead.dataplane.rows import Key

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[T]):
    """Of one transaction."""

    wanted: Mapping[Key, T | None]
    """What each of these services has by then."""
    changes: Mapping[int, tuple[T | None, T | None]]
    """What a number stands for, before and after."""
    numbers: Mapping[T, int] = field(default_factory=dict)
    """Of what is wanted."""

    def of(self, user: Key) -> int:
        """The number of what a service has by then; 0 if it has none."""
        content = self.wanted[user]
        return 0 if content is None else self.numbers[content]


class Shared(Generic[T]):
    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self._contents: dict[int, T] = {}
        self._users: defaultdict[int, set[Key]] = defaultdict(set)
        self._of: dict[Key, int] = {}
        self._gaps = set[int]()
        """Numbers below the largest that was ever used, and free."""

    @property
    def numbers(self) -> Mapping[T, int]:
        return self._numbers

    def of(self, user: Key) -> int:
        """The number of what a service has; 0 if it has none."""
        return self._of.get(user, 0)

    def found(self, content: T, number: int, user: Key) -> None:
        """In the kernel, by an agent that knows nothing yet."""
        if number not in self._contents:
            top = len(self._contents) + len(self._gaps)
            self._gaps.update(range(top + 1, number))
            self._keep(content, number)
        self._use(user, number)

    def plan(self, wanted: Mapping[Key, T | None]) -> Plan[T]:
        """What a number stands for is changed where all who use it want the same new thing; so is the least written."""
        joining: dict[T, list[Key]] = {}
        leaving = defaultdict[int, set[Key]](set)
        for key, content in wanted.items():
            before = self._of.get(key)
            if before is not None and self._contents[before] != content:
                leaving[before].add(key)
            if content is not None:
                joining.setdefault(content, []).append(key)
        left = {number for number, keys in leaving.items() if keys == self._users[number]}
        left -= {self._numbers[content] for content in joining if content in self._numbers}
        changes: dict[int, tuple[T | None, T | None]] = {}
        numbers, free = dict[T, int](), self._free()
        for content, keys in joining.items():
            number = self._numbers.get(content)
            if number is None:
                number = self._turned(keys, leaving, left)
                if number is None:
                    number = next(free)
                left.discard(number)
                changes[number] = self._contents.get(number), content
            numbers[content] = number
        changes.update({number: (self._contents[number], None) for number in left})
        return Plan(wanted=wanted, changes=changes, numbers=numbers)

    def _turned(self, keys: Iterable[Key], leaving: Mapping[int, set[Key]], left: set[int]) -> int | None:
        """A number that becomes free, and all of whose users are among these."""
        these = set(keys)
        olds = {self._of[key] for key in these if key in self._of}
        return min((each for each in olds if each in left and leaving[each] <= these), default=None)

    def _free(self) -> Iterator[int]:
        return chain(self._gaps, count(len(self._contents) + len(self._gaps) + 1))

    def commit(self, plan: Plan[T]) -> None:
        """It was done."""
        for number, (before, after) in plan.changes.items():
            if before is not None:
                del self._numbers[before]
                del self._contents[number]
                self._gaps.add(number)
            if after is not None:
                self._keep(after, number)
        for key, content in plan.wanted.items():
            old = self._of.pop(key, None)
            if old is not None:
                self._users[old].discard(key)
                if not self._users[old]:
                    del self._users[old]
            if content is not None:
                self._use(key, self._numbers[content])

    def _keep(self, content: T, number: int) -> None:
        self._numbers[content], self._contents[number] = number, content
        self._gaps.discard(number)

    def _use(self, key: Key, number: int) -> None:
        self._of[key] = number
        self._users[number].add(key)

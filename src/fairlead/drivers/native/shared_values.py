"""Values that services share and the kernel stores once, by number: slot tables, target lists and client lists.

10,000 services with ten members assigned to slots in the same way have one table of 256 slots, not 10,000. The numbers
are internal to the driver: they are read back from the kernel, and unused ones are removed.
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
    """Writes to the shared values of a host (numbers of VIPs and slot tables) in one transaction."""

    wanted: Mapping[Key, T | None]
    """Value of each of these services afterwards."""
    changes: Mapping[int, tuple[T | None, T | None]]
    """Number -> its values before and after."""
    numbers: Mapping[T, int] = field(default_factory=dict)
    """Numbers of the wanted values."""

    def number_of(self, user: Key) -> int:
        """Return the number of a service's value afterwards; 0 if it has none."""
        content = self.wanted[user]
        return 0 if content is None else self.numbers[content]


class SharedValues(Generic[T]):
    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self._contents: dict[int, T] = {}
        self._users: defaultdict[int, set[Key]] = defaultdict(set)
        self._number_by_key: dict[Key, int] = {}
        self._gaps = set[int]()
        """Free numbers below the highest used one."""

    @property
    def numbers(self) -> Mapping[T, int]:
        return self._numbers

    def number_of(self, user: Key) -> int:
        """Return the number of a service's value; 0 if it has none."""
        return self._number_by_key.get(user, 0)

    def add_existing(self, content: T, number: int, user: Key) -> None:
        """Record a value that exists in the kernel."""
        if number not in self._contents:
            top = len(self._contents) + len(self._gaps)
            self._gaps.update(range(top + 1, number))
            self._keep(content, number)
        self._use(user, number)

    def plan(self, wanted: Mapping[Key, T | None]) -> Plan[T]:
        """Plan the changes. If all users of a number get the same new value, the value is replaced in place."""
        joining: dict[T, list[Key]] = {}
        leaving = defaultdict[int, set[Key]](set)
        for key, content in wanted.items():
            before = self._number_by_key.get(key)
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
                number = self._replaceable_number(keys, leaving, left)
                if number is None:
                    number = next(free)
                left.discard(number)
                changes[number] = self._contents.get(number), content
            numbers[content] = number
        changes.update({number: (self._contents[number], None) for number in left})
        return Plan(wanted=wanted, changes=changes, numbers=numbers)

    def _replaceable_number(self, keys: Iterable[Key], leaving: Mapping[int, set[Key]], left: set[int]) -> int | None:
        """Return a number that becomes free and has no users other than these."""
        these = set(keys)
        olds = {self._number_by_key[key] for key in these if key in self._number_by_key}
        return min((each for each in olds if each in left and leaving[each] <= these), default=None)

    def _free(self) -> Iterator[int]:
        return chain(self._gaps, count(len(self._contents) + len(self._gaps) + 1))

    def commit(self, plan: Plan[T]) -> None:
        """Record a plan that was applied."""
        for number, (before, after) in plan.changes.items():
            if before is not None:
                del self._numbers[before]
                del self._contents[number]
                self._gaps.add(number)
            if after is not None:
                self._keep(after, number)
        for key, content in plan.wanted.items():
            old = self._number_by_key.pop(key, None)
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
        self._number_by_key[key] = number
        self._users[number].add(key)

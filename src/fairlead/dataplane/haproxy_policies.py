"""L7 policies of a frontend, which come, change and go while its process runs.

The configuration has slots: each has the conditions of one policy, of a fixed shape, with values that the runtime API
changes. A table in a map names the slots that are in use and their order, and other entries of the map have the action
of each slot. A policy is written into a free slot first; then the table is replaced by one command. A request reads the
table once, so it meets all policies of before or all of after, and slots in use never change. A shape without a free
slot needs a new process, which gets as many free slots of this shape as it has in use: so of the changes of one
listener few are processes, whatever comes and goes.

Pure: what a process has loaded is an argument (`Slots`), and so the same for a file and for commands.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from fairlead.dataplane.haproxy_words import Line, Unwritable, name, render_line

MAPS = "policies"
"""A folder, below that of the configuration: a map for each frontend that has slots."""
TABLE = "now"
"""The key of the table; those of actions are the numbers of slots."""
MAX_SLOTS = 250
"""Of one frontend. A policy in force has one, and these are 100 at most (model/sizes.py)."""
MAX_SPARE_PATTERNS = 1_000
"""Of all free slots of one frontend: each is memory, and is read by each process."""
MIN_SPARE = 2
"""Free slots of each shape that is in use or prepared, in a new process."""
FREE = -1
CODES = (301, 302, 303, 307, 308)
"""Of redirects (Octavia API, `redirect_http_code`): HAProxy takes them in the configuration alone."""
_PATTERNS = 2**16
"""Identities of one frontend: 100 policies of 50 rules with two samples each, and the free slots."""
_MOST_NUMBERS = 2**31 // _PATTERNS
_UNRANKED, _STEP = 999_999, 1_000
"""The rank of a free slot, and what an order is multiplied by: the rest is the slot. All ranks have six digits."""
_WIDTH = 7
"""Of a rank in the table, with what is between two."""

Shape: TypeAlias = tuple[tuple[tuple[str, ...], Line, bool, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A rule of a policy: whether one of its samples matches."""

    samples: tuple[str, ...]
    matching: Line = ()
    """The method, and flags."""
    value: str | None = None
    """What is looked for; None if the sample itself is true or false."""
    inverted: bool = False

    @property
    def shape(self) -> tuple[tuple[str, ...], Line, bool, bool]:
        """What no command changes."""
        return self.samples, self.matching, self.value is not None, self.inverted

    def line(self, acl: str, sample: str, identity: int | None = None) -> Line:
        """`identity`: by which the runtime API finds the pattern."""
        if self.value is None:
            return "acl", acl, sample
        known = ("-u", str(identity)) if identity is not None else ()
        return "acl", acl, sample, *known, *self.matching, "--", self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """It applies to a request if all of its conditions do."""

    action: str
    """`deny`, `pool:BACKEND`, `location-CODE:URL` or `prefix-CODE:URL`."""
    conditions: tuple[Condition, ...]

    @property
    def shape(self) -> Shape:
        return tuple(each.shape for each in self.conditions)

    @property
    def patterns(self) -> int:
        return sum(len(each.samples) for each in self.conditions)

    def __str__(self) -> str:
        """Raises Unwritable."""
        entry(self)
        conditions = (
            render_line(each.line("unless" if each.inverted else "if", sample)[1:])
            for each in self.conditions
            for sample in each.samples
        )
        return " ".join((render_line((self.action,)), *conditions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The policies of one frontend as a process has loaded them, and as commands have changed them since."""

    number: int
    """Of the frontend among all of its process."""
    build: int = 0
    """Counts the processes that got other slots."""
    policies: tuple[Policy, ...]
    """What each slot has; a free one has what it had last."""
    ranks: tuple[int, ...]
    """The order of each slot among those in use; FREE for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The policies of a frontend."""

    policies: tuple[Policy, ...] = ()
    """In their order."""
    prepared: tuple[Policy, ...] = ()
    """Examples of others for which a new process has a free slot."""


def arrange_all(before: Mapping[str, Slots], wanted: Mapping[str, Wanted]) -> Mapping[str, Slots]:
    """The slots of all frontends that need any, or had. Raises Unwritable."""
    taken, found = {each.number for key, each in before.items() if key in wanted}, dict[str, Slots]()
    number = 0
    for frontend, its in sorted(wanted.items(), key=lambda each: each[0]):
        known = before.get(frontend)
        if known is None and its.policies:
            number = next(each for each in range(number + 1, _MOST_NUMBERS + len(taken) + 1) if each not in taken)
            if number >= _MOST_NUMBERS:
                raise Unwritable("L7 policies of more listeners than HAProxy has numbers for")
            known = Slots(number=number, policies=(), ranks=())
        if known is not None:
            found[frontend] = arrange(known, its)
    return found


def arrange(before: Slots, wanted: Wanted) -> Slots:
    """The policies in slots that the process has, if it has enough; else in slots of a new process."""
    return _fitted(before, wanted.policies) or _built(before, wanted)


def is_loaded(before: Slots | None, after: Slots | None) -> bool:
    """Whether commands turn a process with the one into a process with the other."""
    if before is None or after is None:
        return before is after
    return (before.number, before.build) == (after.number, after.build)


def _fitted(before: Slots, wanted: tuple[Policy, ...]) -> Slots | None:
    """A policy that stays has its slot; others take slots that are free before, so no slot in use changes."""
    policies, ranks = list(before.policies), [FREE] * len(before.policies)
    same, free = defaultdict[Policy, list[int]](list), defaultdict[Shape, list[int]](list)
    for slot in sorted(range(len(policies)), key=lambda slot: (before.ranks[slot] == FREE, before.ranks[slot])):
        same[policies[slot]].append(slot)
    new = list[int]()
    for order, policy in enumerate(wanted):
        if same[policy]:
            ranks[same[policy].pop(0)] = order
        else:
            new.append(order)
    for slot, policy in enumerate(policies):
        if before.ranks[slot] == FREE and ranks[slot] == FREE:
            free[policy.shape].append(slot)
    for order in new:
        if not free[wanted[order].shape]:
            return None
        slot = free[wanted[order].shape].pop(0)
        policies[slot], ranks[slot] = wanted[order], order
    return replace(before, policies=tuple(policies), ranks=tuple(ranks))


def _built(before: Slots, wanted: Wanted) -> Slots:
    """In their order, so that later ones are seldom looked at, and free slots behind them: some of each shape, then as
    many as are in use, then as many as the process has had."""
    policies = wanted.policies
    by_shape = defaultdict[Shape, list[Policy]](list)
    for policy in policies:
        by_shape[policy.shape].append(policy)
    for policy in wanted.prepared:
        by_shape[policy.shape] = by_shape[policy.shape] or [policy]
    spare = [its[0] for its in by_shape.values() for _ in range(MIN_SPARE)]
    spare += [policy for its in by_shape.values() for policy in its[MIN_SPARE:]]
    there = Counter(policy.shape for policy in (*policies, *spare))
    for policy in before.policies:
        there[policy.shape] -= 1
        spare += [policy] if there[policy.shape] < 0 else []
    slots, left = list(policies), MAX_SPARE_PATTERNS
    for policy in spare:
        left -= policy.patterns
        if len(slots) < MAX_SLOTS and left >= 0:
            slots.append(policy)
    ranks = (*range(len(policies)), *([FREE] * (len(slots) - len(policies))))
    return replace(before, build=before.build + 1, policies=tuple(slots), ranks=ranks)


def map_path(frontend: str) -> str:
    return f"{MAPS}/{name(frontend)}"


def entry(policy: Policy) -> str:
    """The action as a value of the map. Raises Unwritable for what is no plain word there."""
    if not policy.action.isascii() or not policy.action.isprintable() or " " in policy.action:
        raise Unwritable("a URL with characters that no header may have")
    return policy.action


def table(slots: Slots) -> str:
    """The ranks of all slots."""
    return ":".join(
        str(_UNRANKED if order == FREE else (_STEP // 10 + order) * _STEP + slot)
        for slot, order in enumerate(slots.ranks)
    )


def map_text(slots: Slots) -> str:
    entries = (f"{slot} {entry(policy)}" for slot, policy in enumerate(slots.policies))
    return "".join(f"{line}\n" for line in (f"{TABLE} {table(slots)}", *entries))


def patterns(slots: Slots) -> Iterator[tuple[int, int, str, Condition, int]]:
    """Each pattern: its slot, its condition and that one's place there, the sample, and the identity."""
    number = slots.number * _PATTERNS
    for slot, policy in enumerate(slots.policies):
        for place, condition in enumerate(policy.conditions):
            for sample in condition.samples:
                yield slot, place, sample, condition, number
                number += 1


def policy_lines(frontend: str, slots: Slots) -> Iterator[Line]:
    """Directives of the frontend. A slot is looked at if its rank is below that of each slot that applies, so those
    that are free, or come later, cost nearly nothing (configuration manual, 7.1: conditions are evaluated in order)."""
    path = map_path(frontend)
    for slot, place, sample, condition, identity in patterns(slots):
        yield condition.line(_acl(slot, place), sample, identity)
    yield "http-request", "set-var(txn.policies)", f"str({TABLE}),map_str({path})"
    yield "http-request", "set-var(txn.policy)", f"int({_UNRANKED})"
    for slot, policy in enumerate(slots.policies):
        # bytes() gives no text, and only a text is read as a number: lower() makes it one
        rank = f"var(txn.policies),bytes({slot * _WIDTH},{_WIDTH - 1}),lower"
        names = (f"{'!' * each.inverted}{_acl(slot, place)}" for place, each in enumerate(policy.conditions))
        is_first = "{", f"{rank},sub(txn.policy)", "lt", "0", "}"
        yield "http-request", "set-var(txn.policy)", f"{rank},add(0)", "if", *is_first, *names
    yield "http-request", "set-var(txn.action)", f"var(txn.policy),mod({_STEP}),map_str({path})"
    yield "http-request", "deny", "deny_status", "403", "if", *_is("deny")
    target = "%[var(txn.action),field(2,:,0)]"
    for kind in ("location", "prefix"):
        for code in CODES:
            yield "http-request", "redirect", kind, target, "code", str(code), "if", *_is(f"{kind}-{code}")
    yield "use_backend", target, "if", *_is("pool")


def _acl(slot: int, place: int) -> str:
    return f"policy:{slot}:{place}"


def _is(action: str) -> Line:
    return "{", "var(txn.action),field(1,:)", "-m", "str", "--", action, "}"


def changed_patterns(before: Slots, after: Slots) -> Iterator[tuple[int, str]]:
    """The identity of each pattern that changes, and its value."""
    for (*_, old, identity), (*_, new, _) in zip(patterns(before), patterns(after), strict=True):
        if new.value is not None and new.value != old.value:
            yield identity, new.value


def changed_actions(before: Slots, after: Slots) -> Iterable[tuple[int, str]]:
    """Each slot that has another action, and that."""
    pairs = enumerate(zip(before.policies, after.policies, strict=True))
    return ((slot, entry(new)) for slot, (old, new) in pairs if new.action != old.action)

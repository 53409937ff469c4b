"""L7 policies of a frontend, which can change without a reload.

- The configuration has slots. Each has the conditions of one policy, of a fixed shape; the runtime API changes their
  values.
- A map has a table with the order of the slots in use, and for each slot its action.
- A change first writes policies into free slots, then replaces the table with one command. A request reads the table
  once, so it meets either all old or all new policies; slots in use never change.
- A shape without a free slot needs a new process, which gets as many free slots of this shape as it has in use. So
  few of a listener's changes need a new process.

Pure: the slots of a process are an argument (`Slots`), so files and commands have the same result.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from fairlead.dataplane.haproxy_words import Line, Unwritable, name, render_line

MAP_FOLDER = "policies"
"""Folder of maps, relative to the configuration: one for each frontend with slots."""
TABLE_KEY = "now"
"""Key of the table. The keys of actions are slot numbers."""
MAX_SLOTS = 250
"""Maximum slots of one frontend. A policy in force uses one, and there are at most 100 of these
(model/documents/sizes.py)."""
MAX_SPARE_PATTERNS = 1_000
"""Maximum patterns in all free slots of one frontend. Each uses memory, and each process parses it."""
MAX_PROCESS_SPARE_PATTERNS = 4_000
"""Maximum patterns in the free slots that one process gets at its start.

HAProxy compares each pattern with all others when it reads its configuration: 10,000 take 1 s, 40,000 take 50 s. A
listener beyond this maximum has no free slots, so changes of its policies replace the process.
"""
MAX_PROCESS_PATTERNS = 10_000
"""Maximum patterns in use of one process: those of the largest listener. With more, a start would take longer than the
agent waits (`process.START_TIMEOUT`), and then no change of any listener and no restart would succeed."""
MIN_SPARE = 2
"""Minimum free slots of each shape that is in use or prepared, in a new process."""
FREE_RANK = -1
REDIRECT_CODES = (301, 302, 303, 307, 308)
"""Status codes of redirects (Octavia API, `redirect_http_code`). HAProxy accepts them only as constants."""
_PATTERNS = 2**16
"""Pattern ids reserved for one frontend: 100 policies of 50 rules with two samples each, and the free slots."""
_MAX_FRONTENDS = 2**31 // _PATTERNS
_UNRANKED, _STEP = 999_999, 1_000
"""Rank of a free slot, and the factor of the order in a rank; the remainder is the slot. All ranks have six digits."""
_WIDTH = 7
"""Characters of a rank in the table, with the separator."""

Shape: TypeAlias = tuple[tuple[tuple[str, ...], Line, bool, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Rule of a policy: it matches if one of its samples does."""

    samples: tuple[str, ...]
    matching: Line = ()
    """Match method and flags."""
    value: str | None = None
    """Pattern; None if the sample is a boolean."""
    inverted: bool = False

    @property
    def shape(self) -> tuple[tuple[str, ...], Line, bool, bool]:
        """Attributes that no runtime command changes."""
        return self.samples, self.matching, self.value is not None, self.inverted

    def line(self, acl: str, sample: str, identity: int | None = None) -> Line:
        """Return the `acl` directive. `identity` is the id by which the runtime API finds the pattern."""
        if self.value is None:
            return "acl", acl, sample
        known = ("-u", str(identity)) if identity is not None else ()
        return "acl", acl, sample, *known, *self.matching, "--", self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """L7 policy: it applies to a request if all of its conditions match."""

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
        """Render the policy for cases and logs. Raises Unwritable."""
        entry(self)
        conditions = (
            render_line(each.line("unless" if each.inverted else "if", sample)[1:])
            for each in self.conditions
            for sample in each.samples
        )
        return " ".join((render_line((self.action,)), *conditions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Policies of one frontend as loaded by a process and changed by commands since."""

    number: int
    """Number of the frontend, unique in its process."""
    build: int = 0
    """Incremented each time a new process gets other slots."""
    policies: tuple[Policy, ...]
    """Policy of each slot; a free slot has the last one."""
    ranks: tuple[int, ...]
    """Order of each slot among those in use; FREE for the others."""
    freed: tuple[int, ...] = ()
    """Slots that have been in use in this process and are free now; the first one has been free longest."""

    @property
    def free(self) -> Iterator[int]:
        """Free slots in order of use: slots that were never in use, then those that have been free longest. A request
        that still evaluates the old policies of a slot has then most probably ended."""
        recent = set(self.freed)
        yield from (slot for slot, rank in enumerate(self.ranks) if rank == FREE_RANK and slot not in recent)
        yield from (slot for slot in self.freed if self.ranks[slot] == FREE_RANK)


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredPolicies:
    """Desired policies of a frontend."""

    policies: tuple[Policy, ...] = ()
    """Policies in the order in which they apply."""
    prepared: tuple[Policy, ...] = ()
    """Examples of shapes for which a new process has free slots."""


def assign_all_policy_slots(before: Mapping[str, Slots], wanted: Mapping[str, DesiredPolicies]) -> Mapping[str, Slots]:
    """Return the slots of all frontends that have or had policies. Raises Unwritable."""
    taken, found = {each.number for key, each in before.items() if key in wanted}, dict[str, Slots]()
    number, built = 0, dict[str, tuple[Slots, frozenset[Shape]]]()
    for frontend, its in sorted(wanted.items(), key=lambda each: each[0]):
        known = before.get(frontend)
        if known is None and its.policies:
            number = next(each for each in range(number + 1, _MAX_FRONTENDS + len(taken) + 1) if each not in taken)
            if number >= _MAX_FRONTENDS:
                raise Unwritable(f"more than {_MAX_FRONTENDS} listeners with L7 policies on one HAProxy process")
            known = Slots(number=number, policies=(), ranks=())
        if known is not None and _in_force(known) == its.policies:
            found[frontend] = known
        elif known is not None:
            fitted, lacking = _assign_free(known, its.policies)
            if lacking:
                built[frontend] = known, lacking
            else:
                found[frontend] = fitted
    left = MAX_PROCESS_SPARE_PATTERNS - sum(map(spare_patterns, found.values()))
    for frontend, (known, lacking) in built.items():
        found[frontend] = slots = _assign_new(known, wanted[frontend], lacking, min(MAX_SPARE_PATTERNS, left))
        left -= spare_patterns(slots)
    return found


def assign_policy_slots(before: Slots, wanted: DesiredPolicies) -> Slots:
    """Assign the policies to slots that the process has; if these do not suffice, to slots of a new process."""
    fitted, lacking = _assign_free(before, wanted.policies)
    return _assign_new(before, wanted, lacking, MAX_SPARE_PATTERNS) if lacking else fitted


def _in_force(slots: Slots) -> tuple[Policy, ...]:
    """Return the policies in use, in order."""
    used = sorted((rank, slot) for slot, rank in enumerate(slots.ranks) if rank != FREE_RANK)
    return tuple(slots.policies[slot] for _, slot in used)


def spare_patterns(slots: Slots) -> int:
    """Count the patterns in free slots."""
    return sum(policy.patterns for policy, rank in zip(slots.policies, slots.ranks, strict=True) if rank == FREE_RANK)


def is_loaded(before: Slots | None, after: Slots | None) -> bool:
    """Whether commands can change a process from `before` to `after`."""
    if before is None or after is None:
        return before is after
    return (before.number, before.build) == (after.number, after.build)


def _assign_free(before: Slots, wanted: tuple[Policy, ...]) -> tuple[Slots, frozenset[Shape]]:
    """Assign policies without a new process, and return the shapes that have too few free slots.

    A policy that stays keeps its slot; the others get slots that were free before, so no slot in use changes. Of these
    the slot that has been free longest is used first.
    """
    policies, ranks = list(before.policies), [FREE_RANK] * len(before.policies)
    same, free = defaultdict[Policy, list[int]](list), defaultdict[Shape, list[int]](list)
    for slot in sorted(range(len(policies)), key=lambda slot: (before.ranks[slot] == FREE_RANK, before.ranks[slot])):
        same[policies[slot]].append(slot)
    new, lacking = list[int](), set[Shape]()
    for order, policy in enumerate(wanted):
        if same[policy]:
            ranks[same[policy].pop(0)] = order
        else:
            new.append(order)
    for slot in before.free:
        if ranks[slot] == FREE_RANK:
            free[policies[slot].shape].append(slot)
    for order in new:
        if its := free[wanted[order].shape]:
            slot = its.pop(0)
            policies[slot], ranks[slot] = wanted[order], order
        else:
            lacking.add(wanted[order].shape)
    used = (slot for slot, rank in enumerate(before.ranks) if rank != FREE_RANK)
    freed = tuple(slot for slot in (*before.freed, *used) if ranks[slot] == FREE_RANK)
    return replace(before, policies=tuple(policies), ranks=tuple(ranks), freed=freed), frozenset(lacking)


def _assign_new(before: Slots, wanted: DesiredPolicies, lacking: frozenset[Shape], left: int) -> Slots:
    """Assign slots of a new process: the policies in order, so later ones are seldom evaluated, then free slots with at
    most `left` patterns.

    Each shape first gets a minimum of free slots, small shapes before large ones; then as many as are in use; then as
    many as the old process had, or twice as many if the shape lacked one, so repeated changes end in no new process.
    """
    policies = wanted.policies
    by_shape = defaultdict[Shape, list[Policy]](list)
    for policy in policies:
        by_shape[policy.shape].append(policy)
    for policy in wanted.prepared:
        by_shape[policy.shape] = by_shape[policy.shape] or [policy]
    smallest_first = sorted((its[0] for its in by_shape.values()), key=lambda policy: policy.patterns)
    spare = [policy for policy in smallest_first for _ in range(MIN_SPARE)]
    spare += [policy for its in by_shape.values() for policy in its[MIN_SPARE:]]
    there = Counter(policy.shape for policy in (*policies, *spare))
    for policy in (*before.policies, *(each for each in before.policies if each.shape in lacking)):
        there[policy.shape] -= 1
        spare += [policy] if there[policy.shape] < 0 else []
    slots = list(policies)
    for policy in spare:
        if len(slots) < MAX_SLOTS and policy.patterns <= left:
            slots.append(policy)
            left -= policy.patterns
    ranks = (*range(len(policies)), *([FREE_RANK] * (len(slots) - len(policies))))
    return replace(before, build=before.build + 1, policies=tuple(slots), ranks=ranks, freed=())


def map_path(frontend: str) -> str:
    return f"{MAP_FOLDER}/{name(frontend)}"


def entry(policy: Policy) -> str:
    """Return the action as a value of the map. Raises Unwritable if it is not one printable word."""
    if not policy.action.isascii() or not policy.action.isprintable() or " " in policy.action:
        raise Unwritable("URL has characters that are invalid in an HTTP header")
    return policy.action


def table(slots: Slots) -> str:
    """Return the table: the ranks of all slots."""
    return ":".join(
        str(_UNRANKED if order == FREE_RANK else (_STEP // 10 + order) * _STEP + slot)
        for slot, order in enumerate(slots.ranks)
    )


def map_text(slots: Slots) -> str:
    entries = (f"{slot} {entry(policy)}" for slot, policy in enumerate(slots.policies))
    return "".join(f"{line}\n" for line in (f"{TABLE_KEY} {table(slots)}", *entries))


def patterns(slots: Slots) -> Iterator[tuple[int, int, str, Condition, int]]:
    """Yield each pattern: its slot, the index of its condition in the slot, the sample, the condition, and the
    pattern id."""
    number = slots.number * _PATTERNS
    for slot, policy in enumerate(slots.policies):
        for place, condition in enumerate(policy.conditions):
            for sample in condition.samples:
                yield slot, place, sample, condition, number
                number += 1


def policy_lines(frontend: str, slots: Slots) -> Iterator[Line]:
    """Yield the directives of the frontend.

    A slot is evaluated only if its rank is below the rank of each slot that has matched, so free and later slots
    cost almost nothing (configuration manual, 7.1: conditions are evaluated in order).
    """
    path = map_path(frontend)
    for slot, place, sample, condition, identity in patterns(slots):
        yield condition.line(_acl(slot, place), sample, identity)
    yield "http-request", "set-var(txn.policies)", f"str({TABLE_KEY}),map_str({path})"
    yield "http-request", "set-var(txn.policy)", f"int({_UNRANKED})"
    for slot, policy in enumerate(slots.policies):
        # bytes() returns binary, and only a string is converted to a number: lower() makes it one
        rank = f"var(txn.policies),bytes({slot * _WIDTH},{_WIDTH - 1}),lower"
        names = (f"{'!' * each.inverted}{_acl(slot, place)}" for place, each in enumerate(policy.conditions))
        is_first = "{", f"{rank},sub(txn.policy)", "lt", "0", "}"
        yield "http-request", "set-var(txn.policy)", f"{rank},add(0)", "if", *is_first, *names
    yield "http-request", "set-var(txn.action)", f"var(txn.policy),mod({_STEP}),map_str({path})"
    yield "http-request", "deny", "deny_status", "403", "if", *_is("deny")
    target = "%[var(txn.action),field(2,:,0)]"
    for kind in ("location", "prefix"):
        for code in REDIRECT_CODES:
            yield "http-request", "redirect", kind, target, "code", str(code), "if", *_is(f"{kind}-{code}")
    yield "use_backend", target, "if", *_is("pool")


def _acl(slot: int, place: int) -> str:
    return f"policy:{slot}:{place}"


def _is(action: str) -> Line:
    return "{", "var(txn.action),field(1,:)", "-m", "str", "--", action, "}"


def changed_patterns(before: Slots, after: Slots) -> Iterator[tuple[int, str]]:
    """Yield the id and the new value of each changed pattern."""
    for (*_, old, identity), (*_, new, _) in zip(patterns(before), patterns(after), strict=True):
        if new.value is not None and new.value != old.value:
            yield identity, new.value


def changed_actions(before: Slots, after: Slots) -> Iterable[tuple[int, str]]:
    """Return each slot with a changed action, and the action."""
    pairs = enumerate(zip(before.policies, after.policies, strict=True))
    return ((slot, entry(new)) for slot, (old, new) in pairs if new.action != old.action)

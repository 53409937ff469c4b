"""Encoder of a diff as one transaction of the OVN Northbound database. No I/O.

A transaction changes only differences: single elements of sets, single columns. It fails as a whole if a row that it
updates or refers to is missing, or if a row that it deletes still holds rows that stay.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, cast

import msgspec

from fairlead.dataplane.ovn import Element, Exclusive, LoadBalancer, LoadBalancerGroup, OvnRow, StockRows
from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.dataplane.ovn_tables import (
    EXTERNAL_ID_COLUMNS,
    SHARED_COLUMNS,
    SHARED_TEXTS,
    SharedElement,
    all_references,
)
from fairlead.dataplane.rows import Diff, Key, Row, Update
from fairlead.drivers.interface import DriverError, MissingReference
from fairlead.drivers.ovn.northbound.columns import encode_columns, holder_of, place_of
from fairlead.drivers.ovn.northbound.marks import Mark, replace_address_mark, replace_external_id
from fairlead.drivers.ovn.northbound.variable_encoder import VariableEncoder, wait_for_variable, without_variables
from fairlead.drivers.ovsdb.protocol import assert_lock
from fairlead.drivers.ovsdb.values import Json, encode_map, encode_set, encode_uuid
from fairlead.model.documents.owner import Owner
from fairlead.runtime.steps import Steps, run_to_completion

_STOCK_VIP = "neutron:vip"
"""Key in `external_ids` of each load balancer row of Octavia's stock provider (ovn_octavia_provider)."""
ErrorFactory: TypeAlias = Callable[[], DriverError]
"""Creates the error on demand, because rendering a row of 256 backends takes longer than writing it."""


def _row_error(words: str, row: Row) -> DriverError:
    return DriverError(words.format(row))


def _missing_reference(row: Row, key: Key) -> DriverError:
    return MissingReference(f"{row} refers to {' '.join(key)}, which does not exist")


def _packed(operation: Json) -> msgspec.Raw:
    """Pre-encode an operation; otherwise the garbage collector traverses containers of ten thousand operations."""
    return msgspec.Raw(msgspec.json.encode(operation))


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """A transaction. `refusals` maps the index of an operation to its error."""

    operations: list[Json] = field(default_factory=list)
    errors: dict[int, ErrorFactory] = field(default_factory=dict)

    def add(self, operation: Json, refusal: ErrorFactory | None = None) -> None:
        if refusal is not None:
            self.errors[len(self.operations)] = refusal
        self.operations.append(operation)

    def extend(self, operations: Iterable[Json]) -> None:
        self.operations.extend(operations)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Encodes a diff as one transaction. `uuid_of` maps a key to a UUID, derived from the mark except for orphans."""

    mark: Mark
    lock: str
    owner: Owner
    uuid_of: Callable[[Key], str]
    known_chassis: Container[str] = frozenset()
    """Chassis with a row for template variables."""

    def encode(self, change: Diff) -> Transaction:
        return run_to_completion(self.encode_in_steps(change))

    def encode_in_steps(self, change: Diff) -> Steps[Transaction]:
        """Encode, yielding between variables: a pool may have different values on each of a thousand chassis."""
        transaction = Transaction()
        transaction.add(assert_lock(self.lock))
        change = yield from self._encode_variables(transaction, change)
        self._wait_for_rows(transaction, change)
        creates = cast(Mapping[Key, OvnRow], change.creates)
        for key, row in creates.items():
            self._insert(transaction, key, row)
            if isinstance(row, LoadBalancer) and row.instead_of:
                self._displace(transaction, row.instead_of)
        for key, row in creates.items():  # after all inserts, because a parent may follow its child
            transaction.extend(self._place(key, row))
        for key, update in change.updates.items():
            transaction.extend(self._update(key, update))
        self._delete(transaction, cast(Mapping[Key, OvnRow], change.deletes))
        return transaction

    def _encode_variables(self, transaction: Transaction, change: Diff) -> Steps[Diff]:
        """Encode the template variables, and return the rest of the diff."""
        for update in change.updates.values():
            if isinstance(update.before, ChassisVariable):
                refusal = partial(_row_error, "no such row to update: {}", update.before)
                transaction.add(_packed(wait_for_variable(update.before)), refusal)
                yield
        variables = VariableEncoder(mark=self.mark, owner=self.owner, known_chassis=self.known_chassis)
        for operation in variables.encode(change):
            transaction.add(_packed(operation))
            yield
        updates = {k: update for k, update in change.updates.items() if not isinstance(update.before, ChassisVariable)}
        creates, deletes = without_variables(change.creates), without_variables(change.deletes)
        return replace(change, creates=creates, updates=updates, deletes=deletes)

    def _wait_for_rows(self, transaction: Transaction, change: Diff) -> None:
        """Wait for rows to exist: otherwise an update of a missing row would succeed, and a weak reference to one would
        be dropped (RFC 7047, 5.2.3, 3.2)."""
        seen = {*change.creates, *change.updates}
        for key, update in change.updates.items():
            transaction.add(self._wait_for(key), partial(_row_error, "no such row to update: {}", update.before))
        for row in (*change.creates.values(), *(update.after for update in change.updates.values())):
            for key in all_references(cast(OvnRow, row)):
                if key not in seen:
                    seen.add(key)
                    transaction.add(self._wait_for(key), partial(_missing_reference, row, key))

    def _wait_for(self, key: Key) -> Json:
        return _wait(key[0], [self._is(key)], [{"_uuid": encode_uuid(self.uuid_of(key))}])

    def _insert(self, transaction: Transaction, key: Key, row: OvnRow) -> None:
        if isinstance(row, Element):
            return
        columns = self._columns(row)
        marks = self._marks(key, {word: columns.pop(word) for word in EXTERNAL_ID_COLUMNS if word in columns})
        insert = {"op": "insert", "table": key[0], "uuid": self.uuid_of(key), "row": columns | marks}
        transaction.add(
            insert, partial(_row_error, "duplicate uuid: row exists already, or has no ownership mark: {}", row)
        )

    def _place(self, key: Key, row: OvnRow) -> Iterator[Json]:
        if isinstance(row, Element):
            yield self._change_element(row, "insert")
        else:
            yield from self._hold(key, row, "insert")

    def _update(self, key: Key, update: Update) -> Iterator[Json]:
        """Update only changed columns and elements; columns with elements of other owners are not rewritten."""
        before, after = cast(Exclusive, update.before), cast(Exclusive, update.after)
        old, new = self._columns(before), self._columns(after)
        changed = {column: value for column, value in new.items() if old[column] != value}
        shared = SHARED_TEXTS.get(key[0])
        if shared is not None and changed.pop(shared.column, None) is not None:
            yield self._change_texts(key, shared.column, _own(before, shared), _own(after, shared))
        words = [
            each
            for column in EXTERNAL_ID_COLUMNS
            if column in changed
            for each in _replace(column, changed.pop(column))
        ]
        if words:
            yield self._mutate(key, words)
        if changed:
            yield {"op": "update", "table": key[0], "where": [self._is(key)], "row": changed}
        if holder_of(before) != holder_of(after):
            yield from self._hold(key, before, "delete")
            yield from self._hold(key, after, "insert")

    def _columns(self, row: Exclusive) -> dict[str, Json]:
        if isinstance(row, LoadBalancerGroup):
            return {"name": self.mark.group_name(self.owner, row.name)}
        return encode_columns(row)

    def _displace(self, transaction: Transaction, displaced: StockRows) -> None:
        """Delete the rows of the stock provider.

        Weak references from switches, routers and groups disappear with them, as do their health checks (ovn-nb(5)).
        All rows with the name must be deleted, because two rows with one VIP would both be in force.
        """
        named = [["name", "==", displaced.name], ["external_ids", "excludes", self.mark.managed_condition]]
        theirs = ["external_ids", "includes", encode_map({_STOCK_VIP: displaced.vip})]
        transaction.add({"op": "delete", "table": "Load_Balancer", "where": [*named, theirs]})
        words = (
            f"Load_Balancer {displaced.name} exists and is not a row of Octavia's ovn provider with VIP {displaced.vip}"
        )
        transaction.add(_wait("Load_Balancer", named, []), partial(DriverError, words))

    def _marks(self, key: Key, words: Mapping[str, str]) -> dict[str, Json]:
        if key[0] == "Load_Balancer_Group":
            return {}
        return {"external_ids": encode_map(self.mark.external_ids(self.owner, key, words))}

    def _change_texts(self, key: Key, column: str, old: tuple[str, ...], new: tuple[str, ...]) -> Json:
        """Mutate a column with a set of strings; inserts before deletions, because `networks` of a router port must not
        be empty (ovn-nb(5))."""
        changes = {"insert": {*new} - {*old}, "delete": {*old} - {*new}}
        return self._mutate(key, [[column, mutator, encode_set(texts)] for mutator, texts in changes.items() if texts])

    def _delete(self, transaction: Transaction, rows: Mapping[Key, OvnRow]) -> None:
        """Delete children before parents, which must be empty then. Rows that are already gone are no error."""
        exclusive: dict[Key, Exclusive] = {}
        for key, row in rows.items():
            if isinstance(row, Element):
                transaction.add(self._change_element(row, "delete"))
            else:
                exclusive[key] = row
        for key, row in exclusive.items():
            shared = SHARED_TEXTS.get(key[0])
            if shared is not None and (_own(row, shared) or not shared.needed):
                transaction.add(*self._wait_until_only(key, shared.column, _own(row, shared)))
            transaction.extend(self._hold(key, row, "delete"))
        for key, row in exclusive.items():
            for column in SHARED_COLUMNS[key[0]]:
                transaction.add(*self._wait_until_only(key, column, ()))
            if holder_of(row) is None:
                transaction.add({"op": "delete", "table": key[0], "where": [self._is(key)]})

    def _wait_until_only(self, key: Key, column: str, values: tuple[str, ...]) -> tuple[Json, ErrorFactory]:
        """Wait until only own values are left, because rows of other owners would be deleted with the row."""
        where = [self._is(key), [column, "!=", encode_set(values)]]
        return _wait(key[0], where, []), partial(
            MissingReference, f"{' '.join(key)} still has {column} of other owners"
        )

    def _change_element(self, row: Element, mutator: str) -> Json:
        shared, holder = place_of(row)
        element: str = getattr(row, shared.element)
        if shared.target is None:
            owner = self.owner if mutator == "insert" else None
            mark = replace_address_mark(element, owner)
            return self._mutate(holder, [[shared.column, mutator, element], *mark])
        return self._mutate(holder, [[shared.column, mutator, encode_uuid(self.uuid_of((shared.target, element)))]])

    def _hold(self, key: Key, row: Exclusive, mutator: str) -> Iterator[Json]:
        """Insert a child row into its parent's set, or remove it, which deletes it."""
        place = holder_of(row)
        if place is None:
            return
        (table, holder), column = place
        child = encode_uuid(self.uuid_of(key))
        where = [self._is((table, holder))] if holder else [[column, "includes", child]]
        yield {"op": "mutate", "table": table, "where": where, "mutations": [[column, mutator, child]]}

    def _mutate(self, key: Key, mutations: Sequence[Json]) -> Json:
        return {"op": "mutate", "table": key[0], "where": [self._is(key)], "mutations": mutations}

    def _is(self, key: Key) -> Json:
        return ["_uuid", "==", encode_uuid(self.uuid_of(key))]


def _replace(column: str, text: str) -> list[Json]:
    return replace_external_id(EXTERNAL_ID_COLUMNS[column], text)


def _own(row: Exclusive, shared: SharedElement) -> tuple[str, ...]:
    """Texts in the shared column that are the row's own."""
    texts: tuple[str, ...] = getattr(row, shared.column)
    return texts


def _wait(table: str, where: list[Json], rows: list[Json]) -> Json:
    """Operation that fails immediately unless the matching rows are these."""
    wanted = {"columns": ["_uuid"], "until": "==", "rows": rows}
    return {"op": "wait", "timeout": 0, "table": table, "where": where, **wanted}

"""Evaluation of a run: for each disturbance the longest pause and the errors, and lost or duplicate objects."""

import csv
import io
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from harness.address_specification import apply_claim
from harness.ha.disturbances import Disturbance
from harness.ha.load import MODES, SharedState, Write, adapter, read_all
from harness.ha.three_hosts import NORTHBOUND, SOUTHBOUND, run
from harness.linearizability import Operation, contradictions
from harness.waiting import DEADLINE, wait_until

Table = dict[str, Any]
REMOTES = {"ovn-nbctl": NORTHBOUND, "ovn-sbctl": SOUTHBOUND}


def p50_p99(writes: Iterable[Write]) -> str:
    took = sorted((each.returned_at - each.called_at) * 1000 for each in writes if each.is_done)
    return f"{took[len(took) // 2]:.1f} / {took[len(took) * 99 // 100]:.1f}" if took else "-"


def pauses(writes: Sequence[Write], began: float, ended: float) -> Iterator[tuple[float, float]]:
    """Start and length of each period without an acknowledged write."""
    last = began
    for moment in (*sorted(each.returned_at for each in writes if each.is_done), ended):
        if began <= moment <= ended:
            yield last, moment - last
            last = moment


def by_disturbance(town: SharedState, steps: Sequence[Disturbance]) -> dict[str, Table]:
    """Results by disturbance.

    A write belongs to the last step that began before it; no write begins after the last step.
    """
    of: dict[str, list[Write]] = defaultdict(list)
    longest: Counter[str] = Counter()
    begins = [step.started_at for step in steps]
    for write in town.writes:
        if (number := bisect_right(begins, write.called_at)) > 0:
            of[steps[number - 1].title].append(write)
    for since, length in pauses(town.writes, begins[0], town.until) if steps else ():
        title = _title_of(since, length, steps)
        longest[title] = max(longest[title], round(length * 1000))
    times = Counter(step.title for step in steps)
    return {
        title: {"times": times[title], "longest pause, ms": longest[title]} | summarize_clients(of[title])
        for title in sorted(of)
    }


def _title_of(since: float, length: float, steps: Sequence[Disturbance]) -> str:
    """Return the title of the step with the longest overlap with a pause; a pause may span several steps."""
    ends = [*(step.started_at for step in steps[1:]), since + length]
    shared = [min(since + length, end) - max(since, step.started_at) for step, end in zip(steps, ends, strict=True)]
    return steps[shared.index(max(shared))].title


def summarize_clients(writes: Sequence[Write]) -> Table:
    """Longest wait, and number of errors by code, for each kind of client."""
    table: Table = {"writes": len(writes)}
    for mode in MODES:
        its = [each for each in writes if each.mode == mode]
        errors = Counter(each.code for each in its if each.is_error)
        table[f"longest wait {mode}, ms"] = round(max((e.returned_at - e.called_at for e in its), default=0.0) * 1000)
        table[f"errors {mode}"] = " ".join(f"{code}: {count}" for code, count in sorted(errors.items())) or 0
        table[f"refused {mode}"] = sum(not e.is_done and not e.is_error and not e.may_repeat_own_attempt for e in its)
        table[f"refused after its own lost try {mode}"] = sum(not e.is_done and e.may_repeat_own_attempt for e in its)
    table["retried"] = sum(len(each.attempts) - 1 for each in writes)
    return table


def evaluate(town: SharedState, others: Mapping[str, set[str]]) -> Table:
    """Final checks. All values must be 0, except repetitions by clients. `others` are rows that existed before."""
    wait_idle(town.servers)
    found = read_all(town)
    names = Counter(each["name"] for each in found)
    there = set(names)
    missing = [name for name, write in town.uncontested.items() if write.is_done and name not in there]
    doubled = [name for name, times in names.items() if times > 1]
    against = contradictions(town.checked_operations, None, apply_claim)
    for address in against:
        show(address, (each for each in town.history if each.key == address))
    claims = Counter((each["vip_subnet_id"], each["vip_address"]) for each in found)
    return {
        "acknowledged": sum(each.is_done for each in town.writes),
        "never answered": sum(not each.has_known_effect for write in town.writes for each in write.attempts),
        "operations judged": len(town.checked_operations),
        "addresses whose history fits into no order": against,
        "lost": missing,
        "duplicated by servers": [name for name in doubled if name not in town.retried],
        "duplicated by clients that sent it again": len([name for name in doubled if name in town.retried]),
        "addresses claimed twice": [address for (_, address), times in claims.items() if times > 1],
        **compare_rows(town, {f"{each['id']}-tcp" for each in found}, others),
    }


def show(address: str, operations: Iterable[Operation]) -> None:
    """Print the operations on an address, for people who investigate a failure."""
    print(f"{address}:", file=sys.stderr)
    for each in sorted(operations, key=attrgetter("called_at")):
        print(f"  {each.called_at:.4f} to {each.returned_at:.4f} {each.action} {each.value}", file=sys.stderr)


def wait_idle(servers: Sequence[int]) -> None:
    """Wait until no server would change anything in OVN; a failure shows the remaining plan."""
    wait_until(lambda: plans(servers), "OVN to be as the model", is_enough=lambda plan: not plan)


def plans(servers: Sequence[int]) -> dict[str, Any]:
    """Changes that any server still plans."""
    planned: dict[str, Any] = {}
    for host in servers:
        planned |= adapter(host, 5)[0].get("/operator/plan").json()["plan"]
    return planned


def compare_rows(town: SharedState, wanted: set[str], others: Mapping[str, set[str]]) -> Table:
    """Compare the rows of OVN's Northbound and Southbound databases with the API."""
    run("ovn-nbctl", f"--db={NORTHBOUND}", "--wait=sb", f"--timeout={DEADLINE:.0f}", "sync")
    table: Table = {"owners whose rows differ from the model": sorted(plans(town.servers))}
    for client in REMOTES:
        has = rows_of(client) - others[client]
        table[f"rows that are too many or missing, {client}"] = sorted(wanted ^ has)
    return table


def rows_of(client: str) -> set[str]:
    words = ("--format=csv", "--data=bare", "--no-headings", "--columns=name", "list", "Load_Balancer")
    return {name for (name,) in csv.reader(io.StringIO(run(client, f"--db={REMOTES[client]}", *words)))}


def failed_checks(table: Table) -> list[str]:
    """Names of non-empty lists, which must be empty."""
    return [what for what, value in table.items() if isinstance(value, list) and value]

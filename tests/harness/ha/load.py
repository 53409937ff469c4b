"""Clients of three servers that behave as OpenStack's own do: they use keystoneauth, with or without its retries.

Each attempt on the wire is recorded, because a request without a response may have been executed, and keystoneauth
repeats it silently. So the results that a user sees and the effects on a server are counted separately.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from random import Random
from time import perf_counter
from typing import Any

import requests
from keystoneauth1 import exceptions
from keystoneauth1.adapter import Adapter
from keystoneauth1.http_basic import HTTPBasicAuth
from keystoneauth1.session import Session

from harness.ha.three_hosts import ADDRESSES, PASSWORD, PORT, USER
from harness.linearizability import UNKNOWN, Operation

now = perf_counter

CLIENTS, RATE = 10, 50.0
"""writes per second, of all clients together"""
MAX_ADDRESSES, MAX_USES = 12, 60
"""Number of contended addresses, and of uses of each: a long history of one address takes long to check."""
LBS = "/load-balancer/v2.0/lbaas/loadbalancers"
TIMEOUT = 30.0
"""Seconds. The clients' own default is no timeout."""
UNCONTESTED_SHARE = 0.05
"""Share of creates without an address, which are not protected against duplicates."""
NO_EFFECT_CODES = {404: "gone", 409: "on its way"}
NO_RETRIES, WITH_RETRIES = MODES = ("as they come", "with retries")


@dataclass(frozen=True)
class Attempt:
    called_at: float
    returned_at: float
    code: str
    """HTTP status, or kind of connection failure."""
    body: Any = None

    @property
    def has_known_effect(self) -> bool:
        """Whether the effect of the attempt is known."""
        return self.code.isdigit() and int(self.code) < 500


class RecordingSession(requests.Session):
    """HTTP session of one client that records its attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts: list[Attempt] = []

    def request(self, *words: Any, **options: Any) -> requests.Response:
        asked = now()
        try:
            answer = super().request(*words, **options)
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            refused = "NewConnectionError" in repr(error) or "refused" in str(error)
            self.attempts.append(Attempt(asked, now(), "not connected" if refused else "connection lost"))
            raise
        except requests.Timeout:
            self.attempts.append(Attempt(asked, now(), "timed out"))
            raise
        body = answer.json() if answer.content and answer.headers.get("Content-Type", "").startswith("app") else None
        self.attempts.append(Attempt(asked, now(), str(answer.status_code), body))
        return answer


@dataclass(frozen=True)
class Write:
    mode: str
    called_at: float
    returned_at: float
    code: str
    """Status that the user sees."""
    attempts: tuple[Attempt, ...]

    @property
    def is_done(self) -> bool:
        return self.code.startswith("2")

    @property
    def may_repeat_own_attempt(self) -> bool:
        """Whether the client's own earlier attempt may have caused this 404 or 409."""
        return self.code in ("404", "409") and any(not each.has_known_effect for each in self.attempts)

    @property
    def is_error(self) -> bool:
        return not self.is_done and self.code not in ("404", "409")


@dataclass
class SharedState:
    """State shared by all clients."""

    subnet: str
    prefix: str
    servers: Sequence[int]
    retries: int = 5
    """Retries of every second client; five are keystoneauth's usual number for services (15 s with the pauses)."""
    history: list[Operation] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    uncontested: dict[str, Write] = field(default_factory=dict)
    """Writes without contention, by name."""
    retried: set[str] = field(default_factory=set)
    """Names with more than one attempt to create them."""
    uses: "Counter[int]" = field(default_factory=Counter)
    ended: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)
    until: float = 0.0
    """End of the run."""
    _first: int = 0
    _number: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def checked_operations(self) -> list[Operation]:
        """Operations to check.

        Operations that found a name deleted or in progress are left out if two objects may have had the name in
        succession, because a client may still be repeating a request.
        """
        return [
            each
            for each in self.history
            if each.action not in NO_EFFECT_CODES.values() or each.value not in self.retried
        ]

    def end(self) -> None:
        self.until = now()
        self.ended.set()

    def wrote_since(self, moment: float) -> bool:
        """Whether a write begun after this moment was acknowledged.

        Raises the exception that ended a client, if any.
        """
        if self.failures:
            raise self.failures[0]
        later = takewhile(lambda write: write.returned_at > moment, reversed(self.writes))
        return any(write.is_done and write.called_at > moment for write in later)

    def name(self) -> str:
        with self._lock:
            self._number += 1
            return f"{self.prefix}{self._number}"

    def address(self, random: Random) -> str:
        with self._lock:
            number = self._first + random.randrange(MAX_ADDRESSES)
            self.uses[number] += 1
            while self.uses[self._first] >= MAX_USES:
                self._first += 1
            return address_of(number)

    def addresses(self) -> list[str]:
        return [address_of(number) for number in self.uses]


def address_of(number: int) -> str:
    return f"10.{10 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def adapter(host: int, retries: int) -> tuple[Adapter, RecordingSession]:
    wire = RecordingSession()
    url = f"http://{ADDRESSES[host]}:{PORT}"
    session = Session(auth=HTTPBasicAuth(endpoint=url, username=USER, password=PASSWORD), session=wire, timeout=TIMEOUT)
    return Adapter(session, endpoint_override=url, connect_retries=retries, status_code_retries=retries), wire


class LoadClient(threading.Thread):
    """Client that writes at its share of the rate, or as fast as responses arrive."""

    def __init__(self, town: SharedState, number: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._town = town
        self._random = Random(f"{seed} {number}")
        self._mode = MODES[number % len(MODES)]
        host = town.servers[number // len(MODES) % len(town.servers)]
        self._adapter, self._wire = adapter(host, town.retries if self._mode == WITH_RETRIES else 0)

    def run(self) -> None:
        due = now()
        try:
            while not self._town.ended.wait(max(0.0, due - now())):
                self._write()
                due = max(due + CLIENTS / RATE, now() - 1)
        except BaseException as error:
            self._town.failures.append(error)
            raise

    def _request(self, method: str, path: str, body: Any = None) -> tuple[str, Any, tuple[Attempt, ...]]:
        """Status that the user sees, body, and all attempts."""
        self._wire.attempts.clear()
        options = {} if body is None else {"json": body}
        try:
            answer = self._adapter.request(path, method, raise_exc=False, **options)
        except exceptions.ConnectionError:  # also in the middle of a response, which clients do not repeat
            return self._wire.attempts[-1].code, None, tuple(self._wire.attempts)
        return str(answer.status_code), self._wire.attempts[-1].body, tuple(self._wire.attempts)

    def _write(self) -> None:
        if self._random.random() < UNCONTESTED_SHARE:
            self._create(None)
            return
        address = self._town.address(self._random)
        code, body, attempts = self._request("GET", f"{LBS}?vip_address={address}")
        if code != "200":
            return
        found = body["loadbalancers"]
        self._record(address, "read", record_final_read(address, found), attempts[-1])
        if not found:
            self._create(address)
        elif self._random.random() < 0.6:
            self._change(address, found[0])
        else:
            self._remove(address, found[0])

    def _create(self, address: str | None) -> None:
        name = self._town.name()
        where: Mapping[str, str] = {} if address is None else {"vip_address": address}
        balancer = {"name": name, "vip_subnet_id": self._town.subnet, "listeners": [LISTENER], **where}
        write, attempts = self._count_request("POST", LBS, {"loadbalancer": balancer})
        if sum(each.code != "not connected" for each in attempts) > 1:
            self._town.retried.add(name)
        if address is None:
            self._town.uncontested[name] = write
            return
        for each in attempts:
            assert each.code in ("201", "409") or not each.has_known_effect, each
            self._record(address, "refused" if each.code == "409" else "create", name, each)

    def _change(self, address: str, known: Any) -> None:
        text = self._town.name()
        _, attempts = self._count_request("PUT", f"{LBS}/{known['id']}", {"loadbalancer": {"description": text}})
        for each in attempts:
            self._record_effect(address, "change", (known["name"], text), known["name"], each)

    def _remove(self, address: str, known: Any) -> None:
        _, attempts = self._count_request("DELETE", f"{LBS}/{known['id']}?cascade=true")
        for each in attempts:
            self._record_effect(address, "delete", known["name"], known["name"], each)

    def _record_effect(self, address: str, action: str, value: Any, name: str, attempt: Attempt) -> None:
        if attempt.code.isdigit() and (why := NO_EFFECT_CODES.get(int(attempt.code))) is not None:
            self._record(address, why, name, attempt)
            return
        assert attempt.code in ("200", "204") or not attempt.has_known_effect, attempt
        self._record(address, action, value, attempt)

    def _count_request(self, method: str, path: str, body: Any = None) -> tuple[Write, tuple[Attempt, ...]]:
        asked = now()
        code, _, attempts = self._request(method, path, body)
        write = Write(self._mode, asked, now(), code, attempts)
        self._town.writes.append(write)
        return write, attempts

    def _record(self, address: str, action: str, value: Any, attempt: Attempt) -> None:
        """Record an attempt. One without a connection has no effect, so it is not recorded."""
        if attempt.code != "not connected":
            answered = attempt.returned_at if attempt.has_known_effect else UNKNOWN
            self._town.history.append(
                Operation(key=address, action=action, value=value, called_at=attempt.called_at, returned_at=answered)
            )


LISTENER = {
    "protocol": "TCP",
    "protocol_port": 80,
    "default_pool": {
        "name": "pool",
        "protocol": "TCP",
        "lb_algorithm": "ROUND_ROBIN",
        "members": [{"address": "10.255.0.1", "protocol_port": 8080}],
    },
}


def record_final_read(address: str, found: Sequence[Any]) -> tuple[str, str] | None:
    assert len(found) < 2, f"{address} is claimed twice"
    return (found[0]["name"], found[0]["description"]) if found else None


def read_all(town: SharedState) -> list[Any]:
    """All load balancers at the end; each address is recorded as read."""
    client, wire = adapter(town.servers[0], 5)
    by_address: dict[str, list[Any]] = defaultdict(list)
    found: list[Any] = []
    while page := client.get(LBS, params={"marker": found[-1]["id"]} if found else {}).json()["loadbalancers"]:
        found += page
    for each in found:
        by_address[each["vip_address"]].append(each)
    for address in town.addresses():
        value, last = record_final_read(address, by_address[address]), wire.attempts[-1]
        town.history.append(
            Operation(key=address, action="read", value=value, called_at=last.called_at, returned_at=last.returned_at)
        )
    return [each for each in found if each["name"].startswith(town.prefix)]

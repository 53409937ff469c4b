"""A tenant that sends random requests to an Octavia whose processes are killed; any request may fail."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from harness.waiting import pause

BALANCERS = 4
MEMBERS = range(100, 110)
"""Last octets of the members' addresses."""
SETTLE_SECONDS = 300.0  # after the last attack; a loaded machine takes a minute to start an agent
PAUSE_RANGE = (1, 5)
"""Minimum and maximum number of accepted operations between two attacks."""
MIN_PAUSE = 0.02  # seconds until the next request after a 409
RETRY_INTERVAL = 0.1  # seconds until the next request after one without a response
ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass
class RandomTenant:
    """A tenant that sends one random request after the other, and accepts any response."""

    client: httpx.Client
    subnet: str
    random: Random
    ids: dict[str, list[str]] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)
    """Status codes, with the message of an error."""
    unanswered: int = 0

    @property
    def accepted_count(self) -> int:
        """Number of operations that Octavia accepted."""
        return sum(answer < "300" for answer in self.answers)

    def table(self) -> str:
        lines = [f"{count} times {answer}" for answer, count in sorted(Counter(self.answers).items())]
        return "\n  ".join([*lines, f"{self.unanswered} times none"])

    def send_random_request(self) -> None:
        acts: list[Callable[[], None]] = [self._listener, self._pool, *[self._member] * 4, *[self._batch] * 2]
        acts += [self._monitor, *[self._change] * 6, *[self._delete] * 2]
        if len(self.ids.get("loadbalancers", ())) < BALANCERS or not self.ids.get("pools"):
            acts = [self.make]
        self.random.choice(acts)()

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            answer = self.client.request(method, f"/v2/lbaas/{path}", json=body)
        except httpx.TransportError:
            self.unanswered += 1
            pause(RETRY_INTERVAL)
            return {}
        self._count(answer)
        return answer.json() if answer.status_code == 201 else {}

    def _count(self, answer: httpx.Response) -> None:
        code, sentence = answer.status_code, ""
        if code >= 300:
            said = ID.sub("ID", answer.json().get("faultstring", answer.text))
            sentence = " ".join(said.partition("[SQL:")[0].split())
        self.answers.append(f"{code} {sentence}".strip())
        if code == 409:
            pause(MIN_PAUSE)

    def random_path(self, kind: str) -> str:
        """Path of a random object of this kind."""
        return self.random.choice(self.ids.get(kind) or [f"{kind}/00000000-0000-4000-8000-000000000000"])

    def _record_created(self, kind: str, answer: Mapping[str, Mapping[str, Any]], path: str = "") -> None:
        for each in answer.values():
            self.ids.setdefault(kind, []).append(f"{path or kind}/{each['id']}")

    def make(self) -> None:
        """Create a load balancer with all kinds of parts."""
        monitor = {"type": "TCP", "delay": 5, "timeout": 3, "max_retries": 2}
        pool = {"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": [self._new_member()]}
        listener = {"protocol": "TCP", "protocol_port": 80, "default_pool": {**pool, "healthmonitor": monitor}}
        body = {"vip_subnet_id": self.subnet, "provider": "fairlead", "name": "b", "listeners": [listener]}
        answer = self.request("POST", "loadbalancers", {"loadbalancer": body})
        self._record_created("loadbalancers", answer)
        for whole in answer.values():
            for part in whole["pools"]:
                self._record_created("pools", {"pool": part})
                self._record_created(
                    "members", {each["id"]: each for each in part["members"]}, f"pools/{part['id']}/members"
                )
            self._record_created("listeners", {each["id"]: each for each in whole["listeners"]})

    def _listener(self) -> None:
        protocol, port = self.random.choice(["TCP", "UDP"]), self.random.randrange(1000, 1030)
        body = {"loadbalancer_id": self._id("loadbalancers"), "protocol": protocol, "protocol_port": port}
        self._record_created("listeners", self.request("POST", "listeners", {"listener": body}))

    def _pool(self) -> None:
        body = {"loadbalancer_id": self._id("loadbalancers"), "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}
        self._record_created("pools", self.request("POST", "pools", {"pool": body}))

    def _member(self) -> None:
        path = f"{self.random_path('pools')}/members"
        self._record_created("members", self.request("POST", path, {"member": self._new_member()}), path)

    def _batch(self) -> None:
        members = {each["address"]: each for each in (self._new_member() for _ in range(4))}
        self.request("PUT", f"{self.random_path('pools')}/members", {"members": list(members.values())})

    def _monitor(self) -> None:
        body = {"pool_id": self._id("pools"), "type": "TCP", "delay": 5, "timeout": 3, "max_retries": 2}
        self._record_created("healthmonitors", self.request("POST", "healthmonitors", {"healthmonitor": body}))

    def _change(self) -> None:
        kind = self.random.choice(["loadbalancers", "listeners", "pools", "members", "healthmonitors"])
        values = {"name": f"n{self.random.randrange(100)}", "admin_state_up": self.random.random() < 0.8}
        more = {
            "members": {"weight": self.random.randrange(10)},
            "healthmonitors": {"delay": self.random.randrange(5, 9)},
        }
        self.request("PUT", self.random_path(kind), {kind.removesuffix("s"): {**values, **more.get(kind, {})}})

    def _delete(self) -> None:
        kind = self.random.choice(["loadbalancers", "listeners", *["pools", "members", "healthmonitors"] * 2])
        path = self.random_path(kind)
        self.request("DELETE", path + ("?cascade=true" if kind == "loadbalancers" else ""))
        if self.answers[-1] == "204" and path in self.ids.get(kind, ()):
            self.ids[kind].remove(path)

    def _new_member(self) -> dict[str, Any]:
        return {"address": f"10.0.0.{self.random.choice(MEMBERS)}", "protocol_port": 80}

    def _id(self, kind: str) -> str:
        return self.random_path(kind).rpartition("/")[2]

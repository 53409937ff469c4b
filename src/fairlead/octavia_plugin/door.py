"""The door for plug-ins of Fairlead servers, of which the first that can be reached is asked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from fairlead.client import NotReached, Server, ServerError

PATH = "/plugin"
LONGEST_REASON = 1_000
"""Characters that a server takes."""
Body = Mapping[str, Any]


class News(NamedTuple):
    cursor: str
    ids: Sequence[str]
    is_whole: bool
    """Whether anything may have changed."""


class Comparison(NamedTuple):
    differences: Sequence[Body]
    """Each of a part: `kind`, `id`, whether it is `missing`, and the `attributes` with what is `said` and `stored`."""
    revision: int


@dataclass(frozen=True, slots=True)
class Door:
    """All raise ServerError."""

    servers: tuple[Server, ...]

    def post(self, path: str, root: str, body: Body) -> None:
        self._ask("POST", path, {root: body})

    def put(self, path: str, root: str, body: object) -> None:
        self._ask("PUT", path, {root: body})

    def delete(self, path: str) -> None:
        """What is not there is deleted already."""
        try:
            self._ask("DELETE", path)
        except ServerError as error:
            if error.status != 404:
                raise

    def compare(self, whole: Body) -> Comparison:
        """In what a load balancer that is to be so is another one there. 404 if it is not there."""
        told = self._ask("POST", f"/loadbalancers/{_part(whole['id'])}/comparison", {"loadbalancer": whole})
        return Comparison(told["differences"], told["revision"])

    def say_again(self, whole: Body, revision: int | None) -> None:
        """It becomes so, with all that is missing; with a revision, if nobody has changed it since."""
        query = "" if revision is None else f"?revision={revision}"
        self._ask("PUT", f"/loadbalancers/{_part(whole['id'])}/whole{query}", {"loadbalancer": whole})

    def take_over(self, balancer_id: str) -> None:
        """What was prepared is taken from the provider that has it; again it is no mistake."""
        self._ask("PUT", f"/loadbalancers/{_part(balancer_id)}/takeover")

    def fail_over(self, balancer_id: str) -> None:
        self._ask("PUT", f"/loadbalancers/{_part(balancer_id)}/failover")

    def profiles(self) -> Mapping[str, Mapping[str, str]]:
        """What a flavor and an availability zone may say, and what each means."""
        known: Mapping[str, Mapping[str, str]] = self._ask("GET", "/profiles")
        return known

    def statuses(self, balancer_id: str) -> Body | None:
        """How a load balancer stands with all that it holds; None when it is not there."""
        try:
            found: Body = self._ask("GET", f"/statuses/{_part(balancer_id)}")["loadbalancer"]
        except ServerError as error:
            if error.status == 404:
                return None
            raise
        return found

    def ids(self) -> Iterator[str]:
        """Of all load balancers that were given to Fairlead."""
        after: str | None = ""
        while after is not None:
            page = self._ask("GET", f"/statuses?{urlencode({'after': after})}")
            yield from (each["id"] for each in page["loadbalancers"])
            after = page["next"]

    def news(self, cursor: str, seconds: int) -> News:
        """Waits for so many seconds when there is none."""
        told = self._ask("GET", f"/news?{urlencode({'since': cursor, 'wait': seconds})}")
        return News(told["cursor"], told["changed"], told["whole"])

    def probed_on(self, network_id: str) -> Sequence[str] | None:
        """The IPv4 subnets (CIDRs) of a network of Neutron's in which the port for probes needs an address; None where
        no port is needed."""
        found = self._ask("GET", f"/probed-networks/{_part(network_id)}")["network"]
        cidrs: Sequence[str] = found["cidrs"]
        return cidrs if found["is_probed"] else None

    def proxied_on(self, network_id: str) -> Sequence[Body]:
        """Of each project (`project_id`) whose load balancers lead to proxies on this network of Neutron's, which ports
        have to `come`, each with its `host`, `device_id` and `mac_address`, and to `go`, by their ids. Each server
        speaks for the nodes whose agents listen to it, so all are asked."""
        path, found = f"{PATH}/proxied-networks/{_part(network_id)}", dict[str, Body]()
        away: NotReached | None = None
        answered = 0
        for server in self.servers:
            try:
                places = server.ask("GET", path)["network"]["places"]
            except NotReached as error:
                away = error
                continue
            answered += 1
            for place in places:
                had = found.get(place["project_id"], {"come": [], "go": []})
                found[place["project_id"]] = {**place, **{what: [*had[what], *place[what]] for what in ("come", "go")}}
        if away is not None and not answered:
            raise away
        return [*found.values()]

    def refuse_proxies(self, network_id: str, reason: str) -> None:
        """Why Neutron makes no ports of proxies there; nothing where it does again."""
        said = {"network": {"refused": reason[:LONGEST_REASON]}}
        self._ask("PUT", f"/proxied-networks/{_part(network_id)}", said)

    def statistics(self, balancer_ids: Sequence[str]) -> Sequence[Body]:
        """Of their listeners. 50 load balancers may be named."""
        found: Sequence[Body] = self._ask("GET", f"/statistics?{urlencode([('id', each) for each in balancer_ids])}")[
            "listeners"
        ]
        return found

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        *others, last = self.servers
        for server in others:
            try:
                return server.ask(method, PATH + path, body)
            except NotReached:
                continue
        return last.ask(method, PATH + path, body)


def _part(text: str) -> str:
    return quote(text, safe="")

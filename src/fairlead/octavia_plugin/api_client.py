"""Client of Fairlead's plug-in API. It uses the first reachable server."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from fairlead.http.server_client import ApiClient, NotReached, ServerError

PATH = "/plugin"
_TOO_MANY_REQUESTS = 429
MAX_REASON_LENGTH = 1_000
"""Maximum characters that a server accepts."""
RATE_LIMIT_TIMEOUT = 10
"""Maximum total seconds for retries after 429 in one call, because a tenant's request may wait for the result."""
Body = Mapping[str, Any]


class ChangeNotice(NamedTuple):
    cursor: str
    ids: Sequence[str]
    is_whole: bool
    """Whether anything may have changed."""


class Comparison(NamedTuple):
    differences: Sequence[Body]
    """Differing parts: `kind`, `id`, whether it is `missing`, and `attributes` with `said` and `stored` values."""
    revision: int


@dataclass(frozen=True, slots=True)
class PluginApi:
    """API client. All methods raise ServerError."""

    servers: tuple[ApiClient, ...]
    wait: Callable[[float], None] = field(default=time.sleep, repr=False)
    """Function that sleeps for a number of seconds."""

    def post(self, path: str, root: str, body: Body) -> None:
        self._request("POST", path, {root: body})

    def put(self, path: str, root: str, body: object) -> None:
        self._request("PUT", path, {root: body})

    def delete(self, path: str) -> None:
        """Delete an object. A missing one counts as deleted."""
        try:
            self._request("DELETE", path)
        except ServerError as error:
            if error.status != 404:
                raise

    def compare(self, whole: Body) -> Comparison:
        """Compare a desired load balancer with the stored one. 404 if it does not exist."""
        told = self._request("POST", f"/loadbalancers/{_part(whole['id'])}/comparison", {"loadbalancer": whole})
        return Comparison(told["differences"], told["revision"])

    def replace(self, whole: Body, revision: int | None) -> None:
        """Replace a load balancer, creating missing parts; with a revision, only if it is unchanged since then."""
        query = "" if revision is None else f"?revision={revision}"
        self._request("PUT", f"/loadbalancers/{_part(whole['id'])}/whole{query}", {"loadbalancer": whole})

    def take_over(self, balancer_id: str) -> None:
        """Complete a prepared takeover from another provider. Idempotent."""
        self._request("PUT", f"/loadbalancers/{_part(balancer_id)}/takeover")

    def fail_over(self, balancer_id: str) -> None:
        self._request("PUT", f"/loadbalancers/{_part(balancer_id)}/failover")

    def profiles(self) -> Mapping[str, Mapping[str, str]]:
        """Return the keys of flavors and availability zones, with descriptions."""
        known: Mapping[str, Mapping[str, str]] = self._request("GET", "/profiles")
        return known

    def statuses(self, balancer_id: str) -> Body | None:
        """Return the statuses of a load balancer and all its parts; None if it does not exist."""
        try:
            found: Body = self._request("GET", f"/statuses/{_part(balancer_id)}")["loadbalancer"]
        except ServerError as error:
            if error.status == 404:
                return None
            raise
        return found

    def ids(self) -> Iterator[str]:
        """Yield the ids of all load balancers that the plug-in created in Fairlead."""
        after: str | None = ""
        while after is not None:
            page = self._request("GET", f"/statuses?{urlencode({'after': after})}")
            yield from (each["id"] for each in page["loadbalancers"])
            after = page["next"]

    def changes(self, cursor: str, seconds: int) -> ChangeNotice:
        """Long-poll for changes; waits up to this number of seconds."""
        told = self._request("GET", f"/news?{urlencode({'since': cursor, 'wait': seconds})}")
        return ChangeNotice(told["cursor"], told["changed"], told["whole"])

    def probe_subnets(self, network_id: str) -> Sequence[str] | None:
        """Return the IPv4 subnets (CIDRs) of a Neutron network that need a probe address; None if no port is needed."""
        found = self._request("GET", f"/probed-networks/{_part(network_id)}")["network"]
        cidrs: Sequence[str] = found["cidrs"]
        return cidrs if found["is_probed"] else None

    def proxy_ports(self, network_id: str) -> Sequence[Body]:
        """Return the proxy ports of a Neutron network to create and delete.

        For each project (`project_id`) with load balancers that use proxies there: ports that `come`, each with `host`,
        `device_id` and `mac_address`, and ids of ports that `go`. Every server is queried, because each reports only
        the nodes of agents connected to it. Retries after 429 share their time.
        """
        path, found = f"{PATH}/proxied-networks/{_part(network_id)}", dict[str, Body]()
        away: NotReached | None = None
        answered, retries = 0, _Retries(self.wait)
        for server in self.servers:
            try:
                places = retries.ask(partial(server.request, "GET", path))["network"]["places"]
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

    def report_proxy_failure(self, network_id: str, reason: str) -> None:
        """Report why Neutron creates no proxy ports there; an empty reason clears it."""
        said = {"network": {"refused": reason[:MAX_REASON_LENGTH]}}
        self._request("PUT", f"/proxied-networks/{_part(network_id)}", said)

    def statistics(self, balancer_ids: Sequence[str]) -> Sequence[Body]:
        """Return the statistics of the listeners of up to 50 load balancers."""
        found: Sequence[Body] = self._request(
            "GET", f"/statistics?{urlencode([('id', each) for each in balancer_ids])}"
        )["listeners"]
        return found

    def _request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request, with retries after 429."""
        return _Retries(self.wait).ask(partial(self._request_once, method, path, body))

    def _request_once(self, method: str, path: str, body: object) -> Any:
        *others, last = self.servers
        for server in others:
            try:
                return server.request(method, PATH + path, body)
            except NotReached:
                continue
        return last.request(method, PATH + path, body)


class _Retries:
    """Retries after 429: the server has done nothing, and Retry-After has the delay. All requests of an instance share
    PACED_PATIENCE."""

    def __init__(self, wait: Callable[[float], None]) -> None:
        self._wait = wait
        self._left = RATE_LIMIT_TIMEOUT

    def ask(self, send: Callable[[], Any]) -> Any:
        """Send a request until it is not answered 429. Raises ServerError."""
        while True:
            try:
                return send()
            except ServerError as error:
                if error.status != _TOO_MANY_REQUESTS or not 0 < error.retry_after <= self._left:
                    raise
                self._left -= error.retry_after
                self._wait(error.retry_after)


def _part(text: str) -> str:
    return quote(text, safe="")

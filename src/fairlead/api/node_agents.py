"""The agents of nodes as this server hears them: who lives, what they see, and who looks after whose places.

Each server judges for itself, by what it hears: agents tell every server. What is kept here are facts, and they are
told again after a start. What was seen last of somebody holds until somebody has seen something newer.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from fairlead.api.agent_reports import Report, Sightings
from fairlead.model.agent import Agent, find_stale
from fairlead.model.behind import own_among
from fairlead.model.covering import (
    MOST_COVERED,
    find_cover,
    hostless_places,
    is_heard,
    is_wanted,
    place_of,
    probes_here,
    silent_nodes,
    stale_nodes,
    watched_places,
)
from fairlead.model.facts import AGENTS, COVERED, COVERING, OWN_ADDRESSES, PROXIES, SIGHTINGS
from fairlead.model.health import Endpoint, Health
from fairlead.model.host_proxies import has_host_proxy
from fairlead.model.observed_proxy import Proxy
from fairlead.model.probes import endpoints
from fairlead.model.proxy_place import place_of_host_proxy, place_of_port, proxy_chassis
from fairlead.model.sighting import Sighting, after
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import Steps
from fairlead.resting import in_steps
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
MOST_OF_AGENT = 20_000
"""Endpoints of which an agent tells."""
MEMORY = 86_400.0
"""Seconds of silence after which an agent is forgotten, with what it saw."""
UNHEARD = 15.0
"""Seconds after the start in which every agent has spoken that lives: as long as one with the usual heartbeat may be
silent."""
COMES_BACK = 0.25
"""Seconds in which one that has hung up may speak again, as one does that has a new certificate."""
MISTAKEN = 300.0
"""Seconds for which nothing is concluded from who hangs up, after an agent did that lives: something between it and
this server ends connections."""
NOT_GIVEN = "it is not for this chassis to probe"
UNKNOWN = "nobody asks for it to be probed"
OTHERS_PROBE, OTHERS_SERVE = "others probe what is there", "clients are led to proxies of others"
HOST_STANDS = "its host goes on as it was told last, what was seen of its members holds, and no change reaches it"
TOO_MANY = f"an agent tells of {MOST_OF_AGENT} endpoints at most"


@dataclass(slots=True)
class _Heard:
    at: float
    """By the server's clock."""
    told_at: float | None = None
    """By the wall's; None for what is known of it from before this server began."""
    is_told: bool = False
    """Whether it has begun to tell all that it sees: its first word may be but what is new to a server of before."""
    endpoints: set[Endpoint] = field(default_factory=set)
    returns: int = 0
    """How often it was heard again after it had been silent: what it told before has been overtaken then."""
    connection: object = None
    """Over which it spoke last."""
    hung_up: float | None = None
    """Since when that has ended, by the server's clock."""
    believed_from: float = 0.0
    """When it may be concluded again from one that ends that the agent is gone."""
    proxies: set[str] = field(default_factory=set)
    """The ports of its proxies that run."""


class NodeAgents:
    def __init__(
        self,
        model: Model,
        near: Callable[[str], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`near`: the chassis that reach a network."""
        self._model = model
        self._near = near
        self._clock, self._wall = clock, wall
        self._heard: dict[str, _Heard] = {}
        self._began = self._clock()
        self._orphans = set[Endpoint]()
        """What was seen of them holds though nobody probes them any more, for as long as somebody asks."""
        for endpoint, seen in model.snapshot.sightings.items():  # those of before the start
            self._remember(seen.chassis).endpoints.add(endpoint)

    async def recall(self, seen: Sightings) -> None:
        """What a node had seen that has fallen silent, of whomever nobody has told this server anything."""
        snapshot = self._model.snapshot
        news = {
            endpoint: each
            for endpoint, each in seen.items()
            if each is not None and endpoint not in snapshot.sightings and is_wanted(snapshot, endpoint)
        }
        for endpoint, each in news.items():
            self._remember(each.chassis).endpoints.add(endpoint)
        if news:
            await in_steps(self._model.observe(SIGHTINGS, news))

    def last_heard(self, chassis: str) -> float | None:
        """By the wall's clock; None for never."""
        heard = self._heard.get(chassis)
        return None if heard is None else heard.told_at

    def returns(self, chassis: str) -> int:
        """How often it was silent: it is told so, and then tells all that it sees."""
        heard = self._heard.get(chassis)
        return 0 if heard is None else heard.returns

    def _remember(self, chassis: str) -> _Heard:
        return self._heard.setdefault(chassis, _Heard(self._clock()))

    def probed_by(self, chassis: str) -> int:
        """Endpoints of which it tells."""
        heard = self._heard.get(chassis)
        return 0 if heard is None else len(heard.endpoints)

    def hang_up(self, chassis: str, connection: object) -> None:
        """Whoever spoke over it has ended it. An agent keeps its own for as long as it lives."""
        heard, now = self._heard.get(chassis), self._clock()
        if heard is not None and heard.connection is connection and now >= heard.believed_from:
            heard.hung_up = now

    async def hear(self, report: Report, connection: object = None) -> list[tuple[Endpoint, str]]:
        """Answers what is not believed, and why: it changes nothing."""
        name, now, wall = report.agent.name, self._clock(), self._wall()
        heard = self._remember(name)
        heard.at, heard.told_at = now, wall
        before = self._model.snapshot.agents.get(name)
        if heard.hung_up is not None and before is not None and before.since == report.agent.since:
            heard.believed_from = now + MISTAKEN
        heard.connection, heard.hung_up = connection, None
        agent = replace(report.agent, told=before is not None and before.told)
        await in_steps(self._take_proxies(name, report.serving, heard))  # first: who is heard has said which these are
        await in_steps(self._take_addresses(report))
        if before != agent:
            await in_steps(self._model.observe(AGENTS, {name: agent}))
        if before is not None and not before.heard:
            LOG.info("the agent of chassis %s is heard again", name)
            heard.returns += 1
            await in_steps(self._cover())
        heard.is_told |= report.whole and name in self._model.snapshot.chassis
        refused = await in_steps(self._see(report, heard))
        now_known = self._model.snapshot.agents.get(name)
        if heard.is_told and not report.more and now_known is not None and not now_known.told:
            await in_steps(self._model.observe(AGENTS, {name: replace(now_known, told=True)}))
        return refused

    def _take_proxies(self, chassis: str, serving: Mapping[str, frozenset[int]], heard: _Heard) -> Steps[None]:
        """Those that were given to this chassis, and no other's; what it says no more of does not run."""
        snapshot = self._model.snapshot
        named = ((_proxy_of(snapshot, chassis, each), ports) for each, ports in serving.items())
        own = {name: ports for name, ports in named if name is not None}
        news: dict[str, Proxy | None] = dict.fromkeys(heard.proxies - own.keys())
        news |= {each: Proxy(serving=ports) for each, ports in own.items()}
        heard.proxies = set(own)
        changed = {each: proxy for each, proxy in news.items() if snapshot.proxies.get(each) != proxy}
        if changed:
            yield from self._model.observe(PROXIES, changed)

    def _take_addresses(self, report: Report) -> Steps[None]:
        """A host speaks of what is behind itself alone."""
        snapshot, name = self._model.snapshot, report.agent.name
        if report.addresses is not None and name in snapshot.hosts:
            own = own_among(snapshot, name, report.addresses)
            if snapshot.own_addresses.get(name) != own:
                yield from self._model.observe(OWN_ADDRESSES, {name: own})

    def _see(self, report: Report, heard: _Heard) -> Steps[list[tuple[Endpoint, str]]]:
        """An agent that begins anew knows nothing yet of what it has to probe: what was seen last holds until then."""
        refused: list[tuple[Endpoint, str]] = []
        news: dict[Endpoint, Sighting | None] = {}
        snapshot, known = self._model.snapshot, self._model.snapshot.sightings
        looks_since = report.looks_since or report.agent.since
        for endpoint, sighting in report.sightings.items():
            if sighting is None:
                if endpoint in heard.endpoints:
                    news[endpoint] = None
                yield
                continue
            why = self._why_not(snapshot, report.agent.name, endpoint)
            if why or (endpoint not in heard.endpoints and len(heard.endpoints) + len(news) >= MOST_OF_AGENT):
                refused.append((endpoint, why or TOO_MANY))
            elif known.get(endpoint) != sighting or endpoint not in heard.endpoints:
                news[endpoint] = _held(known.get(endpoint), sighting, looks_since)
            yield
        if report.whole:
            name, untold = report.agent.name, heard.endpoints - report.sightings.keys()
            news.update({each: None for each in untold if self._why_not(snapshot, name, each)})
        yield from self._take(heard, report.agent.name, news)
        return refused

    def _why_not(self, snapshot: Snapshot, chassis: str, endpoint: Endpoint) -> str:
        if not probes_here(snapshot, chassis, endpoint):
            return NOT_GIVEN
        return "" if is_wanted(snapshot, endpoint) else UNKNOWN

    def _take(self, heard: _Heard, chassis: str, news: dict[Endpoint, Sighting | None]) -> Steps[None]:
        """What somebody else has seen meanwhile is theirs to take back."""
        known, asked = self._model.snapshot.sightings, dict[str, frozenset[Endpoint]]()
        for endpoint, sighting in list(news.items()):
            if sighting is not None:
                heard.endpoints.add(endpoint)
                continue
            heard.endpoints.discard(endpoint)
            last = known.get(endpoint)
            if last is None or last.chassis != chassis:
                del news[endpoint]
            elif self._is_asked_for(endpoint, asked):
                news[endpoint] = self._inherited(endpoint, last)
            yield
        if news:
            yield from self._model.observe(SIGHTINGS, news)

    def _is_asked_for(self, endpoint: Endpoint, asked: dict[str, frozenset[Endpoint]]) -> bool:
        """`asked` is what is to be probed for each who asks, as far as it was looked up."""
        snapshot = self._model.snapshot
        if endpoint.asker not in asked:
            balancer_id = snapshot.monitor_owner.get(endpoint.asker, "")
            probing = snapshot.load_balancers.get(balancer_id) or snapshot.local_ips.get(endpoint.asker)
            asked[endpoint.asker] = frozenset(endpoints(snapshot, probing) if probing is not None else ())
        return endpoint in asked[endpoint.asker]

    def _inherited(self, endpoint: Endpoint, last: Sighting) -> Sighting:
        """Somebody does not probe it any more: what was seen of it holds until somebody has seen something else. It is
        whose who probes it now, or nobody's: its machine has left the node, or OVN says nothing of it for a moment."""
        snapshot = self._model.snapshot
        hosts = (name for name in self._heard if is_heard(snapshot, name) and probes_here(snapshot, name, endpoint))
        heir = snapshot.covered.get(place_of(endpoint)) or next(hosts, None)
        if heir is None:
            self._orphans.add(endpoint)
            return last
        self._remember(heir).endpoints.add(endpoint)
        return replace(last, chassis=heir)

    async def _forget_orphans(self) -> None:
        """Those for which nobody can ask any more, and those that somebody probes again are none."""
        snapshot = self._model.snapshot
        gone = [each for each in self._orphans if not _can_be_asked_for(snapshot, each)]
        self._orphans -= {each for each in self._orphans if self._probes_it(each)}.union(gone)
        if gone:
            await in_steps(self._model.observe(SIGHTINGS, dict.fromkeys(gone)))

    def _probes_it(self, endpoint: Endpoint) -> bool:
        """Whether who saw it last says when it is no more to be probed."""
        seen = self._model.snapshot.sightings.get(endpoint)
        heard = self._heard.get(seen.chassis) if seen is not None else None
        return seen is None or (heard is not None and endpoint in heard.endpoints)

    async def look(self) -> None:
        """Who has fallen silent, and who covers their places now."""
        agents, now = self._model.snapshot.agents, self._clock()
        silences = {name: now - heard.at for name, heard in self._heard.items() if name in agents}
        beats = {name: agents[name].heartbeat for name in silences}
        before = {name for name in silences if not agents[name].heard}
        stale = find_stale(silences, beats, before)
        news: dict[str, Agent | None] = {name: replace(agents[name], heard=False) for name in stale - before}
        for name in news:
            LOG.warning("the agent of chassis %s is silent: %s", name, self._meanwhile(name, OTHERS_PROBE))
        for name in self._away(now) - news.keys():
            LOG.warning("the agent of chassis %s has hung up: %s", name, self._meanwhile(name, OTHERS_SERVE))
            news[name] = replace(agents[name], away=True)
        for name in [name for name, heard in self._heard.items() if now - heard.at > MEMORY]:
            await self.forget(name)
        if news:
            await in_steps(self._model.observe(AGENTS, news))
        snapshot = self._model.snapshot
        gone = [each for each in snapshot.own_addresses if each not in snapshot.hosts]
        if gone:  # what a host has said that is silent by now holds
            await in_steps(self._model.observe(OWN_ADDRESSES, dict.fromkeys(gone)))
        await self._forget_orphans()
        await in_steps(self._cover())

    def _meanwhile(self, name: str, elsewhere: str) -> str:
        """What becomes of its node while nobody speaks for it. Nobody does anything in the place of a plain host."""
        return HOST_STANDS if name in self._model.snapshot.hosts else elsewhere

    def _away(self, now: float) -> set[str]:
        """Who has hung up and did not come again."""
        agents, gone = self._model.snapshot.agents, set[str]()
        for name, heard in self._heard.items():
            if heard.hung_up is not None and now - heard.hung_up > COMES_BACK:
                gone.add(name)
        return {name for name in gone if name in agents and agents[name].heard and not agents[name].away}

    async def forget(self, chassis: str) -> None:
        """With all that it saw."""
        heard = self._heard.pop(chassis, None)
        if heard is not None:
            await in_steps(self._take(heard, chassis, dict.fromkeys(heard.endpoints)))
            await in_steps(self._take_proxies(chassis, {}, heard))
        if chassis in self._model.snapshot.agents:
            await in_steps(self._model.observe(AGENTS, {chassis: None}))

    def _cover(self) -> Steps[None]:
        """A chassis hears of its places after the network's port has been asked for."""
        snapshot = self._model.snapshot
        covers, found = dict[str, str | None](), dict[str, str]()
        for place, network_id in islice(self._places(snapshot), MOST_COVERED):
            if network_id not in covers:
                covers[network_id] = find_cover(snapshot, network_id, self._near)
            chassis = covers[network_id]
            if chassis is not None:
                found[place] = chassis
            yield
        covering = {network_id: chassis for network_id, chassis in covers.items() if chassis is not None}
        for fact, known, wanted in (
            (COVERING, self._model.snapshot.covering, covering),
            (COVERED, self._model.snapshot.covered, found),
        ):
            news: dict[str, str | None] = {key: who for key, who in wanted.items() if known.get(key) != who}
            news.update({key: None for key in known if key not in wanted})
            if news:
                yield from self._model.observe(fact, news)

    def _places(self, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
        """Where agents are silent, or were never heard though there was time enough; and where nobody has a port."""
        for name in stale_nodes(snapshot):
            yield from watched_places(snapshot, name)
        if self._clock() - self._began > UNHEARD:
            for name in silent_nodes(snapshot):
                yield from watched_places(snapshot, name)
        yield from hostless_places(snapshot)


def _proxy_of(snapshot: Snapshot, chassis: str, named: str) -> str | None:
    """What the chassis has behind a port of its own, or as a plain host for load balancers that there are; None for
    what is not its own."""
    port = snapshot.ports.get(named)
    if port is not None:
        return named if proxy_chassis(port) == chassis and place_of_port(port) is not None else None
    identity = f"{named}/{chassis}"
    place = place_of_host_proxy(identity)
    if place is None or place not in snapshot.proxied:
        return None
    return identity if has_host_proxy(snapshot, chassis, place) else None


def _held(last: Sighting | None, seen: Sighting, looks_since: datetime) -> Sighting:
    """What an agent remembers from before it looked takes nothing away that somebody has seen since."""
    if last is not None and seen.health is not Health.UNPROBED and seen.since < looks_since and last.since > seen.since:
        return last
    return after(last, seen)


def _can_be_asked_for(snapshot: Snapshot, endpoint: Endpoint) -> bool:
    """Whether its machine is still there, and whoever asked."""
    has_asker = endpoint.asker in snapshot.monitor_owner or endpoint.asker in snapshot.local_ips
    return has_asker and (not endpoint.port_id or endpoint.port_id in snapshot.ports) and is_wanted(snapshot, endpoint)

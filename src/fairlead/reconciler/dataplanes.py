"""All dataplanes that a server keeps, for those who ask of all at once: how an owner stands, and what is to be done.

A central dataplane has a reconciler here. What nodes could not apply is a fact, which their agents tell.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.dataplane.interface import Dataplane
from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.status import Applied, combine
from fairlead.reconciler.loop import Reconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What is known of a central dataplane at this moment."""

    connected: bool
    writes: bool
    """Whether this server is the one that writes; of several, one is."""
    southbound: bool = False
    """Whether it is heard what health monitors see."""
    unheard: float = 0.0
    """Seconds for which facts were not heard although somebody waits for them."""
    unheard_of: str = "what health monitors see"
    """Which facts those are, in words for people."""
    probing: Mapping[str, int] = field(default_factory=dict)
    """How many chassis live (`alive`) and are `dead`, and how many probes cannot be read (`unreadable`)."""
    follows: bool = False
    """Whether it is heard what others write there: networks, routers, ports."""
    followed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Writer and kind -> how many documents of others are known."""
    unreadable: int = 0
    """Rows of others that are left out."""
    hindrances: tuple[str, ...] = ()
    """What others have set there that keeps load balancers from being reached, in sentences for operators."""
    foreign: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Table and column -> how often somebody else changed it in rows of ours."""
    takeovers: int = 0
    """How often this server has taken the place of one that did not write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Central:
    """A central dataplane and who keeps it as the model says."""

    reconciler: Reconciler
    condition: Callable[[], Condition]
    connected: Callable[[], bool] = lambda: True

    @property
    def dataplane(self) -> Dataplane:
        return self.reconciler.dataplane

    def applied(self, owner: Owner) -> Applied:
        """What is known of an owner; while the dataplane is away nothing new can be on its way."""
        known = self.reconciler.applied(owner)
        if known.generation == 0 and known.error is None and not self.connected():
            return Applied(error=f"{self.dataplane.title} is not reachable")
        return known


class Dataplanes:
    """`applied`, `news` and `read_again` are those of the one dataplane where there is but one: lists ask ten thousand
    times."""

    def __init__(
        self, snapshot: Callable[[], Snapshot], central: Sequence[Central], nodes: Sequence[Dataplane] = ()
    ) -> None:
        self.central = tuple(central)
        self.nodes = tuple(nodes)
        self._snapshot = snapshot
        self.applied: Callable[[Owner], Applied] = self._applied
        self.news: Callable[[Owner, int], Awaitable[None]] = self._news
        self.read_again: Callable[[Owner], None] = self._read_again
        if len(self.central) == 1 and not self.nodes:
            (alone,) = self.central
            self.applied, self.news, self.read_again = alone.applied, alone.reconciler.news, alone.reconciler.read_again

    def follow(self, follower: Callable[[Owner], None]) -> None:
        """Call this whenever another thing is known of what of an owner has been applied."""
        for each in self.central:
            each.reconciler.follow(follower)

    def known(self, owner: Owner) -> Mapping[str, Applied]:
        """What is known of an owner, by the names of the dataplanes in which it is one to have rows. What fails
        elsewhere says nothing of it."""
        return {each.dataplane.name: each.applied(owner) for each in self._concerned(owner)}

    def _applied(self, owner: Owner) -> Applied:
        snapshot = self._snapshot()
        return combine(self.known(owner), snapshot.generations.get(owner, snapshot.revision))

    async def _news(self, owner: Owner, generation: int) -> None:
        """Returns when this generation of the owner has an outcome in all, or when any of their attempts has ended."""
        for each in self.central:
            await each.reconciler.news(owner, generation)

    def outcome(self, owner: Owner, generation: int) -> Applied | None:
        """What became of this generation of the owner in all central dataplanes; None while an attempt is due. Those
        that should have nothing of it count too: they may have had rows of it."""
        found = {each.dataplane.name: each.reconciler.outcome(owner, generation) for each in self.central}
        known = {name: outcome for name, outcome in found.items() if outcome is not None}
        return combine(known, generation) if len(known) == len(found) else None

    def _read_again(self, owner: Owner) -> None:
        """In dataplanes too that should have nothing of it."""
        for each in self.central:
            each.reconciler.read_again(owner)

    def _concerned(self, owner: Owner) -> list[Central]:
        snapshot = self._snapshot()
        return [each for each in self.central if each.dataplane.concerns(snapshot, owner)]

"""The door for plug-ins: a service that has load balancers gives them to Fairlead, and is told how they stand.

So far that is Octavia's provider driver (`fairlead.octavia_plugin`), so bodies have Octavia's attributes and words. It
is not Octavia's door: ids are given and not made, a load balancer comes with its project, whoever calls speaks for all
projects, and a provider's name has no place in a refusal, since the service names its own. Administrators only.
Errors: {"error": sentence}; 501 where the sentence is the name of an option that cannot be had.
"""

from collections.abc import Iterator

from starlette.applications import Starlette
from starlette.requests import Request

from fairlead.api.building import SENTENCE, Door, sentence
from fairlead.api.door import ApiError, Services
from fairlead.api.keys import ASKER
from fairlead.api.octavia.options import say_feature
from fairlead.api.octavia.refusals import say
from fairlead.api.plugin.feed import StatusFeed
from fairlead.api.plugin.proxied import proxied_routes
from fairlead.api.plugin.routes import change_routes, status_routes, takeover_routes
from fairlead.changes.identity import Identity
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.drivers.interface import DriverError
from fairlead.keystores.interface import Asker
from fairlead.model.owner import Owner
from fairlead.store.model import Published


def make_door(services: Services) -> Starlette:
    feed = StatusFeed(services.new_id())
    services.model.subscribe(feed.hear)
    services.model.watch(lambda news: feed.hear(_answering(news)))
    services.follow(lambda owner: feed.hear((owner,)))
    told = [*status_routes(services, feed), *proxied_routes(services)]
    return DOOR.build([*change_routes(services), *takeover_routes(services), *told])


def _answering(news: Published) -> Iterator[Owner]:
    """Of which other members are seen to answer than before: that changes statuses, and need not change a row."""
    before, after = news.before.online, news.after.online
    return (owner for owner in news.derived if before.get(owner.id) != after.get(owner.id))


def _say(_: Request, error: Refused) -> ApiError:
    """Octavia's words; what is before the option's name is for the service to say. A quota that is met is not 403 here:
    that says something of the service, and this of the project for which it asks."""
    said = say(error.why)
    match said.status:
        case 501:
            return ApiError(501, said.message.partition("requested option: ")[2])
        case 403:
            return ApiError(413, said.message)
        case _:
            return said


def _only_admin(who: Identity) -> None:
    """The service has seen to it that its user may use the keys that they name. Raises ApiError."""
    if not who.is_admin:
        raise ApiError(403, "this is for plug-ins: the role is 'admin'")
    ASKER.set(Asker(is_service=True))


DOOR = Door(
    path="/plugin",
    title="Fairlead: plug-ins",
    error=SENTENCE,
    fault=sentence,
    words={
        Refused: _say,
        Unsupported: lambda _, error: ApiError(501, say_feature(error.asked)),
        DriverError: lambda _, error: ApiError(503, f"OVN cannot be asked: {error}"),
    },
    admits=_only_admin,
)

"""API front end for plug-ins: a service creates its load balancers in Fairlead and receives their statuses.

The only such service is Octavia, with its provider driver (`fairlead.octavia_plugin`), so bodies have Octavia's
attributes and texts. It differs from the Octavia front end: ids are given by the service, a load balancer comes with
its project, the caller acts for all projects, and errors do not contain a provider name, because the service has its
own. Administrators only. Errors: {"error": sentence}; 501 with the name of the unsupported option.
"""

from collections.abc import Iterator

from starlette.applications import Starlette
from starlette.requests import Request

from fairlead.api.http.front_end import ApiError, Services
from fairlead.api.http.front_end_builder import SENTENCE, ApiFrontEnd, sentence
from fairlead.api.keys import CALLER_CREDENTIALS
from fairlead.api.octavia.options import feature_name
from fairlead.api.octavia.refusals import error_of
from fairlead.api.plugin.feed import StatusFeed
from fairlead.api.plugin.proxied import proxied_routes
from fairlead.api.plugin.routes import change_routes, status_routes, takeover_routes
from fairlead.changes.identity import Identity
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.drivers.interface import DriverError
from fairlead.keystores.interface import Requester
from fairlead.model.documents.owner import Owner
from fairlead.store.model import Published


def make_front_end(services: Services) -> Starlette:
    feed = StatusFeed(services.new_id())
    services.model.subscribe(feed.record)
    services.model.watch(lambda news: feed.record(_owners_with_changed_responders(news)))
    services.on_applied_change(lambda owner: feed.record((owner,)))
    told = [*status_routes(services, feed), *proxied_routes(services)]
    return FRONT_END.build([*change_routes(services), *takeover_routes(services), *told])


def _owners_with_changed_responders(news: Published) -> Iterator[Owner]:
    """Return the owners with a changed set of responding members. That changes statuses, but not necessarily rows."""
    before, after = news.before.online, news.after.online
    return (owner for owner in news.derived if before.get(owner.id) != after.get(owner.id))


def _rejection_error(_: Request, error: Refused) -> ApiError:
    """Return Octavia's error without the prefix before an option's name. An exceeded quota is 413 instead of 403,
    because a 403 would concern the service, whereas the quota is that of a project."""
    said = error_of(error.why)
    match said.status:
        case 501:
            return ApiError(501, said.message.partition("requested option: ")[2])
        case 403:
            return ApiError(413, said.message)
        case _:
            return said


def _only_admin(who: Identity) -> None:
    """Check for an administrator, and mark key references as already authorised by the service. Raises ApiError."""
    if not who.is_admin:
        raise ApiError(403, "the plug-in API requires role 'admin'")
    CALLER_CREDENTIALS.set(Requester(is_service=True))


FRONT_END = ApiFrontEnd(
    path="/plugin",
    title="Fairlead: plug-ins",
    error=SENTENCE,
    fault=sentence,
    error_texts={
        Refused: _rejection_error,
        Unsupported: lambda _, error: ApiError(501, feature_name(error.feature)),
        DriverError: lambda _, error: ApiError(503, f"OVN is unavailable: {error}"),
    },
    authorize=_only_admin,
)

"""Operator API that declares plain hosts: their addresses, and the prefixes routed by each."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.agents import authentication
from fairlead.api.http.front_end import ApiError, JsonObject, Services, json_response
from fairlead.api.http.openapi import FLAG, NUMBER, TEXT, TEXTS, Operation, read_body
from fairlead.changes import host_checks, hosts
from fairlead.changes.hosts import HostRequest, drain_host, put_host, remove_host
from fairlead.changes.refusal import Refused
from fairlead.model.documents.enrolment import MAX_CHASSIS_NAME_LENGTH
from fairlead.model.documents.hosts import MAX_HOST_NUMBER, MAX_HOSTS, MAX_PREFIXES, Host, HostPrefix
from fairlead.runtime.cooperative import run_in_steps
from fairlead.schema import (
    BadField,
    Field,
    MissingField,
    Parser,
    Schema,
    Spec,
    UnknownField,
    Values,
    address,
    array_schema,
    cidr,
    fields_schema,
    integer,
    list_of,
    mapping,
    object_schema,
    or_null,
    read_fields,
    reads,
)

MAX_PROJECT_LENGTH = 255
"""Maximum characters of a project id."""
_PREFIX = object_schema({"cidr": TEXT, "project_id": or_null(TEXT)}, ["cidr", "project_id"])
_ROW: Mapping[str, Schema] = {
    "name": TEXT,
    "number": NUMBER,
    "addresses": TEXTS,
    "prefixes": array_schema(_PREFIX, MAX_PREFIXES),
    "draining": FLAG,
}
ROW = object_schema(_ROW, _ROW)


def _object(spec: Spec) -> Parser[Values]:
    """Make a parser of an object without other attributes. Raises ValueError that names the attribute."""

    @reads(fields_schema(spec))
    def parse(value: object) -> Values:
        try:
            return read_fields(spec, mapping(value))
        except UnknownField as error:
            raise ValueError(f"Unknown attribute {error}; known attributes: {', '.join(spec)}.") from None
        except MissingField as error:
            raise ValueError(f"{error.name} is required.") from None
        except BadField as error:
            raise ValueError(str(error)) from None

    return parse


@reads({"type": "string", "minLength": 1, "maxLength": MAX_PROJECT_LENGTH})
def _project(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PROJECT_LENGTH:
        raise ValueError(f"Value should be a project id of at most {MAX_PROJECT_LENGTH} characters.")
    return value


_READ_PREFIX = _object({"cidr": Field(cidr, required=True), "project_id": Field(_project)})


@reads(_READ_PREFIX.schema)
def _prefix(value: object) -> HostPrefix:
    found = _READ_PREFIX(value)
    return HostPrefix(cidr=found["cidr"], project_id=found.get("project_id"))


_READ_HOST = _object(
    {
        "number": Field(integer(1, MAX_HOST_NUMBER)),
        "addresses": Field(list_of(address, 2)),
        "prefixes": Field(list_of(_prefix, MAX_PREFIXES)),
    }
)


@reads(_READ_HOST.schema)
def _host(value: object) -> Values:
    """Read the body of a host. Raises ApiError."""
    try:
        return _READ_HOST(value)
    except ValueError as error:
        raise ApiError(400, str(error)) from None


def routes(services: Services) -> list[Operation]:
    async def list_all(_: Request) -> Response:
        """List the declared hosts, by name."""
        found = services.model.snapshot.hosts
        return json_response({"hosts": [_row(found[name]) for name in sorted(found)]})

    async def show(request: Request) -> Response:
        """Show a host."""
        name = request.path_params["host"]
        host = services.model.snapshot.hosts.get(name)
        if host is None:
            raise Refused(hosts.NoSuchHost(name=name))
        return json_response(_row(host))

    async def put(request: Request) -> Response:
        """Declare or update a host. Omitted and null attributes are unchanged; a new host gets a free number and no
        prefixes."""
        name, told = request.path_params["host"], await read_body(request)
        written = await services.write(
            lambda snapshot: run_in_steps(put_host(snapshot, HostRequest(name=name, **told)))
        )
        return json_response(_row(written.hosts[name]))

    async def remove(request: Request) -> Response:
        """Delete a host. Rejected while load balancers have members that it routes."""
        name = request.path_params["host"]
        await services.write(lambda snapshot: run_in_steps(remove_host(snapshot, name)))
        return Response(status_code=204)

    async def drain(request: Request) -> Response:
        """Drain a host: its members get no new connections while other members serve."""
        return await _draining(request, draining=True)

    async def undrain(request: Request) -> Response:
        """End the draining of a host: its members get new connections again."""
        return await _draining(request, draining=False)

    async def _draining(request: Request, *, draining: bool) -> Response:
        name, now = request.path_params["host"], services.now()
        written = await services.write(lambda snapshot: drain_host(snapshot, name, draining=draining, now=now))
        return json_response(_row(written.hosts[name]))

    listed = object_schema({"hosts": array_schema(ROW, MAX_HOSTS)}, ["hosts"])
    return [
        Operation("GET", "/hosts", list_all, gives={200: listed}),
        Operation("GET", "/hosts/{host}", show, gives={200: ROW}),
        Operation("PUT", "/hosts/{host}", put, takes=_host, gives={200: ROW}),
        Operation("DELETE", "/hosts/{host}", remove, gives={204: None}),
        Operation("PUT", "/hosts/{host}/draining", drain, gives={200: ROW}),
        Operation("DELETE", "/hosts/{host}/draining", undrain, gives={200: ROW}),
    ]


def _row(host: Host) -> JsonObject:
    return {
        "name": host.name,
        "number": host.number,
        "addresses": [str(each) for each in host.addresses],
        "prefixes": [{"cidr": str(each.cidr), "project_id": each.project_id} for each in host.prefixes],
        "draining": host.draining,
    }


def refusal_of(request: Request, refused: Refused) -> ApiError:
    """Format the rejections of all operations of the operator API."""
    match refused.why:
        case hosts.BadHostName(name=name):
            return ApiError(
                400,
                f"'{name[:100]}' is not a host name: it must equal agent.host of its agent, begin with a letter or"
                f" digit, and have at most {MAX_CHASSIS_NAME_LENGTH} letters, digits, dots, - and _",
            )
        case hosts.NoSuchHost(name=name):
            return ApiError(404, f"host {name[:100]} does not exist: declare it with `fairlead chassis host set`")
        case hosts.TooManyHosts(most=most):
            return ApiError(409, f"{most} hosts are declared, which is the maximum")
        case hosts.TooManyPrefixes(most=most):
            return ApiError(400, f"a host has at most {most} prefixes: declare fewer and larger ones")
        case hosts.HostNumberInUse(number=number, host=host):
            return ApiError(409, f"number {number} is used by host {host}: omit the number to use a free one")
        case hosts.HostNumberImmutable(name=name, number=number):
            return ApiError(
                409, f"the number {number} of host {name} cannot be changed: remove the host and declare it again"
            )
        case hosts.HasMembers(name=name, members=members):
            found = ", ".join(f"{each.address} of load balancer {each.balancer_id}" for each in members)
            return ApiError(409, f"host {name} routes members that no other host routes: {found}; remove these first")
        case why:
            return _of_addresses(why) or authentication.refusal_of(request, refused)


def _of_addresses(why: object) -> ApiError | None:
    match why:
        case host_checks.NoHostAddress(name=name):
            return ApiError(
                400, f"host {name} needs an address for packets of other hosts: one IPv4, one IPv6, or one of each"
            )
        case host_checks.DuplicateHostAddressVersion(version=version):
            return ApiError(400, f"a host has at most one IPv{version} address")
        case host_checks.InvalidHostDestination(what=what):
            return ApiError(400, f"{what} is not a unicast destination for packets of other hosts")
        case host_checks.OverlappingPrefix(cidr=cidr):
            return ApiError(400, f"prefix {cidr} overlaps with another prefix of the same host")
        case host_checks.HostAddressInUse(address=address, host=host):
            return ApiError(409, f"address {address} is used by host {host}")
        case host_checks.HostAddressInOtherPrefix(address=address, behind=behind, cidr=cidr):
            return ApiError(409, f"host address {address} is in prefix {cidr}, which host {behind} routes")
        case host_checks.NoCommonIpVersion(name=name, other=other):
            return ApiError(
                409,
                f"hosts {name} and {other} have no IP version in common: give one of them an IPv4 and an IPv6 address",
            )
        case host_checks.PrefixInUse(cidr=cidr, other=other, host=host):
            return ApiError(409, f"prefix {cidr} overlaps with prefix {other}, which host {host} routes")
        case host_checks.HostOverlapsAnnounced(what=what, cidr=cidr, network_id=network_id):
            return ApiError(409, f"{what} overlaps with {cidr} of announced network {network_id}")
        case _:
            return None

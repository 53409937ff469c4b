"""Section `[fairlead]` of octavia.conf."""

from typing import Any

from oslo_config import cfg

from fairlead.http.server_client import ApiClient
from fairlead.octavia_plugin.api_client import PluginApi

SECTION = "fairlead"
PROVIDER = "fairlead"
"""Name of the entry point, which Octavia stores with a load balancer."""
OPTIONS = [
    cfg.ListOpt(
        "servers",
        default=["http://127.0.0.1:9690"],
        help="URLs of Fairlead servers. Requests go to the first one that is reachable.",
    ),
    cfg.StrOpt("user", default="", help="User with the role admin in the servers' password file."),
    cfg.StrOpt("password", default="", secret=True, help="Password of user."),
    cfg.StrOpt(
        "certificate",
        default="",
        help="PEM file of a client certificate for Fairlead's servers, instead of user and password; its common name is"
        " the user. The servers need the option server.client_ca.",
    ),
    cfg.StrOpt("key", default="", help="PEM file of the private key of certificate, if it is in another file."),
    cfg.StrOpt("ca", default="", help="PEM file of the certificate authority of the servers."),
    cfg.IntOpt("timeout", default=30, min=1, max=300, help="Timeout of a request to a server, in seconds."),
    cfg.IntOpt(
        "patience",
        default=60,
        min=1,
        help="Seconds after which a request that Octavia has not committed counts as lost: objects that it created in"
        " Fairlead are deleted, and objects that it deleted there get the status ERROR. Must be longer than `timeout`"
        " and than a lock in the database.",
    ),
    cfg.IntOpt(
        "resync_interval", default=600, min=10, help="Interval at which all load balancers are compared, in seconds."
    ),
    cfg.IntOpt("statistics_interval", default=30, min=5, help="Interval at which statistics are read, in seconds."),
]


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Entry point for oslo-config-generator."""
    return [(SECTION, OPTIONS)]


def read(configuration: cfg.ConfigOpts) -> Any:
    """Return the section with its present values."""
    configuration.register_opts(OPTIONS, group=SECTION)  # repeated registration is allowed
    return configuration[SECTION]


def make_plugin_api(section: Any) -> PluginApi:
    """Create the API client, without connecting."""
    names = ("user", "password", "ca", "certificate", "key")
    made = {name: getattr(section, name) for name in names}
    return PluginApi(tuple(ApiClient(url=url, timeout=float(section.timeout), **made) for url in section.servers))


def sockets_of(configuration: cfg.ConfigOpts) -> tuple[str, str, str]:
    """Return Octavia's sockets for octavia-lib, which does not read their paths itself."""
    sockets = configuration.driver_agent
    return sockets.status_socket_path, sockets.stats_socket_path, sockets.get_socket_path

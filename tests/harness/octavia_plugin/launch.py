"""Runs in Octavia's own environment: `launch.py database|api|agent --config-file octavia.conf`, and `launch.py fairlead
octavia ...`, as `fairlead octavia ...`.

Octavia's own tests leave out the database's pool_timeout in the same way: SQLite's driver does not take it. A cloud has
Keystone before Octavia's API; where OCTAVIA_PROJECT is set there is none, and everybody is that project.
Octavia's stock provider looks for octavia-driver-agent's sockets where they are by default, whatever is configured:
here it is told.
"""

import os
import sys
from collections.abc import Callable, Iterable
from io import BytesIO
from random import random
from socketserver import ThreadingMixIn
from time import monotonic, sleep
from typing import Any
from wsgiref.simple_server import WSGIServer, make_server

from octavia.common import config, constants
from octavia_lib.api.drivers.driver_lib import DriverLibrary
from oslo_config import cfg

config.cfg.CONF.set_default("pool_timeout", None, "database")
BUSY = 60.0
"""Seconds for which a request is asked again."""
if "OCTAVIA_SOCKETS" in os.environ:
    names = ("status", "stats", "get")
    DriverLibrary.__init__.__defaults__ = tuple(f"{os.environ['OCTAVIA_SOCKETS']}/{name}.sock" for name in names)


def database() -> None:
    """An empty one. Octavia's migrations are for MySQL and PostgreSQL."""
    from octavia.db import api, base_models, models

    config.init(sys.argv[1:])
    base_models.BASE.metadata.create_all(api.get_engine())
    words = {
        models.Algorithm: constants.SUPPORTED_LB_ALGORITHMS,
        models.ClientAuthenticationMode: constants.SUPPORTED_CLIENT_AUTH_MODES,
        models.HealthMonitorType: constants.SUPPORTED_HEALTH_MONITOR_TYPES,
        models.L7PolicyAction: constants.SUPPORTED_L7POLICY_ACTIONS,
        models.L7RuleCompareType: constants.SUPPORTED_L7RULE_COMPARE_TYPES,
        models.L7RuleType: constants.SUPPORTED_L7RULE_TYPES,
        models.LBTopology: constants.SUPPORTED_LB_TOPOLOGIES,
        models.OperatingStatus: constants.SUPPORTED_OPERATING_STATUSES,
        models.Protocol: constants.SUPPORTED_PROTOCOLS,
        models.ProvisioningStatus: constants.SUPPORTED_PROVISIONING_STATUSES,
        models.SessionPersistenceType: constants.SUPPORTED_SP_TYPES,
    }
    session = api.get_session()
    with session.begin():
        for model, names in words.items():
            session.add_all([model(name=name) for name in names])
        _add_deleted(session, models)


def _add_deleted(session: Any, models: Any) -> None:
    """What load balancers are said to have had whose flavor or zone was deleted, as Octavia's migrations add it."""
    nobody, name = constants.NIL_UUID, "DELETED-PLACEHOLDER"
    of_nobody = {"id": nobody, "name": name, "provider_name": constants.DELETED}
    session.add(models.FlavorProfile(**of_nobody, flavor_data="{}"))
    session.add(models.AvailabilityZoneProfile(**of_nobody, availability_zone_data="{}"))
    session.flush()
    session.add(models.Flavor(id=nobody, flavor_profile_id=nobody, name=name, enabled=False))
    session.add(models.AvailabilityZone(availability_zone_profile_id=nobody, name=nobody, enabled=False))


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


def api() -> None:
    from octavia.api import app

    made, project = app.setup_app(argv=sys.argv), os.environ.get("OCTAVIA_PROJECT")
    ask = asked_again(made) if "OCTAVIA_IS_BUSY" in os.environ else made

    def of_project(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if project:
            environ["HTTP_X_PROJECT_ID"] = project
        return ask(environ, start)  # type: ignore[no-any-return]

    settings = cfg.CONF.api_settings
    make_server(settings.bind_host, settings.bind_port, of_project, Server).serve_forever()


def asked_again(made: Any) -> Callable[..., Iterable[bytes]]:
    """The API for several who write at once. Where MySQL has one transaction wait for another, SQLite refuses what has
    read before it writes, at once and whatever its timeout; that has written nothing, and is asked again."""

    def ask(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        until = monotonic() + BUSY
        while True:
            said: list[Any] = []
            answer = made({**environ, "wsgi.input": BytesIO(body)}, lambda *words, said=said: said.extend(words))
            whole = b"".join(answer)
            if b"database is locked" not in whole or monotonic() > until:
                start(*said)
                return [whole]
            sleep(random() / 5)

    return ask


def agent() -> None:
    from octavia.cmd import driver_agent

    driver_agent.main()


def fairlead() -> None:
    from fairlead.cli import main

    sys.exit(main())


if __name__ == "__main__":
    {"database": database, "api": api, "agent": agent, "fairlead": fairlead}[sys.argv.pop(1)]()

"""Runs in Octavia's own environment.

`launch.py database|api|agent --config-file octavia.conf` runs a part of Octavia, and `launch.py fairlead octavia ...`
the command `fairlead octavia ...`.

The database option pool_timeout is unset, as in Octavia's own tests, because SQLite's driver rejects it. A real cloud
has Keystone before Octavia's API; if OCTAVIA_PROJECT is set there is none, and every caller has that project.

Octavia's stock provider ignores the configured sockets of octavia-driver-agent, so their paths are patched here.
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
BUSY_TIMEOUT = 60.0
"""Seconds for which a request is repeated."""
if "OCTAVIA_SOCKETS" in os.environ:
    names = ("status", "stats", "get")
    DriverLibrary.__init__.__defaults__ = tuple(f"{os.environ['OCTAVIA_SOCKETS']}/{name}.sock" for name in names)


def database() -> None:
    """Create an empty database. Octavia's migrations only support MySQL and PostgreSQL."""
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
    """Placeholders for deleted flavors and zones of load balancers, as Octavia's migrations add them."""
    nobody, name = constants.NIL_UUID, "DELETED-PLACEHOLDER"
    of_nobody = {"id": nobody, "name": name, "provider_name": constants.DELETED}
    session.add(models.FlavorProfile(**of_nobody, flavor_data="{}"))
    session.add(models.AvailabilityZoneProfile(**of_nobody, availability_zone_data="{}"))
    session.flush()
    session.add(models.Flavor(id=nobody, flavor_profile_id=nobody, name=name, enabled=False))
    session.add(models.AvailabilityZone(availability_zone_profile_id=nobody, name=nobody, enabled=False))


class ThreadingWsgiServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


def api() -> None:
    from octavia.api import app

    made, project = app.setup_app(argv=sys.argv), os.environ.get("OCTAVIA_PROJECT")
    ask = retrying(made) if "OCTAVIA_IS_BUSY" in os.environ else made

    def of_project(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if project:
            environ["HTTP_X_PROJECT_ID"] = project
        return ask(environ, start)  # type: ignore[no-any-return]

    settings = cfg.CONF.api_settings
    make_server(settings.bind_host, settings.bind_port, of_project, ThreadingWsgiServer).serve_forever()


def retrying(made: Any) -> Callable[..., Iterable[bytes]]:
    """The API for concurrent writers: repeats requests that SQLite rejects.

    Where MySQL makes one transaction wait for another, SQLite immediately rejects a transaction that reads before it
    writes, regardless of its timeout. The rejected transaction has written nothing, so the request is repeated.
    """

    def ask(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        until = monotonic() + BUSY_TIMEOUT
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
    from fairlead.cli.main import main

    sys.exit(main())


if __name__ == "__main__":
    {"database": database, "api": api, "agent": agent, "fairlead": fairlead}[sys.argv.pop(1)]()

"""Runs in Neutron's own environment: `launch.py database FILE`, or `launch.py api|maintenance|sync` and their options.

Neutron's migrations are for MySQL and PostgreSQL, so an empty database is made of its models, as its own tests do.
SQLite has one writer at a time, and refuses who writes after a look at what somebody else has changed since. So threads
take turns at transactions; who is refused all the same tries again as after a deadlock elsewhere.
"""

import sqlite3
import sys
import threading
from typing import Any

from oslo_db import exception
from oslo_db.sqlalchemy import exc_filters
from sqlalchemy import create_engine, event, exc
from sqlalchemy.engine import Engine
from sqlalchemy.pool import Pool

TURN, PATIENCE = threading.RLock(), 3.0
"""Seconds: a thread that hears of OVN looks into the database while another one, in a transaction, waits for it."""


@event.listens_for(Engine, "begin")
def _take_turn(connection: Any) -> None:
    if not connection.info.get("turn"):
        connection.info["turn"] = TURN.acquire(timeout=PATIENCE)


@event.listens_for(Pool, "checkin")
def _give_turn(_: object, record: Any) -> None:
    if record.info.pop("turn", False):
        TURN.release()


@exc_filters.filters("sqlite", exc.OperationalError, r".*database is locked")
def _locked(error: Exception, *_: object) -> None:
    raise exception.DBDeadlock(error)


def database(path: str) -> None:
    """An empty one, whose readers do not wait for who writes."""
    from neutron.db.migration.models import head

    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    head.get_metadata().create_all(create_engine(f"sqlite:///{path}"))


def api(port: str) -> None:
    """Its configuration is named by OS_NEUTRON_CONFIG_DIR and OS_NEUTRON_CONFIG_FILES."""
    import uvicorn
    from a2wsgi import WSGIMiddleware

    sys.argv = ["neutron"]  # the module that follows reads it when it is imported
    from neutron.wsgi.api import application

    uvicorn.run(WSGIMiddleware(application, workers=4), host="127.0.0.1", port=int(port), log_level="warning")


def maintenance() -> None:
    from neutron.cmd.server import main_ovn_maintenance

    main_ovn_maintenance()


def sync() -> None:
    from neutron.cmd.ovn.neutron_ovn_db_sync_util import main

    main()


if __name__ == "__main__":
    what = sys.argv.pop(1)
    if what in ("database", "api"):
        {"database": database, "api": api}[what](sys.argv.pop(1))
    else:
        {"maintenance": maintenance, "sync": sync}[what]()

"""Runs in Neutron's own environment: `launch.py database FILE`, or `launch.py api|maintenance|sync` and their options.

Neutron's migrations only support MySQL and PostgreSQL, so an empty database is created from its models, as in its own
tests. SQLite has one writer at a time, and rejects a writer whose snapshot is outdated. So threads take turns at
transactions; a rejected transaction is retried as after a deadlock elsewhere.
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

TRANSACTION_LOCK, LOCK_TIMEOUT = threading.RLock(), 3.0
"""Lock, and timeout in seconds: a thread with an OVN event reads the database while a transaction waits for it."""


@event.listens_for(Engine, "begin")
def _acquire_lock(connection: Any) -> None:
    if not connection.info.get("turn"):
        connection.info["turn"] = TRANSACTION_LOCK.acquire(timeout=LOCK_TIMEOUT)


@event.listens_for(Pool, "checkin")
def _release_lock(_: object, record: Any) -> None:
    if record.info.pop("turn", False):
        TRANSACTION_LOCK.release()


@exc_filters.filters("sqlite", exc.OperationalError, r".*database is locked")
def _raise_deadlock(error: Exception, *_: object) -> None:
    raise exception.DBDeadlock(error)


def database(path: str) -> None:
    """Create an empty database in WAL mode, so readers do not wait for the writer."""
    from neutron.db.migration.models import head

    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    head.get_metadata().create_all(create_engine(f"sqlite:///{path}"))


def api(port: str) -> None:
    """Run the API. OS_NEUTRON_CONFIG_DIR and OS_NEUTRON_CONFIG_FILES name its configuration."""
    import uvicorn
    from a2wsgi import WSGIMiddleware

    sys.argv = ["neutron"]  # the imported module reads it at import
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

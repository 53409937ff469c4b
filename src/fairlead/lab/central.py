"""OVN central: the Northbound and Southbound databases and northd, in a namespace of their own.

The databases listen on unix sockets in the run directory. A socket with a path belongs to the file system, so it is
reachable from every namespace of the machine, and the lab needs no management network.
"""

from pathlib import Path

from fairlead.lab import namespaces
from fairlead.lab.layout import CENTRAL, Layout
from fairlead.lab.processes import LabCommand, run

SCHEMAS = {
    "ovnnb_db": Path("/usr/share/ovn/ovn-nb.ovsschema"),
    "ovnsb_db": Path("/usr/share/ovn/ovn-sb.ovsschema"),
}
PROGRAMS = ("ovnnb_db", "ovnsb_db", "ovn-northd")


def start(layout: Layout) -> None:
    """Start central and wait until both databases answer and northd runs."""
    directory = layout.node_directory(CENTRAL)
    directory.mkdir(parents=True)
    for database, schema in SCHEMAS.items():
        execute(layout, "ovsdb-tool", "create", f"{directory / database}.db", str(schema))
        run_database(layout, directory / database)
    execute(layout, "ovn-nbctl", "init")
    execute(layout, "ovn-sbctl", "init")
    run_northd(layout)


def run_northd(layout: Layout) -> None:
    """Start northd and wait until it runs."""
    directory = layout.node_directory(CENTRAL)
    databases = (f"--ovnnb-db={layout.northbound}", f"--ovnsb-db={layout.southbound}")
    execute(layout, "ovn-northd", *databases, *detach_options(directory / "ovn-northd"))


def run_database(layout: Layout, base: Path) -> None:
    """Serve an existing database and wait until it answers."""
    sockets = (f"--remote=punix:{base}.sock", f"--unixctl={base}.ctl")
    execute(layout, "ovsdb-server", f"{base}.db", *sockets, *detach_options(base))


def detach_options(base: Path) -> tuple[str, ...]:
    """Return arguments that make a program detach when ready, with a pidfile and a log file."""
    quiet = ("-vconsole:off", "-vsyslog:off")
    return ("--detach", "--no-chdir", f"--pidfile={base}.pid", f"--log-file={base}.log", *quiet)


def execute(layout: Layout, *argv: str) -> str:
    command = LabCommand(
        argv=namespaces.inside(layout.namespace(CENTRAL), argv), environment=layout.environment(CENTRAL)
    )
    return run(command)

"""Source of the OVN and Open vSwitch programs of a lab: the machine, or another root, for example from debootstrap.

A program of another root runs with that system's loader, libraries and files, but in the namespaces of the lab and with
the machine's /dev, /proc, /run, /sys and /tmp. These are mounted in a mount namespace of the process and its children,
so no other process sees them, and they disappear with the last of these. For each such program the lab has a script of
the same name, in a directory that precedes all others in the search path.
"""

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairlead.lab.errors import LabError
from fairlead.lab.layout import Layout
from fairlead.lab.processes import LabCommand, run

ROOT_VARIABLE = "FAIRLEAD_LAB_ROOT"
MACHINE_ROOT = Path("/")
FOLDERS = ("usr/sbin", "usr/bin")
PATTERNS = ("ovn-*", "ovs-*", "ovsdb-*")
SCRIPT = """#!/bin/sh
exec unshare --mount --propagation private sh -c '
    root=$1
    shift
    for folder in dev proc run sys tmp; do
        mount --rbind "/$folder" "$root/$folder" || exit
    done
    exec chroot "$root" "$@"' {name} {root} {program} "$@"
"""


def choose_root(asked: str | None) -> Path | None:
    """Return the requested root, or that of the environment; None means the machine's own programs."""
    root = os.environ.get(ROOT_VARIABLE, "") if asked is None else asked
    if not root:
        return None
    if not Path(root).is_dir():
        raise LabError(f"{root!r} is not a directory; expected the root of a system with OVN and Open vSwitch")
    return Path(root).resolve()


def is_chosen(asked: str | None) -> bool:
    """Return whether a root was requested explicitly."""
    return asked is not None or ROOT_VARIABLE in os.environ


def find_missing(root: Path | None, tools: Sequence[str], schemas: Sequence[Path]) -> Iterator[str]:
    """Yield the missing tools and schemas. Schema paths are as their readers see them, from inside the root."""
    folders = None if root is None else os.pathsep.join(str(root / folder) for folder in FOLDERS)
    yield from (tool for tool in tools if shutil.which(tool, path=folders) is None)
    yield from (str(schema) for schema in schemas if not _resolve_inside(root, schema).exists())


def _resolve_inside(root: Path | None, path: Path) -> Path:
    return (root or MACHINE_ROOT) / path.relative_to("/")


def write_wrappers(layout: Layout, root: Path) -> None:
    """Create scripts, so that the lab's commands find the programs of this root."""
    layout.programs.mkdir(parents=True)
    for folder in FOLDERS:
        for program in sorted(path for pattern in PATTERNS for path in (root / folder).glob(pattern)):
            words = {"name": program.name, "root": str(root), "program": f"/{folder}/{program.name}"}
            script = layout.programs / program.name
            script.write_text(SCRIPT.format_map({key: shlex.quote(word) for key, word in words.items()}))
            script.chmod(0o755)
            if not os.access(script, os.X_OK):  # otherwise the machine's own programs would be used silently
                raise LabError(f"{script}: programs in this folder cannot be run; is its file system mounted noexec?")


def versions(layout: Layout) -> str:
    """Return the versions that the lab's programs print."""
    environment = {"PATH": layout.search_path}
    said = (
        run(LabCommand(argv=(name, "--version"), environment=environment)) for name in ("ovn-northd", "ovs-vswitchd")
    )
    return ", ".join(" ".join(each.split("\n", 1)[0].replace("(", "").replace(")", "").split()) for each in said)

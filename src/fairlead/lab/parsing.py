"""Declaration and execution of `fairlead lab` commands, and their choice of a lab.

Results go to standard output, progress and errors to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead.lab import records
from fairlead.lab.errors import InvalidWorkload, LabError
from fairlead.lab.lab import Lab, names
from fairlead.lab.layout import Layout
from fairlead.lab.native import NativeLab
from fairlead.lab.records import LabDataplane

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 argparse has no public name for it


def add(subparsers: "Subparsers", name: str, summary: str, examples: str = "") -> argparse.ArgumentParser:
    return subparsers.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=examples or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_command(
    subparsers: "Subparsers", name: str, summary: str, act: Callable[[argparse.Namespace], None], examples: str = ""
) -> argparse.ArgumentParser:
    parser = add(subparsers, name, summary, examples)
    lab = os.environ.get("FAIRLEAD_LAB", "lab")
    parser.add_argument("--name", default=lab, help=f"name of the lab (environment FAIRLEAD_LAB; default: {lab})")
    parser.set_defaults(run=_run, act=act)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    try:
        arguments.act(arguments)
    except InvalidWorkload as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 1
    except PermissionError as error:
        print(f"error: {error}; run the command as root", file=sys.stderr)
        return 1
    return 0


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def open_lab(arguments: argparse.Namespace) -> Lab | NativeLab:
    """Open the lab, of any dataplane. The error for a missing lab lists the running ones."""
    native = records.find_dataplane(Layout(name=arguments.name)) is LabDataplane.NATIVE
    try:
        return NativeLab.open(arguments.name) if native else Lab.open(arguments.name)
    except LabError as error:
        if others := names():
            raise LabError(f"{error}; these run: {', '.join(others)}") from None
        raise


def open_ovn(arguments: argparse.Namespace) -> Lab:
    if isinstance(lab := open_lab(arguments), Lab):
        return lab
    raise LabError(f"lab {lab.name!r} has plain hosts; the command needs a lab with OVN")


def open_native(arguments: argparse.Namespace) -> NativeLab:
    if isinstance(lab := open_lab(arguments), NativeLab):
        return lab
    raise LabError(f"lab {lab.name!r} has no plain hosts; create a lab with `fairlead lab up --dataplane native`")

"""`fairlead config`: prints, checks and migrates configuration files."""

import argparse
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.runtime.terminal import print_file, print_json, print_lines

if TYPE_CHECKING:  # imported by the commands that need it
    from fairlead.config.options import Configuration


def add_config(commands: Any, add_configuration_file: Callable[[Any], None]) -> None:
    config = commands.add_parser("config", help="print, check or migrate the configuration")
    parts = config.add_subparsers(dest="part", required=True, metavar="COMMAND")
    template = parts.add_parser("template", help="print every option with description, type and default, as a file")
    template.set_defaults(run=_template)
    show = parts.add_parser("show", help="print the options in force that differ from their defaults")
    show.add_argument("--json", action="store_true", help="all options, as JSON")
    show.set_defaults(run=_show)
    check = parts.add_parser("check", help="check the configuration, and open every file that it names")
    check.add_argument("--agent", action="store_true", help="check the sections that an agent reads")
    check.set_defaults(run=_check)
    for command in (show, check):
        add_configuration_file(command)
    migrate = parts.add_parser(
        "migrate",
        help="print a configuration file with renamed options under their new names",
        epilog="Comments and order stay; the file is not changed.",
    )
    migrate.add_argument("file", type=Path, metavar="FILE")
    migrate.set_defaults(run=_migrate)


def _template(_: argparse.Namespace) -> int:
    from fairlead.config.load import render_template

    print_file(render_template())
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from fairlead.config.load import read_configuration, render_configuration

    configuration = read_configuration(arguments.config, os.environ)
    if arguments.json:
        print_json(asdict(configuration), indent=2)
    else:
        print_file(render_configuration(configuration))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from fairlead.config.load import read_configuration
    from fairlead.config.option_files import AGENT_SECTIONS, SERVER_SECTIONS

    check_all(read_configuration(arguments.config, os.environ), AGENT_SECTIONS if arguments.agent else SERVER_SECTIONS)
    return 0


def check_all(configuration: "Configuration", sections: Iterable[str]) -> None:
    """Check file modes and files of these sections, and print that they are valid. Raises BadConfiguration."""
    from fairlead.config.load import check_secrets
    from fairlead.config.option_files import check_files

    check_secrets(configuration)
    check_files(configuration, sections, datetime.now(UTC))
    print_lines("the configuration is valid")


def _migrate(arguments: argparse.Namespace) -> int:
    from fairlead.config.errors import BadConfiguration
    from fairlead.config.renamed import migrate

    try:
        text = migrate(arguments.file.read_text())
    except (OSError, ValueError) as error:
        raise BadConfiguration(f"{arguments.file}: {error}") from None
    print_file(text)
    return 0

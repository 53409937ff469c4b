"""`fairlead config`: prints, checks and migrates configuration files."""

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairlead.terminal import say, say_json, say_text


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

    say_text(render_template())
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from fairlead.config.load import read_configuration, render_configuration

    configuration = read_configuration(arguments.config, os.environ)
    if arguments.json:
        say_json(asdict(configuration), indent=2)
    else:
        say_text(render_configuration(configuration))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from fairlead.config.load import check_secrets, read_configuration
    from fairlead.config.option_files import OF_AGENTS, OF_SERVERS, check_files

    configuration = read_configuration(arguments.config, os.environ)
    check_secrets(configuration)
    check_files(configuration, OF_AGENTS if arguments.agent else OF_SERVERS, datetime.now(UTC))
    say("the configuration is valid")
    return 0


def _migrate(arguments: argparse.Namespace) -> int:
    from fairlead.config.load import BadConfiguration
    from fairlead.config.renamed import migrate

    try:
        text = migrate(arguments.file.read_text())
    except (OSError, ValueError) as error:
        raise BadConfiguration(f"{arguments.file}: {error}") from None
    say_text(text)
    return 0

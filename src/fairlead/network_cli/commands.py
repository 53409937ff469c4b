"""The tree of commands: each is declared once, and what is parsed, checked and explained is made of that."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.network_cli import actions, helping, joining, remotes
from fairlead.network_cli.actions import Call
from fairlead.network_cli.connection import Connection
from fairlead.network_cli.failure import Failure, Misuse
from fairlead.network_cli.words import Flag, Typed, parse, unknown_flag
from fairlead.terminal import complain, say_text

GLOBAL = (
    Flag(
        name="remote",
        value="REMOTE",
        meaning="unix:/PATH, https://HOST:PORT, or a name of the client's folder (environment FAIRLEAD_REMOTE)",
    ),
    Flag(name="project", value="NAME", meaning="The project that the network is of (environment FAIRLEAD_PROJECT)"),
    Flag(name="force-local", meaning="The server of this machine, by its own socket"),
    Flag(name="quiet", short="q", meaning="Say nothing when it is done"),
    Flag(name="help", short="h", meaning="This help"),
    Flag(name="debug", meaning="Print each request to standard error"),
    Flag(name="verbose", short="v", meaning="The same"),
)
TARGET = Flag(name="target", value="MEMBER", meaning="Member of a cluster, of servers that have such")
PROPERTY = Flag(name="property", short="p", meaning="The key is a property of the load balancer: description")
NETWORK, LISTEN = "[<remote>:]<network>", "<listen_address>"


def _described(what: str) -> Flag:
    return Flag(name="description", value="TEXT", meaning=f"Description of the {what}, for people")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    name: str
    """Its words, behind `fairlead network`."""
    about: str
    run: Callable[[Call], None]
    words: str = ""
    """Those of its own, as the help has them."""
    least: int = 0
    most: int | None = 0
    """How many these are; None: any number."""
    flags: tuple[Flag, ...] = ()
    aliases: tuple[str, ...] = ()
    heads: tuple[str, ...] = (NETWORK, LISTEN)
    """What stands before its words."""
    more: str = ""
    """What the help says besides."""

    @property
    def usage(self) -> str:
        return " ".join(part for part in (self.name, *self.heads, self.words, "[flags]") if part)


COMMANDS = (
    Command(
        name="load-balancer create",
        about="Create a load balancer",
        run=actions.create,
        words="[<key>=<value>...]",
        most=None,
        flags=(
            _described("load balancer"),
            TARGET,
            Flag(name="allocate", value="ipv4|ipv6", meaning="A free address, instead of a listen address"),
        ),
        more=helping.CREATE,
    ),
    Command(
        name="load-balancer delete",
        about="Delete a load balancer",
        run=actions.delete,
        flags=(TARGET,),
        aliases=("load-balancer rm",),
    ),
    Command(
        name="load-balancer list",
        about="List the load balancers of a network",
        run=actions.show_list,
        heads=(NETWORK,),
        aliases=("load-balancer ls",),
        flags=(
            Flag(name="columns", short="c", value="COLUMNS", meaning="Which, in order", default="ldp"),
            Flag(
                name="format",
                short="f",
                value="FORMAT",
                meaning="csv|json|table|yaml|compact; with ,header or ,noheader behind it",
                default="table",
            ),
        ),
        more=helping.LIST,
    ),
    Command(name="load-balancer show", about="Show a load balancer as YAML", run=actions.show, flags=(TARGET,)),
    Command(
        name="load-balancer info",
        about="Show the health of its backends, if `healthcheck` is on",
        run=actions.info,
    ),
    Command(
        name="load-balancer edit",
        about="Edit a load balancer as YAML, in an editor or from standard input",
        run=actions.edit,
        flags=(TARGET,),
        more=helping.EDIT,
    ),
    Command(
        name="load-balancer get",
        about="Print a key of its configuration",
        run=actions.get,
        words="<key>",
        least=1,
        most=1,
        flags=(PROPERTY,),
    ),
    Command(
        name="load-balancer set",
        about="Set keys of its configuration",
        run=actions.set_pairs,
        words="<key>=<value>...",
        least=1,
        most=None,
        flags=(PROPERTY, TARGET),
        more=helping.SET,
    ),
    Command(
        name="load-balancer unset",
        about="Take a key out of its configuration",
        run=actions.unset,
        words="<key>",
        least=1,
        most=1,
        flags=(PROPERTY,),
    ),
    Command(
        name="load-balancer backend add",
        about="Add a backend: an address of the network, and the ports that take connections there",
        run=actions.add_backend,
        words="<backend_name> <target_address> [<target_port(s)>]",
        least=2,
        most=3,
        flags=(_described("backend"), TARGET),
        more=helping.BACKEND,
    ),
    Command(
        name="load-balancer backend remove",
        about="Remove a backend that no port leads to",
        run=actions.remove_backend,
        words="<backend_name>",
        least=1,
        most=1,
        flags=(TARGET,),
    ),
    Command(
        name="load-balancer port add",
        about="Lead ports of the listen address to backends",
        run=actions.add_port,
        words="<protocol> <listen_port(s)> <backend_name>[,<backend_name>...]",
        least=3,
        most=3,
        flags=(_described("port"), TARGET),
        more=helping.PORT,
    ),
    Command(
        name="load-balancer port remove",
        about="Remove ports",
        run=actions.remove_port,
        words="[<protocol>] [<listen_port(s)>]",
        most=2,
        flags=(Flag(name="force", meaning="All that match, if several do"), TARGET),
    ),
    Command(
        name="remote add",
        about="Join a server with a token, and give it a name",
        run=joining.add_remote,
        heads=(),
        words="<remote> <token>",
        least=2,
        most=2,
        more=helping.REMOTE,
    ),
)
NAMES = {name: each for each in COMMANDS for name in (each.name, *each.aliases)}
GROUPS = {
    "load-balancer": "",
    "load-balancer backend": "Backends of a load balancer",
    "load-balancer port": "Ports of a load balancer",
    "remote": "Servers that this client knows",
}
"""Words that are no command yet -> what their help begins with."""
ALL_FLAGS = tuple({flag.name: flag for flag in (*GLOBAL, *(flag for each in COMMANDS for flag in each.flags))}.values())


def main(argv: Sequence[str]) -> int:
    """The words behind `fairlead network`. Results go to standard output, complaints to standard error."""
    command: Command | None = None
    try:
        typed = parse(argv, ALL_FLAGS)
        command, rest = _find(typed.words)
        if command is None or typed.has("help"):
            say_text(_help(command, " ".join(rest)))
            return 0
        command.run(_call(command, rest, typed))
    except Failure as failure:
        usage = helping.usage(command.usage) if command and isinstance(failure, Misuse) else ""
        complain(*f"{usage}Error: {failure}".split("\n"))
        return 1
    return 0


def _find(words: tuple[str, ...]) -> tuple[Command | None, tuple[str, ...]]:
    """The command, and the words behind it; without a command the group whose help is meant. Raises Failure."""
    known = 0
    for length in range(1, len(words) + 1):
        name = " ".join(words[:length])
        if name in NAMES:
            return NAMES[name], words[length:]
        if name not in GROUPS:
            break
        known = length
    if known == len(words):
        return None, words
    where = " ".join(("fairlead network", *words[:known]))
    raise Failure(f'unknown command "{words[known]}" for "{where}"')


def _help(command: Command | None, group: str) -> str:
    if command:
        return helping.of_command(command.about, command.usage, command.aliases, command.more, (command.flags, GLOBAL))
    listed = [(each.name, each.about) for each in COMMANDS if each.name.startswith(group)]
    return helping.of_group(GROUPS.get(group, ""), listed, GLOBAL)


def _call(command: Command, words: tuple[str, ...], typed: Typed) -> Call:
    """Raises Misuse, Failure."""
    allowed = {flag.key for flag in (*command.flags, *GLOBAL)}
    for flag in ALL_FLAGS:
        if flag.key in typed.given and flag.key not in allowed:
            raise Failure(unknown_flag(f"--{flag.name}"))
    if family := typed.text("allocate"):
        if family not in actions.UNCHOSEN:
            raise Failure(f'Invalid value "{family}" for flag "--allocate"')
        words = (*words[:1], actions.UNCHOSEN[family], *words[1:])
    head = len(command.heads)
    if len(words) < head + command.least or (command.most is not None and len(words) > head + command.most):
        raise Misuse("Invalid number of arguments")
    name, network = remotes.split(words[0] if head else "")
    said = f"{remotes.UNIX}//" if typed.has("force_local") else name or typed.text("remote")
    remote = remotes.find(said, os.environ)
    if NETWORK in command.heads and not network:
        raise Failure("Missing network name")
    if LISTEN in command.heads and not words[1]:
        raise Failure("Missing listen address")
    connection = Connection(
        remote=remote,
        project=typed.text("project") or os.environ.get("FAIRLEAD_PROJECT", "") or remote.project,
        traced=typed.has("debug") or typed.has("verbose"),
    )
    address = words[1] if LISTEN in command.heads else ""
    return Call(connection=connection, network=network, address=address, words=words[head:], typed=typed)

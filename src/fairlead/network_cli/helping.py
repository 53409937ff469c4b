"""Help, for people: what a command does, how it is said, and an example of it. Pure."""

import textwrap
from collections.abc import Sequence

from fairlead.network_cli.words import Flag

PROGRAM = "fairlead network"
INTRODUCTION = """Load balancers of OVN networks, in the words of `incus network load-balancer`.

  A load balancer has a listen address, backends (an address of the network each) and ports
  that lead to backends. Ports are numbers, lists and ranges: 80,81,8080-8090.

  fairlead network load-balancer create net1 192.0.2.10
  fairlead network load-balancer backend add net1 192.0.2.10 web1 10.1.0.11 8080
  fairlead network load-balancer backend add net1 192.0.2.10 web2 10.1.0.12 8080
  fairlead network load-balancer port add net1 192.0.2.10 tcp 80 web1,web2
  fairlead network load-balancer show net1 192.0.2.10
"""
REMOTES = """Servers:
  Without a remote the server of this machine is asked, by its socket. Others are asked with the
  certificate of the client's folder (FAIRLEAD_CLIENT; ~/.config/fairlead): client.crt, client.key,
  servercerts/NAME.crt and config.yml, as `remote add` makes them here and `incus remote add` there;
  it may be Incus's own folder.
"""
CREATE = """Examples:
  fairlead network load-balancer create net1 192.0.2.10 --description "the shop" user.team=web
  fairlead network load-balancer create net1 --allocate=ipv4
  fairlead network load-balancer create net1 192.0.2.10 < shop.yaml

  What is not a terminal is read to its end, as YAML of description, config, backends and ports: a
  script that has no YAML says </dev/null.
"""
LIST = """Columns:
  l   Listen address
  d   Description
  p   How many ports are declared
  L   Location: the member of a cluster, of servers that have such
"""
EDIT = """Examples:
  fairlead network load-balancer edit net1 192.0.2.10
  fairlead network load-balancer edit net1 192.0.2.10 < shop.yaml

  In an editor (VISUAL, EDITOR) nothing is written if somebody else changed it meanwhile. What is
  read from standard input replaces whatever is there.
"""
SET = """Examples:
  fairlead network load-balancer set net1 192.0.2.10 healthcheck=true healthcheck.interval=5
  fairlead network load-balancer set net1 192.0.2.10 -p description="the shop"
"""
BACKEND = """Examples:
  fairlead network load-balancer backend add net1 192.0.2.10 web1 10.1.0.11
  fairlead network load-balancer backend add net1 192.0.2.10 web2 10.1.0.12 8080

  Without target ports it is the port that the client connected to. One is for all listen ports;
  several are as many as the listen ports, each for its own.
"""
PORT = """Examples:
  fairlead network load-balancer port add net1 192.0.2.10 tcp 80,443 web1,web2
  fairlead network load-balancer port add net1 192.0.2.10 udp 5000-5010 web1 --description "calls"
"""


REMOTE = """Examples:
  fairlead lxd token laptop                               (on the server)
  fairlead network remote add city eyJjbGllbnRfbmFtZS...  (on the laptop)
  fairlead network load-balancer list city:net1

  The token says where the server is and which certificate it has, and is spent by this.
"""


def of_group(about: str, commands: Sequence[tuple[str, str]], flags: Sequence[Flag]) -> str:
    """Of all commands, or of those of one group."""
    names = max(len(name) for name, _ in commands)
    listed = "".join(f"  {name:<{names}}   {meaning}\n" for name, meaning in commands)
    opening = f"{about}.\n" if about else INTRODUCTION
    return (
        f"{opening}\nUsage:\n  {PROGRAM} COMMAND [flags]\n\nCommands:\n{listed}\n{_flags('Flags', flags)}\n{REMOTES}\n"
        f'"{PROGRAM} COMMAND --help" says more of a command.\n'
    )


def of_command(
    about: str, said: str, aliases: Sequence[str], more: str, flags: tuple[Sequence[Flag], Sequence[Flag]]
) -> str:
    own, everywhere = flags
    parts = [
        f"{about}.\n",
        usage(said),
        f"Aliases:\n  {', '.join(aliases)}\n" if aliases else "",
        more,
        _flags("Flags", own) if own else "",
        _flags("Flags of all commands", everywhere),
    ]
    return "\n".join(part for part in parts if part)


def usage(said: str) -> str:
    return f"Usage:\n  {PROGRAM} {said}\n"


def _flags(title: str, flags: Sequence[Flag]) -> str:
    heads = [f"  {flag.spellings}{' ' if flag.value else ''}{flag.value}" for flag in flags]
    width = max(len(head) for head in heads) + 3
    lines = [
        textwrap.fill(
            flag.meaning + (f" ({flag.default})" if flag.default else ""),
            width=100,
            initial_indent=f"{head:<{width}}",
            subsequent_indent=" " * width,
        )
        for flag, head in zip(flags, heads, strict=True)
    ]
    return "".join([f"{title}:\n", *(f"{line}\n" for line in lines)])

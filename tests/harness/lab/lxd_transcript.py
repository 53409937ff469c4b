"""Every command of `network load-balancer`, with the client's output.

The formats are those of Incus 6.0. Words in capitals are placeholders: NET, NOPE (no network), VIP, PADDED (VIP padded
to the width of its column), FIRST and SECOND (backends).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.lab.lxd_clients import CommandResult, LxdCommand

TREE = ("network", "load-balancer")


@dataclass(frozen=True, kw_only=True)
class TranscriptStep:
    words: tuple[str, ...]
    """Arguments after `network load-balancer`; NET is the network, with its remote."""
    out: str = ""
    error: str = ""
    """Text after `Error: `; the exit code is 1 then."""
    stdin: str = ""

    def expected_result(self, names: Mapping[str, str]) -> CommandResult:
        if self.error:
            return CommandResult(error=f"Error: {_fill(self.error, names)}\n", code=1)
        return CommandResult(out=_fill(self.out, names))


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Values of the placeholders."""

    listen: str
    first: str
    second: str

    @property
    def names(self) -> dict[str, str]:
        padded = f"{self.listen:<{len('LISTEN ADDRESS')}}"
        return {"PADDED": padded, "VIP": self.listen, "FIRST": self.first, "SECOND": self.second}


def _fill(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def step(line: str, *more: str, out: str = "", error: str = "", stdin: str = "") -> TranscriptStep:
    """Step with blank-separated words of `line`, followed by words that may contain blanks."""
    return TranscriptStep(words=(*line.split(), *more), out=out, error=error, stdin=stdin)


def play(client: LxdCommand, network: str, addresses: Addresses, steps: Sequence[TranscriptStep]) -> None:
    """Run all steps, and assert that each prints exactly the expected output."""
    names = {**addresses.names, "NET": network}
    for each in steps:
        words = [
            _fill(word, {**names, "NET": client.for_network(network), "NOPE": client.for_network("nope")})
            for word in each.words
        ]
        said = client.run(*TREE, *words, stdin=_fill(each.stdin, names))
        assert (client.name, words, said) == (client.name, words, each.expected_result(names))


SHOWN = """\
description: the shop
config: {}
backends:
- name: c1
  description: ""
  target_port: ""
  target_address: FIRST
- name: c2
  description: the second
  target_port: "8080"
  target_address: SECOND
ports:
- description: ""
  protocol: tcp
  listen_port: 80,8080-8082
  target_backend:
  - c1
  - c2
- description: names
  protocol: udp
  listen_port: "53"
  target_backend:
  - c1
listen_address: VIP
location: ""
"""
EDITED = """\
description: edited
config:
  user.a: "1"
backends:
- name: c1
  target_address: FIRST
ports:
- protocol: tcp
  listen_port: 80
  target_backend: [c1]
"""
AFTER_EDITING = """\
description: edited
config:
  user.a: "1"
backends:
- name: c1
  description: ""
  target_port: ""
  target_address: FIRST
ports:
- description: ""
  protocol: tcp
  listen_port: "80"
  target_backend:
  - c1
listen_address: VIP
location: ""
"""
EMPTY_TABLE = """\
+----------------+-------------+-------+
| LISTEN ADDRESS | DESCRIPTION | PORTS |
+----------------+-------------+-------+
"""
TABLE = (
    EMPTY_TABLE
    + """\
| PADDED | the shop    | 2     |
+----------------+-------------+-------+
"""
)
YAML_LIST = "- " + SHOWN.removesuffix("\n").replace("\n", "\n  ") + "\n"
JSON_LIST = (
    '[{"description":"the shop","config":{},"backends":['
    '{"name":"c1","description":"","target_port":"","target_address":"FIRST"},'
    '{"name":"c2","description":"the second","target_port":"8080","target_address":"SECOND"}],"ports":['
    '{"description":"","protocol":"tcp","listen_port":"80,8080-8082","target_backend":["c1","c2"]},'
    '{"description":"names","protocol":"udp","listen_port":"53","target_backend":["c1"]}],'
    '"listen_address":"VIP","location":""}]\n'
)
LISTS = (
    step("list NET", out=EMPTY_TABLE),
    step("create NET VIP --description", "the shop", out="Network load balancer VIP created\n"),
    step("backend add NET VIP c1 FIRST"),
    step("backend add NET VIP c2 SECOND 8080 --description", "the second"),
    step("port add NET VIP tcp 80,8080-8082 c1,c2"),
    step("port add NET VIP udp 53 c1 --description names"),
    step("show NET VIP", out=SHOWN),
    step("list NET", out=TABLE),
    step("ls NET -f csv", out="VIP,the shop,2\n"),
    step("list NET -f csv,header -c pl", out="PORTS,LISTEN ADDRESS\n2,VIP\n"),
    step("list NET --format json", out=JSON_LIST),
    step("list NET -f yaml", out=YAML_LIST),
    step("list NET -f compact,noheader -c l,p", out="  VIP  2  \n"),
    step("list NET -f nope", error='Invalid value "nope" for flag "--format"'),
    step("list NET -c z", error="Unknown column shorthand char 'z' in 'z'"),
)
KEYS = (
    step("set NET VIP user.a=b user.c", "user.d=two words", error="Invalid key=value configuration: user.c"),
    step("set NET VIP user.a=b", "user.d=two words"),
    step("set NET VIP user.e old"),
    step("get NET VIP user.d", out="two words\n"),
    step("get NET VIP user.nope"),
    step("get NET VIP -p description", out="the shop\n"),
    step("get NET VIP -p config", out="map[user.a:b user.d:two words user.e:old]\n"),
    step("get NET VIP --property ports", out="[{ tcp 80,8080-8082 [c1 c2]} {names udp 53 [c1]}]\n"),
    step(
        "get NET VIP -p nope",
        error='The property "nope" does not exist on the load balancer "NET":'
        ' The property with tag "nope" does not exist',
    ),
    step("unset NET VIP user.d"),
    step("unset NET VIP user.e"),
    step("set NET VIP -p description=new"),
    step("get NET VIP -p description", out="new\n"),
    step("unset NET VIP -p description"),
    step("get NET VIP -p description", out="\n"),
    step("get NET VIP -p config", out="map[user.a:b]\n"),
    step("set NET VIP nope=1", error='Failed updating load balancer: Invalid option "nope"'),
    step("info NET VIP", error="No load-balancer health information available"),
)
PARTS = (
    step("backend remove NET VIP c3", error="No matching backend found"),
    step(
        "backend remove NET VIP c1",
        error='Failed updating load balancer: Invalid target backend name "c1" in port specification 0',
    ),
    step("port remove NET VIP udp 54", error="No matching port(s) found"),
    step("port remove NET VIP", error="Multiple ports match. Use --force to remove them all"),
    step("port remove NET VIP udp"),
    step("port remove NET VIP --force"),
    step("backend remove NET VIP c1"),
    step("backend remove NET VIP c2"),
    step("list NET -f csv", out="VIP,,0\n"),
)
WHOLE = (
    step("edit NET VIP", stdin=EDITED),
    step("show NET VIP", out=AFTER_EDITING),
    step(
        "create NET VIP", error="Failed creating load balancer: A load balancer for that listen address already exists"
    ),
    step("-q delete NET VIP"),
    step("show NET VIP", error="Network load balancer not found"),
    step("delete NET VIP", error="Failed deleting load balancer: Network load balancer not found"),
    step("create NET VIP user.a=b -q", stdin=EDITED),
    step("get NET VIP user.a", out="b\n"),
    step("get NET VIP -p description", out="edited\n"),
    step("create NET 192.0.2", error="Failed creating load balancer: Invalid load balancer listen address 192.0.2"),
    step("create NOPE VIP", error="Failed loading network: Network not found"),
    step("create NET VIP user.a", error="Bad key/value pair: user.a"),
    step("create NET", "", error="Missing listen address"),
    step("rm NET VIP", out="Network load balancer VIP deleted\n"),
    step("list NET -f json", out="[]\n"),
)
STEPS = (*LISTS, *KEYS, *PARTS, *WHOLE)
"""Complete life cycle of one load balancer; it ends in the initial state."""

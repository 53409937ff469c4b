"""The rules of our table, the same on each host and for ever: what differs is in its sets and maps.

A packet of a VIP has one of 256 slots, by `jhash` (`dataplane/flow_slot.py`). Who has it is looked up in four steps:
which table of slots a service has (`service`: many have the same one), whose place the slot is there (`pattern`), which
list of places a service has (`served`: all ports of a pool have the same one), and who is at that place of it (`owner`:
another host; `member`: an address here). Such a list says also who had a slot before (`before`).

Where nothing is found in a map, a rule ends, and the next one says what then. A service's key is its address, protocol
and port. The protocol goes by `meta priority`, and the port is read from a header of known length, because the same
keys have to be made of packets in errors of ICMP, of which nft knows no fields. Numbers of protocols are a map with a
name: one without would go with the rules that are replaced, and packets that are among them would be refused.

A host knows a connection if it translates it. That its tracker has an entry says nothing: a client of its own that is
led elsewhere has one, and so has what it has only led on. Of its own clients it sees what is new; of others' packets
without a handshake it does not, so of those the one who had the slot before is asked first. So it is of errors of ICMP
about whatever flow: who does not know that one gives the error back.

What others answer to clients behind this host comes from a VIP, and is not tracked, as what was asked was not. Else it
would be a connection that the VIP has begun, and what its client says from the same port, when the slot is this host's
by then, an answer to that: no new connection, so not translated, and the host's own sockets would refuse it. Answers to
the host itself belong to a connection that it has begun.

Who was asked about a connection is in this host's tracker until that has ended, and a minute longer. A SYN from the
same port is no new connection meanwhile, so it is not translated. The host's own answer to it (RFC 9293, 3.10.7.1) has
the tracker forget the old one, and is kept from the client, which says it again and is served. Where a socket of the
host would take it, it is refused instead: no client of a VIP gets to what the host itself listens on.

A proxy is a member at the VIP itself. What the host's own sockets say to it is translated as it leaves them, and comes
in by `lo` as if somebody had tried the proxy's port: only then is it known already.

Anybody who reaches a tunnel's port can put any packet into it, in anybody's name. So what comes out of one and is for
no VIP is dropped: nobody gets by a tunnel where hosts and their firewalls would not let them.

Prefixes behind a host may have addresses that are its own, as that of a bridge. Whoever may have members there may not
lead clients to the host's own sockets by them: what was translated ends on the host itself at a VIP, where a proxy is,
or at an address that an operator has declared for members (`Own`).

What is translated here is counted here, and nothing else (ADR 82): each packet as it comes in by a device, or as this
host sends it. Packets make the elements that count them, of services that there are; `counters.py` reads them.

Others mark packets and connections too. What is led to another host has a mark of ours, and what is not has whatever
others gave it. While a new connection is translated its packet's mark is ours for some rules; meanwhile it is in the
mark of the connection (`keep`), with one bit of ours if that had none, and two if it had: then its bits are taken.
What is in a tunnel has no mark of ours outside: somebody else's rule may have it routed again, without its ports. Nor
is it tracked there: each flow in it would be one more entry on both hosts.
Where others have taken the way to that host away, it ends here and is dropped: the host's own sockets are not meant.

A host's own datagrams to another one are known to its tracker too, and their sender may never rest. So that they are
new ones when their slot is this host's, they are noted as those are about which others were asked, with one more bit.
Until they are forgotten they are dropped, and do not get to the host's own sockets.

Whoever opens an association of SCTP gives up where its protocol is unreachable (RFC 9260, section 10), and Linux tries
again for minutes where only the port is. nftables cannot say the same over IPv6, nor send an ABORT.

Hosts hear of a change one after the other, and meanwhile two may each take the other for the owner of a slot. A packet
of TCP that came from one by its table and is another's here goes on once more, by the way back; who gets it there and
has not got the slot either drops it. Its sender says it again. Led on by tables alone it would go to and fro until its
hops are used up, and the client be told that nobody is there (ICMP time exceeded, RFC 792).

A host that boots has no rows until its agent has applied them, while its kernel answers pings already. Therefore ports
of tunnels are closed in a new table (`closed`): a datagram to one is refused, as by a host without tunnels, and other
hosts probe that (`node/peers.py`). The agent opens them when all rows are applied. They stay open without an agent.

A host whose agent is away keeps old rows, so a packet that it leads on may belong to a connection of the host that it
leads to, though the slot is another's there. Therefore a host looks a packet from the tunnel of tables or from the
tunnel back up in its tracker first, unless the packet is a SYN, and goes by its tables if it does not translate that
connection (`unknown`). The same holds for errors of ICMP. Such a packet is tracked, so the host notes it as those about
which others were asked.
"""

import hashlib
import re
from string import Template

from fairlead.dataplane.flow_slot import PROTOCOLS, SEED
from fairlead.dataplane.native import TUNNEL_PORTS
from fairlead.drivers.native.elements import Shape

TUNNELS = "fl-table", "fl-second", "fl-back"
"""Devices by which packets go to another host: whose they are by the table; who had the slot before, and may know the
connection; and back from there, who does not."""
THERE, SECOND, BACK = 0x1000, 0x2000, 0x3000
"""Added to the number of a host, marks of packets that are led to it by each of these."""
KINDS = 0x3000
"""Bits of which none is in the mark of a packet that is led nowhere. All others are somebody else's then."""
MARK_BITS = 0x3FFF
"""Of which all are ours in the mark of a packet that is led to another host."""
_PROTOCOLS = {name.value: number for name, number in PROTOCOLS.items()}


class Family:
    """Of one IP version: its sets, and where its headers have what."""

    def __init__(self, version: int) -> None:
        size = 4 if version == 4 else 16
        self.version = version
        self.vips = Shape(name=f"vips{version}", key=size, commented=True)
        self.own = Shape(name=f"own{version}", key=size, commented=True)
        self.service = Shape(name=f"service{version}", key=size + 8, data=4)
        self.sourced = Shape(name=f"sourced{version}", key=size + 8)
        self.limited = Shape(name=f"limited{version}", key=size + 8, data=4)
        self.clients = Shape(name=f"clients{version}", key=2 * (4 + size), ranges=True)
        self.served = Shape(name=f"served{version}", key=size + 8, data=4)
        self.member = Shape(name=f"member{version}", key=8, data=size + 4)
        self.hairpin = Shape(name=f"hairpin{version}", key=3 * size)
        self.counted = Shape(name=f"counted{version}", key=size + 12)
        self.opened = Shape(name=f"opened{version}", key=size + 8)
        self.refused = Shape(name=f"refused{version}", key=size + 8)
        self.asked = Shape(name=f"asked{version}", key=size + 8)
        """Services of which others were asked whether they know a connection."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of what rows are."""
        its = self.vips, self.own, self.service, self.served, self.sourced, self.limited, self.clients
        return (*its, self.member, self.hairpin)

    @property
    def counting(self) -> tuple[Shape, ...]:
        """Packets and bytes by direction and service; connections that were opened; attempts that were refused."""
        return self.counted, self.opened, self.refused


FAMILIES = {version: Family(version) for version in (4, 6)}
PATTERNS = Shape(name="pattern", key=8, data=4)
OWNERS = Shape(name="owner", key=8, data=4)
BEFORE = Shape(name="before", key=8, data=4)
WAYS = Shape(name="ways", key=4, commented=True)
"""Number of a host -> the owner of the way to it."""
ABOUT = Shape(name="about", key=4, commented=True)
SINCE = Shape(name="since", key=4, commented=True)
"""When counting began, in the words of `counters.py`."""
MOST_COUNTED = 65_536
"""Elements of one set: who is not there yet when it is full is not counted."""
CLOSED = Shape(name="closed", key=8)
"""Ports of tunnels that this host refuses, as if no tunnel were there: all of them in a new table, until the rows are
applied."""
NOTED = tuple(family.asked for family in FAMILIES.values())
SHAPES = (PATTERNS, OWNERS, BEFORE, WAYS, *(shape for family in FAMILIES.values() for shape in family.shapes))


_SHARED = Template("""\
    set about { typeof meta mark; }
    set since { typeof meta mark; }
    set closed { typeof meta l4proto . udp dport; }
    set ways { typeof meta mark; }
    map pattern { typeof meta priority . meta mark : meta mark; }
    map owner { typeof meta priority . meta mark : meta mark; }
    map before { typeof meta priority . meta mark : meta mark; }
    map protocols { typeof meta l4proto : meta priority; elements = { $numbers }; }

    chain raw {
        type filter hook prerouting priority raw; policy accept;
        iifname "lo" ct status & dnat == dnat accept
        meta l4proto . udp dport @closed ip daddr != @vips4 fib daddr type local goto refuse
        meta l4proto . udp dport @closed ip6 daddr != @vips6 fib daddr type local goto refuse
        udp dport $ports ip daddr != @vips4 fib daddr type local notrack accept
        udp dport $ports ip6 daddr != @vips6 fib daddr type local notrack accept
        ip daddr @vips4 jump vip4
        ip6 daddr @vips6 jump vip6
        iifname { $tunnels } jump tunnelled
        ip saddr @vips4 $answers notrack
        ip6 saddr @vips6 $answers notrack
    }
    chain tunnelled {
        meta nfproto ipv4 ip daddr != @vips4 drop
        meta nfproto ipv6 ip6 daddr != @vips6 drop
    }
    chain passed {
        $led return
        notrack
    }
    chain again {
        type filter hook prerouting priority mangle; policy accept;
        $led meta mark & $kinds == $there ct status & dnat == dnat meta mark set meta mark & $unled
        ct status & dnat == dnat accept
        iifname "$second" ip daddr @vips4 goto asked4
        iifname "$second" ip6 daddr @vips6 goto asked6
        $led meta mark & $kinds == $there ip daddr @vips4 goto unknown4
        $led meta mark & $kinds == $there ip6 daddr @vips6 goto unknown6
        $plainly ip daddr @vips4 tcp flags & (syn | ack) != syn jump second4
        $plainly ip6 daddr @vips6 tcp flags & (syn | ack) != syn jump second6
        ip daddr @vips4 meta mark & $kinds == $to_second goto noted4
        ip6 daddr @vips6 meta mark & $kinds == $to_second goto noted6
    }
    chain nat {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr @vips4 $plainly meta l4proto { $protocols } jump here4
        ip6 daddr @vips6 $plainly meta l4proto { $protocols } jump here6
    }
    chain cleared {
        type filter hook prerouting priority dstnat + 1; policy accept;
        ct state new ct status dnat jump clear
        iif != "lo" ct status & dnat == dnat meta nfproto ipv4 goto count4
        iif != "lo" ct status & dnat == dnat meta nfproto ipv6 goto count6
    }
    chain inside {
        type filter hook input priority filter; policy accept;
        meta mark & $kinds != 0 ct state untracked jump unled
        meta mark & $kinds != 0 ct status & dnat == 0 jump unled
        ct direction original ct status & dnat == dnat jump ending
        ct status & dnat == 0 tcp flags & (syn | ack) == syn socket wildcard { 0, 1 } jump untranslated
        ct status & dnat == 0 meta l4proto { $datagrams } jump unled
    }
    chain unled {
        ip daddr @vips4 drop
        ip6 daddr @vips6 drop
    }
    chain untranslated {
        ip daddr @vips4 goto refuse
        ip6 daddr @vips6 goto refuse
    }
    chain ending {
        ct original ip daddr @vips4 ip daddr != @vips4 ip daddr != @own4 goto refuse
        ct original ip6 daddr @vips6 ip6 daddr != @vips6 ip6 daddr != @own6 goto refuse
    }
    chain outside {
        type filter hook output priority raw; policy accept;
        meta mark & $kinds != 0 udp dport $ports meta mark set meta mark & $unled notrack
    }
    chain own {
        type route hook output priority mangle; policy accept;
        ct status & dnat == dnat accept
        ip daddr @vips4 jump vip4
        ip6 daddr @vips6 jump vip6
        $plainly ip daddr @vips4 ct state != new jump second4
        $plainly ip6 daddr @vips6 ct state != new jump second6
        $plainly ip daddr @vips4 tcp flags & (syn | ack) != syn jump second4
        $plainly ip6 daddr @vips6 tcp flags & (syn | ack) != syn jump second6
        ip daddr @vips4 meta l4proto { $datagrams } meta mark & $kinds == $there ct state new jump sent4
        ip6 daddr @vips6 meta l4proto { $datagrams } meta mark & $kinds == $there ct state new jump sent6
    }
    chain own-nat {
        type nat hook output priority -100; policy accept;
        ip daddr @vips4 $plainly meta l4proto { $protocols } jump here4
        ip6 daddr @vips6 $plainly meta l4proto { $protocols } jump here6
    }
    chain own-cleared {
        type filter hook output priority -99; policy accept;
        ct state new ct status dnat jump clear
        ct status & dnat == dnat meta nfproto ipv4 goto count4
        ct status & dnat == dnat meta nfproto ipv6 goto count6
        oifname != "lo" ct status & dnat == 0 ct mark & $to_second == $to_second \
            tcp flags & (rst | ack) == rst | ack tcp sequence 0 jump unsaid
    }
    chain unsaid {
        ip saddr @vips4 drop
        ip6 saddr @vips6 drop
    }
    chain hairpin {
        type nat hook postrouting priority srcnat; policy accept;
        oifname != "lo" ct status dnat ct original ip daddr . ip saddr . ip daddr @hairpin4 masquerade
        oifname != "lo" ct status dnat ct original ip6 daddr . ip6 saddr . ip6 daddr @hairpin6 masquerade
    }
    chain keep {
        ct mark != 0 ct mark set ct mark | $kinds return
        ct mark set meta mark | $there
    }
    chain clear {
        ct original ip daddr @vips4 goto restore
        ct original ip6 daddr @vips6 goto restore
    }
    chain restore {
        meta priority set 0
        meta mark set 0
        ct mark & $kinds == $there meta mark set ct mark & $theirs ct mark set 0
        ct mark & $kinds == $kinds meta mark set ct mark & $theirs ct mark set ct mark & $theirs
    }
    chain refuse {
        meta mark set 0 meta priority set 0
        meta l4proto tcp reject with tcp reset
        meta nfproto ipv4 meta l4proto sctp reject with icmp type prot-unreachable
        reject with icmpx port-unreachable
    }
""")

_FAMILY = Template("""
    set vips$v { typeof $ip daddr; }
    set own$v { typeof $ip daddr; }
    map service$v { typeof $key : meta priority; }
    set sourced$v { typeof $key; }
    map limited$v { typeof $key : meta mark; }
    set clients$v { typeof meta mark . $ip saddr; flags interval; }
    map served$v { typeof $key : meta priority; }
    map member$v { type classid . mark : $address . inet_service; }
    set hairpin$v { typeof $ip daddr . $ip saddr . $ip daddr; }
    set counted$v { typeof ct direction . $ip daddr . meta l4proto . th dport; flags dynamic; size $most; }
    set opened$v { typeof $ip daddr . meta l4proto . th dport; flags dynamic; size $most; }
    set asked$v { typeof $ip daddr . meta l4proto . th dport; flags dynamic; size $most; }
    set refused$v { typeof $ip daddr . meta l4proto . th dport; flags dynamic; size $most; }

    chain vip$v {
        $plain meta l4proto { $protocols } goto pick$v
        meta l4proto { $protocols } drop
        $errors goto error$v
    }
    chain pick$v {
        meta priority set $protocol
        meta mark set $key map @limited$v meta mark . $ip saddr != @clients$v drop
        iifname "$second" meta mark set 0 meta priority set 0 return
        jump slot$v
        iif != 0 iifname != "$back" meta l4proto != tcp meta priority set $key map @served$v \
            meta mark set $number map @before meta priority set 0 notrack return
        meta priority set $protocol
        meta priority set $key map @service$v meta priority != 0 goto dealt$v
        meta priority 0 jump nobody$v
        goto refuse
    }
    chain slot$v {
        meta mark set jhash $ip saddr . $ip daddr . meta l4proto . th sport . th dport $hash
        $key @sourced$v meta mark set jhash $ip saddr . $ip daddr $hash
    }
    chain dealt$v {
        meta mark set $number map @pattern meta priority set $protocol \
            meta priority set $key map @served$v goto placed$v
        drop
    }
    chain placed$v {
        $led meta l4proto { $datagrams } meta mark set $number map @owner meta priority set 0 return
        $led tcp flags & (syn | ack) != syn meta mark set $number map @owner meta priority set 0 return
        iifname "$back" meta l4proto tcp meta mark set $number map @owner drop
        iifname "$table" meta l4proto tcp meta mark set $number map @owner \
            meta mark set meta mark | $to_second meta priority set 0 notrack return
        meta mark set $number map @owner meta priority set 0 notrack return
        meta mark set 0 meta priority set 0
    }
    chain unknown$v {
        iifname "$back" meta l4proto tcp drop
        meta l4proto tcp meta mark set meta mark | $to_second
        meta l4proto { $protocols } goto noted$v
    }
    chain nobody$v {
        meta l4proto tcp tcp flags & (syn | ack) != syn return
        add @refused$v { $ip daddr . meta l4proto . th dport counter }
    }
    chain here$v {
        meta mark != 0 jump keep
        jump opened$v
        meta priority set $protocol
        jump slot$v
        meta priority set $key map @service$v \
            meta mark set $number map @pattern meta priority set $protocol \
            meta priority set $key map @served$v meta l4proto { $protocols } dnat $ip to $number map @member$v
        drop
    }
    chain opened$v {
        meta l4proto tcp tcp flags & (syn | ack) != syn return
        add @opened$v { $ip daddr . meta l4proto . th dport counter }
    }
    chain count$v {
        $counted
        ct original $ip daddr != @vips$v return
        $counting
    }
    chain second$v {
        meta priority set $protocol
        jump slot$v
        meta priority set $key map @served$v meta mark set $number map @before meta priority set 0 return
        meta mark set 0 meta priority set 0
    }
    chain asked$v {
        meta l4proto tcp reject with tcp reset
        meta l4proto { $protocols } goto back$v
        $errors goto returned$v
    }
    chain back$v {
        meta priority set $protocol
        jump slot$v
        meta priority set $key map @served$v meta mark set $number map @before meta mark set meta mark | $there \
            meta priority set 0 goto noted$v
        meta priority set $protocol
        meta priority set $key map @service$v meta mark set $number map @pattern meta priority set $protocol \
            meta priority set $key map @served$v meta mark set $number map @owner \
            meta mark set meta mark | $to_second meta priority set 0 goto noted$v
        meta mark set 0 meta priority set 0
    }
    chain noted$v {
        ct mark set ct mark | $to_second
        add @asked$v { $ip daddr . meta l4proto . th dport }
    }
    chain sent$v {
        ct mark set ct mark | $kinds
        add @asked$v { $ip daddr . meta l4proto . th dport }
    }
    chain inner$v {
        meta priority set $inner_protocol
        meta mark set jhash $inner_flow $hash
        $inner_key @sourced$v meta mark set jhash $inner_source $hash
    }
    chain error$v {
        iifname "$second" return
        jump inner$v
        iifname != "$back" meta priority set $inner_key map @served$v meta mark set $number map @before \
            meta priority set 0 notrack return
        meta priority set $inner_protocol
        meta priority set $inner_key map @service$v meta mark set $number map @pattern \
            meta priority set $inner_protocol meta priority set $inner_key map @served$v \
            meta mark set $number map @owner meta priority set 0 goto passed
        meta mark set 0 meta priority set 0
    }
    chain returned$v {
        jump inner$v
        meta priority set $inner_key map @served$v meta mark set $number map @before \
            meta mark set meta mark | $there meta priority set 0 return
        meta priority set $inner_protocol
        meta priority set $inner_key map @service$v meta mark set $number map @pattern \
            meta priority set $inner_protocol meta priority set $inner_key map @served$v \
            meta mark set $number map @owner meta mark set meta mark | $to_second meta priority set 0 return
        meta mark set 0 meta priority set 0
    }
""")


def ruleset(table: str, flags: str = "") -> str:
    """As nft takes it: other rules are replaced in one transaction, what is in sets and maps stays."""
    said = f'add element inet {table} about {{ 0 comment "{about()}" }}'
    parts = (
        f"table inet {table} {{ {flags} }}",
        f"flush table inet {table}",
        f"table inet {table} {{",
        flags,
        rules(),
        "}",
    )
    return "\n".join([*parts, f"flush set inet {table} about", said, ""])


def closing(table: str) -> str:
    """Refuse what comes by tunnels (`CLOSED`), in the words of nft."""
    return f"add element inet {table} closed {{ {', '.join(f'udp . {port}' for port in TUNNEL_PORTS)} }}\n"


def about() -> str:
    """By which an agent sees that these are the rules that are there; and whether its own would fit in with the sets
    and hooks, of which nft changes none."""
    text = rules()
    layout = re.findall(r"^ *(?:set|map|type) .*", text, re.MULTILINE)
    return " ".join(hashlib.sha256(each.encode()).hexdigest()[:16] for each in (text, "\n".join(layout)))


def layout_of(said: str) -> str:
    """The same where rules alone differ."""
    return said.partition(" ")[2]


def rules() -> str:
    names = ", ".join(_PROTOCOLS)
    numbers = ", ".join(f"{name} : 0:{number:x}" for name, number in _PROTOCOLS.items())
    plain = ", ".join(f"{number} : 0:{number:x}" for number in _PROTOCOLS.values())
    words = {
        "tunnels": ", ".join(f'"{name}"' for name in TUNNELS),
        "table": TUNNELS[0],
        "there": f"{THERE:#x}",
        "kinds": f"{KINDS:#x}",
        "theirs": f"{0xFFFFFFFF & ~KINDS:#x}",
        "ports": f"{min(TUNNEL_PORTS)}-{max(TUNNEL_PORTS)}",
        "unled": f"{0xFFFFFFFF & ~MARK_BITS:#x}",
        "plainly": f"meta mark & {KINDS:#x} == 0",
        "answers": f'iifname != "lo" meta l4proto {{ {names} }} fib daddr type != local',
        "second": TUNNELS[1],
        "back": TUNNELS[2],
        "led": f'iifname {{ "{TUNNELS[0]}", "{TUNNELS[2]}" }}',
        "to_second": f"{SECOND:#x}",
        "protocols": names,
        "datagrams": ", ".join(name for name in _PROTOCOLS if name != "tcp"),
        "protocol": "meta l4proto map @protocols",
        "number": "meta priority . meta mark",
        "numbers": numbers,
        "hash": f"mod 256 seed {SEED:#x}",
        "most": str(MOST_COUNTED),
    }
    four = {
        "v": "4",
        "ip": "ip",
        "address": "ipv4_addr",
        "key": "ip daddr . meta priority . @nh,176,16",
        "plain": "ip hdrlength 5",
        "errors": "icmp type { destination-unreachable, time-exceeded, parameter-problem }",
        "inner_protocol": f"@th,136,8 map {{ {plain} }}",
        "inner_key": "ip daddr . meta priority . @th,224,16",
        "inner_flow": "@th,192,32 . @th,160,32 . @th,136,8 . @th,240,16 . @th,224,16",
        "inner_source": "@th,192,32 . @th,160,32",
    }
    six = {
        "v": "6",
        "ip": "ip6",
        "address": "ipv6_addr",
        "key": "ip6 daddr . meta priority . @nh,336,16",
        "plain": f"ip6 nexthdr {{ {names} }}",
        "errors": "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem }",
        "inner_protocol": f"@th,112,8 map {{ {plain} }}",
        "inner_key": "ip6 daddr . meta priority . @th,384,16",
        "inner_flow": "@th,256,128 . @th,128,128 . @th,112,8 . @th,400,16 . @th,384,16",
        "inner_source": "@th,256,128 . @th,128,128",
    }
    families = (_FAMILY.substitute(words | each | _counting(each["ip"], each["v"])) for each in (four, six))
    return "\n".join([*families, _SHARED.substitute(words)])


def _counting(ip: str, version: str) -> dict[str, str]:
    """One rule a protocol: nft knows no port of a connection before it knows the protocol."""
    key = f"ct direction . ct original {ip} daddr . meta l4proto . ct original proto-dst"
    looked = (f"meta l4proto {name} {key} @counted{version} return" for name in _PROTOCOLS)
    made = (f"meta l4proto {name} add @counted{version} {{ {key} counter }}" for name in _PROTOCOLS)
    return {"counted": "\n        ".join(looked), "counting": "\n        ".join(made)}

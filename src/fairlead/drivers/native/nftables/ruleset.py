"""Rules of the nftables table. They are the same on each host and never change; all differences are in sets and maps.

Lookup. A packet to a VIP has one of 256 slots, by `jhash` (`dataplane/flow_slot.py`). Its target is found in four
steps: the slot table of the service (`service`: many services share one), the slot's index (`pattern`), the target list
of the service (`served`: all ports of a pool share one), and the target at that index (`owner`: another host; `member`:
an address here). The target list also has the previous owners of slots (`before`). A failed map lookup ends a rule, and
the next rule handles it. The key of a service is address, protocol and port. The protocol is passed in `meta priority`,
and the port is read at a fixed offset, because the same keys are built from packets inside ICMP errors, for which nft
has no fields. Protocol numbers are a named map: an anonymous one would be deleted with replaced rules, and packets in
those rules would be rejected.

Known connections. A host knows a connection if it translates it. A conntrack entry alone is no evidence: forwarded
connections, and the host's own ones to other hosts, have one too. Of its own connections the host sees which are new;
of others' packets without a handshake it does not, so for those the previous owner of the slot is queried first. The
same holds for ICMP errors about any flow: a host that does not know the flow returns the error.

Replies of other hosts to clients behind this host come from a VIP, and are not tracked, as the requests were not.
Otherwise they would create a connection initiated by the VIP, and a later packet of the client from the same port, with
the slot owned by this host by then, would be a reply to it: not new, so not translated, and rejected by the host's own
sockets. Replies to the host itself belong to a connection that it initiated.

Queried connections are in this host's conntrack until they have ended, and a minute longer. A SYN from the same port is
no new connection in that time, so it is not translated. The host's own answer to it (RFC 9293, 3.10.7.1) makes
conntrack drop the old entry and is hidden from the client, which retransmits and is served. If a socket of the host
would accept the SYN, it is rejected, because no client of a VIP may reach the host's own sockets.

A proxy is a member at the VIP itself. The host's own packets to it are translated at output and arrive on `lo` as if
they were for the proxy's port; only those are known already.

Tunnels. Any sender that reaches a tunnel's port can inject any packet with any source. So decapsulated packets that are
not for a VIP are dropped: a tunnel bypasses no firewall.

Prefixes behind a host may contain addresses of the host, such as a bridge's. A tenant with members there must not lead
clients to the host's own sockets. So translated packets are accepted by the host itself only at a VIP, for a proxy, or
at an address that an operator declared for members (`Own`).

Counters. Only packets translated here are counted here (ADR 82), at input from a device or at output of this host.
Packets create the elements that count them, for existing services; `counters.py` reads them.

Marks. Other programs mark packets and connections too. A packet forwarded to another host has a managed mark; all
others keep their marks. During the translation of a new connection some rules use the packet's mark; its value is saved
in the connection's mark (`keep`), with one managed bit if that was empty, and with two bits if it was not: those bits
of the other program are lost. Encapsulated packets have no managed mark outside, because another program's rule may
have them rerouted without their ports. They are not tracked either, because each flow in a tunnel would take another
entry on both hosts. If another program has removed the route to the host, the packet arrives locally and is dropped,
because it is not for the host's own sockets.

A host's own datagrams to another host are in its conntrack too, and their sender may never pause. So that they count as
new once their slot belongs to this host, they are recorded like queried connections, with one more bit. Until those
entries are deleted they are dropped, and do not reach the host's own sockets.

SCTP. An SCTP client gives up an association after "protocol unreachable" (RFC 9260, section 10), while Linux retries
for minutes after "port unreachable". nftables can send neither the equivalent over IPv6 nor an ABORT.

Changes reach hosts one after the other, and in between two hosts may each take the other for the owner of a slot. A TCP
packet that one host forwarded by its table and that belongs to another by the receiver's table is forwarded once more,
through the back tunnel; a receiver there that does not own the slot either drops it, and the sender retransmits.
Forwarded by tables alone it would loop until its hop limit is exhausted, and the client would get an ICMP error (time
exceeded, RFC 792).

A booting host has no rows until its agent has applied them, while its kernel answers pings. So a new table closes the
tunnels' ports (`closed`): a datagram to one is rejected, as by a host without tunnels, which other hosts probe
(`node/peers.py`). The agent opens them after all rows are applied. They stay open while no agent runs.

A host without an agent keeps old rows, so a packet that it forwards may belong to a connection of the receiving host
although the slot belongs to another host by the receiver's table. So a host first looks up a packet from the table or
back tunnel in its conntrack, unless it is a SYN, and uses its tables only if it does not translate the connection
(`unknown`). The same holds for ICMP errors. Such a packet is tracked, so the host records it like queried connections.
"""

import hashlib
import re
from string import Template

from fairlead.dataplane.flow_slot import PROTOCOLS, SEED
from fairlead.dataplane.native import TUNNEL_PORTS
from fairlead.drivers.native.nftables.elements import Shape

TUNNELS = "fl-table", "fl-second", "fl-back"
"""Tunnel devices: to the owner of a slot by the table; to its previous owner, which may know the connection; and back
from there if it does not."""
OWNER_MARK, SECOND_MARK, BACK_MARK = 0x1000, 0x2000, 0x3000
"""Mark bases, added to the host's number, for packets forwarded through each of these devices."""
FORWARDED_MASK = 0x3000
"""Bits that are zero in the mark of a packet that is not forwarded. All other bits belong to other programs then."""
MARK_BITS = 0x3FFF
"""Bits that are managed in the mark of a forwarded packet."""
_PROTOCOLS = {name.value: number for name, number in PROTOCOLS.items()}


class NftFamily:
    """Sets and maps of one IP version."""

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
        self.queried = Shape(name=f"asked{version}", key=size + 8)
        """Services with connections that other hosts were queried about."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Sets and maps with rows."""
        its = self.vips, self.own, self.service, self.served, self.sourced, self.limited, self.clients
        return (*its, self.member, self.hairpin)

    @property
    def counter_sets(self) -> tuple[Shape, ...]:
        """Counter sets: packets and bytes by direction and service; opened connections; rejected attempts."""
        return self.counted, self.opened, self.refused


FAMILIES = {version: NftFamily(version) for version in (4, 6)}
PATTERNS = Shape(name="pattern", key=8, data=4)
OWNERS = Shape(name="owner", key=8, data=4)
PREVIOUS_OWNERS = Shape(name="before", key=8, data=4)
TUNNEL_OWNERS = Shape(name="ways", key=4, commented=True)
"""Number of a host -> owner of its route."""
TABLE_DIGESTS = Shape(name="about", key=4, commented=True)
COUNTING_PERIOD = Shape(name="since", key=4, commented=True)
"""Id of the counting period, in the format of `counters.py`."""
MAX_COUNTED = 65_536
"""Maximum elements of one set. Services without an element in a full set are not counted."""
CLOSED = Shape(name="closed", key=8)
"""Tunnel ports that this host rejects, as if it had no tunnels: all of them in a new table, until rows are applied."""
QUERIED_SETS = tuple(family.queried for family in FAMILIES.values())
SHAPES = (
    PATTERNS,
    OWNERS,
    PREVIOUS_OWNERS,
    TUNNEL_OWNERS,
    *(shape for family in FAMILIES.values() for shape in family.shapes),
)


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
    """Text for nft: rules are replaced in one transaction, contents of sets and maps stay."""
    said = f'add element inet {table} about {{ 0 comment "{compute_digests()}" }}'
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
    """Text for nft that closes the tunnel ports (`CLOSED`)."""
    return f"add element inet {table} closed {{ {', '.join(f'udp . {port}' for port in TUNNEL_PORTS)} }}\n"


def compute_digests() -> str:
    """Digests of the rules, and of the layout of sets and hooks, which nft cannot change.

    An agent compares them to decide whether the table is current, and whether only rules differ.
    """
    text = rules()
    layout = re.findall(r"^ *(?:set|map|type) .*", text, re.MULTILINE)
    return " ".join(hashlib.sha256(each.encode()).hexdigest()[:16] for each in (text, "\n".join(layout)))


def layout_of(said: str) -> str:
    """Return a digest of the sets, maps and chains of a ruleset, which is the same if only rules differ."""
    return said.partition(" ")[2]


def rules() -> str:
    names = ", ".join(_PROTOCOLS)
    numbers = ", ".join(f"{name} : 0:{number:x}" for name, number in _PROTOCOLS.items())
    plain = ", ".join(f"{number} : 0:{number:x}" for number in _PROTOCOLS.values())
    words = {
        "tunnels": ", ".join(f'"{name}"' for name in TUNNELS),
        "table": TUNNELS[0],
        "there": f"{OWNER_MARK:#x}",
        "kinds": f"{FORWARDED_MASK:#x}",
        "theirs": f"{0xFFFFFFFF & ~FORWARDED_MASK:#x}",
        "ports": f"{min(TUNNEL_PORTS)}-{max(TUNNEL_PORTS)}",
        "unled": f"{0xFFFFFFFF & ~MARK_BITS:#x}",
        "plainly": f"meta mark & {FORWARDED_MASK:#x} == 0",
        "answers": f'iifname != "lo" meta l4proto {{ {names} }} fib daddr type != local',
        "second": TUNNELS[1],
        "back": TUNNELS[2],
        "led": f'iifname {{ "{TUNNELS[0]}", "{TUNNELS[2]}" }}',
        "to_second": f"{SECOND_MARK:#x}",
        "protocols": names,
        "datagrams": ", ".join(name for name in _PROTOCOLS if name != "tcp"),
        "protocol": "meta l4proto map @protocols",
        "number": "meta priority . meta mark",
        "numbers": numbers,
        "hash": f"mod 256 seed {SEED:#x}",
        "most": str(MAX_COUNTED),
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
    """Counting rules, one per protocol, because nft requires the protocol before a connection's port."""
    key = f"ct direction . ct original {ip} daddr . meta l4proto . ct original proto-dst"
    looked = (f"meta l4proto {name} {key} @counted{version} return" for name in _PROTOCOLS)
    made = (f"meta l4proto {name} add @counted{version} {{ {key} counter }}" for name in _PROTOCOLS)
    return {"counted": "\n        ".join(looked), "counting": "\n        ".join(made)}

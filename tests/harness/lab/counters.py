"""Network counters of the kernel, of one namespace."""


def read_counter(text: str, protocol: str, name: str) -> int:
    """Read /proc/net/snmp or /proc/net/netstat, which have a line of names and a line of values for each protocol."""
    names, values = (line.split() for line in text.splitlines() if line.startswith(f"{protocol}: "))
    return int(values[names.index(name)])


def read_both_counters(text: str, protocol: str, name: str) -> int:
    """Read /proc/net/snmp followed by /proc/net/snmp6, and add both IP versions."""
    six = (line.split() for line in text.splitlines())
    found = (int(words[1]) for words in six if words[:1] == [f"{protocol}6{name}"])
    return read_counter(text, protocol, name) + sum(found)

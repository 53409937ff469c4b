"""Node agent, one per compute node or plain host. This overview covers counters and neighbour announcements; the other
modules apply rows, probe members and report.

The agent reads the counters of the node's switch for virtual addresses and reports them to the servers. No load
balancer depends on it; without an agent the node's traffic is missing in the statistics.

* The switch counts per address and port, and drops its counts when OVN replaces a flow. The agent sums the increments
  (`counting`) and stores the sums in a file (`state`), so they survive flow changes and restarts of the agent.
* Only a server can map an address and port to a listener. The agent requests this for counters that have grown, and
  adds the increment to that listener (`protocol`). While no server answers, nothing is added and nothing is lost,
  because the switch continues to count.
* Each report has the complete sums, so a lost or repeated report has no effect.

The agent announces MACs to the node's machines (`announcing`) when a Local IP takes over the address of a port, and
when the Local IP is removed. Without an agent, machines learn the new MAC at their next ARP or ND resolution.

* The agent receives the complete desired neighbours from a server and compares them with its past announcements
  (`neighbours`). A missed announcement is made later.
* Past announcements are stored in a file (`state`), because only the agent knows about Local IPs that no longer exist.
"""

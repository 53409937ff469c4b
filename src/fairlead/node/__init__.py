"""The agent, one on each compute node: it counts what the node's switch does for virtual addresses, and tells servers.

No load balancer needs it: without an agent nobody knows figures of its node, and nothing else is missing.

* The switch counts by address and port, and forgets its counts when OVN makes a flow anew. The agent adds up what comes
  (`counting`) and keeps the sums in a file (`state`), so they outlive the switch's memory and the agent's own.
* Which listener an address and a port are, only the server knows: it is asked about those that have grown, and what has
  grown is that listener's from then on (`protocol`). While it does not answer nothing is taken, and nothing is lost:
  the switch goes on counting.
* The sums are told whole each time. A report that is lost or comes twice does no harm.
"""

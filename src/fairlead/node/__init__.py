"""The agent, one on each compute node. It does two things, side by side.

It counts what the node's switch does for virtual addresses, and tells servers. No load balancer needs that: without an
agent nobody knows figures of its node.

* The switch counts by address and port, and forgets its counts when OVN makes a flow anew. The agent adds up what comes
  (`counting`) and keeps the sums in a file (`state`), so they outlive the switch's memory and the agent's own.
* Which listener an address and a port are, only the server knows: it is asked about those that have grown, and what has
  grown is that listener's from then on (`protocol`). While it does not answer nothing is taken, and nothing is lost:
  the switch goes on counting.
* The sums are told whole each time. A report that is lost or comes twice does no harm.

It announces by which MACs the node's machines have to know their neighbours (`announcing`), when a Local IP takes the
place of a port that they know, and when it goes. Without an agent they learn that when they ask again of themselves.

* What they should know is heard of a server whole, and compared with what was said (`neighbours`). What was missed is
  said later.
* What was said is kept in a file (`state`): of what is no Local IP any more, only the agent knows that it was one.
"""

"""Provider plug-in `fairlead` for OpenStack Octavia.

The driver (`driver.py`) runs in every process of Octavia's API, and sends each change to a Fairlead server before
Octavia commits it. The agent (`agent.py`) runs under octavia-driver-agent and reports statuses and statistics to
Octavia. The plug-in makes no load balancing decision, and keeps no state that it cannot read again.

It imports only packages of Octavia's environment, and of Fairlead only the HTTP client (`client.py`), so `pip install
--no-deps fairlead` is sufficient there.
"""

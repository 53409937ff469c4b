"""What runs inside a real Octavia: its provider `fairlead`, thin.

The driver (`driver.py`) runs in every process of Octavia's API, and hands each change to a Fairlead server before
Octavia commits it. The agent (`agent.py`) is a process of octavia-driver-agent: it tells Octavia how everything stands.
Nothing here decides anything about load balancing, and nothing is remembered that cannot be read again.

Here is imported what Octavia's environment has, and of Fairlead only what its programs ask a server by (`client.py`):
`pip install --no-deps fairlead` is enough there.
"""

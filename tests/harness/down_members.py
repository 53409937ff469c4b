"""A load balancer with two probed members, for tests of reports about down members."""

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from harness.language import parse_model

MODEL = """network net1 10.0.0.0/24
port vm1 net1 10.0.0.11
port vm2 net1 10.0.0.12
probes net1 10.0.0.2
web vip=10.0.0.10 on=net1 tcp:80{monitor=TCP}=a/10.0.0.11:80,b/10.0.0.12:80"""
DOCUMENTS, _ = parse_model(MODEL, {})
WEB, VM2 = Owner(Kind.LOAD_BALANCER, "web"), Owner(Kind.PORT, "vm2")
ENDPOINT = Endpoint("vm1", parse_address("10.0.0.11"), 80, Transport.TCP)

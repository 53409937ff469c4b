"""Documents: every model value survives encoding, and invalid text raises one defined error."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.documents.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import FloatingIP, Network, Port, Router
from fairlead.model.documents.owner import WITHOUT_DOCUMENTS, Kind, Owner
from fairlead.model.documents.quota import Quota
from fairlead.model.documents.trust import Certificate, Project, TrustToken
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Aggregate
from fairlead.store.codec import BadDocument, decode, encode
from fairlead.store.formats import NewerDocument
from harness.values import FEW_EXAMPLES, JSON

st.register_type_strategy(datetime, st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC)))
IDS = st.text(min_size=1, max_size=36)
BY_ID = (AvailabilityZoneProfile, Flavor, FlavorProfile, FloatingIP, LoadBalancer, Network, Port, Router)
AGGREGATES: st.SearchStrategy[Aggregate] = st.one_of(
    *(st.builds(kind, id=IDS) for kind in BY_ID),
    st.builds(AvailabilityZone, name=IDS),
    st.builds(Quota, project_id=IDS),
    st.builds(Project, name=IDS),
    st.builds(Certificate, fingerprint=IDS),
    st.builds(TrustToken, id=IDS),
)
KINDS = st.sampled_from([kind for kind in Kind if kind not in WITHOUT_DOCUMENTS])


@FEW_EXAMPLES
@given(aggregate=AGGREGATES)
def test_any_value_survives_encoding(aggregate: Aggregate):
    assert decode(owner_of(aggregate), encode(aggregate)) == aggregate


def refused(kind: Kind, document: bytes) -> str:
    """Return the error text, or an empty string for a valid document."""
    try:
        decode(Owner(kind, "x"), document)
    except (BadDocument, NewerDocument) as error:
        return str(error)
    return ""


@FEW_EXAMPLES
@given(kind=KINDS, document=st.one_of(st.binary(), st.text().map(str.encode)))
def test_arbitrary_bytes_are_rejected_as_a_document_with_one_error(kind: Kind, document: bytes):
    assert refused(kind, document)


@FEW_EXAMPLES
@given(aggregate=AGGREGATES, data=st.data())
def test_document_with_a_random_value_is_decoded_or_rejected(aggregate: Aggregate, data: st.DataObject):
    document: dict[str, Any] = msgspec.json.decode(encode(aggregate))
    document[data.draw(st.sampled_from(sorted(document)))] = data.draw(JSON)
    refused(owner_of(aggregate).kind, msgspec.json.encode(document))


@pytest.mark.parametrize("document", [b"", b"{}", b"[]", b"null", b"[" * 5000, b'{"id": 1e400}', b"\xff"])
def test_invalid_document_is_reported_with_its_owner(document: bytes):
    assert refused(Kind.NETWORK, document).startswith("network/x: ")

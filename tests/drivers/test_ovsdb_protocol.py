"""OVSDB without I/O: framing, values, order of remotes, and inactivity timeouts."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.drivers.ovsdb.errors import ConnectionLost, OvsdbError, ProtocolError, TransactionError
from fairlead.drivers.ovsdb.protocol import (
    Framer,
    Notification,
    Reply,
    Request,
    TableMonitor,
    assert_lock,
    encode_message,
    encode_monitors,
    find_error,
    merge_row,
    read_message,
    read_results,
)
from fairlead.drivers.ovsdb.remotes import (
    Liveness,
    LivenessVerdict,
    Rotation,
    SslRemote,
    TcpRemote,
    UnixRemote,
    parse_remotes,
)
from fairlead.drivers.ovsdb.values import (
    decode_map,
    decode_optional,
    decode_set,
    decode_uuid,
    decode_uuids,
    encode_map,
    encode_named_uuid,
    encode_optional,
    encode_set,
    encode_uuid,
    encode_uuids,
    patch_map,
)
from harness.step_counter import step

UUID = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
TRICKY = {"id": 1, "result": [{"a{": '}"\\', "b": ['\\"', "\\\\", "{[", "ä€😀"]}, {}], "error": None}


def feed_all(pieces: list[bytes]) -> list[object]:
    framer = Framer()
    return [message for piece in pieces for message in framer.feed(piece)]


def test_message_may_be_split_anywhere() -> None:
    for text in (json.dumps(TRICKY).encode(), json.dumps(TRICKY, ensure_ascii=False).encode()):
        for cut in range(len(text) + 1):
            expected = [Reply(id=1, result=TRICKY["result"], error=None)] * 2
            assert expected == feed_all([text[:cut], text[cut:] + text])


def test_messages_may_arrive_one_byte_at_a_time() -> None:
    text = json.dumps(TRICKY).encode() * 3
    assert [Reply(id=1, result=TRICKY["result"], error=None)] * 3 == feed_all([bytes([byte]) for byte in text])


TEXTS = st.text(st.sampled_from('"\\{}[]:,aä€😀') | st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(
    st.lists(JSON, max_size=5),
    st.lists(st.integers(0, 200), max_size=40),
    st.booleans(),
    st.sampled_from(["", " ", "\n"]),
)
def test_framer_returns_the_sent_messages_for_any_split(
    results: list[object], sizes: list[int], ascii_only: bool, gap: str
) -> None:
    """The framer returns the sent messages for any string contents and any cuts of the network."""
    texts = [json.dumps({"id": 1, "result": result, "error": None}, ensure_ascii=ascii_only) for result in results]
    stream = gap.join(texts).encode()
    cuts = [*itertools.accumulate(sizes, initial=0), len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(cuts)]
    assert [Reply(id=1, result=result, error=None) for result in results] == feed_all(pieces)


def test_framer_scans_each_byte_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The framer scans each byte once, for messages of any size that arrive in pieces of 1 KB."""
    looked, hide_strings = list[int](), Framer._hide_strings

    def count(framer: Framer, data: bytes) -> bytes:
        looked.append(len(data))
        return hide_strings(framer, data)

    def steps_for(size: int) -> int:
        strings = ["x" * 1000, {"y": 'quote " and { '}] * size
        text = json.dumps({"id": 1, "result": strings, "error": None}).encode()
        framer, before = Framer(), step()
        looked.clear()
        messages = [message for at in range(0, len(text), 1000) for message in framer.feed(text[at : at + 1000])]
        taken = step() - before
        assert [Reply(id=1, result=strings, error=None)] == messages
        assert sum(looked) == len(text)
        return taken

    monkeypatch.setattr(Framer, "_hide_strings", count)
    assert steps_for(8000) < 8.1 * steps_for(1000)


def test_oversized_message_is_rejected_before_its_end() -> None:
    framer = Framer(limit=100)
    assert [Reply(id=1, result="x" * 60, error=None)] == list(framer.feed(b'{"id":1,"result":"%s"}' % (b"x" * 60)))
    with pytest.raises(ProtocolError, match="longer than 100 bytes"):
        list(framer.feed(b'{"id":1,"result":"' + b"x" * 100))


@pytest.mark.parametrize("text", [b"}", b"what {}", b'{"id":}', b'{"a":1}', b'{"id":1,"result":"\xff"}'])
def test_invalid_messages_are_rejected(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(Framer().feed(text))


def test_messages_before_an_invalid_one_are_returned() -> None:
    messages = Framer().feed(b'{"id":1,"result":2}}')
    assert Reply(id=1, result=2, error=None) == next(messages)
    with pytest.raises(ProtocolError):
        next(messages)


def test_messages_are_parsed_as_requests_notifications_and_replies() -> None:
    assert Request(id="echo", method="echo", params=[]) == read_message({"id": "echo", "method": "echo", "params": []})
    assert Notification(method="locked", params=["l"]) == read_message(
        {"id": None, "method": "locked", "params": ["l"]}
    )
    assert Reply(id=1, result=None, error="unknown method") == read_message({"id": 1, "error": "unknown method"})
    assert encode_message(Request(id=1, method="echo", params=[])) == b'{"id":1,"method":"echo","params":[]}'
    assert encode_message(Reply(id="e", result=[], error=None)) == b'{"id":"e","result":[],"error":null}'


def test_values_have_one_canonical_encoding() -> None:
    assert encode_set([]) == ["set", []]
    assert encode_set(["a"]) == "a"
    assert encode_set({"b", "a"}) == ["set", ["a", "b"]]
    assert ["uuid", UUID] == encode_uuid(UUID) == encode_uuids([UUID])
    assert encode_uuids([OTHER, UUID]) == ["set", [["uuid", UUID], ["uuid", OTHER]]]
    assert encode_named_uuid("x") == ["named-uuid", "x"]
    assert encode_map({"b": "2", "a": "1"}) == ["map", [["a", "1"], ["b", "2"]]]
    assert encode_optional(None) == ["set", []]
    assert encode_optional("tcp") == "tcp"
    assert assert_lock("l") == {"op": "assert", "lock": "l"}
    expected = {"A": [{"columns": ["x", "y"], "where": []}], "B": [{"columns": ["n"], "where": [["n", "==", "1"]]}]}
    one, other = TableMonitor(columns=("y", "x")), TableMonitor(columns=("n",), where=(["n", "==", "1"],))
    assert expected == encode_monitors({"B": other, "A": one})


def test_values_are_decoded() -> None:
    assert decode_set(["set", []]) == ()
    assert decode_set("a") == ("a",)
    assert decode_set(["uuid", UUID]) == (["uuid", UUID],)
    assert decode_set(["set", ["b", "a"]]) == ("a", "b")
    assert decode_uuids(["set", [["uuid", OTHER], ["uuid", UUID]]]) == (UUID, OTHER)
    assert decode_uuid(["uuid", UUID]) == UUID
    assert None is decode_optional(["set", []])
    assert decode_optional(5) == 5
    assert decode_map(["map", [["a", "1"]]]) == {"a": "1"}
    for decode, wrong in ((decode_uuid, "x"), (decode_uuid, ["named-uuid", "x"]), (decode_map, ["set", []])):
        with pytest.raises(ProtocolError):
            decode(wrong)


def test_map_difference_is_applied() -> None:
    old = {"gone": "1", "kept": "2", "changed": "3"}
    difference = ["map", [["changed", "4"], ["gone", "1"], ["new", "5"]]]
    assert patch_map(old, difference) == {"kept": "2", "changed": "4", "new": "5"}


def test_transaction_results_are_parsed_and_errors_raised() -> None:
    assert read_results(Reply(id=1, result=[{"count": 1}, {}], error=None), 2) == [{"count": 1}, {}]
    failed = Reply(id=1, result=[{}, {"error": "not owner", "details": "no."}, None], error=None)
    with pytest.raises(TransactionError, match=r"^not owner: no\.$") as caught:
        read_results(failed, 3)
    assert (caught.value.error, caught.value.details, caught.value.index) == ("not owner", "no.", 1)
    commit = Reply(id=1, result=[{}, {"error": "referential integrity violation"}], error=None)
    with pytest.raises(TransactionError) as caught:
        read_results(commit, 1)
    assert (caught.value.error, caught.value.index) == ("referential integrity violation", None)
    for error in ("canceled", {"error": "canceled", "syntax": "[]"}):
        with pytest.raises(TransactionError, match=r"^canceled$"):
            read_results(Reply(id=1, result=None, error=error), 1)
    assert issubclass(TransactionError, OvsdbError)
    assert issubclass(ConnectionLost, OvsdbError)


def test_unfit_servers_are_refused_with_a_reason() -> None:
    assert None is find_error({"model": "standalone"})
    assert None is find_error({"model": "clustered", "connected": True, "leader": True})
    assert find_error({"model": "clustered", "connected": True}) == "is not the leader"
    assert find_error({"model": "clustered", "leader": True}) == "is not connected to its cluster"
    assert find_error({"model": "relay", "connected": True, "leader": False}) == "is not the leader"
    assert find_error(None) == "does not serve the database"


def test_updates_are_merged_into_a_row() -> None:
    row = merge_row(None, {"initial": {"model": "clustered", "connected": True}})
    assert row == {"model": "clustered", "connected": True}
    row = merge_row(row, {"modify": {"leader": True}})
    assert row == {"model": "clustered", "connected": True, "leader": True}
    assert None is merge_row(row, {"delete": None})


def test_remotes_are_parsed() -> None:
    text = "unix:/run/ovn/nb.sock, tcp:10.0.0.1:6641,tcp:[fd00::1]:6641,ssl:nb.example.org:6641"
    expected = (
        UnixRemote(path="/run/ovn/nb.sock"),
        TcpRemote(host="10.0.0.1", port=6641),
        TcpRemote(host="fd00::1", port=6641),
        SslRemote(host="nb.example.org", port=6641),
    )
    assert expected == parse_remotes(text)
    assert text.replace(" ", "") == ",".join(str(remote) for remote in expected)


@pytest.mark.parametrize(
    "text", ["", "unix:", "tcp:10.0.0.1", "tcp:fd00::1:6641", "tcp:h:0", "tcp:h:65536", "udp:h:1", "tcp:h:1,"]
)
def test_invalid_remotes_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="not an OVSDB remote"):
        parse_remotes(text)


def test_pauses_grow_after_each_round_of_remotes() -> None:
    one, two = parse_remotes("unix:1,unix:2")
    rotation = Rotation([one, two], first=1.0, cap=3.0)
    seen = [(rotation.remote, rotation.failed(held=0.0)) for _ in range(8)]
    assert [(one, 0.0), (two, 1.0), (one, 0.0), (two, 2.0), (one, 0.0), (two, 3.0), (one, 0.0), (two, 3.0)] == seen
    assert (rotation.failed(held=3.0), rotation.failed(held=-1.0)) == (0.0, 1.0)


def test_single_remote_pauses_from_the_first_failure() -> None:
    rotation = Rotation(parse_remotes("unix:1"), first=0.25, cap=8.0)
    assert [rotation.failed(held=0.0) for _ in range(7)] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert rotation.failed(held=100.0) == 0.25


def test_silent_connection_is_probed_and_then_dead() -> None:
    liveness = Liveness(5.0, now=100.0)
    assert (liveness.due, liveness.tick(104.9)) == (105.0, LivenessVerdict.WAIT)
    assert (liveness.tick(105.0), liveness.due) == (LivenessVerdict.PROBE, 110.0)
    assert liveness.tick(109.0) == LivenessVerdict.WAIT
    assert liveness.tick(110.1) == LivenessVerdict.DEAD


def test_received_message_resets_the_inactivity_timeout() -> None:
    liveness = Liveness(5.0, now=100.0)
    assert liveness.tick(105.0) == LivenessVerdict.PROBE
    liveness.record_activity(106.0)
    assert (liveness.due, liveness.tick(111.0)) == (111.0, LivenessVerdict.PROBE)


def test_suspended_process_does_not_take_the_server_for_dead() -> None:
    liveness = Liveness(5.0, now=100.0)
    assert liveness.tick(105.0) == LivenessVerdict.PROBE
    assert liveness.tick(130.0) == LivenessVerdict.PROBE  # due at 110: the process slept
    assert liveness.tick(135.0) == LivenessVerdict.DEAD

"""The OVSDB client against a real ovsdb-server; the client relies on the server's behaviour tested here."""

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest

from fairlead.drivers.ovsdb.client import (
    Client,
    ConnectionClosed,
    ConnectionSynced,
    ContentChanges,
    Event,
    FullContents,
    LockAcquired,
    LockLost,
    Settings,
    Timing,
    Tls,
)
from fairlead.drivers.ovsdb.errors import ConnectionLost, NotConnected, TransactionError
from fairlead.drivers.ovsdb.jsonrpc import KEEPALIVE, JsonRpcConnection
from fairlead.drivers.ovsdb.protocol import NO_TXN, Framer, Notification, Reply, TableMonitor, assert_lock
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.drivers.ovsdb.values import (
    Json,
    decode_map,
    decode_uuids,
    encode_map,
    encode_named_uuid,
    encode_uuid,
    encode_uuids,
    patch_map,
)
from harness.ovsdb_server import DATABASE, KILL_ERRORS, SCHEMA, OvsdbServer
from harness.ports import free_port
from harness.waiting import DEADLINE, eventually, eventually_equal, pause, run_ready_tasks, wait_until

UUID = "11111111-1111-4111-8111-111111111111"


class Replica:
    """Records all events, and the rows that result from them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.rows: dict[str, dict[str, Json]] = {}

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case FullContents(tables=tables):
                self.rows = {}
                self.apply(tables)
            case ContentChanges(tables=tables):
                self.apply(tables)

    def apply(self, tables: Json) -> None:
        for uuid, change in tables.get("Load_Balancer", {}).items():
            match change:
                case {"initial": row} | {"insert": row}:
                    self.rows[uuid] = dict(row)
                case {"modify": {"vips": difference, **others}}:
                    vips = patch_map(decode_map(self.rows[uuid].get("vips", ["map", []])), difference)
                    self.rows[uuid] |= {**others, "vips": encode_map(vips)}
                case {"modify": columns}:
                    self.rows[uuid] |= columns
                case {"delete": None}:
                    del self.rows[uuid]

    @property
    def names(self) -> list[str]:
        return sorted(row["name"] for row in self.rows.values())

    def kinds(self) -> list[type[Event]]:
        return [type(event) for event in self.events]


TABLES = {"Load_Balancer": TableMonitor(columns=("name", "protocol", "vips"))}
QUICK = Timing(probe=DEADLINE, connect=2.0, min_reconnect_interval=0.05, max_reconnect_interval=0.2)


def settings(remotes: str, timing: Timing = QUICK, tls: Tls | None = None) -> Settings:
    return Settings(remotes=parse_remotes(remotes), database=DATABASE, tables=TABLES, tls=tls, timing=timing)


def insert(name: str, uuid: str | None = None, **columns: Json) -> Json:
    row = {"op": "insert", "table": "Load_Balancer", "row": {"name": name, **columns}}
    return row if uuid is None else {**row, "uuid": uuid}


def never(seconds: float) -> Json:
    """Return an operation that waits for a row that never appears."""
    where = {"where": [["name", "==", "never"]], "columns": ["name"], "until": "==", "rows": [{"name": "never"}]}
    return {"op": "wait", "table": "Load_Balancer", "timeout": int(seconds * 1000), **where}


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def refusal(client: Client) -> str:
    """Return the reason of the client's disconnection."""
    with pytest.raises(NotConnected) as caught:
        await client.transact([])
    return str(caught.value)


def write(server: OvsdbServer, *operations: Json) -> None:
    """Write as another client."""
    text = msgspec.json.encode([DATABASE, *operations]).decode()
    done = subprocess.run(["ovsdb-client", "transact", server.remote, text], check=True, capture_output=True, text=True)
    assert "error" not in done.stdout


# Contents, changes, transactions


async def test_client_receives_contents_and_then_changes(server: OvsdbServer) -> None:
    write(server, insert("old", protocol="tcp"))
    replica = Replica()
    async with Client(settings(server.remote), replica) as client:
        await client.wait_connected(DEADLINE)
        assert client.connected
        assert replica.kinds() == [FullContents, ConnectionSynced]
        assert replica.names == ["old"]
        await client.transact([insert("new", UUID, vips=encode_map({"a": "1", "b": "2"}))])
        assert replica.names == ["new", "old"]
        where = [["name", "==", "new"]]
        row = {"vips": encode_map({"b": "3", "c": "4"}), "protocol": "udp"}
        update = {"op": "update", "table": "Load_Balancer", "where": where, "row": row}
        assert await client.transact([update]) == [{"count": 1}]
        assert replica.rows[UUID] == {"name": "new", **row}
        delete = {"op": "delete", "table": "Load_Balancer", "where": [["_uuid", "==", encode_uuid(UUID)]]}
        assert await client.transact([delete, delete]) == [{"count": 1}, {"count": 0}]
        assert replica.names == ["old"]
    assert not client.connected
    assert replica.events[-1] == ConnectionClosed(reason="closed")


async def test_monitor_condition_selects_only_matching_rows(server: OvsdbServer) -> None:
    replica = Replica()
    tables = {"Load_Balancer": TableMonitor(columns=("name",), where=(["name", "==", "mine"],))}
    chosen = Settings(remotes=parse_remotes(server.remote), database=DATABASE, tables=tables)
    async with Client(chosen, replica) as client:
        await client.wait_connected(DEADLINE)
        await client.transact([insert("mine"), insert("theirs")])
        assert replica.names == ["mine"]


@pytest.mark.parametrize("kind", ["server", "clustered"])
async def test_replica_contains_a_write_when_transact_returns(kind: str, request: pytest.FixtureRequest) -> None:
    server: OvsdbServer = request.getfixturevalue(kind)

    replica = Replica()

    async def write_and_look(number: int) -> None:
        [result] = await client.transact([insert(f"lb{number}")])
        assert replica.rows[result["uuid"][1]] == {"name": f"lb{number}"}

    async with Client(settings(server.remote), replica) as client:
        await client.wait_connected(DEADLINE)
        for number in range(100):
            await write_and_look(number)
        await asyncio.gather(*(write_and_look(number) for number in range(100, 1100)))
        assert len(replica.rows) == 1100


@pytest.mark.parametrize("kind", ["server", "clustered"])
@pytest.mark.parametrize("lag", [0.0, 0.5], ids=["reader at once", "reader behind"])
def test_server_sends_the_update_before_the_reply(kind: str, lag: float, request: pytest.FixtureRequest) -> None:
    """Observed on the wire: a reply never precedes the update3 of its transaction, not even with a full backlog."""
    server: OvsdbServer = request.getfixturevalue(kind)
    columns = {"Load_Balancer": [{"columns": ["name", "external_ids"]}]}
    filler = encode_map({"filler": "x" * 1000})
    watch = {"id": "m", "method": "monitor_cond_since", "params": [DATABASE, "m", columns, NO_TXN]}
    writes = [
        {"id": number, "method": "transact", "params": [DATABASE, insert(str(number), external_ids=filler)]}
        for number in range(1500)
    ]
    updated: set[str] = set()
    replies: list[int] = []
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(DEADLINE)
        stream.connect(str(server.folder / "db.sock"))
        wait_until(lambda: kind == "server" or _has_joined(server), "the server is a member of its cluster")
        # A thread sends, because a server with a backlog stops reading, so a client must never write before it reads.
        requests = b"".join(map(msgspec.json.encode, [watch, *writes]))
        sender = threading.Thread(target=stream.sendall, args=(requests,))
        sender.start()
        pause(lag)
        framer = Framer()
        while len(replies) < len(writes):
            for message in framer.feed(stream.recv(1 << 16)):
                match message:
                    case Notification(method="update3", params=[_, _, {"Load_Balancer": rows}]):
                        updated |= {row["insert"]["name"] for row in rows.values()}
                    case Reply(id=int(number), result=[{"uuid": _}]):
                        assert str(number) in updated
                        replies.append(number)
        sender.join()
    assert replies == list(range(len(writes)))


async def test_failed_operation_aborts_the_whole_transaction(server: OvsdbServer) -> None:
    replica = Replica()
    async with Client(settings(server.remote), replica) as client:
        await client.wait_connected(DEADLINE)
        with pytest.raises(TransactionError) as caught:
            await client.transact([insert("a"), {"op": "delete", "table": "Nope", "where": []}, insert("b")])
        assert (caught.value.error, caught.value.index) == ("syntax error", 1)
        assert caught.value.details == "Parsing ovsdb operation 2 of 3 failed: No table named Nope."
        switch = {"op": "insert", "table": "Logical_Switch", "row": {"ports": encode_uuid(UUID)}}
        with pytest.raises(TransactionError, match=r"^referential integrity violation: ") as caught:
            await client.transact([insert("a"), switch])
        assert caught.value.index is None
        assert replica.rows == {}


async def test_transaction_timeout_keeps_the_connection_usable(server: OvsdbServer) -> None:
    """The timeout ends the wait, not the transaction; the connection stays usable."""

    replica = Replica()
    async with Client(settings(server.remote), replica) as client:
        await client.wait_connected(DEADLINE)
        with pytest.raises(TimeoutError):
            await client.transact([never(300)], timeout=0.05)
        with pytest.raises(TransactionError, match=r'^timed out: "wait" timed out') as caught:
            await client.transact([never(0.3)], timeout=DEADLINE)
        assert caught.value.index == 0
        await client.transact([insert("a")])
        assert replica.names == ["a"]
        assert replica.kinds().count(ConnectionSynced) == 1


async def test_chosen_uuid_can_be_inserted_once(server: OvsdbServer) -> None:
    replica = Replica()
    async with Client(settings(server.remote), replica) as client:
        await client.wait_connected(DEADLINE)
        assert await client.transact([insert("a", UUID)]) == [{"uuid": encode_uuid(UUID)}]
        assert replica.rows == {UUID: {"name": "a"}}
        with pytest.raises(TransactionError) as caught:
            await client.transact([insert("first"), insert("again", UUID)])
        assert (caught.value.error, caught.value.index) == ("duplicate uuid", 1)
        assert caught.value.details == (
            "This UUID would duplicate a UUID already present within the table or deleted within the same transaction."
        )
        delete = {"op": "delete", "table": "Load_Balancer", "where": []}
        with pytest.raises(TransactionError, match=r"^duplicate uuid"):
            await client.transact([delete, insert("replaced", UUID)])
        assert replica.names == ["a"]
        await client.transact([delete])
        await client.transact([insert("another life", UUID)])
        assert replica.rows == {UUID: {"name": "another life"}}


async def test_rows_of_one_transaction_refer_to_each_other(server: OvsdbServer) -> None:
    """Rows of one transaction may refer to each other, by a name valid in the transaction or by a uuid that the client
    chose."""

    async with Client(settings(server.remote), Replica()) as client:
        await client.wait_connected(DEADLINE)
        named = {**insert("named"), "uuid-name": "lb"}
        wanted = encode_uuids([UUID])
        groups = [
            {"op": "insert", "table": "Load_Balancer_Group", "row": {"name": "g", "load_balancer": lb}}
            for lb in (encode_named_uuid("lb"), wanted)
        ]
        results = await client.transact([groups[0], named])
        select = {"op": "select", "table": "Load_Balancer_Group", "where": [], "columns": ["load_balancer"]}
        [found] = await client.transact([select])
        assert decode_uuids(found["rows"][0]["load_balancer"]) == decode_uuids(results[1]["uuid"])
        groups[1]["row"]["name"] = "h"
        await client.transact([insert("chosen", UUID), groups[1]])
        [found] = await client.transact([{**select, "where": [["name", "==", "h"]]}])
        assert found == {"rows": [{"load_balancer": wanted}]}


# Ends of connections


async def test_contents_are_read_again_after_a_server_restart(server: OvsdbServer) -> None:
    replica = Replica()
    async with Client(settings(server.remote), replica) as client:
        await client.wait_connected(DEADLINE)
        await client.transact([insert("a")])
        in_flight = asyncio.create_task(client.transact([never(300)]))
        await run_ready_tasks()
        server.stop()
        with pytest.raises(ConnectionLost):
            await in_flight
        assert replica.events[-1] in [ConnectionClosed(reason=reason) for reason in KILL_ERRORS]
        with pytest.raises(NotConnected):
            await client.transact([insert("b")])
        with pytest.raises(TimeoutError):
            await client.wait_connected(0.1)
        server.start()
        await client.wait_connected(DEADLINE)
        assert replica.kinds() == [
            FullContents,
            ConnectionSynced,
            ContentChanges,
            ConnectionClosed,
            FullContents,
            ConnectionSynced,
        ]
        assert replica.names == ["a"]


async def test_transact_before_start_is_rejected(server: OvsdbServer) -> None:
    client = Client(settings(server.remote), Replica())
    with pytest.raises(NotConnected, match="not started"):
        await client.transact([])
    await client.close()


async def test_close_ends_transactions_in_flight(server: OvsdbServer) -> None:
    client = Client(settings(server.remote), Replica())
    client.start()
    await client.wait_connected(DEADLINE)
    in_flight = asyncio.create_task(client.transact([never(300)]))
    await run_ready_tasks()
    await client.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await in_flight
    with pytest.raises(NotConnected):
        await client.transact([])


async def test_close_succeeds_while_connecting(tmp_path: Path) -> None:
    client = Client(settings(f"unix:{tmp_path}/nobody"), Replica())
    client.start()
    await run_ready_tasks()
    await client.close()


async def test_unresponsive_server_is_detected(server: OvsdbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped server is detected after the second silent interval. The kernel then accepts connections, without any
    reply."""
    probes, connections = list[JsonRpcConnection](), list[JsonRpcConnection]()
    probe, connected = JsonRpcConnection._probe, JsonRpcConnection.connection_made

    def note_probe(link: JsonRpcConnection) -> None:
        probes.append(link)
        probe(link)

    def note_connection(link: JsonRpcConnection, transport: asyncio.Transport) -> None:  # type: ignore[override]
        connections.append(link)
        connected(link, transport)

    monkeypatch.setattr(JsonRpcConnection, "_probe", note_probe)
    monkeypatch.setattr(JsonRpcConnection, "connection_made", note_connection)
    replica = Replica()
    timing = Timing(probe=1.0, connect=1.0, min_reconnect_interval=0.05, max_reconnect_interval=0.1)
    async with Client(settings(server.remote, timing), replica) as client:
        await client.wait_connected(DEADLINE)
        await eventually_equal(lambda: len(probes), 3)
        assert replica.kinds() == [FullContents, ConnectionSynced]  # idle, and each probe but the last was answered
        server.send(signal.SIGSTOP)
        before = len(probes)
        await eventually(lambda: not client.connected)
        assert len(probes) - before <= 2
        assert replica.events[-1] == ConnectionClosed(reason="inactivity probe timed out")
        await eventually_equal(lambda: len(connections), 2)
        await run_ready_tasks()
        server.send(signal.SIGCONT)
        await client.wait_connected(DEADLINE)


async def test_tcp_connections_use_kernel_keepalive() -> None:
    taken = asyncio.Queue[asyncio.StreamWriter]()
    silent = await asyncio.start_server(lambda _, writer: taken.put_nowait(writer), "127.0.0.1", 0)
    link = JsonRpcConnection(60.0, lambda link, notification: None, lambda link, reason: None)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: link, *silent.sockets[0].getsockname())
    connection = transport.get_extra_info("socket")
    found = {each: connection.getsockopt(*each) for each in KEEPALIVE}
    link.disconnect("that was all")
    await link.ended.wait()
    writer = await taken.get()
    writer.close()
    await writer.wait_closed()
    silent.close()
    assert found == KEEPALIVE


async def test_exception_in_a_callback_is_logged_and_the_client_reconnects(
    clustered: OvsdbServer, caplog: pytest.LogCaptureFixture
) -> None:
    replica = Replica()

    def stumble(event: Event) -> None:
        if isinstance(event, ContentChanges) and replica.kinds().count(ContentChanges) == 1:
            replica.events.append(event)
            raise LookupError("a bug of the receiver")
        replica(event)

    async with Client(settings(clustered.remote), stumble) as client:
        await client.wait_connected(DEADLINE)
        await client.transact([insert("a")])
        with pytest.raises(ConnectionLost, match="a bug of the receiver"):
            await client.transact([insert("b")])
        await client.wait_connected(DEADLINE)
        assert replica.kinds()[-3:] == [ConnectionClosed, FullContents, ConnectionSynced]
        assert replica.names == ["a", "b"]
    assert "a bug of the receiver" in caplog.text


# Failures between client and server


class Proxy:
    """Proxy between client and server, which can cut, refuse, and alter the client's requests."""

    def __init__(self, server: OvsdbServer, said: bytes = b"", heard: bytes = b"") -> None:
        self.server = server
        self.said, self.heard = said, heard
        self.path = server.folder / "proxy.sock"
        self.remote = f"unix:{self.path}"
        self.tasks: set[asyncio.Task[None]] = set()
        self.listener: asyncio.Server | None = None

    async def listen(self) -> None:
        self.listener = await asyncio.start_unix_server(self.accept, self.path)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self.tasks.add(task)
        from_server, to_server = await asyncio.open_unix_connection(str(self.server.folder / "db.sock"))
        copies = [
            asyncio.create_task(self.copy(reader, to_server, self.said, self.heard)),
            asyncio.create_task(self.copy(from_server, writer, b"", b"")),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            writer.transport.abort()
            to_server.transport.abort()
            await asyncio.wait(copies)
            self.tasks.discard(task)

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes, heard: bytes) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data.replace(said, heard) if said else data)
                await writer.drain()

    async def cut(self) -> None:
        """Close every connection, and accept none until the next `listen`."""
        if self.listener:
            self.listener.close()
            await self.listener.wait_closed()
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        self.path.unlink(missing_ok=True)


async def test_only_differences_arrive_after_a_reconnect(clustered: OvsdbServer) -> None:
    """Only differences arrive after a reconnect within the server's history: a hundred transactions, and no more values
    than the database."""

    proxy, replica = Proxy(clustered), Replica()
    await proxy.listen()
    write(clustered, *(insert(f"other{number}") for number in range(50)))
    async with Client(settings(proxy.remote), replica) as client:
        await client.wait_connected(DEADLINE)
        await client.transact([insert("a", UUID, protocol="tcp"), insert("b")])
        await proxy.cut()
        await eventually(lambda: not client.connected)
        update = {"op": "update", "table": "Load_Balancer", "where": [["name", "==", "a"]], "row": {"name": "A"}}
        delete = {"op": "delete", "table": "Load_Balancer", "where": [["name", "==", "b"]]}
        write(clustered, update)
        write(clustered, insert("c"), delete)
        await proxy.listen()
        await client.wait_connected(DEADLINE)
        assert replica.kinds() == [
            FullContents,
            ConnectionSynced,
            ContentChanges,
            ConnectionClosed,
            ContentChanges,
            ConnectionSynced,
        ]
        missed = replica.events[4]
        assert isinstance(missed, ContentChanges)
        assert {"name": "A"} in [change.get("modify") for change in missed.tables["Load_Balancer"].values()]
        assert len(missed.tables["Load_Balancer"]) == 3
        assert replica.rows[UUID] == {"name": "A", "protocol": "tcp"}
        assert replica.names == ["A", "c", *sorted(f"other{number}" for number in range(50))]
    await proxy.cut()


async def test_reconnect_beyond_the_server_history_gives_all_contents(clustered: OvsdbServer) -> None:
    proxy, replica = Proxy(clustered), Replica()
    await proxy.listen()
    async with (
        Client(settings(proxy.remote), replica) as client,
        Client(settings(clustered.remote), print) as other,
    ):
        await client.wait_connected(DEADLINE)
        await other.wait_connected(DEADLINE)
        await client.transact([insert("a")])
        await proxy.cut()
        await eventually(lambda: not client.connected)
        for number in range(120):  # the history has a hundred transactions
            await other.transact([insert(f"b{number}")])
        await proxy.listen()
        await client.wait_connected(DEADLINE)
        assert replica.kinds() == [
            FullContents,
            ConnectionSynced,
            ContentChanges,
            ConnectionClosed,
            FullContents,
            ConnectionSynced,
        ]
        assert len(replica.rows) == 121
    await proxy.cut()


@pytest.mark.parametrize(
    ("said", "heard"),
    [(b'"monitor_cond_since"', b'"monitor_cond_nonce"'), (b'"_Server"', b'"_Sorver"')],
    ids=["before 2.12: no monitor_cond_since", "before 2.9: no _Server"],
)
async def test_old_servers_are_supported(server: OvsdbServer, said: bytes, heard: bytes) -> None:
    """Old servers are supported. A proxy changes a name in the request, so the reply is the server's own to an unknown
    name."""

    proxy, replica = Proxy(server, said, heard), Replica()
    await proxy.listen()
    write(server, insert("old"))
    async with Client(settings(proxy.remote), replica) as client:
        await client.wait_connected(DEADLINE)
        await client.transact([insert("new")])
        assert replica.kinds() == [FullContents, ConnectionSynced, ContentChanges]
        assert replica.names == ["new", "old"]
    await proxy.cut()


async def test_unserved_database_is_rejected(server: OvsdbServer, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = Settings(remotes=parse_remotes(server.remote), database="Nope", tables={}, timing=QUICK)
    replica = Replica()
    async with Client(nowhere, replica) as client:
        await eventually(lambda: refusal(client), is_enough=lambda why: "does not serve the database" in why)
        with pytest.raises(TimeoutError):
            await client.wait_connected(0.3)
    assert replica.events == []
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_monitor_error_of_the_server_is_reported(server: OvsdbServer) -> None:
    tables = {"Load_Balancer": TableMonitor(columns=("no_such_column",))}
    wrong = Settings(remotes=parse_remotes(server.remote), database=DATABASE, tables=tables, timing=QUICK)
    async with Client(wrong, Replica()) as client:
        await eventually(lambda: refusal(client), is_enough=lambda why: "no_such_column" in why)
        with pytest.raises(TimeoutError):
            await client.wait_connected(0.3)


# Locks


async def test_lock_passes_to_the_next_client(server: OvsdbServer) -> None:
    one, two = Replica(), Replica()
    async with Client(settings(server.remote), two) as second:
        async with Client(settings(server.remote), one) as first:
            first.lock("l")  # before the connection exists
            await eventually(lambda: first.has_lock)
            await second.wait_connected(DEADLINE)
            second.lock("l")  # after it exists
            second.lock("l")
            await first.transact([assert_lock("l"), insert("by the owner")])
            with pytest.raises(TransactionError) as caught:
                await second.transact([insert("by another"), assert_lock("l")])
            assert (caught.value.error, caught.value.index) == ("not owner", 1)
            assert not second.has_lock
        await eventually(lambda: second.has_lock)
        await second.transact([assert_lock("l"), insert("by the next")])
        assert two.names == ["by the next", "by the owner"]
    assert one.events[-2:] == [LockLost(name="l"), ConnectionClosed(reason="closed")]
    assert [event for event in two.events if isinstance(event, LockAcquired)] == [LockAcquired(name="l")]


async def test_stolen_lock_returns(server: OvsdbServer) -> None:
    replica = Replica()
    async with Client(settings(server.remote), replica) as client:
        client.lock("l")
        await eventually(lambda: client.has_lock)
        with socket.socket(socket.AF_UNIX) as thief:
            thief.connect(str(server.folder / "db.sock"))
            thief.sendall(b'{"id":1,"method":"steal","params":["l"]}')
            await eventually(lambda: not client.has_lock)
            assert replica.events[-1] == LockLost(name="l")
        await eventually(lambda: client.has_lock)
        await client.transact([assert_lock("l")])


async def test_lock_is_requested_again_after_a_reconnect(server: OvsdbServer) -> None:
    replica = Replica()
    async with Client(settings(server.remote), replica) as client:
        client.lock("l")
        await eventually(lambda: client.has_lock)
        server.control("ovsdb-server/reconnect")
        await eventually(lambda: not client.has_lock)
        await eventually(lambda: client.has_lock)
        expected = [
            FullContents,
            ConnectionSynced,
            LockAcquired,
            LockLost,
            ConnectionClosed,
            FullContents,
            ConnectionSynced,
            LockAcquired,
        ]
        assert replica.kinds() == expected
        with pytest.raises(ValueError, match="lock l is already requested"):
            client.lock("other")


# Remotes


def has_address(host: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return True
    return False


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_client_connects_over_tcp(server: OvsdbServer, host: str) -> None:
    if not has_address(host.strip("[]")):
        pytest.skip(f"no {host} here")
    port = free_port(host.strip("[]"))
    server.control("ovsdb-server/add-remote", f"ptcp:{port}:{host}")
    replica = Replica()
    async with Client(settings(f"tcp:{host}:{port}"), replica) as client:
        await client.wait_connected(DEADLINE)
        await client.transact([insert("a")])
        assert replica.names == ["a"]


def make_certificate(folder: Path, name: str, *signer: str) -> None:
    key, pem = folder / f"{name}.key", folder / f"{name}.pem"
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subject = ["-subj", f"/CN={name}", "-keyout", str(key), "-out", str(pem)]
    subprocess.run([*new, *subject, *signer], check=True, capture_output=True)


async def test_tls_peers_verify_certificates_with_the_ca(server: OvsdbServer) -> None:
    """Both ends verify certificates with the CA; a client of another CA is rejected."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make certificates")
    folder = server.folder
    leaf = ["-addext", "basicConstraints=critical,CA:FALSE", "-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca.key"]
    make_certificate(folder, "ca")
    make_certificate(folder, "stranger")
    make_certificate(folder, "server", *leaf)
    make_certificate(folder, "client", *leaf)
    options = {"private-key": "server.key", "certificate": "server.pem", "ca-cert": "ca.pem"}
    port = free_port()
    server.stop()
    server.options = (f"--remote=pssl:{port}:127.0.0.1", *(f"--{key}={folder}/{file}" for key, file in options.items()))
    server.start()

    def tls(name: str, ca: str) -> Tls:
        return Tls(private_key=f"{folder}/{name}.key", certificate=f"{folder}/{name}.pem", ca=f"{folder}/{ca}.pem")

    replica = Replica()
    async with Client(settings(f"ssl:127.0.0.1:{port}", tls=tls("client", "ca")), replica) as client:
        await client.wait_connected(DEADLINE)
        await client.transact([insert("a")])
        assert replica.names == ["a"]
    for wrong in (tls("stranger", "ca"), tls("client", "stranger"), tls("absent", "ca"), None):
        async with Client(settings(f"ssl:127.0.0.1:{port}", tls=wrong), replica) as client:
            await eventually(lambda: refusal(client), is_enough=lambda why: why != "not started")
            with pytest.raises(TimeoutError):
                await client.wait_connected(0.3)


async def test_first_reachable_remote_is_used(server: OvsdbServer) -> None:
    port = free_port()
    remotes = f"unix:{server.folder}/nobody,tcp:127.0.0.1:{port},tcp:no.such.host.invalid:1,{server.remote}"
    replica = Replica()
    async with Client(settings(remotes), replica) as client:
        await client.wait_connected(DEADLINE)
        assert replica.events[-1] == ConnectionSynced(remote=parse_remotes(server.remote)[0])


@pytest.fixture
def cluster(tmp_path: Path, servers: list[OvsdbServer]) -> list[OvsdbServer]:
    for name in ("1", "2", "3"):
        folder = tmp_path / name
        folder.mkdir()
        mine, first = f"unix:{folder}/raft", f"unix:{tmp_path}/1/raft"
        make = ["create-cluster", folder / "db", SCHEMA, mine]
        join = ["join-cluster", folder / "db", DATABASE, mine, first]
        subprocess.run(["ovsdb-tool", *(make if name == "1" else join)], check=True)
        servers.append(OvsdbServer(folder))
        servers[-1].start()
        wait_until(partial(_has_joined, servers[-1]))
    return servers


def _has_joined(server: OvsdbServer) -> bool:
    """Return whether the server has joined its cluster; it may accept clients before this command works."""
    try:
        return "Status: cluster member" in server.control("cluster/status", DATABASE)
    except subprocess.CalledProcessError:
        return False


async def test_client_follows_the_cluster_leader(cluster: list[OvsdbServer]) -> None:
    first, second, third = cluster

    replica = Replica()
    remotes = ",".join(server.remote for server in (second, third, first))
    async with Client(settings(remotes), replica) as client:
        client.lock("l")
        await client.wait_connected(DEADLINE)
        assert replica.events[1] == ConnectionSynced(remote=parse_remotes(first.remote)[0])
        await client.transact([insert("a")])
        first.control("cluster/failure-test", "transfer-leadership")
        await eventually_equal(lambda: replica.kinds().count(ConnectionSynced), 2)
        [leader] = [s for s in cluster if "Role: leader" in s.control("cluster/status", DATABASE)]
        assert leader is not first
        [_, connected] = [event for event in replica.events if isinstance(event, ConnectionSynced)]
        assert connected == ConnectionSynced(remote=parse_remotes(leader.remote)[0])
        assert ConnectionClosed(reason="is not the leader") in replica.events
        assert replica.kinds().count(FullContents) == 1  # the new leader has the history too
        await client.transact([insert("b")])
        await eventually(lambda: client.has_lock)
        leader.stop()
        await eventually_equal(lambda: replica.kinds().count(ConnectionSynced), 3)
        await client.transact([insert("c")])
        assert replica.names == ["a", "b", "c"]

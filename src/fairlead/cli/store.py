"""`fairlead store ...`: copy, compare, back up and restore a deployment's documents.

Exit codes: 0 success, 1 failed or rejected, 2 usage error, 3 documents differ.
"""

import argparse
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from fairlead import __version__
from fairlead.runtime.terminal import print_error, print_json, print_lines, print_progress

if TYPE_CHECKING:
    from fairlead.config.options import StoreOptions
    from fairlead.store.bulk import BulkStore
    from fairlead.store.bulk import StoreState as Found
    from fairlead.store.copy import CopyComparison, CopyJob, ReportProgress
    from fairlead.store.etcd_access import Access

DONE, FAILED, DIFFERENT = 0, 1, 3
RESTORE_REVISION_OFFSET = 1_000_000
"""Number of skipped revisions: more than were written between the backup and the loss of the store."""
PROGRESS_INTERVAL = 0.2
"""Seconds between two updates of the progress line."""
CommandOutput: TypeAlias = dict[str, Any]
"""Output of --json; `said` is the text output."""
ACCESS = """

Section [store] of the configuration has the credentials for etcd: ca, certificate, key, user, password_file. Run the
command as the user of the servers, which owns the SQLite file: sudo -u fairlead fairlead store ..."""
COPY = """Copy all documents of a deployment to another store, from SQLite to etcd or from etcd to SQLite:

  fairlead store copy sqlite:///var/lib/fairlead/fairlead.db etcd://192.0.2.1:2379,192.0.2.2:2379/fairlead
  fairlead store copy etcd://192.0.2.1:2379/fairlead sqlite:///var/lib/fairlead/new.db --dry-run

Stop the servers, copy, set store.url of all servers to TO, and start them. No row of OVN changes. Servers that still
run on FROM answer reads and reject writes (503) from the start of the copy; load balancing continues. At the end all
documents are compared; then TO is opened and FROM is closed: servers reject it at the start and report the new store.
Repeat an interrupted copy; servers do not start on an incomplete one. To continue with FROM: fairlead store reopen FROM

The nodes' certificate authority and LXD's certificate are files beside the store. Copy them to another host yourself.
"""
RESTORE = """Restore a backup into a store:

  fairlead store restore /backup/monday.fairlead --dry-run
  fairlead store restore /backup/monday.fairlead --store etcd://192.0.2.1:2379/fairlead

--dry-run prints the effect of a restore and writes nothing.
The whole file is checked first: its checksum, its completeness, and that this version can read each document. A store
that is not empty is rejected without --replace; stop its servers before. Objects created after the backup are missing
from the model, so servers delete them from OVN at the start; the mass-deletion guard delays many deletions until
`fairlead resync --force`. Revisions continue a million higher, so that no revision is used twice.
"""
BACKUP = """Write a snapshot of all documents of a store into one file; servers keep running:

  fairlead store backup /backup/monday.fairlead

The file is readable by its owner only (0600), because it has all objects of tenants and the secrets of documents, such
as tokens of clients and nodes. It is written atomically and never replaces another file. It does not include the nodes'
certificate authority and LXD's certificate (files beside the store), nor the configuration.
"""


def add_parser(commands: Any) -> None:
    store = commands.add_parser("store", help="copy, compare, back up or restore the store")
    mine = store.add_subparsers(metavar="COMMAND", required=True)
    copy = _add(mine, "copy", "copy a deployment into another store", COPY, _copy)
    verify = _add(
        mine, "verify", "compare every document of two stores", "Compare every document of two stores.", _verify
    )
    for each in (copy, verify):
        each.add_argument(
            "source", metavar="FROM", help="sqlite:///PATH or etcd://HOST:PORT,.../PREFIX, as in store.url"
        )
        each.add_argument("target", metavar="TO", help="URL of the other store")
        each.add_argument(
            "--to-config",
            type=Path,
            metavar="FILE",
            help="configuration file with the credentials for TO, if FROM is another etcd",
        )
    backup = _add(mine, "backup", "write the store into a file, while servers run", BACKUP, _backup)
    backup.add_argument("file", type=Path, metavar="FILE", help="new file")
    restore = _add(mine, "restore", "restore a backup into a store", RESTORE, _restore)
    restore.add_argument("file", type=Path, metavar="FILE")
    for each in (backup, restore):
        each.add_argument("--store", metavar="URL", default="", help="default: store.url of the configuration")
    for each in (copy, restore):
        each.add_argument("--dry-run", action="store_true", help="check everything, write nothing")
        each.add_argument(
            "--replace", action="store_true", help="delete the contents of the store first; stop its servers before"
        )
    reopen = _add(mine, "reopen", "open a store that a copy closed", REOPEN, _reopen)
    reopen.add_argument("store", metavar="URL")
    reopen.add_argument(
        "--force",
        action="store_true",
        help="open a store that was moved, too; writes to the new store since then are lost",
    )


REOPEN = "Remove the migration fence of a store that is being copied. An incomplete copy stays closed."


def _add(mine: Any, name: str, short: str, text: str, act: "Act") -> Any:
    parser = mine.add_parser(
        name,
        help=short,
        description=text + ACCESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit codes: 0 done, 1 failed or refused, 2 wrong usage, 3 documents differ.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--config",
        type=Path,
        default=os.environ.get("FAIRLEAD_CONFIG"),
        metavar="FILE",
        help="configuration of the servers (environment FAIRLEAD_CONFIG; default /etc/fairlead/fairlead.toml)",
    )
    parser.set_defaults(run=lambda arguments: _run(arguments, act))
    return parser


Act: TypeAlias = Callable[[argparse.Namespace], Coroutine[Any, Any, tuple[CommandOutput, int]]]


def _run(arguments: argparse.Namespace, act: Act) -> int:
    import asyncio

    from fairlead.config.errors import BadConfiguration
    from fairlead.store.copy import CopyDiffers
    from fairlead.store.interface import StoreError

    try:
        answer, code = asyncio.run(act(arguments))
    except ValueError as error:
        raise BadConfiguration(f"store: {error}") from None
    except CopyDiffers as error:
        answer, code = _compared(error.compared) | {"said": f"{error}; the other store stays closed"}, DIFFERENT
    except FileExistsError as error:
        answer, code = {"error": f"{error.filename2 or error.filename} exists; give another name"}, FAILED
    except (StoreError, OSError) as error:
        answer, code = {"error": str(error)}, FAILED
    _show(arguments, answer)
    return code


def _show(arguments: argparse.Namespace, answer: CommandOutput) -> None:
    if arguments.json:
        print_json({key: value for key, value in answer.items() if key != "said"}, indent=2)
        return
    if "error" in answer:
        print_error(f"fairlead: {answer['error']}")
    for each in answer.get("first", []):
        print_lines(f"  {each['key']}: {each['what']}")
    if "said" in answer:
        print_lines(answer["said"])


async def _copy(arguments: argparse.Namespace) -> tuple[CommandOutput, int]:
    from fairlead.store.bulk import BulkOperationRejected
    from fairlead.store.copy import StoreNotEmpty, check_copy, copy
    from fairlead.store.opening import create_bulk_store, find_bulk_store

    begun, move = monotonic(), _move(arguments, arguments.source, arguments.target)
    access = _access(move.target, arguments.to_config or arguments.config)
    async with _closing(await find_bulk_store(move.source, _access(move.source, arguments.config))) as source:
        if arguments.dry_run:
            async with _there(move.target, access) as target:
                try:
                    found, _ = await check_copy(source, target, move)
                except StoreNotEmpty as error:  # a dry run must not advise --replace
                    raise BulkOperationRejected(f"{error.reason}; a copy would be rejected") from None
            what = {"documents": found.documents, "revision": found.revision}
            said = f"would copy {found.documents} documents, revision {found.revision}; nothing was written"
            return {**what, "said": said}, DONE
        await check_copy(source, None, move)
        async with _closing(await create_bulk_store(move.target, access)) as target:
            compared = await copy(source, target, move, _progress())
    done = _compared(compared) | {"seconds": round(monotonic() - begun, 1)}
    said = f'copied and compared {compared.documents} documents in {done["seconds"]} s: set store.url = "{move.target}"'
    return {**done, "said": f"{said}, and start the servers"}, DONE


async def _verify(arguments: argparse.Namespace) -> tuple[CommandOutput, int]:
    from fairlead.store.copy import compare
    from fairlead.store.opening import find_bulk_store

    accesses = (
        _access(arguments.source, arguments.config),
        _access(arguments.target, arguments.to_config or arguments.config),
    )
    async with (
        _closing(await find_bulk_store(arguments.source, accesses[0])) as one,
        _closing(await find_bulk_store(arguments.target, accesses[1])) as other,
    ):
        compared = await compare(one.snapshot, other.snapshot, _progress())
    said = f"{compared.differing} of {compared.documents} documents differ"
    return {**_compared(compared), "said": said}, DIFFERENT if compared.differing else DONE


async def _backup(arguments: argparse.Namespace) -> tuple[CommandOutput, int]:
    from fairlead.store.backup import VERSION, BackupHeader, write_backup
    from fairlead.store.bulk import BulkOperationRejected
    from fairlead.store.opening import find_bulk_store

    url, access = _own(arguments)
    tell = _progress()
    async with _closing(await find_bulk_store(url, access)) as store:
        seal = (await store.state()).fence
        if seal and seal.state is seal.state.FILLING:
            raise BulkOperationRejected(f"{url}: {seal.words}")
        async with store.snapshot() as picture:
            header = BackupHeader(
                backup=VERSION,
                made=_now(),
                fairlead=__version__,
                store=url,
                revision=picture.revision,
                documents=picture.documents,
            )
            size = await write_backup(
                arguments.file, header, picture, lambda done: tell("written", done, header.documents)
            )
    what = {"documents": header.documents, "revision": header.revision, "bytes": size}
    said = f"{arguments.file}: {header.documents} documents, revision {header.revision}, {size} bytes"
    return {**what, "said": f"{said}. The file can have secrets; only its owner can read it"}, DONE


async def _restore(arguments: argparse.Namespace) -> tuple[CommandOutput, int]:
    from fairlead.store.backup import check_backup, open_snapshot
    from fairlead.store.copy import EMPTY_STORE, copy_effect, restore
    from fairlead.store.opening import create_bulk_store

    begun, (url, access) = monotonic(), _own(arguments)
    checked = check_backup(arguments.file)
    header, move = checked.header, _move(arguments, str(arguments.file.absolute()), url)
    about = f"{header.documents} documents, revision {header.revision}, made {header.made} of {header.store}"
    if arguments.dry_run:
        async with _there(url, access) as store:
            there = await store.state() if store else EMPTY_STORE
        would = {"would": copy_effect(there, move).value}
        what = {"documents": header.documents, "revision": header.revision, "made": header.made, **would}
        return {
            **what,
            "said": f"the file is complete: {about}; {_describe_effect(there, move)}; nothing was written",
        }, DONE
    async with _closing(await create_bulk_store(url, access)) as store:
        compared = await restore(
            store, lambda: open_snapshot(arguments.file, checked), move, RESTORE_REVISION_OFFSET, _progress()
        )
    done = _compared(compared) | {"seconds": round(monotonic() - begun, 1)}
    return {**done, "said": f"restored and compared {about}, in {done['seconds']} s. Start the servers"}, DONE


def _describe_effect(there: "Found", move: "CopyJob") -> str:
    """Describe the effect of a restore."""
    from fairlead.store.copy import CopyEffect, copy_effect, describe_contents

    match copy_effect(there, move):
        case CopyEffect.FILL:
            return f"a restore would write it into {move.target}, which is empty"
        case CopyEffect.RESUME:
            return f"a restore would repeat the interrupted restore into {move.target}"
        case CopyEffect.REPLACE:
            return f"a restore would replace all of {move.target}: {describe_contents(there)}"
        case CopyEffect.REFUSE:
            return f"a restore would be rejected, because {move.target} is not empty: {describe_contents(there)}"


async def _reopen(arguments: argparse.Namespace) -> tuple[CommandOutput, int]:
    from fairlead.store.bulk import BulkOperationRejected
    from fairlead.store.migration_fence import FenceState
    from fairlead.store.opening import find_bulk_store

    url = arguments.store
    async with _closing(await find_bulk_store(url, _access(url, arguments.config))) as store:
        seal = (await store.state()).fence
        if seal is None:
            return {"reopened": False, "said": f"{url} is open"}, DONE
        if seal.state is FenceState.FILLING or (seal.state is FenceState.MOVED and not arguments.force):
            raise BulkOperationRejected(f"{url}: {seal.words}")
        await store.set_fence(None, seal)
    return {"reopened": True, "said": f"{url} is open: servers can start on it"}, DONE


@asynccontextmanager
async def _closing(store: "BulkStore") -> AsyncIterator["BulkStore"]:
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def _there(url: str, access: "Access") -> AsyncIterator["BulkStore | None"]:
    """Open a store; None for a missing file, which a dry run must not create."""
    from fairlead.store.bulk import StoreMissing
    from fairlead.store.opening import find_bulk_store

    try:
        store = await find_bulk_store(url, access)
    except StoreMissing:
        yield None
        return
    async with _closing(store):
        yield store


def _configuration(file: Path | None) -> "StoreOptions":
    from fairlead.config.load import read_configuration

    return read_configuration(file, os.environ).store


def _access(url: str, file: Path | None) -> "Access":
    """Return the credentials for a store; a file needs none."""
    from fairlead.store.etcd_access import Access

    return _configuration(file).access if url.startswith("etcd://") else Access()


def _own(arguments: argparse.Namespace) -> tuple[str, "Access"]:
    url = arguments.store or _configuration(arguments.config).where
    return url, _access(url, arguments.config)


def _move(arguments: argparse.Namespace, source: str, target: str) -> "CopyJob":
    from fairlead.store.copy import CopyJob

    return CopyJob(source=source, target=target, since=_now(), id=uuid.uuid4().hex, replaces=arguments.replace)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _compared(compared: "CopyComparison") -> CommandOutput:
    first = [{"key": each.key, "what": each.what} for each in compared.first]
    return {"documents": compared.documents, "bytes": compared.octets, "differing": compared.differing, "first": first}


def _progress() -> "ReportProgress":
    """Return a progress callback: one updated line on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda *_: None
    said = 0.0

    def tell(what: str, done: int, all_of_them: int) -> None:
        nonlocal said
        if done == all_of_them or monotonic() - said > PROGRESS_INTERVAL:
            said = monotonic()
            end = "\n" if done == all_of_them else ""
            print_progress(f"{what} {done} of {all_of_them} documents", end)

    return tell

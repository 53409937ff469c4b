"""Cost of consistent reads at one server after a write at another, with both stores, on loopback.

    python benchmarks/reads.py

etcd has three members, with their data in memory.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from time import perf_counter

from fairlead.store.model import Model
from fairlead.store.opening import open_store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.cases import insert_document
from harness.etcd import etcd_cluster

READ_COUNT, READERS, READS_PER_READER, WRITES = 1000, 100, 50, 200


def _shown(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    return f"{ordered[len(ordered) // 2] * 1000:.2f} / {ordered[len(ordered) * 99 // 100] * 1000:.2f}"


async def _timed(model: Model, taken: list[float]) -> None:
    began = perf_counter()
    await model.refresh()
    taken.append(perf_counter() - began)


async def _read(model: Model, times: int, taken: list[float]) -> None:
    for _ in range(times):
        await _timed(model, taken)


async def _write(model: Model, name: str, taken: list[float]) -> None:
    began = perf_counter()
    await model.write(partial(insert_document, name))
    taken.append(perf_counter() - began)


async def measure(title: str, url: str) -> None:
    async with AsyncExitStack() as stack:
        models, tasks = [], []
        for _ in range(2):
            store = await open_store(url)
            stack.push_async_callback(store.close)
            models.append(await Model.load(store, lambda *_: None))
            tasks.append(asyncio.create_task(models[-1].follow()))
        await asyncio.sleep(0.5)  # until both follow the store
        alone, many, behind, writing, followed = ([], [], [], [], [])  # type: tuple[list[float], ...]
        await _read(models[0], READ_COUNT, alone)
        made, began = models[0].read_barrier.polls, perf_counter()
        await asyncio.gather(*(_read(models[0], READS_PER_READER, many) for _ in range(READERS)))
        rate, made = READERS * READS_PER_READER / (perf_counter() - began), models[0].read_barrier.polls - made
        for number in range(WRITES):
            await _write(models[number % 2], f"n{number}", writing)
            await _timed(models[1 - number % 2], behind)
        for number in range(WRITES):
            await _write(models[0], f"f{number}", writing)
            began = perf_counter()
            while f"f{number}" not in models[1].snapshot.networks:  # noqa: ASYNC110 - the delay is measured
                await asyncio.sleep(0.0002)
            followed.append(perf_counter() - began)
        shown = " | ".join(map(_shown, (alone, many, behind, followed, writing)))
        print(f"| {title} | {shown} | {rate:.0f} in {made} looks |")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure("SQLite", f"sqlite://{folder}/s.db"))
    with etcd_cluster() as etcd:
        asyncio.run(measure("etcd", f"{etcd.url}/reads"))


if __name__ == "__main__":
    main()

"""Updates on their way to a launcher."""

from __future__ import annotations

import asyncio

from horovod.coordinator.outbox import Outbox
from horovod.proto import control_pb2


def output(size: int) -> control_pb2.JobUpdate:
    return control_pb2.JobUpdate(output=control_pb2.RankOutput(data=b"x" * size))


def test_output_waits_for_room_and_other_words_do_not() -> None:
    async def story() -> list[str]:
        box = Outbox()
        await box.put(output(3 << 20))
        waiting = asyncio.ensure_future(box.put(output(1)))
        await asyncio.sleep(0)
        assert not waiting.done()
        box.put_now(control_pb2.JobUpdate(notice=control_pb2.JobNotice(text="a word")))
        first = await box.get()
        await waiting
        return [str(update.WhichOneof("body")) for update in (first, await box.get(), await box.get())]

    assert asyncio.run(asyncio.wait_for(story(), 10)) == ["output", "notice", "output"]


def test_what_nobody_reads_holds_up_nobody() -> None:
    async def story() -> None:
        box = Outbox()
        await box.put(output(3 << 20))
        waiting = asyncio.ensure_future(box.put(output(1)))
        await asyncio.sleep(0)
        box.close()
        await waiting
        for _ in range(5):
            await box.put(output(1 << 20))

    asyncio.run(asyncio.wait_for(story(), 10))

"""What happens to an upload in an `UploadWorld`, and what must hold of it at the end."""

from tests.support.uploads.upload_world import BYTES, DAY_S, World

PART = 10


async def chunks(content: bytes):
    yield content[:7]
    yield content[7:]


async def put(world: World, broker: int, upload: str, content: bytes) -> None:
    """The client's part: at the store, or through a broker."""
    uploads = world.uploads[broker]
    record = (await uploads.find(world.topic, upload)).record
    if not world.store.presigns:
        await uploads.receive(world.topic, upload, chunks(content))
    elif record.parts is None:
        await world.store.create(record.name, content)
    else:
        for number, start in enumerate(range(0, len(content), PART), 1):
            await world.store.put_part(record.name, number, content[start : start + PART])
        await uploads.complete(world.topic, upload)


async def sweep(world: World) -> None:
    """A leader's passes, before and after an upload may have expired."""
    await world.new_sweep().records()
    world.pass_s(world.settings.upload_expires_s + world.settings.upload_grace_s + 1)
    await world.new_sweep().records()


async def check(world: World, upload: str, name: str) -> None:
    """What must hold now, and once all time has gone by."""
    kept = name in world.coordination.published
    assert not (world.claimed and world.aborted)
    assert kept or not world.claimed
    for after_s in (0, world.settings.upload_expires_s + world.settings.upload_grace_s + 1, 2 * DAY_S, 1):
        world.pass_s(after_s)
        await world.sweep.records()
        if kept:
            assert world.store.objects.get(name) == BYTES
    assert (name in world.store.objects) == kept
    assert not world.store.multipart
    assert not (await world.coordination.range("uploads/")).entries

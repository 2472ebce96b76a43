"""Tokenizers are fetched once, verified always, and found again after a restart."""

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from cluster.digests import tokenizer_digest
from cluster.errors import UnavailableError
from router.tokens import TokenizerStore
from router.tokens.cache import read_files, write_files
from router.tokens.tokenizer import Tokenizer


class Replica:
    """Plays the replica that has the files; `gate` holds its answers back."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.fetches = 0
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def __call__(self) -> dict[str, bytes]:
        self.fetches += 1
        self.asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.files


@pytest.fixture
def digest(files) -> str:
    return tokenizer_digest(files)


@pytest.fixture
def replica(files) -> Replica:
    return Replica(files)


@pytest.fixture
async def store(tmp_path):
    opened = TokenizerStore(tmp_path / "cache")
    yield opened
    await opened.close()


async def restarted(tmp_path: Path, digest: str, replica: Replica) -> None:
    """Ask a new store over the same folder once."""
    store = TokenizerStore(tmp_path / "cache")
    try:
        assert await (await store.get(digest, replica)).encode("hi")
    finally:
        await store.close()


async def test_a_tokenizer_is_fetched_once(store, digest, replica):
    first = await store.get(digest, replica)

    assert await store.get(digest, replica) is first
    assert replica.fetches == 1


async def test_concurrent_callers_share_one_fetch(store, digest, replica):
    replica.gate.clear()
    callers = [asyncio.create_task(store.get(digest, replica)) for _ in range(5)]
    await replica.asked.wait()
    replica.gate.set()

    assert len(set(await asyncio.gather(*callers))) == 1
    assert replica.fetches == 1


async def test_a_caller_that_gives_up_leaves_the_fetch_to_the_others(store, digest, replica):
    replica.gate.clear()
    impatient, patient = (asyncio.create_task(store.get(digest, replica)) for _ in range(2))
    await replica.asked.wait()
    impatient.cancel()
    replica.gate.set()

    assert await patient
    assert impatient.cancelled()
    assert replica.fetches == 1


async def test_a_restarted_router_needs_no_replica(tmp_path, store, digest, replica):
    """A pool at zero replicas can still admit."""
    await store.get(digest, replica)
    replica.error = UnavailableError("no replica")

    await restarted(tmp_path, digest, replica)

    assert replica.fetches == 1


@pytest.mark.parametrize("damage", ["content", "missing", "folder"])
async def test_a_damaged_cache_is_fetched_again(tmp_path, store, digest, replica, damage):
    await store.get(digest, replica)
    file = tmp_path / "cache" / digest / "tokenizer.json"
    match damage:
        case "content":
            file.write_bytes(file.read_bytes()[:-1])
        case "missing":
            file.unlink()
        case "folder":
            for name in file.parent.iterdir():
                name.unlink()

    await restarted(tmp_path, digest, replica)
    await restarted(tmp_path, digest, replica)

    assert replica.fetches == 2
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [digest]


async def test_files_of_another_digest_are_refused_and_not_kept(tmp_path, store, replica):
    with pytest.raises(UnavailableError, match="do not match"):
        await store.get("0" * 64, replica)

    assert not (tmp_path / "cache").exists()


async def test_unexpected_file_names_are_refused(store):
    """A name such as ../x must not leave the cache, even under a matching digest."""
    files = {"../x": b"1"}

    with pytest.raises(UnavailableError, match="do not match"):
        await store.get(tokenizer_digest(files), Replica(files))


@pytest.mark.parametrize("digest", ["", "../" + "0" * 61, "0" * 63, "0" * 64 + "\n", "G" * 64])
async def test_malformed_digests_are_refused_before_the_disk(store, replica, digest):
    with pytest.raises(UnavailableError, match="malformed"):
        await store.get(digest, replica)

    assert replica.fetches == 0


async def test_files_that_cannot_be_loaded_are_reported(store):
    files = {"tokenizer.json": b"{}"}

    with pytest.raises(UnavailableError, match="cannot be loaded"):
        await store.get(tokenizer_digest(files), Replica(files))


async def test_files_that_cannot_be_loaded_are_not_loaded_for_each_request(store, files, digest, replica, monkeypatch):
    """Each time takes a thread, up to a second, and a traceback in the log."""
    broken = {"tokenizer.json": b"{}"}
    loads, now = Mock(side_effect=Tokenizer), Mock(return_value=100.0)
    monkeypatch.setattr("router.tokens.store.Tokenizer", loads)
    monkeypatch.setattr("router.tokens.store.time", Mock(monotonic=now))

    async def fails() -> None:
        with pytest.raises(UnavailableError, match="cannot be loaded"):
            await store.get(tokenizer_digest(broken), Replica(broken))

    for _ in range(3):
        await fails()
    assert 1 == loads.call_count
    assert await store.get(digest, replica)

    now.return_value = 161.0
    await fails()
    assert 3 == loads.call_count


async def test_a_failed_fetch_is_tried_again(store, digest, replica):
    replica.error = UnavailableError("away")
    with pytest.raises(UnavailableError, match="away"):
        await store.get(digest, replica)
    replica.error = None

    assert await store.get(digest, replica)


async def test_an_unwritable_cache_does_not_stop_the_router(tmp_path, digest, replica):
    (tmp_path / "cache").write_text("a file where the folder should be")

    await restarted(tmp_path, digest, replica)


async def test_closing_ends_a_load_that_hangs(tmp_path, digest, replica):
    replica.gate.clear()
    store = TokenizerStore(tmp_path)
    caller = asyncio.create_task(store.get(digest, replica))
    await replica.asked.wait()

    await store.close()

    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_only_the_last_used_stay_in_memory(tmp_path, files):
    store = TokenizerStore(tmp_path, max_loaded=2)
    variants = [{**files, "chat_template.jinja": str(i).encode()} for i in range(3)]
    digests = [tokenizer_digest(variant) for variant in variants]
    replicas = [Replica(variant) for variant in variants]
    try:
        first = await store.get(digests[0], replicas[0])
        second = await store.get(digests[1], replicas[1])
        await store.get(digests[0], replicas[0])
        await store.get(digests[2], replicas[2])

        assert await store.get(digests[0], replicas[0]) is first
        assert await store.get(digests[1], replicas[1]) is not second
    finally:
        await store.close()


def test_two_processes_may_write_the_same_digest(tmp_path, files, digest):
    write_files(tmp_path, digest, files)
    write_files(tmp_path, digest, files)

    assert read_files(tmp_path, digest) == files
    assert [entry.name for entry in tmp_path.iterdir()] == [digest]

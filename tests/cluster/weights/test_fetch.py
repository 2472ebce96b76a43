"""Downloads with the real library from a server that speaks the hub's API."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub import close_session, constants, hf_hub_download, snapshot_download
from huggingface_hub.utils._runtime import is_xet_available

from cluster.errors import FetchGivenUpError, SettingsError
from cluster.sources import ModelSource, source_of
from cluster.weights import fetch as fetch_module
from cluster.weights import hub as hub_module
from cluster.weights.cache import RepositoryCache, what_lacks
from cluster.weights.fetch import FetchOptions, fetch
from cluster.weights.files import Repository
from cluster.weights.retry import RetryRules
from tests.cluster.weights.hub import COMMIT, NAME, OTHER, Hub, digest_of, serving
from tests.support.waiting import until_sync

WEIGHTS = bytes(range(256)) * 4096
FILES = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": WEIGHTS[::-1],
    "pytorch_model.bin": b"the same in an older form",
    "README.md": b"words",
}
FIRST = "model-00001-of-00002.safetensors"
SOURCE = source_of(f"{NAME}@{COMMIT}")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(dict(FILES)) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
        # The library waits a second before it reads on.
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
        yield hub
        close_session()


class Run:
    """One start of a download, with what it said and how long it would have waited."""

    def __init__(self, cache: Path, source: ModelSource = SOURCE, **options: Any) -> None:
        self.cache = cache
        self.said: list[str] = []
        self.waits: list[float] = []
        self.options = FetchOptions(cache, **{"parallel": 2, "report_s": 3600.0, **options})
        self.source = source

    def __call__(self) -> Path:
        return fetch(self.source, self.options, self.said.append, self.waits.append)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


def test_a_model_is_fetched_where_the_library_finds_it(hub: Hub, cache: Path) -> None:
    run = Run(cache)
    folder = run()
    assert "" == what_lacks(cache, SOURCE)
    assert str(folder) == snapshot_download(NAME, revision=COMMIT, cache_dir=cache, local_files_only=True)
    assert (
        WEIGHTS
        == Path(hf_hub_download(NAME, FIRST, revision=COMMIT, cache_dir=cache, local_files_only=True)).read_bytes()
    )
    assert not (folder / "pytorch_model.bin").exists()
    assert run.said[-1].startswith(f"{NAME}@{COMMIT[:12]}: complete, 4 files")


def test_what_is_complete_is_not_fetched_again(hub: Hub, cache: Path) -> None:
    Run(cache)()
    before = len([each for each in hub.asked if each[0] == "GET" and "/resolve/" in each[1]])
    Run(cache)()
    assert before == len([each for each in hub.asked if each[0] == "GET" and "/resolve/" in each[1]])


def test_a_name_that_moves_stands_for_the_new_commit_when_that_is_complete(hub: Hub, cache: Path) -> None:
    newest = source_of(NAME)
    Run(cache, newest)()
    hub.refs["main"] = OTHER
    hub.files[FIRST] = b"other weights"
    hub.served[FIRST] = b"broken weights"
    with pytest.raises(SettingsError):
        Run(cache, newest)()
    assert COMMIT == RepositoryCache.of(cache, NAME).commit_of("")
    assert "" == what_lacks(cache, newest)
    del hub.served[FIRST]
    Run(cache, newest)()
    assert OTHER == RepositoryCache.of(cache, NAME).commit_of("")


@pytest.mark.parametrize("wait", ["0", "7"])
def test_a_list_that_is_refused_is_asked_for_again_when_the_server_says(hub: Hub, cache: Path, wait: str) -> None:
    hub.refusals = [("GET /api/models", 429, {"Retry-After": wait})] * 2
    run = Run(cache)
    run()
    assert 2 == len(run.waits)
    assert all(max(1.0, float(wait)) <= each <= 1.25 * max(1.0, float(wait)) for each in run.waits)
    assert "429" in run.said[0]


def test_a_file_that_is_refused_is_fetched_later(hub: Hub, cache: Path) -> None:
    """The library asks some times by itself, and then gives up."""
    hub.refusals = [(f"HEAD /{NAME}/resolve/{COMMIT}/{FIRST}", 429, {"Retry-After": "3"})]
    run = Run(cache)
    run()
    assert [3.0] == [float(int(each)) for each in run.waits]
    assert "" == what_lacks(cache, SOURCE)


def test_servers_that_fail_for_a_while_are_waited_for_longer_and_longer(hub: Hub, cache: Path) -> None:
    hub.refusals = [("GET /api/models", 503, {})] * 5
    run = Run(cache)
    run()
    assert 5 == len(run.waits)
    assert run.waits == sorted(run.waits)
    assert 16 <= run.waits[-1] <= 20


def test_a_connection_that_is_cut_goes_on_where_it_was(hub: Hub, cache: Path) -> None:
    hub.cuts = [(FIRST, 100_000)]
    Run(cache)()
    assert ["", "bytes=65536-"] == hub.ranges(FIRST), "all whole pieces of 64 KiB were kept"
    assert "" == what_lacks(cache, SOURCE)


def test_a_later_process_goes_on_where_an_earlier_one_ended(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process that was killed in the middle leaves behind."""
    part = RepositoryCache.of(cache, NAME).blobs / f"{digest_of(FIRST, WEIGHTS)}.earlier.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(WEIGHTS[:300_000])
    run = Run(cache)
    run()
    assert ["bytes=300000-"] == hub.ranges(FIRST)
    assert "0.3 MiB are there" in run.said[0]
    assert not part.exists()
    assert "" == what_lacks(cache, SOURCE)


def test_a_beginning_that_is_wrong_is_thrown_away(hub: Hub, cache: Path) -> None:
    part = RepositoryCache.of(cache, NAME).blobs / f"{digest_of(FIRST, WEIGHTS)}.earlier.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 300_000)
    run = Run(cache)
    run()
    assert ["bytes=300000-", ""] == hub.ranges(FIRST)
    assert any("digest" in each for each in run.said)
    assert "" == what_lacks(cache, SOURCE)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"y" * len(WEIGHTS), r"has the digest \w{64}, and its hub says \w{64}, 3 times", id="other"),
        pytest.param(WEIGHTS[:-5], "should be of size 1048576 but has size 1048571 .*3 times", id="short"),
        pytest.param(WEIGHTS + b"more", "should be of size 1048576 but has size 1048580 .*3 times", id="long"),
    ],
)
def test_content_that_is_not_what_the_hub_says_is_never_complete(
    hub: Hub, cache: Path, content: bytes, words: str
) -> None:
    hub.served[FIRST] = content
    with pytest.raises(SettingsError, match=words):
        Run(cache)()
    assert what_lacks(cache, SOURCE)
    assert not (RepositoryCache.of(cache, NAME).blobs / digest_of(FIRST, WEIGHTS)).exists()


def test_a_model_without_room_is_refused_before_a_byte_is_fetched(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.disk_usage
    monkeypatch.setattr("cluster.weights.fetch.shutil.disk_usage", lambda path: real(path)._replace(free=1 << 20))
    with pytest.raises(SettingsError, match=r"2.0 MiB are still to come, and .* has 1.0 MiB free: take a larger"):
        Run(cache)()
    assert [] == hub.ranges(FIRST)


def test_a_disk_that_fills_up_ends_it_and_room_lets_it_go_on(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True

    class Full(hub_module._StoppableFile):
        def write(self, content: bytes) -> int:
            if full and self.tell() + len(content) > 500_000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(content)

    monkeypatch.setattr(hub_module, "_StoppableFile", Full)
    with pytest.raises(SettingsError, match=r"is full \(No space left on device\): take a larger volume"):
        Run(cache, parallel=1)()
    assert what_lacks(cache, SOURCE)
    full = False
    Run(cache)()
    # The two files have one size, so the one with the greater name may come first.
    assert ["", f"bytes={7 << 16}-"] == max(map(hub.ranges, (FIRST, FIRST.replace("1-of", "2-of"))), key=len)
    assert "" == what_lacks(cache, SOURCE)


@pytest.mark.parametrize(
    ("source", "refusal", "words"),
    [
        ("org/none", None, r"org/none is not at http://127.0.0.1:\d+, or not for this HF_TOKEN"),
        (f"{NAME}@nowhere", None, "has no such revision of it"),
        (NAME, (403, {"X-Error-Code": "GatedRepo"}), "asks for consent: accept its terms"),
        (NAME, (401, {"X-Error-Message": "Invalid credentials in Authorization header"}), "401"),
    ],
)
def test_what_can_never_be_had_ends_it_at_once(
    hub: Hub, cache: Path, source: str, refusal: tuple[int, dict[str, str]] | None, words: str
) -> None:
    if refusal:
        hub.refusals = [("GET /api/models", *refusal)]
    run = Run(cache, source_of(source))
    with pytest.raises(SettingsError, match=words):
        run()
    assert [] == run.waits


def test_a_hub_that_stays_away_is_given_up_and_the_last_error_named(hub: Hub, cache: Path) -> None:
    hub.refusals = [("GET /api/models", 503, {})] * 100
    with pytest.raises(FetchGivenUpError, match=r"org/model: no progress in \d+ tries over \d+ s; .*503"):
        Run(cache, rules=RetryRules(give_up_s=60))()


def test_one_file_that_can_not_be_had_stops_the_others(hub: Hub, cache: Path) -> None:
    hub.refusals = [(f"HEAD /{NAME}/resolve/{COMMIT}/config.json", 404, {"X-Error-Code": "EntryNotFound"})]
    with pytest.raises(SettingsError, match=r"config\.json"):
        Run(cache)()
    assert what_lacks(cache, SOURCE)


def test_nothing_that_is_wanted_is_named(hub: Hub, cache: Path) -> None:
    with pytest.raises(SettingsError, match="org/model has no file that is wanted; it has 5 files in all"):
        Run(cache, include=("*.gguf",))()


@pytest.mark.parametrize("lost", [FIRST, "config.json"])
def test_a_snapshot_that_lost_a_file_is_not_complete_and_mended(hub: Hub, cache: Path, lost: str) -> None:
    folder = Run(cache)()
    (folder / lost).resolve().unlink()
    assert f"lacks {lost}: No such file" in what_lacks(cache, SOURCE)
    Run(cache)()
    assert "" == what_lacks(cache, SOURCE)


def test_progress_is_shown_while_it_lasts(hub: Hub, cache: Path) -> None:
    """The hub sends a part of a file, and no more until a line has said how much is there."""
    said: list[str] = []
    hub.holds[FIRST] = 700_000

    def say(text: str) -> None:
        said.append(text)
        if "%" in text and not text.startswith(f"{NAME}@{COMMIT[:12]}: 0.0 MiB"):
            hub.release()

    fetch(SOURCE, FetchOptions(cache, parallel=1, report_s=0.01), say)
    assert any(re.match(rf"{NAME}@{COMMIT[:12]}: [0-9.]+ MiB of 2.0 MiB \([1-9][0-9]? %\), ", each) for each in said)
    assert "" == what_lacks(cache, SOURCE)


def test_files_of_a_content_addressed_store_are_fetched_in_a_way_that_goes_on(hub: Hub, cache: Path) -> None:
    """What the library's own client of such a store leaves behind when it is killed, nobody continues or removes."""
    assert is_xet_available()
    hub.headers = {"X-Xet-Hash": "3" * 64, "X-Xet-Refresh-Route": "/none"}
    hub.cuts = [(FIRST, 100_000)]
    Run(cache)()
    assert ["", "bytes=65536-"] == hub.ranges(FIRST)
    assert "" == what_lacks(cache, SOURCE)


@pytest.mark.parametrize("etag", ["/tmp/elsewhere", "../../elsewhere", ".."])  # noqa: S108 - never written
def test_a_hub_names_no_path_outside_of_the_cache(hub: Hub, cache: Path, etag: str) -> None:
    hub.headers = {"ETag": f'"{etag}"'}
    with pytest.raises(SettingsError, match="a hub's ETag must have letters, digits"):
        Run(cache)()
    assert [] == hub.ranges(FIRST)


def test_an_interrupt_ends_it_and_not_only_the_wait_for_it(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.holds = {FIRST: 300_000, FIRST.replace("1-of", "2-of"): 300_000}

    def interrupted(*_: object, **__: object) -> object:
        until_sync(lambda: any("GET" == method and path.endswith("safetensors") for method, path, _ in hub.asked))
        raise KeyboardInterrupt

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            hub.release()
            super().shutdown(wait, cancel_futures=cancel_futures)

    monkeypatch.setattr("cluster.weights.fetch.wait", interrupted)
    monkeypatch.setattr("cluster.weights.fetch.ThreadPoolExecutor", Pool)
    with pytest.raises(KeyboardInterrupt):
        Run(cache, parallel=1)()
    assert [] == hub.ranges("config.json")


def test_an_error_that_lasts_ends_those_who_wait_for_their_next_try(hub: Hub, cache: Path) -> None:
    """The hub asks for an hour. Nobody stands in for the sleep, so that without the end this test would take it."""
    hub.refusals = [
        (f"HEAD /{NAME}/resolve/{COMMIT}/{FIRST}", 429, {"Retry-After": "3600"}),
        (f"HEAD /{NAME}/resolve/{COMMIT}/config.json", 404, {"X-Error-Code": "EntryNotFound"}),
    ]
    said: list[str] = []
    with pytest.raises(SettingsError, match=r"config\.json"):
        fetch(SOURCE, FetchOptions(cache, parallel=5, report_s=3600.0), said.append)


def test_a_beginning_that_another_process_takes_is_left_to_it(hub: Hub, cache: Path) -> None:
    """As on a volume whose locks don't hold between machines. Both would append to one file."""
    hub.holds = {FIRST: 300_000}
    blobs = RepositoryCache.of(cache, NAME).blobs
    digest = digest_of(FIRST, WEIGHTS)
    run = Run(cache, parallel=1, include=(FIRST,))
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run)
        until_sync(lambda: any(each.stat().st_size >= 1 << 17 for each in blobs.glob(f"{digest}.*.part")))
        (part,) = blobs.glob(f"{digest}.*.part")
        part.rename(blobs / f"{digest}.other.part")
        hub.release()
        folder = ended.result()
    assert any(f"another process took {part.name}" in each for each in run.said), run.said
    assert WEIGHTS == (folder / FIRST).read_bytes()
    assert [] == list(blobs.glob("*.part"))


def test_a_file_that_another_process_writes_on_is_not_marked(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fetch_module._fetch_all

    def written_on(repository: Repository, *arguments: Any) -> None:
        real(repository, *arguments)
        with RepositoryCache.of(cache, NAME).file(COMMIT, FIRST).open("ab") as file:
            file.write(b"more")

    with monkeypatch.context() as patched:
        patched.setattr(fetch_module, "_fetch_all", written_on)
        with pytest.raises(FetchGivenUpError, match="another process changed it"):
            Run(cache)()
    assert "is not complete" in what_lacks(cache, SOURCE)
    Run(cache)()
    assert "" == what_lacks(cache, SOURCE)


def test_a_hub_that_is_not_reached_is_named() -> None:
    """The text of such an error has no address."""
    request = httpx.Request("GET", "https://hub.example.org/api/models/org/m")
    failure = httpx.ConnectError("[Errno -2] Name or service not known", request=request)
    assert "ConnectError at hub.example.org: [Errno -2] Name or service not known" == fetch_module._line(failure)
    assert "ConnectError: refused" == fetch_module._line(httpx.ConnectError("refused"))

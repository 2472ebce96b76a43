"""Fetching of a model into a cache: room, files in parallel, tries again, and the mark at the end."""

from __future__ import annotations

import datetime
import errno
import fcntl
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from cluster.errors import FetchGivenUpError, PenstockError, SettingsError
from cluster.sources import ModelSource
from cluster.weights.cache import RepositoryCache
from cluster.weights.files import Repository, RepositoryFile, wanted
from cluster.weights.hub import StoppedError, WrongContentError, fetch_file, has_size, read_repository
from cluster.weights.retry import TRANSIENT, RetryRules, asked_wait, wait_before

Say = Callable[[str], None]
"""Prints one line of progress."""
Sleep = Callable[[float], object]
"""Waits some seconds; tests don't."""
T = TypeVar("T")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, *_FULL)
_WRONG_TRIES = 3
"""Times that a file with another content is fetched anew."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How to fetch."""

    cache: Path
    """Folder of the hub's cache, as HF_HUB_CACHE."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    parallel: int = 4
    """Files at a time."""
    rules: RetryRules = field(default_factory=RetryRules)
    report_s: float = 10.0
    """Seconds between two lines of progress."""


def fetch(source: ModelSource, options: FetchOptions, say: Say, sleep: Sleep | None = None) -> Path:
    """Fetch a hub's model into the cache, and mark it as complete. Return the folder of its snapshot.

    Raises:
        SettingsError: it can't be had at all: the hub does not have it or does not give it, the disk has no room, a
            file has another content than the hub says.
        FetchGivenUpError: the hub gave nothing for too long.
    """
    tries = _Tries(options.rules, say, sleep)
    every = tries.run(source.name, lambda: read_repository(source), lambda: 0)
    files = tuple(wanted(every.files, options.include, options.exclude))
    if not files:
        raise SettingsError(f"{source.name} has no file that is wanted; it has {len(every.files)} files in all")
    repository = replace(every, files=files)
    place = RepositoryCache.of(options.cache, repository.name)
    try:
        with _only_one(place, say):
            _check_room(place, repository, options.cache)
            _fetch_all(repository, options, tries, say)
            _check_sizes(place, repository)
            place.set_complete(repository)
    except OSError as error:
        raise SettingsError(f"{repository.shown}: {_why(error, options.cache)}") from error
    say(f"{repository.shown}: complete, {len(files)} files, {_gib(repository.size)}")
    return place.file(repository.commit, "")


def _fetch_all(repository: Repository, options: FetchOptions, tries: _Tries, say: Say) -> None:
    place = RepositoryCache.of(options.cache, repository.name)
    begun = _bytes_had(place, repository)
    ended = threading.Event()
    report = threading.Thread(
        target=_report, args=(place, repository, begun, options.report_s, ended, say), daemon=True, name="report"
    )
    say(f"{repository.shown}: {len(repository.files)} files, {_gib(repository.size)}, of which {_gib(begun)} are there")
    report.start()
    # Large ones first, so that the last file is not a large one alone.
    order = sorted(repository.files, key=lambda file: -file.size)
    try:
        with ThreadPoolExecutor(options.parallel, "fetch") as pool:
            try:
                work = [pool.submit(_fetch_one, repository, file, options, tries) for file in order]
                done, _ = wait(work, return_when=FIRST_EXCEPTION)
                for each in done:
                    each.result()
            except BaseException:
                # Also an interrupt: the pool would fetch all the rest before it ends.
                tries.stop.set()
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        ended.set()
        report.join()


def _fetch_one(repository: Repository, file: RepositoryFile, options: FetchOptions, tries: _Tries) -> None:
    place = RepositoryCache.of(options.cache, repository.name)
    tries.run(
        f"{repository.shown}: {file.name}",
        lambda: fetch_file(options.cache, repository, file, tries.stop),
        place.bytes_there,
    )


class _Tries:
    """Runs a step again and again while a later try may help."""

    def __init__(self, rules: RetryRules, say: Say, sleep: Sleep | None) -> None:
        self._rules, self._say = rules, say
        self.stop = threading.Event()
        """Ends all steps, also those that wait for their next try."""
        self._sleep = sleep or self.stop.wait

    def run(self, what: str, step: Callable[[], T], progress: Callable[[], int]) -> T:
        """Run a step. `progress`: a number that grows while it brings something."""
        tries, wrong, waited, before = 0, 0, 0.0, progress()
        while True:
            try:
                return step()
            except WrongContentError as error:
                wrong += 1
                if wrong >= _WRONG_TRIES:
                    raise SettingsError(f"{what}: {error}, {wrong} times") from error
                failure: Exception = error
            except (StoppedError, PenstockError):
                raise
            except Exception as error:
                if not _is_transient(error):
                    raise _lasting(what, error) from error
                failure = error
            now = progress()
            tries, waited = (tries + 1, waited) if now <= before else (1, 0.0)
            before = now
            pause = wait_before(tries, _asked(failure), self._rules, random.random())  # noqa: S311 - spreads load
            if waited + pause > self._rules.give_up_s:
                raise FetchGivenUpError(what, tries, waited, _line(failure)) from failure
            self._say(f"{what}: {_line(failure)}; next try in {pause:.0f} s")
            waited += pause
            self._sleep(pause)
            if self.stop.is_set():
                raise StoppedError


def _is_transient(error: Exception) -> bool:
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code in TRANSIENT
    if isinstance(error, (errors.EntryNotFoundError, errors.OfflineModeIsEnabled, errors.HFValidationError)):
        # What can't be reached is reported as missing, with the real error as its cause.
        cause = error.__cause__ or error.__context__
        return (
            isinstance(error, errors.LocalEntryNotFoundError) and isinstance(cause, Exception) and _is_transient(cause)
        )
    if isinstance(error, OSError):
        return error.errno not in _LASTING
    return not isinstance(error, (ValueError, TypeError, KeyError, AttributeError, ImportError))


def _lasting(what: str, error: Exception) -> Exception:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return SettingsError(f"{what} asks for consent: accept its terms at {constants.ENDPOINT}, and set HF_TOKEN")
    if isinstance(error, errors.RevisionNotFoundError):
        return SettingsError(f"{what}: {constants.ENDPOINT} has no such revision of it")
    if isinstance(error, errors.RepositoryNotFoundError):
        return SettingsError(f"{what} is not at {constants.ENDPOINT}, or not for this HF_TOKEN")
    if isinstance(error, OSError) and error.errno in _LASTING:
        return error
    return SettingsError(f"{what}: {_line(error)}")


def _asked(error: Exception) -> float | None:
    response = getattr(error, "response", None)
    return asked_wait(response.headers, datetime.datetime.now(datetime.UTC)) if response is not None else None


def _check_room(place: RepositoryCache, repository: Repository, cache: Path) -> None:
    missing = repository.size - _bytes_had(place, repository)
    free = shutil.disk_usage(place.folder).free
    if missing > free:
        raise SettingsError(
            f"{repository.shown}: {_gib(missing)} are still to come, and {cache} has {_gib(free)} free: "
            "take a larger volume, or leave files out with --exclude"
        )


def _check_sizes(place: RepositoryCache, repository: Repository) -> None:
    """Look at all files once more: where locks don't hold between machines, another process may have written on."""
    for file in repository.files:
        if not has_size(place.file(repository.commit, file.name), file.size):
            why = "another process changed it, and the next start fetches it anew"
            raise FetchGivenUpError(f"{repository.shown}: {file.name}", 1, 0.0, why)


def _bytes_had(place: RepositoryCache, repository: Repository) -> int:
    """Return how much of the files is there, begun ones included."""
    had = 0
    for file in repository.files:
        for path in (
            place.file(repository.commit, file.name),
            *((place.blobs / file.digest, *place.parts(file.digest)) if file.can_be_verified else ()),
        ):
            try:
                size = path.stat().st_size
            except OSError:
                continue
            had += min(size, file.size)
            break
    return had


def _report(
    place: RepositoryCache, repository: Repository, begun: int, every_s: float, ended: threading.Event, say: Say
) -> None:
    at_start = last = place.bytes_there()
    while not ended.wait(every_s):
        there = place.bytes_there()
        had = min(repository.size, begun + max(0, there - at_start))
        speed = max(0.0, (there - last) / every_s)
        last = there
        part = 100 * had / max(1, repository.size)
        if had >= repository.size:
            say(f"{repository.shown}: all {_gib(had)} are there; checking digests")
            continue
        rate = f"{speed / (1 << 20):.0f} MiB/s"
        left = f", {_time((repository.size - had) / speed)} left" if speed else ""
        say(f"{repository.shown}: {_gib(had)} of {_gib(repository.size)} ({part:.0f} %), {rate}{left}")


@contextmanager
def _only_one(place: RepositoryCache, say: Say) -> Iterator[None]:
    """Keep other processes out of a repository. Where a file system's locks don't hold between machines two may work at
    once. Each then has its own beginning of a file, or takes the other's by a rename.
    """
    place.folder.mkdir(parents=True, exist_ok=True)
    with (place.folder / ".penstock.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{place.folder.name}: another process fetches it; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            say(f"{place.folder.name}: this file system has no locks ({error.strerror})")
        yield


def _why(error: OSError, cache: Path) -> str:
    if error.errno in _FULL:
        return (
            f"{cache} is full ({error.strerror}): take a larger volume; what is there stays, and the next start goes on"
        )
    return f"{cache} can't be written: {error.strerror or error}"


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{_asked_where(error)}: {text[:300]}"


def _asked_where(error: Exception) -> str:
    """Return the host that did not answer, which the text of such an error lacks."""
    from httpx import RequestError

    try:
        return f" at {error.request.url.host}" if isinstance(error, RequestError) else ""
    except RuntimeError:  # It has no request.
        return ""


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 100 << 20 else f"{size / (1 << 20):.1f} MiB"


def fetch_all(sources: Sequence[ModelSource], options: FetchOptions, say: Say) -> None:
    """Fetch one model after the other.

    Raises:
        SettingsError: as `fetch`.
        FetchGivenUpError: as `fetch`.
    """
    for source in sources:
        fetch(source, options, say)

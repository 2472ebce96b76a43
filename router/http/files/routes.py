"""Routes of files and batches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from aiohttp import HttpVersion11, web

from cluster.errors import FileTooLargeError, PenstockError, ShuttingDownError
from cluster.lifecycle import TaskOwner
from cluster.settings import HttpSettings
from penstock.values.objects import BodyError
from router.http.bodies import KEY, header_text, page_limit
from router.http.calls import Calls, ignored_headers
from router.http.files.batches import Batches, check_life, read_batch
from router.http.files.content import ContentLostError
from router.http.files.form import read_form
from router.http.files.intake import FileIntake
from router.http.files.library import FileLibrary
from router.http.files.objects import file_object
from router.identity import Caller
from router.jobs import JobTools

_LOG = logging.getLogger(__name__)

_BOUNDARIES_BYTES = 64 << 10
"""Room for what an upload has besides the file."""
_REST_S = 10.0
"""Longest time in seconds for which the rest of a refused upload is read."""
_FILES = (10_000, 10_000)
"""Default and most entries of a page."""
_BATCHES = (20, 100)
"""As above."""


class FileRoutes:
    """Handlers of files and batches."""

    def __init__(self, calls: Calls, tools: JobTools, settings: HttpSettings) -> None:
        self._calls = calls
        self._tools = tools
        self._max_mb = settings.max_file_mb
        self._origins = settings.cors_origins
        self._library = FileLibrary(tools)
        self._owner = TaskOwner("files")
        self._batches = Batches(tools, self._library, self._owner)
        self._draining = False

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/v1/files", self.upload)
        app.router.add_get("/v1/files", self.files)
        app.router.add_get("/v1/files/{file}", self.file)
        app.router.add_delete("/v1/files/{file}", self.delete)
        app.router.add_get("/v1/files/{file}/content", self.content, allow_head=False)
        app.router.add_post("/v1/batches", self.create)
        app.router.add_get("/v1/batches", self.batches)
        app.router.add_get("/v1/batches/{batch}", self.batch)
        app.router.add_post("/v1/batches/{batch}/cancel", self.cancel)

    def drain(self) -> None:
        """Refuse new uploads and batches."""
        self._draining = True

    async def close(self) -> None:
        """Cancel what goes on after a call. May be called twice."""
        await self._owner.close()

    # --- files --------------------------------------------------------------------------------------------------------

    async def upload(self, request: web.Request) -> web.StreamResponse:
        """Store a file."""
        caller = self._caller(request)
        self._check_up()
        self._check_origin(request)
        intake, settings = FileIntake(self._tools, self._max_mb, caller), self._tools.settings
        try:
            self._check_size(request)
            form = await read_form(request, intake, settings.upload_s)
            keep_s = settings.file_ttl_s
            if form.expires_after_s is not None:
                keep_s = check_life("expires_after.seconds", form.expires_after_s, settings.file_ttl_s)
            record = await intake.keep(form.filename, keep_s)
        except BaseException as error:
            # In a task of its own, because a cancelled call can't wait for it.
            self._owner.spawn_unless_closed(intake.drop(), "drop")
            if isinstance(error, Exception):
                await _skip_rest(request)
            raise
        _LOG.info("file.kept", extra={"file": record.job_id, "items": record.items})
        return web.json_response(file_object(record))

    async def files(self, request: web.Request) -> web.StreamResponse:
        """List the tenant's files."""
        caller = self._caller(request)
        order = request.query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise BodyError("order", f"must be asc or desc, got {order[:40]!r}")
        limit = page_limit(request.query, *_FILES)
        purpose, after = request.query.get("purpose"), request.query.get("after", "")
        found, more = await self._library.page(caller, purpose, limit, after=after, oldest_first=order == "asc")
        return _page(found, more=more)

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Describe a file."""
        return web.json_response(await self._library.describe(request.match_info["file"], self._caller(request)))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["file"]
        await self._library.delete(name, self._caller(request))
        return web.json_response({"id": name, "object": "file", "deleted": True})

    async def content(self, request: web.Request) -> web.StreamResponse:
        """Send a file's content."""
        blocks, size = await self._library.content(request.match_info["file"], self._caller(request))
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        if size is not None:
            response.content_length = size
        elif request.version < HttpVersion11:
            # Only the end of the connection tells its client the end of the file.
            response.force_close()
        await response.prepare(request)
        try:
            async for block in blocks:
                await response.write(block)
            await response.write_eof()
        except (ContentLostError, PenstockError, asyncio.CancelledError) as error:
            # The status is sent already. A connection that breaks off tells the client that something is missing.
            _LOG.warning("file.broken_off", extra={"file": request.match_info["file"]})
            if request.transport is not None:
                request.transport.abort()
            if isinstance(error, asyncio.CancelledError):
                raise
        return response

    # --- batches ------------------------------------------------------------------------------------------------------

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Begin a batch."""
        caller = self._caller(request)
        self._check_up()
        key = header_text(request.headers, KEY)
        asked = read_batch(await self._calls.json(request), key, self._tools.settings.file_ttl_s)
        return web.json_response(await self._batches.create(asked, caller), headers=ignored_headers(asked.ignored))

    async def batch(self, request: web.Request) -> web.StreamResponse:
        """Describe a batch."""
        return web.json_response(await self._batches.describe(request.match_info["batch"], self._caller(request)))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """End a batch."""
        return web.json_response(await self._batches.cancel(request.match_info["batch"], self._caller(request)))

    async def batches(self, request: web.Request) -> web.StreamResponse:
        """List the tenant's batches, the newest first."""
        caller = self._caller(request)
        limit = page_limit(request.query, *_BATCHES)
        found, more = await self._batches.page(caller, request.query.get("after", ""), limit)
        return _page(found, more=more)

    def _caller(self, request: web.Request) -> Caller:
        return self._calls.caller(request)[1]

    def _check_origin(self, request: web.Request) -> None:
        """Refuse a form from another site's page. A browser sends such a form to its user's own router unasked, and
        without keys nothing else would stop it.
        """
        origin = request.headers.get("Origin")
        if origin is None or not self._calls.open or "*" in self._origins or origin in self._origins:
            return
        if origin.partition("://")[2] != request.host:
            raise BodyError("", f"must not come from a page of another site, got the origin {origin[:80]}")

    def _check_size(self, request: web.Request) -> None:
        if (request.content_length or 0) > (self._max_mb << 20) + _BOUNDARIES_BYTES:
            raise FileTooLargeError(self._max_mb)

    def _check_up(self) -> None:
        if self._draining:
            raise ShuttingDownError("this router is shutting down", 0.1)


async def _skip_rest(request: web.Request) -> None:
    """Read the rest of a body for a while. Many clients, OpenAI's among them, read no answer before all is sent."""
    with contextlib.suppress(TimeoutError, OSError, web.HTTPException, ValueError):
        async with asyncio.timeout(_REST_S):
            async for _ in request.content.iter_any():
                # What is compressed comes in many parts at once, and other calls need their turn.
                await asyncio.sleep(0)


def _page(found: list[dict[str, Any]], *, more: bool) -> web.Response:
    first, last = (found[0]["id"], found[-1]["id"]) if found else (None, None)
    return web.json_response({"object": "list", "data": found, "first_id": first, "last_id": last, "has_more": more})

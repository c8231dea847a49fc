"""A server that speaks as much of S3 as our store does, and can be made to misbehave."""

from __future__ import annotations

from hashlib import md5
from xml.sax.saxutils import escape

from aiohttp import web

BUCKET = "bucket"


class SmallS3:
    """One bucket, in a dictionary, which outlives the server's restarts."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.conditions: tuple[str, ...] = ("If-Match", "If-None-Match")
        """The conditions that it heeds."""
        self.heeds_on_delete = True
        self.refused: dict[str, tuple[int, str]] = {}
        """By HTTP method, the status and the code with which requests are refused."""
        self.loses = 0
        """How many of the next answers to a put are lost, though it is done."""
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The URL of a store in it."""
        return f"s3://{BUCKET}/p?region=us-east-1&endpoint=http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, at the same port as before."""
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{bucket}{key:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Listen no more, and cut all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info["key"].lstrip("/")
        if request.match_info["bucket"] != BUCKET:
            return _refused(404, "NoSuchBucket")
        if request.method in self.refused:
            return _refused(*self.refused[request.method])
        if request.method == "GET" and not key:
            return self._list(request)
        etag = f'"{md5(self.objects[key]).hexdigest()}"' if key in self.objects else None
        match, other = (
            request.headers.get(name) if name in self.conditions or request.method == "GET" else None
            for name in ("If-Match", "If-None-Match")
        )
        if request.method == "GET":
            if etag is None:
                return _refused(404, "NoSuchKey")
            if other == etag:
                return web.Response(status=304)
            body = self.objects[key]
            if span := request.headers.get("Range"):
                start, end = span.removeprefix("bytes=").split("-")
                return web.Response(status=206, body=body[int(start) : int(end) + 1], headers={"ETag": etag})
            return web.Response(body=body, headers={"ETag": etag})
        if request.method == "DELETE" and not self.heeds_on_delete:
            match = other = None
        if (match and match != etag) or (other and etag):
            return _refused(412, "PreconditionFailed")
        if request.method == "DELETE":
            self.objects.pop(key, None)
            return web.Response(status=204)
        self.objects[key] = await request.read()
        if self.loses:
            self.loses -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.Response(headers={"ETag": f'"{md5(self.objects[key]).hexdigest()}"'})

    def _list(self, request: web.Request) -> web.Response:
        after = request.query.get("continuation-token") or request.query.get("start-after", "")
        found = [key for key in sorted(self.objects) if key.startswith(request.query["prefix"]) and key > after]
        page = found[: int(request.query["max-keys"])]
        items = "".join(
            f"<Contents><Key>{escape(key)}</Key><ETag>&quot;{md5(self.objects[key]).hexdigest()}&quot;</ETag>"
            f"<LastModified>2024-01-01T00:00:00.000Z</LastModified><Size>{len(self.objects[key])}</Size></Contents>"
            for key in page
        )
        more = len(found) > len(page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        inner = f"<IsTruncated>{str(more).lower()}</IsTruncated>{items}{token}"
        text = f"<ListBucketResult>{inner}</ListBucketResult>"
        return web.Response(text=text, content_type="application/xml")


def _refused(status: int, code: str) -> web.Response:
    text = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml")

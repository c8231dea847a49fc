"""Embedder for OpenAI-compatible embedding servers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import MsgspecError, Struct, json

from ..checks import check_count, check_extra, check_name, check_number, check_text, shown
from ..errors import ClosedError, EmbedderError, InvalidValueError

if TYPE_CHECKING:
    import httpx

    from .embedder import Vectors

OPENAI = "https://api.openai.com/v1"
"""Base URL of OpenAI's service."""
MAX_WAIT = 60.0
"""Longest wait before a retry, in seconds; if a server asks for more, the call fails."""

_PASSING = (408, 409, 425, 429)


class OpenAIEmbedder:
    """A model at `{base_url}/embeddings`, as OpenAI, vLLM, Ollama and others serve it.

    Its id is the model's name and the requested dimensions, since a model gives the same vectors on every server.
    Errors and reprs never show the key.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = OPENAI,
        api_key: str | None = None,
        dimensions: int | None = None,
        batch_size: int = 128,
        timeout: float = 30.0,
        retries: int = 4,
        backoff: float = 0.5,
    ) -> None:
        """Configure the requests: `batch_size` texts per request, `timeout` seconds per answer.

        Transient failures (status 429 or 5xx, no connection, timeout) are retried `retries` times: after the time
        that the server asks for, otherwise with exponential backoff starting at `backoff` seconds.

        Raises InvalidValueError, or MissingExtraError if httpx is not installed.
        """
        check_extra("openai", "the embedder over HTTP", "httpx")
        self._model = check_name(model, "model")
        self._url = _check_url(base_url)
        self._key = _check_key(api_key)
        self._dimensions = None if dimensions is None else check_count(dimensions, "dimensions", least=1)
        self._batch_size = check_count(batch_size, "batch_size", least=1)
        self._timeout = check_number(timeout, "timeout", least=0.001)
        self._retries = check_count(retries, "retries")
        self._backoff = check_number(backoff, "backoff", least=0)
        self._width = self._dimensions
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._closed = False

    @property
    def id(self) -> str:
        """The model's name, followed by `@` and the dimensions if requested."""
        return self._model if self._dimensions is None else f"{self._model}@{self._dimensions}"

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self.id!r}, base_url={self._url!r})"

    def __enter__(self) -> OpenAIEmbedder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; later calls raise ClosedError."""
        with self._lock:
            self._closed = True
            if self._client is not None:
                self._client.close()

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text.

        Raises EmbedderError if the server cannot be reached, refuses, or returns an invalid answer.
        """
        import numpy as np

        # OpenAI rejects a whole batch because of one empty text.
        asked = [check_text(text, "text") or " " for text in texts]
        batches = [
            self._embed_batch(asked[start : start + self._batch_size])
            for start in range(0, len(asked), self._batch_size)
        ]
        return np.concatenate(batches) if batches else np.empty((0, self._width or 0), dtype=np.float32)

    def embed_query(self, query: str) -> Vectors:
        """Return the query's vector, computed as for any text; raises EmbedderError as `embed` does."""
        row: Vectors = self.embed([query])[0]
        return row

    def _open(self) -> httpx.Client:
        import httpx

        with self._lock:
            if self._closed:
                raise ClosedError(f"the embedder {self.id!r} is closed")
            if self._client is None:
                headers = {"Content-Type": "application/json"}
                if self._key is not None:
                    headers["Authorization"] = f"Bearer {self._key}"
                self._client = httpx.Client(headers=headers, timeout=self._timeout)
            return self._client

    def _embed_batch(self, texts: list[str]) -> Vectors:
        request: dict[str, Any] = {"model": self._model, "input": texts}
        if self._dimensions is not None:
            request["dimensions"] = self._dimensions
        content = self._ask(json.encode(request))
        try:
            answer = json.decode(content, type=_Answer)
        except (MsgspecError, UnicodeDecodeError) as error:
            raise self._error(f"did not answer with embeddings: {error}") from None
        return self._checked(answer, len(texts))

    def _checked(self, answer: _Answer, count: int) -> Vectors:
        """Return the rows in text order, after checking their number and length."""
        import numpy as np

        rows = {item.index: item.embedding for item in answer.data}
        if len(answer.data) != count or rows.keys() != set(range(count)):
            raise self._error(f"answered {count} texts with {len(answer.data)} embeddings, or misnumbered them")
        widths = {len(row) for row in rows.values()}
        expected = self._width or len(rows[0])
        if widths != {expected} or not expected:
            found = ", ".join(map(str, sorted(widths)))
            raise self._error(f"answered with vectors of {found} dimensions instead of {expected or 'some'}")
        with np.errstate(over="ignore"):
            vectors = np.array([rows[place] for place in range(count)], dtype=np.float32)
        if not np.isfinite(vectors).all():
            raise self._error("answered with a vector that is not finite")
        self._width = expected
        return vectors

    def _ask(self, content: bytes) -> bytes:
        """Return the server's answer, with retries."""
        attempt = 0
        while True:
            answer, failure, wait = self._try(content)
            if failure is None:
                return answer
            if wait is None or attempt == self._retries:
                tried = f" (tried {attempt + 1} times)" if attempt else ""
                # Raised outside, because httpx's exception holds the request, and that the key.
                raise self._error(failure + tried)
            # Less than twice the last wait, and random, so that clients that failed together do not retry
            # together.
            pause = max(wait, self._backoff * 2 ** min(attempt, 60) * random.uniform(0.5, 1))  # noqa: S311
            time.sleep(min(pause, MAX_WAIT))
            attempt += 1

    def _try(self, content: bytes) -> tuple[bytes, str | None, float | None]:
        """Send one request: return the answer, or the failure and the minimum wait, None if it is not retryable."""
        import httpx

        client = self._open()
        try:
            response = client.post(f"{self._url}/embeddings", content=content)
        except httpx.TimeoutException:
            return b"", f"did not answer within {self._timeout:g} seconds", 0.0
        except httpx.TransportError as error:
            return b"", f"cannot be reached: {error or type(error).__name__}", 0.0
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return b"", f"cannot be read: {error or type(error).__name__}", None
        if response.is_success:
            return response.content, None, None
        failure = f"answered with status {response.status_code}{self._reason(response)}"
        if response.status_code not in _PASSING and response.status_code < 500:
            return b"", failure, None
        wait = _wait(response.headers.get("retry-after", ""))
        if wait > MAX_WAIT:
            return b"", f"{failure}, and asks to wait {wait:,.0f} seconds", None
        return b"", failure, wait

    def _reason(self, response: httpx.Response) -> str:
        # Services quote a rejected key.
        if response.status_code in (401, 403):
            return ": check the API key" if self._key else ": an API key is needed"
        # Before shortening, because half a key would not be recognized.
        text = " ".join(self._without_key(response.text).split())
        return f": {text[:300]}" if text else ""

    def _error(self, failure: str) -> EmbedderError:
        return EmbedderError(self._without_key(f"the embedder {self.id!r} at {self._url} {failure}"))

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


class _Item(Struct):
    index: int
    embedding: list[float]


class _Answer(Struct):
    data: list[_Item]


def _check_url(value: object) -> str:
    """Return a URL without its trailing slash; an error does not show it, since it may contain a password."""
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        fit = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        # An invalid port is only detected on access.
        fit = fit and parts is not None and (parts.port or 1) > 0
    except ValueError:
        fit = False
    if not fit or parts is None:
        raise InvalidValueError(f"base_url must be an address such as {OPENAI}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidValueError(
            f"base_url of {shown(parts.hostname)} must have no user, no query and no fragment: pass a key as api_key"
        )
    return parts.geturl().rstrip("/")


def _check_key(value: object) -> str | None:
    """Return a valid key; an error does not show it."""
    if value is None:
        return None
    if not isinstance(value, str) or not value or not all("!" <= letter <= "~" for letter in value):
        raise InvalidValueError("api_key must be of printable ASCII, without white space: remove what is around it")
    return value


def _wait(header: str) -> float:
    """Return the seconds in a Retry-After header, 0 if it cannot be parsed."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return seconds if seconds > 0 else 0.0

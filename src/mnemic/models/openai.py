"""Embedder for OpenAI-compatible embedding servers: the `openai` client, with checks of its settings and answers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..checks import check_count, check_extra, check_name, check_number, check_text, shown
from ..errors import ClosedError, EmbedderError, InvalidValueError

if TYPE_CHECKING:
    import openai

    from .embedder import Vectors

OPENAI = "https://api.openai.com/v1"
"""Base URL of OpenAI's service."""


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
    ) -> None:
        """Configure the requests: `batch_size` texts per request, `timeout` seconds per answer.

        Transient failures (status 429 or 5xx, no connection, timeout) are retried `retries` times: after the time
        that the server asks for, up to two minutes, otherwise with exponential backoff.

        Raises InvalidValueError, or MissingExtraError if the `openai` package is not installed.
        """
        check_extra("openai", "the embedder over HTTP", "openai")
        self._model = check_name(model, "model")
        self._url = _check_url(base_url)
        self._key = _check_key(api_key)
        self._dimensions = None if dimensions is None else check_count(dimensions, "dimensions", least=1)
        self._batch_size = check_count(batch_size, "batch_size", least=1)
        self._timeout = check_number(timeout, "timeout", least=0.001)
        self._retries = check_count(retries, "retries")
        self._width = self._dimensions
        self._lock = threading.Lock()
        self._client: openai.OpenAI | None = None
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
        inputs = [check_text(text, "text") or " " for text in texts]
        starts = range(0, len(inputs), self._batch_size)
        batches = [self._embed_batch(inputs[start : start + self._batch_size]) for start in starts]
        return np.concatenate(batches) if batches else np.empty((0, self._width or 0), dtype=np.float32)

    def embed_query(self, query: str) -> Vectors:
        """Return the query's vector, computed as for any text; raises EmbedderError as `embed` does."""
        row: Vectors = self.embed([query])[0]
        return row

    def _embed_batch(self, texts: list[str]) -> Vectors:
        import numpy as np

        data = sorted(self._request(texts), key=lambda item: item.index)
        if [item.index for item in data] != list(range(len(texts))):
            raise self._error(f"answered {len(texts)} texts with {len(data)} embeddings, or misnumbered them")
        try:
            with np.errstate(over="ignore"):
                vectors = np.array([item.embedding for item in data], dtype=np.float32)
            found = vectors.shape[1]
        except (ValueError, IndexError):
            raise self._error("did not answer with embeddings of one dimension") from None
        if not found or found != (self._width or found):
            raise self._error(f"answered with vectors of {found} dimensions instead of {self._width or 'some'}")
        if not np.isfinite(vectors).all():
            raise self._error("answered with a vector that is not finite")
        self._width = found
        return vectors

    def _request(self, texts: list[str]) -> list[openai.types.Embedding]:
        import openai

        # What the environment says of OpenAI is not for other servers.
        omitted = ["OpenAI-Organization", "OpenAI-Project"] + ["Authorization"] * (self._key is None)
        retry = True
        try:
            answer = self._open_client().embeddings.create(
                model=self._model,
                input=texts,
                # The client's default, base64, is not known to every server.
                encoding_format="float",
                dimensions=openai.omit if self._dimensions is None else self._dimensions,
                extra_headers=dict.fromkeys(omitted, openai.Omit()),
            )
            return [item for item in answer.data if isinstance(item.index, int) and isinstance(item.embedding, list)]
        except openai.APITimeoutError:
            failure = f"did not answer within {self._timeout:g} seconds"
        except openai.APIConnectionError as error:
            failure = f"cannot be reached: {error.__cause__ or error}"
        except openai.APIStatusError as error:
            failure = f"answered with status {error.status_code}{self._reason(error)}"
            retry = error.status_code in (408, 409, 429) or error.status_code >= 500
        except (openai.APIError, AttributeError, TypeError, ValueError) as error:
            failure = f"did not answer with embeddings: {error}"
            retry = False
        # Raised outside, because the client's exception has the request, and that the key.
        raise self._error(failure, retry=retry)

    def _open_client(self) -> openai.OpenAI:
        import openai

        with self._lock:
            if self._closed:
                raise ClosedError(f"the embedder {self.id!r} is closed")
            if self._client is None:
                self._client = openai.OpenAI(
                    api_key=self._key or "none",
                    base_url=self._url,
                    timeout=self._timeout,
                    max_retries=self._retries,
                    http_client=openai.DefaultHttpxClient(follow_redirects=False),
                )
            return self._client

    def _reason(self, error: openai.APIStatusError) -> str:
        # Services quote a rejected key.
        if error.status_code in (401, 403):
            return ": check the API key" if self._key else ": an API key is needed"
        # Before shortening, because half a key would not be recognized.
        text = " ".join(self._without_key(error.response.text).split())
        return f": {text[:300]}" if text else ""

    def _error(self, failure: str, *, retry: bool = False) -> EmbedderError:
        error = EmbedderError(self._without_key(f"the embedder {self.id!r} at {self._url} {failure}"))
        error.retry = retry
        return error

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _check_url(value: object) -> str:
    """Return a URL without its trailing slash; an error does not show it, since it may contain a password."""
    text = value if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        # An invalid port is only detected on access.
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and " " not in text
    except ValueError:
        valid = False
    if not valid:
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

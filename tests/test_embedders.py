"""Embedders: the transformer, servers over HTTP, and the libraries that run models here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnemic.errors import ClosedError, EmbedderError, InvalidValueError, MissingExtraError
from mnemic.models import local
from mnemic.models.embedder import Embedder, LazyValue
from mnemic.models.local import FastEmbedEmbedder, SentenceTransformerEmbedder, TransformerEmbedder
from mnemic.models.openai import OpenAIEmbedder

TEXTS = [
    "The cat sat on the mat.",
    "A feline rested upon a rug.",
    "Interest rates rose by a quarter of a percent in March.",
    "x",
    "",
    "Die Katze saß auf der Matte, 猫はマットの上に座った 😀",
    "one after the other " * 200,
]


# The transformer


@pytest.fixture(scope="module")
def minilm() -> TransformerEmbedder:
    return TransformerEmbedder()


def test_the_transformer_finds_similar_texts(minilm: TransformerEmbedder) -> None:
    assert isinstance(minilm, Embedder)
    assert minilm.id == "mnemic-conversation-2"
    rows = minilm.embed(TEXTS)
    assert rows.shape == (len(TEXTS), 384)
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-6)
    query = minilm.embed_query("a cat on a carpet")
    assert query.shape == (384,)
    cat, feline, rates = (rows @ query)[:3]
    assert min(cat, feline) > 0.5 > 0.2 > rates
    assert minilm.embed([]).shape == (0, 384)


def test_a_text_has_one_vector_whatever_it_is_embedded_with(minilm: TransformerEmbedder) -> None:
    together = minilm.embed(TEXTS)
    assert (minilm.embed(TEXTS[::-1])[::-1] == together).all()
    assert (TransformerEmbedder(threads=1).embed(TEXTS) == together).all()
    for text, row in zip(TEXTS, together, strict=True):
        assert (minilm.embed([text])[0] == row).all()
        assert (minilm.embed_query(text) == row).all()


def test_a_text_has_the_same_vector_in_another_process(minilm: TransformerEmbedder) -> None:
    program = (
        "import sys, json; from mnemic.models.local import TransformerEmbedder as T;"
        "print(T(threads=3).embed(json.load(sys.stdin)).tobytes().hex())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(TEXTS), capture_output=True, text=True, check=True
    )
    assert bytes.fromhex(run.stdout) == minilm.embed(TEXTS).tobytes()


def test_many_threads_share_one_transformer() -> None:
    shared = TransformerEmbedder()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: shared.embed(TEXTS[:3]), range(8)))
    assert all((rows == made[0]).all() for rows in made)


def test_long_texts_are_cut(minilm: TransformerEmbedder) -> None:
    words = "word " * 254
    assert (minilm.embed_query(words) == minilm.embed_query(words + "and more")).all()
    assert (minilm.embed_query(words) != minilm.embed_query("word " * 253 + "more")).any()


def test_the_transformer_refuses_values_that_are_not_text(minilm: TransformerEmbedder) -> None:
    for bad in ("\ud800", None, b"bytes"):
        with pytest.raises(InvalidValueError, match="text"):
            minilm.embed(["fine", bad])  # type: ignore[list-item]
    with pytest.raises(InvalidValueError, match="threads"):
        TransformerEmbedder(threads=0)


@pytest.mark.parametrize("module", ["onnxruntime", "mnemic_conversation_embedder"])
def test_a_missing_package_of_the_transformer_is_named(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{module}: pip install 'mnemic\[transformer\]'"):
        TransformerEmbedder()


def test_another_model_under_the_same_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for changed in (("gone.json", "0"), (local._TOKENIZER[0], "0" * 64)):
        monkeypatch.setattr(local, "_TOKENIZER", changed)
        with pytest.raises(EmbedderError, match="installed mnemic_conversation_embedder lacks"):
            TransformerEmbedder().embed(["x"])


def test_the_transformer_imports_only_what_it_runs_on() -> None:
    program = (
        "import sys; from mnemic.models.local import TransformerEmbedder as T; e = T();"
        "early = 'onnxruntime' in sys.modules or 'numpy' in sys.modules; e.embed(['x']);"
        "print(early, 'mnemic_conversation_embedder' in sys.modules, 'tokenizers' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (run.stdout.strip(), run.stderr) == ("False False False", "")


def test_a_lazy_value_is_computed_once_and_retried_after_a_failure() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        if len(made) == 1:
            raise RuntimeError("not yet")
        time.sleep(0.01)
        return len(made)

    once = LazyValue(make)
    with pytest.raises(RuntimeError, match="not yet"):
        once.get()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: once.get(), range(8))) == {2}


# Servers over HTTP

KEY = "sk-0123456789-secret"
Reply = tuple[int, dict[str, str], bytes]
SOON = {"Retry-After-Ms": "1"}
"""Headers that ask for a retry at once."""


def vector(text: str, width: int = 3) -> list[float]:
    return [float(len(text)), float(sum(map(ord, text)) % 1000), 0.5, 0.25][:width]


def embeddings(request: dict[str, Any]) -> Reply:
    """An answer in OpenAI's shape, in another order than that of the texts."""
    width = request.get("dimensions", 3)
    data = [
        {"object": "embedding", "index": index, "embedding": vector(text, width)}
        for index, text in enumerate(request["input"])
    ]
    answer = {
        "object": "list",
        "data": data[::-1],
        "model": request["model"],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
    return 200, {}, json.dumps(answer).encode()


def rows(*items: tuple[object, object]) -> Reply:
    data = [{"index": index, "embedding": embedding} for index, embedding in items]
    return 200, {}, json.dumps({"data": data}).encode()


class Server(ThreadingHTTPServer):
    """A server on this machine that gives the replies it is told to, and after them right ones."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies: list[Reply | Callable[[dict[str, Any]], Reply]] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def hang(self, request: dict[str, Any]) -> Reply:
        self.released.wait(60)
        return embeddings(request)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(request)
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.server.paths.append(self.path)
        reply = self.server.replies.pop(0) if self.server.replies else embeddings
        status, headers, content = reply(request) if callable(reply) else reply
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            pass  # The client did not wait.

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.released.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def remote(server: Server) -> Iterator[OpenAIEmbedder]:
    with OpenAIEmbedder("small", base_url=server.url, api_key=KEY, batch_size=3) as opened:
        yield opened


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the client waits before it retries; it does not."""
    found: list[float] = []
    here, sleep = threading.current_thread(), time.sleep

    def wait(seconds: float) -> None:
        if threading.current_thread() is here:
            found.append(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", wait)
    return found


def test_a_server_is_asked_in_batches_and_answers_in_any_order(server: Server, remote: OpenAIEmbedder) -> None:
    assert isinstance(remote, Embedder)
    texts = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]
    made = remote.embed(texts)
    assert made.dtype == np.float32
    assert made.tolist() == [vector(text) for text in texts]
    assert [request["input"] for request in server.asked] == [texts[:3], texts[3:6], texts[6:]]
    assert remote.embed_query("query").tolist() == vector("query")
    assert set(server.paths) == {"/v1/embeddings"}
    assert all(headers["authorization"] == f"Bearer {KEY}" for headers in server.headers)
    assert remote.embed([]).shape == (0, 3)


def test_an_empty_text_is_sent_as_a_space(server: Server, remote: OpenAIEmbedder) -> None:
    remote.embed(["", "a"])
    assert [request["input"] for request in server.asked] == [[" ", "a"]]


def test_dimensions_are_requested_and_part_of_the_id(server: Server) -> None:
    with OpenAIEmbedder("small", base_url=server.url + "/", dimensions=2) as asked:
        assert asked.id == "small@2"
        assert asked.embed(["a"]).tolist() == [vector("a", 2)]
        assert asked.embed([]).shape == (0, 2)
        server.replies = [rows((0, [1, 2, 3]))]
        with pytest.raises(EmbedderError, match="3 dimensions instead of 2"):
            asked.embed(["a"])
    assert server.asked[0] == {"model": "small", "input": ["a"], "dimensions": 2, "encoding_format": "float"}
    assert "authorization" not in server.headers[0]
    assert set(server.paths) == {"/v1/embeddings"}


def test_the_environment_adds_nothing_to_a_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "mine")
    with OpenAIEmbedder("small", base_url=server.url) as asked:
        asked.embed(["a"])
    assert "mine" not in server.headers[0].values()
    assert not server.headers[0].keys() & {"authorization", "openai-organization", "openai-project"}


def test_the_same_model_elsewhere_has_the_same_id() -> None:
    here = OpenAIEmbedder("small", base_url="http://here/v1")
    assert here.id == OpenAIEmbedder("small").id == "small"


@pytest.mark.parametrize("status", [429, 500, 502, 503, 529])
def test_transient_failures_are_retried(server: Server, remote: OpenAIEmbedder, status: int) -> None:
    server.replies = [(status, SOON, b"busy"), (status, SOON, b"busy")]
    assert remote.embed(["a"]).tolist() == [vector("a")]
    assert len(server.asked) == 3


@pytest.mark.parametrize(("status", "retry"), [(429, True), (503, True), (400, False), (401, False)])
def test_a_failure_says_whether_to_retry(server: Server, remote: OpenAIEmbedder, status: int, retry: bool) -> None:
    server.replies = [(status, SOON, b"no")] * 20
    with pytest.raises(EmbedderError) as caught:
        remote.embed(["a"])
    assert caught.value.retry == retry


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_respected(server: Server, remote: OpenAIEmbedder, waits: list[float], form: str) -> None:
    # A date is of whole seconds, and some of it has passed when it arrives.
    header, least = ("50", 50) if form == "seconds" else (formatdate(time.time() + 50, usegmt=True), 20)
    server.replies = [(429, {"Retry-After": header}, b"")]
    remote.embed(["a"])
    assert len(waits) == 1
    assert least <= waits[0] <= 50


@pytest.mark.parametrize("header", ["", "soon", "nan", "-5", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_an_invalid_retry_after_is_ignored(
    server: Server, remote: OpenAIEmbedder, waits: list[float], header: str
) -> None:
    server.replies = [(429, {"Retry-After": header}, b"")]
    remote.embed(["a"])
    assert len(waits) == 1
    assert 0 < waits[0] < 1


def test_too_long_a_retry_after_raises(server: Server, remote: OpenAIEmbedder) -> None:
    for header in ("3600", "86400"):
        server.replies = [(429, {"Retry-After": header}, b"slow down")]
        with pytest.raises(EmbedderError, match=r"status 429: slow down"):
            remote.embed(["a"])
    assert len(server.asked) == 2


def test_retries_are_limited(server: Server) -> None:
    server.replies = [(500, SOON, b"broken")] * 9
    with OpenAIEmbedder("small", base_url=server.url, retries=2) as asked:
        with pytest.raises(EmbedderError, match=r"'small'.*status 500: broken"):
            asked.embed(["a"])
    assert len(server.asked) == 3


def test_a_refusal_is_not_retried(server: Server, remote: OpenAIEmbedder) -> None:
    for status in (400, 404, 301):
        server.asked.clear()
        server.replies = [(status, {"Location": "/elsewhere"}, b'{"error": {"message": "no such model"}}')]
        with pytest.raises(EmbedderError, match=f"status {status}.*no such model"):
            remote.embed(["a"])
        assert len(server.asked) == 1


def test_the_key_is_in_no_error_and_no_repr(server: Server, remote: OpenAIEmbedder) -> None:
    assert "secret" not in repr(remote)
    padded = b"x" * 290 + KEY.encode()
    for status, content in ((401, b"bad key " + KEY.encode()), (400, KEY.encode()), (400, padded)):
        server.replies = [(status, {}, content)]
        with pytest.raises(EmbedderError, match=f"status {status}") as caught:
            remote.embed(["a"])
        assert "sk-01" not in str(caught.value)
        assert caught.value.__context__ is None
    for bad in (KEY + "\n", "schlüssel-secret", "", 7):
        with pytest.raises(InvalidValueError, match="api_key") as refused:
            OpenAIEmbedder("small", api_key=bad)  # type: ignore[arg-type]
        assert "secret" not in str(refused.value)
    with pytest.raises(InvalidValueError, match="base_url") as refused:
        OpenAIEmbedder("small", base_url="https://me:secret@host/v1")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (rows((0, [1, 2])), "answered 2 texts with 1 embeddings"),
        (rows((0, [1, 2]), (1, [1, 2]), (2, [1, 2])), "answered 2 texts with 3 embeddings"),
        (rows((0, [1, 2]), (0, [1, 2])), "misnumbered"),
        (rows((1, [1, 2]), (2, [1, 2])), "misnumbered"),
        (rows((0, [1, 2]), (1, [1, 2, 3])), "embeddings of one dimension"),
        (rows((0, []), (1, [])), "0 dimensions"),
        (rows((0, "AAAA"), (1, "AAAA")), "answered 2 texts with 0 embeddings"),
        (rows((0, [1, 1e300]), (1, [1, 2])), "not finite"),
        (
            (200, {}, b'{"data": [{"index": 0, "embedding": [1e999]}, {"index": 1}]}'),
            "answered 2 texts with 1 embeddings",
        ),
        ((200, {}, b"<html>welcome</html>"), "did not answer with embeddings"),
        ((200, {}, b"\xff\xfe"), "did not answer with embeddings"),
        ((200, {}, b""), "did not answer with embeddings"),
        ((200, {}, b'{"error": "none"}'), "did not answer with embeddings"),
    ],
)
def test_a_wrong_answer_is_an_error(server: Server, remote: OpenAIEmbedder, reply: Reply, message: str) -> None:
    server.replies = [reply]
    with pytest.raises(EmbedderError, match=message):
        remote.embed(["a", "b"])
    assert remote.embed(["a", "b"]).shape == (2, 3)


def test_dimensions_do_not_change_midway(server: Server, remote: OpenAIEmbedder) -> None:
    remote.embed(["a"])
    server.replies = [rows((0, [1, 2]))]
    with pytest.raises(EmbedderError, match="2 dimensions instead of 3"):
        remote.embed(["a"])


def test_a_server_that_is_not_there_is_an_error() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as gone:
        url = f"http://127.0.0.1:{gone.server_port}/v1"
    with OpenAIEmbedder("small", base_url=url, api_key=KEY, retries=1) as asked:
        with pytest.raises(EmbedderError, match=rf"{url} cannot be reached") as caught:
            asked.embed(["a"])
    assert caught.value.__context__ is None


def test_a_hanging_server_times_out(server: Server) -> None:
    with OpenAIEmbedder("small", base_url=server.url, timeout=1, retries=1) as asked:
        server.replies = [server.hang, server.hang]
        with pytest.raises(EmbedderError, match=r"within 1 seconds"):
            asked.embed(["a"])
        server.replies = [server.hang]
        assert asked.embed(["a"]).tolist() == [vector("a")]


def test_a_dropped_connection_is_retried(server: Server, remote: OpenAIEmbedder) -> None:
    server.replies = [(200, {"Transfer-Encoding": "chunked"}, b"no chunk")]
    assert remote.embed(["a"]).tolist() == [vector("a")]


def test_several_threads_ask_one_server(remote: OpenAIEmbedder) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: remote.embed_query("x" * n).tolist(), range(1, 20)))
    assert made == [vector("x" * n) for n in range(1, 20)]


def test_a_closed_embedder_asks_nothing(server: Server, remote: OpenAIEmbedder) -> None:
    remote.embed(["a"])
    remote.close()
    remote.close()
    with pytest.raises(ClosedError):
        remote.embed(["a"])
    assert len(server.asked) == 1
    OpenAIEmbedder("small").close()


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""},
        {"base_url": "api.openai.com/v1"},
        {"base_url": "ftp://host/v1"},
        {"base_url": "http://"},
        {"base_url": "http://host:port/v1"},
        {"base_url": "http://[half/v1"},
        {"base_url": "http://exa mple/v1"},
        {"base_url": "http://host/v1?version=1"},
        {"base_url": None},
        {"dimensions": 0},
        {"batch_size": 0},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"retries": -1},
    ],
)
def test_bad_settings_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match=next(iter(options))):
        OpenAIEmbedder(**{"model": "small", **options})


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"openai: pip install 'mnemic\[openai\]'"):
        OpenAIEmbedder("small")


# Libraries that run models here


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The transformer's own files, laid out as fastembed wants them."""
    folder = tmp_path_factory.mktemp("minilm")
    for name, digest in (local._MODEL, local._TOKENIZER):
        shutil.copy(local._file(name, digest), folder / name)
    settings = {"model_max_length": 256, "pad_token": "[PAD]"}
    for name, content in (
        ("config.json", {"pad_token_id": 0}),
        ("tokenizer_config.json", settings),
        ("special_tokens_map.json", {"pad_token": "[PAD]"}),
    ):
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def custom() -> str:
    """The name of a model that fastembed knows after this, and looks for in a folder."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    name = "test/minilm"
    TextEmbedding.add_custom_model(
        model=name,
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(url="http://127.0.0.1/none"),
        dim=384,
        model_file="model.onnx",
    )
    return name


def test_fastembed_gives_the_vectors_of_the_transformer(
    minilm: TransformerEmbedder, custom: str, model_folder: Path
) -> None:
    fast = FastEmbedEmbedder(custom, specific_model_path=str(model_folder), threads=1)
    assert isinstance(fast, Embedder)
    assert fast.id == custom
    made = fast.embed(TEXTS)
    assert made.dtype == np.float32
    assert made == pytest.approx(minilm.embed(TEXTS), abs=1e-5)
    for text, row in zip(TEXTS, made, strict=True):
        assert (fast.embed([text])[0] == row).all()
        assert (fast.embed_query(text) == row).all()
    assert len(fast.embed([])) == 0


def test_fastembed_takes_a_model_that_is_loaded_already(custom: str, model_folder: Path) -> None:
    from fastembed import TextEmbedding

    model = TextEmbedding(custom, specific_model_path=str(model_folder), threads=1)
    assert FastEmbedEmbedder(model).id == custom
    assert FastEmbedEmbedder(model, id="mine").id == "mine"
    assert FastEmbedEmbedder(model).embed_query("x").shape == (384,)
    with pytest.raises(InvalidValueError, match="options"):
        FastEmbedEmbedder(model, threads=1)


def test_a_query_goes_to_the_query_side() -> None:
    class Sided:
        def passage_embed(self, texts: list[str], batch_size: int) -> Iterator[Any]:
            yield from ([0.0, float(len(text))] for text in texts)

        def query_embed(self, query: str) -> Iterator[Any]:
            yield [1.0, float(len(query))]

    sided = FastEmbedEmbedder(Sided(), id="sided")
    assert sided.embed(["a", "bb"]).tolist() == [[0, 1], [0, 2]]
    assert sided.embed_query("ccc").tolist() == [1, 3]


def test_a_model_that_cannot_be_loaded_is_an_error() -> None:
    unknown = FastEmbedEmbedder("no/such-model")
    with pytest.raises(EmbedderError, match="fastembed cannot load the model 'no/such-model'"):
        unknown.embed(["x"])


def test_an_object_needs_an_id() -> None:
    for make in (FastEmbedEmbedder, SentenceTransformerEmbedder):
        with pytest.raises(InvalidValueError, match="needs an id"):
            make(object())
        with pytest.raises(InvalidValueError, match="batch_size"):
            make("model", batch_size=0)


def test_the_libraries_are_named_where_they_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastembed", None)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'mnemic\[fastembed\]'"):
        FastEmbedEmbedder("model")
    with pytest.raises(MissingExtraError, match=r"pip install 'mnemic\[sentence-transformers\]'"):
        SentenceTransformerEmbedder("model")


@pytest.fixture
def static_model(tmp_path: Path) -> Path:
    """The folder of a tiny model that sentence-transformers can load."""
    library = pytest.importorskip("sentence_transformers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = ["[UNK]", "query", "doc", "cat", "dog", "mat"]
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    modules = pytest.importorskip("sentence_transformers.models")
    weights = np.random.default_rng(0).normal(size=(len(words), 8)).astype(np.float32)
    static = modules.StaticEmbedding(tokenizer, embedding_weights=weights)
    prompts = {"query": "query ", "document": "doc "}
    model = library.SentenceTransformer(modules=[static], device="cpu", prompts=prompts)
    model.save(str(tmp_path / "tiny"))
    return tmp_path / "tiny"


def test_sentence_transformers_embed_documents_and_queries(static_model: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(static_model), device="cpu")
    by_path = SentenceTransformerEmbedder(static_model, device="cpu")
    by_object = SentenceTransformerEmbedder(model, id="tiny")
    texts = ["cat", "dog mat", "cat mat dog"]
    expected = model.encode([f"doc {text}" for text in texts], prompt="")
    for made in (by_path, by_object):
        assert isinstance(made, Embedder)
        assert made.id == "tiny"
        assert made.embed(texts).dtype == np.float32
        assert made.embed(texts) == pytest.approx(expected, abs=1e-6)
        assert made.embed_query("cat") == pytest.approx(model.encode("query cat", prompt=""), abs=1e-6)
        assert len(made.embed([])) == 0
    short = SentenceTransformerEmbedder(str(static_model), device="cpu", truncate_dim=4)
    assert short.id == "tiny@4"
    assert short.embed(texts).shape == (3, 4)
    with ThreadPoolExecutor(4) as pool:
        assert all((rows == expected).all() for rows in pool.map(lambda _: by_object.embed(texts), range(20)))


def test_a_folder_that_holds_no_sentence_transformer_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    empty = SentenceTransformerEmbedder(tmp_path, local_files_only=True)
    with pytest.raises(EmbedderError, match="sentence_transformers cannot load"):
        empty.embed(["x"])

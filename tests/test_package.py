"""The package itself: its public names, what importing it loads, and that it is typed."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from inspect import signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import mnemic
import mnemic.api

NAMES = """
    AnthropicMessage OpenAIMessage
    AccessDeniedError Acting Auditing AuditFlags Content Duplicates Encryption EncryptionKey EncryptionKeys
    FileOrPath Indexing Item JSON LangChainFilter LangChainIndex MasterKey VectorStore
    MessageLike Opening OpenOptions Overflow Reference Retention Right Role Store Tokens Vectors
    AgentCall AsyncNotes AsyncState State StateItem AsyncFacts AsyncMemory AsyncMemories AsyncSessions Memories Sessions
     AsyncSession AsyncScope Audit AuditEntry AuditError AuditPage AuditProblem AuditVerification
    BudgetError Notes Forgotten DecryptionError
    ClosedError CombinedEmbedder ConflictError Context Copied Embedder EmbedderError Note NoteInfo NoteSettings
    EventLoopError MemoryItem Faded FastEmbedEmbedder Facts Hit InvalidValueError LimitError Exported Fact
    FactGraph    ImageInfo Imported Skipped Stats Memory
    Message Metrics MetricsPeriod MissingExtraError MnemicError Neighborhood NewerSchemaError NotFoundError
    OpenAIEmbedder Record Ref ScopePath SentenceTransformerEmbedder Session SessionInfo SessionSettings
    Finding FoundCount Scanned PresidioEngine RecognizerLike Redacting Redaction RedactionAction RedactionEngine Vault
    Scope SignatureError SigningKey SigningKeys StaticEmbedder verify_signature
    StoreBusyError StoreError StoreFullError StorePermissionError StoreUnavailableError Summarize
    TokenCounter ToolCall TransformerEmbedder TooLargeError UnknownSchemeError UnreadableStoreError
    ErasedArchive ErasedDerivation ErasedStream ErasureCertificate SubjectExport HeldError Hold InterruptedErasure
    Rebuild Unreached Verification verify_certificate
    Version copy copy_async from_anthropic from_openai open open_async to_anthropic to_openai token_counter
"""


def test_the_public_names_are_these() -> None:
    assert sorted(mnemic.api.__all__) == sorted(NAMES.split()) == sorted(mnemic.api.__all__) == sorted(dir(mnemic))
    for name in mnemic.api.__all__:
        assert getattr(mnemic, name) is getattr(mnemic.api, name)


def test_what_opens_a_memory_for_others_passes_on_every_option() -> None:
    options = set(mnemic.OpenOptions.__annotations__)
    for opening in (mnemic.open, mnemic.open_async):
        assert set(signature(opening).parameters) - {"url"} == options


def test_a_name_that_is_not_there_is_an_ordinary_error() -> None:
    assert not hasattr(mnemic, "nothing")


def test_importing_loads_nothing_heavy() -> None:
    heavy = [
        "sqlalchemy",
        "alembic",
        "numpy",
        "splintr",
        "Stemmer",
        "asyncio",
        "networkx",
        "sqlite3",
        "tempfile",
        "shutil",
        "random",
        "msgspec",
    ]
    program = f"import sys, mnemic; print([name for name in {heavy!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
    program = f"import sys, mnemic; mnemic.open; print([name for name in {heavy[:-1]!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_package_is_typed() -> None:
    assert files("mnemic").joinpath("py.typed").is_file()


def test_every_name_is_documented() -> None:
    aliases = re.compile(r'^ *(\w+): TypeAlias = .*(?:\n|\(\n(?:    .*\n)*\)\n) *"""', re.M)
    package = Path(mnemic.api.__file__).parent
    documented = {name for path in package.rglob("*.py") for name in aliases.findall(path.read_text())}
    for name in mnemic.api.__all__:
        value = getattr(mnemic, name)
        assert value.__doc__ if isinstance(value, type | FunctionType) else name in documented, name


OWN = ("mnemic", Any.__module__)
"""Where public names are from; JSON is any value."""
PUBLIC = [
    "mnemic",
    "mnemic.agents",
    "mnemic.agents.sync",
    "mnemic.api",
    "mnemic.dialects",
    "mnemic.dialects.enhanced",
    "mnemic.dialects.fence",
    "mnemic.dialects.marsys",
    "mnemic.dialects.opper",
    "mnemic.dialects.tframex",
    "mnemic.doctor",
    "mnemic.errors",
    "mnemic.evaluate",
    "mnemic.formats",
    "mnemic.mcp",
    "mnemic.messages",
    "mnemic.models.embedder",
    "mnemic.recallset",
    "mnemic.records",
    "mnemic.store",
    "mnemic.store.diagnosis",
    "mnemic.store.planning",
    "mnemic.store.protocol",
    "mnemic.store.query",
    "mnemic.store.registry",
    "mnemic.store.stream_state",
    "mnemic.sync",
    "mnemic.telemetry",
    "mnemic.testing",
    "mnemic.tokens",
]
"""The modules that users and authors of stores import from."""


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_says_what_it_exports(module: str) -> None:
    exported = list(importlib.import_module(module).__all__)
    brought: dict[str, object] = {}
    exec(f"from {module} import *", brought)
    del brought["__builtins__"]
    assert sorted(brought) == sorted(exported)
    foreign = [
        name
        for name, value in brought.items()
        if isinstance(value, ModuleType)
        or (
            isinstance(value, type | FunctionType)
            and value is not Any
            and value.__module__.partition(".")[0] != "mnemic"
        )
    ]
    assert foreign == []


def test_the_documents_import_from_public_modules_alone() -> None:
    root = Path(__file__).parent.parent
    texts = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.py")]
    imported = {
        found for text in texts for found in re.findall(r"^\s*from (mnemic[\w.]*) import", text.read_text(), re.M)
    }
    assert len(imported) > 5
    # Adapters are public too; they can be imported only where their frameworks are.
    assert {module for module in imported - set(PUBLIC) if not module.startswith("mnemic.adapters.")} == set()


def test_the_extra_all_has_every_extra_but_those_for_tests_large_models_and_agent_frameworks() -> None:
    root = Path(__file__).parent.parent
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (every,) = extras.pop("all")
    named = re.fullmatch(r"mnemic\[(.*)\]", every)
    assert named is not None
    left_out = {"fastembed", "presidio", "sentence-transformers", "testing"}
    adapters = {path.stem.replace("_", "-") for path in (root / "src" / "mnemic" / "adapters").glob("*.py")}
    assert set(named[1].split(",")) == set(extras) - left_out - adapters

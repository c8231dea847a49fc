"""Write the sync API, sync.py and agents/sync.py, from the async one: `tools/generate_sync.py [--check]`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "src" / "mnemic"
TARGET = PACKAGE / "sync.py"
WIDTH = 120
SOURCES = [
    "features/sessions.py",
    "features/listing.py",
    "features/notes.py",
    "features/memories.py",
    "features/facts.py",
    "features/state.py",
    "memory.py",
    "scope.py",
]

HEADER = '''"""The sync API: each class wraps an async object. Made by tools/generate_sync.py; do not edit."""

# fmt: off
from __future__ import annotations

'''

OPEN = '''
def open(
    url: str, *, tokens: Tokens = DEFAULT_ENCODING, embedder: Embedder | str | None = AUTO, index: Indexing = None,
    encryption_key: EncryptionKeys | None = None, audit: Auditing = None,
    signing_key: SigningKeys | None = None, redact: Redacting = None,
    history: timedelta | bool | Literal["recorded"] | None = None, index_bytes: int = INDEX_BYTES,
    clock: Callable[[], datetime] | None = None,
) -> Memory:
    """Open the memory at a URL, such as `sqlite:///agent.db` or `memory://`.

    `tokens` selects the token counter, `embedder` the vectors: an Embedder or its name; "auto" is the one that made
    the store's vectors, None is keyword search only. `index` is the URL of a companion index for recall, or a
    LangChain vector store.
    `encryption_key` encrypts all content: 32 bytes, a Fernet key, "file:PATH", "env:NAME", a `MasterKey`, a list of
    these whose first encrypts, or an `Encryption`. `audit` logs all changes: True for the same store, another store
    or its URL, or an `Audit`. `signing_key` signs the audit log and certificates: a `SigningKey`, 32 bytes,
    "file:PATH", "env:NAME", or a list whose first key signs; None is a key that is kept in the store. `redact`
    replaces personal data and secrets before they are stored: True for all known types, or a `Redaction`. `history`
    is how long versions that are replaced or deleted are kept, for `history`, `restore` and `as_of` of a scope;
    with True, as long as before, or 30 days in a store without a history; with "recorded", only if it has one.
    `index_bytes` bounds the memory of all cached indexes together, except for a single larger one. `clock` is a
    function that returns the current time, for tests that move it; by default the system's. Raises
    InvalidValueError for a bad URL or key, UnknownSchemeError, MissingExtraError, EmbedderError if the store's
    vectors have another embedder, or a StoreError if the store cannot be opened, such as DecryptionError with a
    wrong key.
    """
    _, backend = registry.find(url)
    inline = backend.inline and index is None and logs_inline(audit, redact)
    driver: Driver = Inline() if inline else Portal()
    try:
        opening = open_async(
            url, tokens=tokens, embedder=embedder, index=index, encryption_key=encryption_key, audit=audit,
            signing_key=signing_key, redact=redact, history=history, index_bytes=index_bytes, clock=clock,
        )
        memory = driver.run(opening._opened())
        driver.close_when_dropped(memory.close)
        return Memory(memory, driver)
    except BaseException:
        driver.close()
        raise


def copy(
    source: str, target: str, *, scope: ScopePath | str | None = None, reembed: bool = False, merge: bool = False,
    source_key: EncryptionKeys | None = None, target_key: EncryptionKeys | None = None, redact: Redacting = None,
    progress: Callable[[int, int], object] | None = None,
) -> Copied:
    """Copy everything at one URL, or one scope of it, to another URL, and verify it.

    If interrupted, call it again: it resumes. Vectors are copied; EmbedderError is raised if the target has another
    embedder, unless `reembed` recomputes them. A target stream with records that the source does not have raises
    ConflictError, unless `merge` is true. `source_key` decrypts the source, `target_key` encrypts the target; with
    neither, ciphertext is copied as it is. `redact` replaces personal data and secrets in the copy, as `open` does;
    without a vault. `progress` is called with the number of records done and the total. Raises NotFoundError if the
    source does not exist or has nothing to copy, DecryptionError if a key is missing or wrong, StoreError if the
    verification fails.
    """
    inline = all(registry.find(url)[1].inline for url in (source, target))
    driver: Driver = Inline() if inline else Portal()
    try:
        return driver.run(copy_async(
            source, target, scope=scope, reembed=reembed, merge=merge, source_key=source_key, target_key=target_key,
            redact=redact, progress=progress,
        ))
    finally:
        driver.close()
'''

AGENTS = '''
def open_journal(scope: Scope) -> Journal:
    """Open the journal of agents' writes in a scope, to list and undo them."""
    return Journal(AsyncJournal(scope._async), scope._driver)


def open_learner(memory: Scope | Memory | str, model: Any = None, *, name: str = "learner") -> Learner:
    """Open a learner for the conversations of a scope, on a background event loop; `close` it after use.

    Arguments and errors are those of `AsyncLearner`.
    """
    return Learner(AsyncLearner(memory, model, name=name), Portal())
'''


class Module(NamedTuple):
    """A module that is written: where, from which sources, and what stands first and last in it."""

    target: Path
    sources: list[str]
    header: str
    tail: str


MODULES = [
    Module(TARGET, SOURCES, HEADER, OPEN),
    Module(
        PACKAGE / "agents" / "sync.py",
        ["agents/journal.py", "agents/learning.py"],
        HEADER.replace("The sync API: each class wraps an async object", "The sync API of the journal and the learner"),
        AGENTS,
    ),
]


def main() -> int:
    """Write the files, or with --check tell whether they are up to date."""
    for module in MODULES:
        text = formatted(generate(module))
        if "--check" not in sys.argv:
            module.target.write_text(text)
        elif not module.target.exists() or module.target.read_text() != text:
            print(f"{module.target} is not what tools/generate_sync.py writes: run it", file=sys.stderr)
            return 1
    return 0


def generate(made: Module) -> str:
    """Return the module's text."""
    classes: list[str] = []
    imports: dict[str, set[str]] = {}
    names: set[str] = set()
    known: dict[str, tuple[str, str | None]] = {}
    trees = [ast.parse((PACKAGE / source).read_text()) for source in made.sources]
    for source, tree in zip(made.sources, trees, strict=True):
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                module = _module(source, node)
                for alias in node.names:
                    known[alias.asname or alias.name] = (module, alias.name)
            elif isinstance(node, ast.ClassDef | ast.Assign | ast.AnnAssign):
                module = "." + source.removesuffix(".py").replace("/", ".")
                for name in _defined(node):
                    known[name] = (module, name)
    for tree in trees:
        nodes = (node for node in tree.body if isinstance(node, ast.ClassDef))
        classes += [sync_class(node) for node in nodes if node.name.startswith("Async")]
    body = "\n\n".join(classes) + "\n\n" + made.tail
    names |= {found.id for found in ast.walk(ast.parse(body)) if isinstance(found, ast.Name)}
    needed = {
        **known,
        "BorrowedDriver": (".event_loop", "BorrowedDriver"),
        "Driver": (".event_loop", "Driver"),
        "Auditing": (".layers.audit_settings", "Auditing"),
        "Copied": (".copying", "Copied"),
        "copy_async": (".copying", "copy_async"),
        "Inline": (".event_loop", "Inline"),
        "Portal": (".event_loop", "Portal"),
        "open_async": (".memory", "open_async"),
        "logs_inline": (".memory", "logs_inline"),
        "Redacting": (".redaction.config", "Redacting"),
        "INDEX_BYTES": (".recall.index_entry", "INDEX_BYTES"),
        "registry": (".store", "registry"),
        "contextmanager": ("contextlib", "contextmanager"),
        "Iterator": ("collections.abc", "Iterator"),
    }
    if made.target != TARGET:
        needed |= {"Memory": (".sync", "Memory"), "Scope": (".sync", "Scope")}
    typing_only = sorted({"networkx", "pandas"} & names)
    for name in sorted(names & needed.keys()):
        module, original = needed[name]
        module = _seen_from(made.target.parent, module)
        imports.setdefault(module, set()).add(original or name)
    if typing_only:
        imports.setdefault("typing", set()).add("TYPE_CHECKING")
    lines = [f"from {module} import {', '.join(sorted(found))}" for module, found in sorted(imports.items())]
    guarded = (
        "".join(["\nif TYPE_CHECKING:\n", *(f"    import {name}\n" for name in typing_only)]) if typing_only else ""
    )
    defined = [node.name for node in ast.parse(body).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    exported = f"\n__all__ = {json.dumps(sorted(defined))}\n"
    return made.header + "\n".join(lines) + "\n" + guarded + exported + "\n\n" + body


def _module(source: str, node: ast.ImportFrom) -> str:
    """Return what an import of a source file names, as seen from the package's own folder."""
    if not node.level:
        return node.module or ""
    folders = source.split("/")[:-1]
    above = folders[: len(folders) - (node.level - 1)]
    return "." + ".".join([*above, *filter(None, [node.module])])


def _seen_from(folder: Path, module: str) -> str:
    """Return a module of the package's own folder as it is seen from a folder in it."""
    if folder == PACKAGE or not module.startswith("."):
        return module
    inside = f".{folder.name}."
    return "." + module.removeprefix(inside) if module.startswith(inside) else f".{module}"


def sync_class(node: ast.ClassDef) -> str:
    """Return the sync class that wraps an async one."""
    name = _sync_name(node.name)
    bases = [_sync_name(ast.unparse(base)) for base in node.bases]
    lines = [f"class {name}{f'({bases[0]})' if bases else ''}:", _doc(node, 1)]
    lines += [
        f"    def __init__(self, wrapped: {node.name}, driver: Driver) -> None:",
        *(["        super().__init__(wrapped, driver)"] if bases else ["        self._driver = driver"]),
        f"        self._async{f': {node.name}' if bases else ''} = wrapped",
        *(attribute(item) for item in node.body if isinstance(item, ast.AnnAssign)),
        "",
    ]
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            lines += method(item, name)
    return "\n".join(lines)


def attribute(item: ast.AnnAssign) -> str:
    """Return the line of `__init__` that takes over an attribute, itself wrapped if it is async."""
    assert isinstance(item.target, ast.Name)
    name, type_ = item.target.id, _sync_names(ast.unparse(item.annotation))
    read = f"wrapped.{name}"
    return f"        self.{name}: {type_} = {f'{type_}({read}, driver)' if _is_ours(type_) else read}"


def method(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> list[str]:
    """Return the sync form of a method, or nothing if it is not public."""
    if node.name == "__repr__":  # which reads only what both have
        return [*(f"    {line}" for line in ast.unparse(node).splitlines()), ""]
    name = {"__aenter__": "__enter__", "__aexit__": "__exit__"}.get(node.name, node.name)
    if name.startswith("_") and name not in ("__enter__", "__exit__"):
        return []
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    returned = _sync_names(ast.unparse(node.returns) if node.returns else "None")
    doc = [text] if (text := _doc(node, 2)) else []
    if "asynccontextmanager" in decorators:
        returned = returned.replace("AsyncIterator[", "Iterator[")
    head = filled(f"    def {name}(", _parameters(node.args), f") -> {returned}:")
    if "overload" in decorators:
        return ["    @overload", f"{head} ...", ""]
    if name == "__enter__":
        return [head, "        return self", ""]
    if "property" in decorators:
        return ["    @property", head, *doc, f"        return self._async.{name}", ""]
    passed = _passed(node.args)
    if "asynccontextmanager" in decorators:
        return [
            "    @contextmanager",
            head,
            *doc,
            filled(f"        context = self._async.{name}(", passed, ")"),
            "        self._driver.run(context.__aenter__())",
            "        try:",
            "            yield self",
            "        finally:",
            "            self._driver.run(context.__aexit__(None, None, None))",
            "",
        ]
    before, after = f"self._async.{node.name}(", ")"
    if isinstance(node, ast.AsyncFunctionDef):
        before, after = f"self._driver.run({before}", "))"
    if _is_ours(returned):
        driver = "BorrowedDriver(self._driver)" if returned == "Memory" else "self._driver"
        before, after = f"{returned}({before}", f"{after}, {driver})"
    call = filled(f"        {'return ' if returned != 'None' else ''}{before}", passed, after)
    if owner in ("Memory", "Learner") and name == "close":
        call = "        self._driver.close(self._async.close())"
    if owner in ("Memory", "Learner") and name == "__exit__":
        call = "        self.close()"
    return [head, *doc, call, ""]


def filled(before: str, items: list[str], after: str) -> str:
    """Return a call or signature on one line or, if it is too long, with its arguments filling the lines between."""
    line = before + ", ".join(items) + after
    if len(line) <= WIDTH:
        return line
    indent = before[: len(before) - len(before.lstrip())]
    lines, width = [f"{indent}   "], WIDTH
    for item in items:
        if len(lines[-1]) + len(item) + 2 > width:
            lines.append(f"{indent}   ")
        lines[-1] += f" {item},"
    return "\n".join([before, *lines, indent + after])


def formatted(text: str) -> str:
    """Return the text with sorted imports; nothing else is reformatted, so that arguments fill their lines."""
    ruff = [sys.executable, "-m", "ruff", "check", "--select", "I", "--fix", "--quiet", "-"]
    ruff += ["--stdin-filename", str(TARGET)]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603


def _defined(node: ast.ClassDef | ast.Assign | ast.AnnAssign) -> list[str]:
    if isinstance(node, ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _doc(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, depth: int) -> str:
    text = ast.get_docstring(node, clean=False)
    if text is None:
        return ""
    text = text.replace("an `async with`", "a `with`").replace("`async with", "`with")
    return f'{"    " * depth}"""{text}"""' + ("\n" if isinstance(node, ast.ClassDef) else "")


def _parameters(arguments: ast.arguments) -> list[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    found = [_parameter(argument, default) for argument, default in zip(positional, defaults, strict=True)]
    if arguments.vararg:
        found.append(f"*{_parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        found.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found += [_parameter(argument, default) for argument, default in pairs]
    return found + ([f"**{_parameter(arguments.kwarg, None)}"] if arguments.kwarg else [])


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = "" if argument.annotation is None else f": {_sync_names(ast.unparse(argument.annotation))}"
    if default is None:
        return argument.arg + annotation
    value = ast.unparse(default)
    value = value if not value.startswith("'") else f'"{value[1:-1]}"'
    return f"{argument.arg}{annotation} = {value}"


def _passed(arguments: ast.arguments) -> list[str]:
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)][1:]
    passed = positional + [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    if arguments.vararg:
        passed.insert(len(positional), f"*{arguments.vararg.arg}")
    return passed + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


def _sync_name(name: str) -> str:
    return name.removeprefix("Async")


OURS = (
    "AsyncMemory",
    "AsyncScope",
    "AsyncSession",
    "AsyncSessions",
    "AsyncNotes",
    "AsyncFacts",
    "AsyncState",
    "AsyncMemories",
    "AsyncLearner",
)


def _sync_names(annotation: str) -> str:
    for name in OURS:
        annotation = annotation.replace(name, _sync_name(name))
    return annotation


def _is_ours(annotation: str) -> bool:
    return f"Async{annotation}" in OURS


if __name__ == "__main__":
    sys.exit(main())

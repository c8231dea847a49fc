"""The texts that the static vectors are trained on: where they come from, under which licence, and how they are read.

Every source is a public Git repository whose licence allows what is learned from it to be passed on. Conversations
by which recall is measured (LoCoMo, REALTALK, BEAM, FriendsQA, the validation and test files of QMSum) are not here.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

RUNS = (60, 120, 240, 400, 600)
"""How many characters a run of sentences has at least: as turns and answers have them."""

Texts = Iterator[list[str]]
"""Documents: the sentences, turns or utterances of each, in order."""


class Source(NamedTuple):
    """Files of one repository, and how to read them."""

    repository: str
    licence: str
    files: str
    """A Git pathspec."""
    read: Callable[[str], Texts]


def read_lines(text: str) -> Texts:
    """Read independent sentences, one in a line."""
    for line in text.splitlines():
        yield [line]


def read_self_dialogues(text: str) -> Texts:
    """Read the answers of a crowd-sourcing batch: twenty sentences of one dialogue in each row."""
    for row in csv.DictReader(io.StringIO(text)):
        turns = ((int(key[15:]), value) for key, value in row.items() if key and key.startswith("Answer.sentence"))
        yield [turn for _, turn in sorted(turns) if turn]


def read_persona_chats(text: str) -> Texts:
    """Read personas and the conversations that were written for them."""
    for row in csv.DictReader(io.StringIO(text)):
        yield row["user 1 personas"].splitlines()
        yield row["user 2 personas"].splitlines()
        yield [re.sub(r"^User \d: *", "", turn) for turn in row["Best Generated Conversation"].splitlines()]


def read_taskmaster(text: str) -> Texts:
    """Read dialogues of Taskmaster."""
    for dialogue in json.loads(text):
        yield [turn["text"] for turn in dialogue["utterances"]]


def read_taskmaster_rewards(text: str) -> Texts:
    """Read the beginnings of dialogues that Taskmaster's rewards were given for."""
    for item in json.loads(text):
        yield [turn["text"] for turn in json.loads(item["context"]) if turn.get("text")]


def read_meetings(text: str) -> Texts:
    """Read transcripts of QMSum, the questions about them and the answers."""
    for line in text.splitlines():
        meeting = json.loads(line)
        yield [re.sub(r"\{.*?\}", " ", turn["content"]) for turn in meeting["meeting_transcripts"]]
        for asked in meeting["general_query_list"] + meeting["specific_query_list"]:
            yield [asked["query"]]
            yield sentences(asked["answer"])


def read_molweni(text: str) -> Texts:
    """Read dialogues of Molweni."""
    for dialogue in json.loads(text):
        yield [turn["text"] for turn in dialogue["edus"]]


def read_problems(text: str) -> Texts:
    """Read word problems with their solutions."""
    for line in text.splitlines():
        item = json.loads(line)
        yield sentences(item["question"])
        yield sentences(re.sub(r"<<.*?>>|####", " ", item["answer"]).replace("\n", ". "))


def read_intents(text: str) -> Texts:
    """Read utterances of CLINC150."""
    for items in json.loads(text).values():
        for utterance, _ in items:
            yield [utterance]


def read_snips(text: str) -> Texts:
    """Read utterances of Snips, which are stored in pieces."""
    for items in json.loads(text).values():
        for item in items:
            if isinstance(item, dict):
                yield ["".join(piece["text"] for piece in item["data"])]


def read_field(*names: str, delimiter: str = ",") -> Callable[[str], Texts]:
    """Read columns of a table."""

    def read(text: str) -> Texts:
        for row in csv.DictReader(io.StringIO(text), delimiter=delimiter):
            yield [row[name] for name in names if row.get(name)]

    return read


def read_sentence_lines(text: str) -> Texts:
    """Read JSON lines, each with a sentence."""
    for line in text.splitlines():
        yield [json.loads(line)["sentence"]]


def read_utterances(text: str) -> Texts:
    """Read what users said, from JSON."""
    for item in json.loads(text):
        yield [item["userInput"]["text"]]


def read_assistant_messages(text: str) -> Texts:
    """Read prompts and answers of Open Assistant."""
    waiting: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    while waiting:
        message = waiting.pop()
        yield from read_markdown(message["text"])
        waiting.extend(message.get("replies") or [])


def read_markup(text: str) -> Texts:
    """Read the paragraphs of XML or HTML."""
    text = re.sub(r"(?s)<(m:math|math|code|pre|head|metadata|svg)\b.*?</\1>", " ", text)
    paragraphs = re.findall(r"(?s)<(p|para|item|title|li|td|blockquote)\b[^>]*>(.*?)</\1>", text)
    yield [part for _, content in paragraphs for part in sentences(unescape(re.sub(r"<[^>]*>", "", content)))]


def read_markdown(text: str) -> Texts:
    """Read the paragraphs and list items of Markdown, without code."""
    text = re.sub(r"(?s)\A---\n.*?\n---\n", "", text)
    text = re.sub(r"(?s)(```|~~~).*?(\1|\Z)|<!--.*?-->", "\n", text)
    text = re.sub(r"\{%-? data variables\.product\.[\w.]+ -?%\}", "GitHub", text)
    text = re.sub(r"(?s)\{%.*?%\}|\{\{.*?\}\}|\[[^\]]*\]: .*", " ", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", " ", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = unescape(re.sub(r"<[^>]*>|[*_`]{1,3}", "", text))
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*+>|#]|\d+\.)\s)", text)
    yield [
        part
        for paragraph in paragraphs
        if "|" not in paragraph
        for part in sentences(re.sub(r"^\s*(?:[-*+>#]+|\d+\.)\s*", "", paragraph))
    ]


def sentences(text: str) -> list[str]:
    """Cut a paragraph at the ends of its sentences."""
    return re.split(r"(?<=[.!?])[\"')\u201d\u2019]*\s+(?=[\"'(\u201c\u2018]?[A-Z0-9])", " ".join(text.split()))


BOOKS = (
    "agatha-christie_the-murder-on-the-links",
    "arthur-conan-doyle_the-adventures-of-sherlock-holmes",
    "f-scott-fitzgerald_the-great-gatsby",
    "l-m-montgomery_anne-of-green-gables",
    "p-g-wodehouse_right-ho-jeeves",
    "sinclair-lewis_main-street",
)
COURSES = (
    "college-success",
    "introduction-anthropology",
    "introduction-python-programming",
    "principles-economics-bundle",
)

SOURCES = (
    Source("jfainberg/self_dialogue_corpus", "BSD-3-Clause", ":(glob)corpus/**/*.csv", read_self_dialogues),
    Source(
        "google-research-datasets/Synthetic-Persona-Chat",
        "CC-BY-4.0",
        ":(glob)data/Synthetic-Persona-Chat_[tv][ea][sl]*.csv",
        read_persona_chats,
    ),
    Source("google-research-datasets/Taskmaster", "CC-BY-4.0", "TM-4-2024/data", read_taskmaster),
    Source("google-research-datasets/Taskmaster", "CC-BY-4.0", "TM-3-2020/reward", read_taskmaster_rewards),
    Source("common-voice/common-voice", "CC0-1.0", ":(glob)server/data/en/[!wL]*.txt", read_lines),
    Source("Yale-LILY/QMSum", "MIT", "data/Academic/jsonl/train.jsonl", read_meetings),
    Source("Yale-LILY/QMSum", "MIT", "data/Committee/jsonl/train.jsonl", read_meetings),
    Source("HIT-SCIR/Molweni", "Apache-2.0", "DP/test.json", read_molweni),
    Source("HIT-SCIR/Molweni", "Apache-2.0", "DP/dev.json", read_molweni),
    Source("openai/grade-school-math", "MIT", "grade_school_math/data/train.jsonl", read_problems),
    Source("clinc/oos-eval", "CC-BY-3.0", "data/data_full.json", read_intents),
    Source("snipsco/nlu-benchmark", "CC0-1.0", ":(glob)2017-06-custom-intent-engines/*/*_full.json", read_snips),
    Source("pswietojanski/slurp", "CC-BY-4.0", ":(glob)dataset/slurp/[dt]e[vs]*.jsonl", read_sentence_lines),
    Source("PolyAI-LDN/task-specific-datasets", "CC-BY-4.0", ":(glob)banking_data/*.csv", read_field("text")),
    Source(
        "PolyAI-LDN/task-specific-datasets", "CC-BY-4.0", ":(glob)span_extraction/restaurant8k/t*.json", read_utterances
    ),
    Source(
        "LAION-AI/Open-Assistant",
        "Apache-2.0",
        ":(glob)model/model_eval/manual/data/en_100_message.jsonl",
        read_assistant_messages,
    ),
    Source("github/docs", "CC-BY-4.0", ":(glob)content/**/*.md", read_markdown),
    Source("kubernetes/website", "CC-BY-4.0", ":(glob)content/en/docs/[ct]*/**/*.md", read_markdown),
    Source("kubernetes/website", "CC-BY-4.0", ":(glob)content/en/blog/**/*.md", read_markdown),
    Source("MicrosoftDocs/architecture-center", "CC-BY-4.0", ":(glob)docs/**/*.md", read_markdown),
    Source("microsoft/Web-Dev-For-Beginners", "MIT", ":(glob)[0-9]*/**/*.md", read_markdown),
    Source("microsoft/Data-Science-For-Beginners", "MIT", ":(glob)[0-9]*/**/*.md", read_markdown),
    Source("18F/18f.gsa.gov", "CC0-1.0", ":(glob)**/*.md", read_markdown),
    Source("18F/handbook", "CC0-1.0", ":(glob)**/*.md", read_markdown),
    Source("LukeSmithxyz/based.cooking", "Unlicense", ":(glob)content/*.md", read_markdown),
    *(Source(f"openstax/osbooks-{name}", "CC-BY-4.0", ":(glob)modules/**/*.cnxml", read_markup) for name in COURSES),
    *(Source(f"standardebooks/{name}", "CC0-1.0", ":(glob)src/epub/text/*.xhtml", read_markup) for name in BOOKS),
)


def files_of(folder: Path, pathspec: str) -> Iterator[str]:
    """Read the files of a repository's newest commit."""
    archive = subprocess.run(["git", "-C", folder, "archive", "HEAD", pathspec], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            content = members.extractfile(member) if member.isfile() else None
            if content is not None:
                yield content.read().decode("utf-8-sig", "replace").replace("\0", "")


def usable(text: str) -> bool:
    """Tell whether a text is mostly English letters."""
    letters = sum(c.isascii() and (c.isalpha() or c == " ") for c in text)
    return 2 < len(text) < 2000 and letters > 0.75 * len(text)


def pieces(document: Iterable[str], chance: random.Random) -> Iterator[str]:
    """Cut a document into what is embedded: each sentence, and after some of them the run that they make."""
    run: list[str] = []
    size = chance.choice(RUNS)
    for part in document:
        text = " ".join(part.split())
        if usable(text):
            yield text
            run.append(text)
            if sum(map(len, run)) >= size:
                if len(run) > 1:
                    yield " ".join(run)
                run, size = [], chance.choice(RUNS)


def main(folder: Path, into: Path) -> None:
    """Write the texts, without repetitions, and print how many come from where."""
    seen: set[str] = set()
    counts: dict[tuple[str, str], int] = {}
    chance = random.Random(1)
    with into.open("w", encoding="utf-8") as out:
        for source in SOURCES:
            repository = find_repository(folder, source.repository)
            for content in files_of(repository, source.files):
                for document in source.read(content):
                    for text in pieces(document, chance):
                        if text.lower() not in seen:
                            seen.add(text.lower())
                            out.write(text + "\n")
                            key = (source.repository, source.licence)
                            counts[key] = counts.get(key, 0) + 1
            print(source.repository, source.licence, counts.get((source.repository, source.licence), 0), flush=True)
    print(sum(counts.values()), "texts")


def find_repository(folder: Path, name: str) -> Path:
    """Return where a repository's clone lies: owner+name, or owner/name."""
    owner, _, rest = name.partition("/")
    for place in (folder / f"{owner}+{rest}" / "repo", folder / f"{owner}+{rest}", folder / owner / rest):
        if place.is_dir():
            return place
    raise FileNotFoundError(f"no clone of {name} below {folder}: git clone https://github.com/{name}")


if __name__ == "__main__":
    import sys

    main(Path(sys.argv[1]), Path(sys.argv[2]))

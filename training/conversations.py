"""Writes conversations and questions about them, to train the conversation embedder on, as a recall set.

usage: conversations.py CLONES OUT.jsonl

Every source is a public Git repository whose licence allows what is learned from it to be passed on. The questions are
made by rule: what one speaker asked, as a question about the other; when someone did what they say they did; what a
persona says; all that someone says about their hobbies, family, travels; headings of documentation, and prompts. No
conversation by which recall is measured is here.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dialogue_questions import USER, Question, Turn, asked_in, collected, done_in, of_user, persona_questions
from texts import files_of, find_repository, read_self_dialogues

SCOPE = 600
"""How many turns the dialogues have that are put into one conversation, as its sessions."""
MAX_SECTION = 3000
"""How many characters of a section or an answer are kept."""
NAMES = tuple(
    """
    Alice Ben Carla David Emma Felix Grace Henry Iris Jack Kate Liam Maya Noah Olivia Peter Quinn Rosa Sam Tina
    Umar Vera Walter Xenia Yusuf Zoe Andrew Bella Carlos Diana Ethan Fiona George Hannah Ivan Julia Kevin Laura
    """.split()  # noqa: SIM905
)


class Dialogue(NamedTuple):
    """One session."""

    turns: list[Turn]
    questions: list[Question]


# ---------------------------------------------------------------- sources


def self_dialogues(text: str, chance: random.Random) -> Iterator[Dialogue]:
    """Read dialogues that one person wrote for two."""
    for said in read_self_dialogues(text):
        names = chance.sample(NAMES, 2)
        turns = [(names[n % 2], " ".join(part.split())) for n, part in enumerate(said)]
        yield Dialogue(turns, [*asked_in(turns, chance), *done_in(turns, chance)])


def persona_chats(text: str, chance: random.Random) -> Iterator[Dialogue]:
    """Read chats of two personas."""
    for row in csv.DictReader(io.StringIO(text)):
        names = chance.sample(NAMES, 2)
        said = re.findall(r"(?m)^User (\d): *(.+)$", row["Best Generated Conversation"])
        turns = [(names[int(number) == 2], part) for number, part in said]
        made = [*asked_in(turns, chance), *done_in(turns, chance)]
        for number, name in enumerate(names, 1):
            made += persona_questions(turns, name, row[f"user {number} personas"].splitlines(), chance)
        yield Dialogue(turns, made)


def documentation(text: str, chance: random.Random) -> Iterator[Dialogue]:
    """Read Markdown: a section is a long turn of an assistant, and its heading asks for it."""
    match = re.search(r"(?m)^title: *[\"']?(.*?)[\"']?$", text)
    title = match[1] if match else ""
    text = re.sub(r"(?s)\A---\n.*?\n---\n|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", "", text)
    parts = re.split(r"(?m)^#{2,4} +(.*)$", text)
    turns: list[Turn] = []
    questions = []
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        body = body.strip()[:MAX_SECTION]
        if len(body) > 300 and len(heading.split()) > 1:
            asked = chance.choice(
                ("{}", "How did I go about {}?", "What did you tell me about {}?", "Can you remind me of {}?")
            )
            questions.append(
                Question(asked.format(f"{heading} ({title})" if chance.random() < 0.5 else heading), [len(turns)])
            )
            turns.append(("", body))
    if turns:
        yield Dialogue(turns, questions)


def assistant_trees(text: str, chance: random.Random) -> Iterator[Dialogue]:
    """Read trees of Open Assistant: a prompt asks for its answer."""
    for line in text.splitlines():
        waiting: list[dict[str, Any]] = [json.loads(line)["prompt"]]
        turns: list[Turn] = []
        questions = []
        while waiting:
            message = waiting.pop()
            for reply in (message.get("replies") or [])[:1]:
                if message["role"] == "prompter":
                    questions.append(Question(message["text"][:300], [len(turns)]))
                    turns.append(("", reply["text"][:MAX_SECTION]))
                waiting.append(reply)
        if turns:
            yield Dialogue(turns, questions)


def assisted(dialogues: list[Dialogue], sections: list[str], chance: random.Random) -> Iterator[Dialogue]:
    """Return chats of a user and an assistant: what one speaker says, a few turns at a time, between long answers."""
    for dialogue in dialogues:
        name = chance.choice(dialogue.turns)[0]
        turns: list[Turn] = []
        place_of = {}
        last = -9
        for place, (speaker, text) in enumerate(dialogue.turns):
            if speaker != name or any(question.without == place for question in dialogue.questions):
                continue
            if turns and place - last < 7 and len(turns[-1][1]) < 250:
                turns[-1] = (USER, f"{turns[-1][1]} {text}")
            else:
                turns += [("", chance.choice(sections))] * bool(turns) + [(USER, text)]
                last = place
            place_of[place] = len(turns) - 1
        questions = []
        for question in dialogue.questions:
            evidence = [place_of[n] for n in question.evidence if n in place_of]
            if evidence and name in question.text:
                questions.append(Question(of_user(question.text, name), evidence))
        if questions:
            yield Dialogue(turns, questions)


Reader = Callable[[str, random.Random], Iterator[Dialogue]]
SOURCES: tuple[tuple[str, str, str, Reader, int], ...] = (
    ("jfainberg/self_dialogue_corpus", "BSD-3-Clause", ":(glob)corpus/**/*.csv", self_dialogues, 15_000),
    ("google-research-datasets/Synthetic-Persona-Chat", "CC-BY-4.0",
     ":(glob)data/Synthetic-Persona-Chat_[tv][ea][sl]*.csv", persona_chats, 8_000),
    ("github/docs", "CC-BY-4.0", ":(glob)content/**/*.md", documentation, 700),
    ("LAION-AI/Open-Assistant", "Apache-2.0", ":(glob)model/model_eval/manual/data/en_100_tree.jsonl",
     assistant_trees, 1_000),
)  # fmt: skip
"""Repository, licence, files (a Git pathspec), how they are read, and the number of questions to take at most."""
ASSISTED = {self_dialogues: 300, persona_chats: 300}
"""How many of the other dialogues become chats with an assistant."""


def two_names(dialogue: Dialogue) -> Dialogue:
    """Give the two speakers of a dialogue the names that all dialogues of the conversation share."""
    known = list(dict.fromkeys(name for name, _ in dialogue.turns))
    if len(known) != 2:
        return dialogue
    new = dict(zip(known, NAMES[:2], strict=True))
    turns = [(new[name], text) for name, text in dialogue.turns]
    named = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in known))
    return Dialogue(turns, [q._replace(text=named.sub(lambda m: new[m[0]], q.text)) for q in dialogue.questions])


def conversation(id: str, dialogues: list[Dialogue], chance: random.Random) -> dict[str, Any]:
    """Return a conversation in the format of recall sets."""
    turns, questions = [], []
    for session, dialogue in enumerate(dialogues):
        gone = {question.without for question in dialogue.questions}
        for place, (name, text) in enumerate(dialogue.turns):
            if place not in gone and text.strip():
                role = "user" if name else "assistant"
                turn = {"id": f"{session}:{place}", "session": str(session), "role": role, "text": text.strip()}
                turns.append(turn | ({"name": name} if name not in ("", USER) else {}))
        known = {turn["id"] for turn in turns}
        for question in dialogue.questions:
            evidence = [f"{session}:{n}" for n in question.evidence if f"{session}:{n}" in known]
            if evidence:
                questions.append({"question": question.text, "evidence": evidence})
    questions += collected(turns, chance)
    return {"id": id, "turns": turns, "questions": [{"id": str(n)} | asked for n, asked in enumerate(questions)]}


def main(folder: Path, into: Path) -> None:
    """Write the conversations, and print how many questions come from where."""
    chance = random.Random(1)
    chats: list[Dialogue] = []
    sections: list[str] = []
    with into.open("w", encoding="utf-8") as out:
        for repository, licence, files, read, most in SOURCES:
            clone = find_repository(folder, repository)
            found = [one for text in files_of(clone, files) for one in read(text, chance) if one.questions]
            chance.shuffle(found)
            long = read in (documentation, assistant_trees)
            if long:
                sections += [text for one in found for _, text in one.turns]
            scopes: list[list[Dialogue]] = [[]]
            size = count = taken = 0
            while taken < len(found) and count < most:
                shared = not long and len(scopes) % 2 == 0
                if size > SCOPE // (4 if long else 3 if shared else 1):
                    scopes.append([])
                    size = 0
                one = found[taken]
                scopes[-1].append(two_names(one) if shared else one)
                taken, size, count = taken + 1, size + len(one.turns), count + len(one.questions)
            chats += found[taken : taken + ASSISTED.get(read, 0)]
            for number, dialogues in enumerate(scopes):
                made = conversation(f"{Path(repository).name}-{number}", dialogues, chance)
                out.write(json.dumps(made) + "\n")
            print(repository, licence, f"{len(scopes)} conversations, {count} questions", flush=True)
        chatted = list(assisted(chats, sections, chance))
        for start in range(0, len(chatted), 8):
            made = conversation(f"assisted-{start}", chatted[start : start + 8], chance)
            out.write(json.dumps(made) + "\n")
        print("with an assistant:", len(chatted), "sessions,", sum(len(one.questions) for one in chatted), "questions")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

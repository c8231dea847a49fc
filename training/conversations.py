"""Writes conversations and questions about them, to train the conversation embedder on, as a recall set.

usage: conversations.py CLONES OUT.jsonl

Every source is a public Git repository whose licence allows what is learned from it to be passed on. The questions are
made by rule: what one speaker asked, as a question about the other; when someone did what they say they did; what a
persona says; headings of documentation, and prompts. No conversation by which recall is measured is here.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from texts import files_of, find_repository, read_self_dialogues

from mnemic.recall.text_analysis import terms

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

USER = "user"
"""Speaker of a user who has no name; an assistant has an empty one."""

Turn = tuple[str, str]
"""Speaker and text."""


class Question(NamedTuple):
    """A question, the places of the turns that answer it, and a turn to leave out, which it was made from."""

    text: str
    evidence: list[int]
    without: int | None = None


class Dialogue(NamedTuple):
    """One session."""

    turns: list[Turn]
    questions: list[Question]


# ---------------------------------------------------------------- questions by rule

_ABOUT = (
    (r"\b(?:do|don't) you\b", "does {}"),
    (r"\bare(?:n't)? you\b", "is {}"),
    (r"\bwere you\b", "was {}"),
    (r"\bhave(?:n't)? you\b", "has {}"),
    (r"\byou're\b", "{} is"),
    (r"\byou've\b", "{} has"),
    (r"\byou'd\b", "{} would"),
    (r"\byou are\b", "{} is"),
    (r"\byou were\b", "{} was"),
    (r"\byou have\b", "{} has"),
    (r"\byourself\b", "{}"),
    (r"\byours?\b", "{}'s"),
    (r"\byou\b", "{}"),
)
_ASKED = re.compile(r"[^.!?]+\?")
_FILLER = re.compile(r"^(?:(?:so|well|hey|hi|and|oh|really|yeah|yes|ok|okay|but|then|wow|cool)\b[, ]*)+", re.I)
_NOT_ALONE = re.compile(r"\b(?:I|me|my|we|us|our|it|that|this|they|them|he|she|him|those|these|there)\b", re.I)
_TIME = (
    r"(?:yesterday|tonight|today|recently|the other (?:day|night)|this (?:morning|weekend|year)|in (?:19|20)\d\d|"
    r"last (?:night|week|weekend|month|year|summer|winter|fall|spring|friday|saturday|sunday)|"
    r"(?:a|one|two|three|four|five|six|few|couple(?: of)?|\d+) (?:days|weeks|months|years|hours) ago|"
    r"(?:a|an) (?:few |couple (?:of )?)?(?:days?|weeks?|months?|years?|hour) ago|when I was [^.,!?]{3,30})"
)
_PAST = {
    "went": "go", "saw": "see", "bought": "buy", "got": "get", "made": "make", "took": "take", "had": "have",
    "met": "meet", "read": "read", "ate": "eat", "drove": "drive", "flew": "fly", "began": "begin", "ran": "run",
    "won": "win", "lost": "lose", "found": "find", "heard": "hear", "left": "leave", "sold": "sell", "built": "build",
    "gave": "give", "wrote": "write", "taught": "teach", "grew": "grow", "caught": "catch", "broke": "break",
    "watched": "watch", "played": "play", "visited": "visit", "moved": "move", "started": "start", "stopped": "stop",
    "finished": "finish", "tried": "try", "learned": "learn", "attended": "attend", "joined": "join",
    "graduated": "graduate", "worked": "work", "lived": "live", "cooked": "cook", "hiked": "hike",
    "travelled": "travel", "traveled": "travel", "married": "marry", "adopted": "adopt", "listened": "listen",
    "enjoyed": "enjoy", "loved": "love", "discovered": "discover", "ordered": "order", "quit": "quit",
    "retired": "retire", "celebrated": "celebrate", "planted": "plant", "picked": "pick", "spent": "spend",
}  # fmt: skip
_DID = re.compile(rf"\bI (?:just |also |actually |really |finally )?({'|'.join(_PAST)})\b([^.!?;]*)", re.I)
_WHERE = ("go", "move", "drive", "fly", "live", "travel", "hike", "graduate", "work")
_PERSONA: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"my (favou?rite [\w ]+?) (?:is|are)\b", ("What is {}'s @1?", "What @1 does {} like best?")),
    (r"my (name|job|hobby|dream|major|passion|goal) is\b", ("What is {}'s @1?",)),
    (r"my (\w+(?: \w+)?) (?:is|are|was|were|works?|lives?)\b", ("What is {}'s @1 like?", "What about {}'s @1?")),
    (r"i (?:live|grew up|was born|am from|come from)\b", ("Where does {} live?", "Where is {} from?")),
    (r"i (?:work|am employed)\b", ("Where does {} work?", "What is {}'s job?", "What does {} do for a living?")),
    (r"i am an? ([\w ]*(?:er|or|ist|ian|ant|man|nurse|student|chef|cook|clerk))\b", ("What does {} do for a living?",)),
    (r"i have (?:\w+) (kids|children|dogs?|cats?|sisters?|brothers?|siblings|pets?|sons?|daughters?)\b",
     ("How many @1 does {} have?", "Does {} have @1?")),
    (r"i have (?:an? |the )?([\w ]+)", ("What does {} have?", "Does {} have @1?")),
    (r"i (?:like|love|enjoy|adore) (?:to )?(\w+ing|play|cook|read|watch|listen)\b", ("What does {} like to do?",
     "What are {}'s hobbies?", "How does {} spend free time?")),
    (r"i (?:like|love|enjoy|adore|hate|dislike|prefer) ([\w ]+)", ("How does {} feel about @1?", "What does {} like?")),
    (r"i (?:want|plan|hope|would like|am going|dream|am planning)\b",
     ("What are {}'s plans?", "What does {} want to do?")),
    (r"i (?:am afraid|fear)\b", ("What is {} afraid of?",)),
    (r"i am allergic\b|i (?:do not|don't|cannot|can't) eat\b|i am (?:a )?(?:vegan|vegetarian)",
     ("What can {} not eat?",)),
    (r"i drive\b", ("What car does {} drive?",)),
    (r"i (?:play|sing)\b", ("What instrument or sport does {} play?",)),
    (r"i (?:am|was) (?:married|divorced|single|engaged)\b", ("What is {}'s relationship status?",)),
    (r"i (?:study|am studying|studied|go to school|graduated)\b", ("What did {} study?",)),
)  # fmt: skip


def about(question: str, name: str) -> str | None:
    """Turn a question to someone into one about them; None if it says too little by itself."""
    if not re.search(r"\byou", question, re.I) or _NOT_ALONE.search(question):
        return None
    question = _FILLER.sub("", question)
    for pattern, said in _ABOUT:
        question = re.sub(pattern, said.format(name), question, flags=re.I)
    words = question.split()
    if not 4 <= len(words) <= 20 or len(set(terms(question))) < 3:
        return None
    question = " ".join(words)
    return question[0].upper() + question[1:]


def asked_in(turns: list[Turn], chance: random.Random) -> Iterator[Question]:
    """Return what speakers ask one another as questions about those who answer."""
    for place, ((asker, text), (name, answer)) in enumerate(itertools.pairwise(turns)):
        found = _ASKED.findall(text)
        if asker == name or not found or len(set(terms(answer))) < 3 or answer.rstrip().endswith("?"):
            continue
        question = about(found[-1].strip(), name)
        if question is not None:
            yield Question(question, [place + 1], place if chance.random() < 0.6 else None)


def done_in(turns: list[Turn], chance: random.Random) -> Iterator[Question]:
    """Return questions about what speakers say that they did: when, where, what."""
    for place, (name, text) in enumerate(turns):
        for verb, rest in _DID.findall(text):
            base = _PAST[verb.lower()]
            plain = re.sub(rf"\b{_TIME}\b", "", rest, flags=re.I)
            plain = " ".join(re.split(r"\b(?:and|but|because|so|which|who|when)\b|,", plain)[0].split())
            plain = re.sub(r"\bmy\b", "their", re.sub(r"\b(?:me|myself)\b", "them", plain))
            if len(set(terms(plain))) < 1 or re.search(r"\b(?:I|it|that|you|your|them)\b", plain):
                continue
            if plain != " ".join(rest.split()) and re.search(rf"\b{_TIME}\b", rest, re.I):
                yield Question(f"When did {name} {base} {plain}?", [place])
            elif base in _WHERE and (match := re.match(r"(?:to|in|at|from) .*?((?:for|with|on|by|after) .*)?$", plain)):
                yield Question(f"Where did {name} {base} {match[1] or ''}".strip() + "?", [place])
            elif len(plain.split()) >= 4 and chance.random() < 0.5:
                kept = plain.split()
                kept.pop(chance.randrange(len(kept)))
                yield Question(
                    f"{chance.choice(('Did', 'Why did', 'How did'))} {name} {base} {' '.join(kept)}?", [place]
                )


def persona_questions(
    turns: list[Turn], name: str, persona: Iterable[str], chance: random.Random
) -> Iterator[Question]:
    """Return questions that lines of a persona answer, and the turns in which its speaker says so."""
    for line in persona:
        wanted = set(terms(line))
        own = [
            (len(wanted & set(terms(text))), -place) for place, (speaker, text) in enumerate(turns) if speaker == name
        ]
        best, place = max(own, default=(0, 0))
        if best < 2 or best < 0.6 * len(wanted):
            continue
        low = line.lower().replace("i'm", "i am").replace("i've", "i have").strip(" .")
        for pattern, forms in _PERSONA:
            if match := re.search(pattern, low):
                said = chance.choice(forms).format(name)
                yield Question(said.replace("@1", (match[1] or "") if match.re.groups else ""), [-place])
                break


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
                own = re.sub(rf"\b{name}\b", "I", re.sub(rf"\b{name}'s\b", "my", question.text))
                questions.append(Question(own, evidence))
        if questions:
            yield Dialogue(turns, questions)


Reader = Callable[[str, random.Random], Iterator[Dialogue]]
SOURCES: tuple[tuple[str, str, str, Reader, int], ...] = (
    ("jfainberg/self_dialogue_corpus", "BSD-3-Clause", ":(glob)corpus/**/*.csv", self_dialogues, 9_000),
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


def conversation(id: str, dialogues: list[Dialogue]) -> dict[str, Any]:
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
                questions.append({"id": str(len(questions)), "question": question.text, "evidence": evidence})
    return {"id": id, "turns": turns, "questions": questions}


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
                out.write(json.dumps(conversation(f"{Path(repository).name}-{number}", dialogues)) + "\n")
            print(repository, licence, f"{len(scopes)} conversations, {count} questions", flush=True)
        made = list(assisted(chats, sections, chance))
        for start in range(0, len(made), 8):
            out.write(json.dumps(conversation(f"assisted-{start}", made[start : start + 8])) + "\n")
        print("with an assistant:", len(made), "sessions,", sum(len(one.questions) for one in made), "questions")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

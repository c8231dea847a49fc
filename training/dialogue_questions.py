"""Questions about dialogues, made by rule: which turns answer them is known from how they are made."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from mnemic.recall.text_analysis import terms

USER = "user"
"""Speaker of a user who has no name; an assistant has an empty one."""

Turn = tuple[str, str]
"""Speaker and text."""


class Question(NamedTuple):
    """A question, the places of the turns that answer it, and a turn to leave out, which it was made from."""

    text: str
    evidence: list[int]
    without: int | None = None


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

_I = r"\bi (?:also |really |just |recently |once |finally )?"
_KIN = r"mom|mother|dad|father|parents|brother|sister|son|daughter|kids|wife|husband|grand\w+|uncle|aunt|cousin|family"
_FOOD = (
    r"pizza|pasta|burgers?|chicken|salad|cake|cookies|steak|sushi|soup|bread|chocolate|cream|coffee|tea|cheese|fries|"
    r"tacos?|seafood|vegetables|fruit|breakfast|dinner|lunch|food"
)
_LISTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (rf"{_I}(?:like|love|enjoy) (?:to )?(?:\w+ing|play|cook|read|watch|paint|draw|hike|travel|swim|dance|sing|write)\b",
     ("What are {}'s hobbies?", "What does {} do in their free time?", "What does {} do to relax?")),
    (rf"{_I}(?:saw|watched)\b|\bi(?:'ve| have) (?:seen|watched)\b",
     ("What movies has {} seen?", "Which films or shows did {} watch?")),
    (rf"{_I}(?:read|finished|loved)\b.*\b(?:books?|novels?|comics?)\b|\bi'?(?:ve|m| am)? read(?:ing)?\b",
     ("What books has {} read?", "What does {} like to read?")),
    (r"\blisten(?:ing|ed)? to\b|\bfavou?rite (?:band|singer|song|album|artist)\b|\bconcerts?\b",
     ("What music does {} like?", "Which bands or artists has {} listened to?", "Which concerts did {} go to?")),
    (r"\bmy (?:dog|cat|puppy|kitten|pet|bird|hamster|horse)s?\b|\bi have (?:\w+ ){0,2}(?:dogs?|cats?|pets?)\b",
     ("What pets does {} have?", "What animals does {} live with?")),
    (rf"\bmy (?:{_KIN})\b", ("Who is in {}'s family?", "What has {} said about relatives?")),
    (rf"{_I}(?:went|travell?ed|flew|drove|moved) to\b|{_I}visited\b|\bi(?:'ve| have) been to\b|"
     r"\bmy (?:trip|vacation)\b",
     ("Where has {} been?", "Which places has {} visited?", "Where did {} travel?")),
    (rf"{_I}(?:ate|eat|cook|cooked|baked|bake|made|make|ordered|love|like)\b.*\b(?:{_FOOD})\b",
     ("What does {} like to eat?", "What did {} cook or eat?")),
    (rf"{_I}(?:work|worked|teach|study|studied)\b|\bmy (?:job|boss|career|company|degree|major)\b",
     ("What is {}'s career like?", "What has {} said about work and studies?")),
    (rf"{_I}(?:bought|purchased|ordered|got (?:a|some|the|my) new)\b",
     ("What has {} bought?", "Which items did {} get recently?")),
    (rf"{_I}(?:play|played|coach|root|run|ran|swim|ski|skate)\b|\bmy (?:favou?rite )?team\b",
     ("What sports does {} like?", "Which teams does {} support?")),
    (r"\bi(?:'m| am) (?:going to|planning|gonna|hoping)\b|"
     r"\bi(?: plan| hope| want|'d love|'d like| would love| would like) to\b",
     ("What are {}'s plans?", "What are {}'s goals?", "What would {} like to do in the future?")),
    (r"\bi(?:'m| am)? (?:hate|dislike|can(?:'t|not) stand|do(?:n't| not) like|afraid|scared)\b",
     ("What does {} dislike?", "What is {} afraid of?")),
    (r"\bi(?:'m| am| was| felt| feel) (?:so |very |really )?(?:happy|excited|sad|angry|nervous|proud|worried|upset|"
     r"thrilled|disappointed|tired|stressed)\b", ("How has {} been feeling?", "What makes {} happy or upset?")),
    (r"\bi\b.*\b(?:doctor|hospital|sick|allergic|injured|surgery|diet|gym|work(?:ing)? out|exercise|yoga)\b",
     ("How is {}'s health?", "What does {} do to stay healthy?")),
    (r"\bwhen i was (?:a kid|little|young|younger|a child)\b|\bi grew up\b|\bas a (?:kid|child)\b",
     ("What was {}'s childhood like?", "What did {} do as a child?")),
    (r"\bmy (?:best |old )?friends?\b|\bmy (?:girl|boy)friend\b|\bmy roommate\b",
     ("Who are {}'s friends?", "What has {} done with friends?")),
)  # fmt: skip
"""What turns say, and questions that all of these answer together."""
MOST_TURNS = 12
"""How many turns answer such a question at most."""


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


def collected(turns: list[dict[str, Any]], chance: random.Random) -> Iterator[dict[str, Any]]:
    """Return questions that several turns of one speaker answer together, in whatever sessions they are."""
    spoken: dict[str, list[dict[str, Any]]] = {}
    for turn in turns:
        if turn["role"] == "user" and not turn["text"].rstrip().endswith("?"):
            spoken.setdefault(turn.get("name", USER), []).append(turn)
    for (name, own), (pattern, forms) in itertools.product(spoken.items(), _LISTS):
        evidence = [turn["id"] for turn in own if re.search(pattern, turn["text"], re.I)]
        if 2 <= len(evidence) <= MOST_TURNS:
            asked = chance.choice(forms)
            yield {"question": of_user(asked, "{}") if name == USER else asked.format(name), "evidence": evidence}


def of_user(question: str, name: str) -> str:
    """Turn a question about someone into one of a user about themselves."""
    own = (
        question.replace(f"{name}'s", "my").replace(f"does {name}", f"do {name}").replace(f"has {name}", f"have {name}")
    )
    return own.replace(name, "I")

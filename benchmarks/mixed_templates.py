"""What `benchmarks.mixed` writes and asks: entities, and attributes with their values, statements and questions."""

from msgspec import Struct


def _words(text: str) -> list[str]:
    return text.split()


def _listed(text: str) -> list[str]:
    return text.split(", ")


PEOPLE = _words(
    "Ada Amir Anton Beatrix Bilal Bruno Camille Cyrus Dagny Darius Delia Edith Emeka Enzo Farah Felix Fiona Gideon "
    "Greta Hana Hector Hugo Ida Ignace Imani Ingrid Ivo Jacinta Jaspar Jemima Joaquin Juno Kaito Katya Keiran Lars "
    "Leonie Lorcan Lucia Mabel Malik Marguerite Matteo Mei Mirko Nadia Nestor Niamh Odile Oleg Orla Otto Paloma "
    "Pavel Petra Quentin Rafael Ramona Reza Rosalind Rufus Sabine Selma Silas Soren Tamsin Tariq Thea Tomas Ulla "
    "Umberto Valentin Vera Viggo Wanda Wilfred Xenia Yara Yusuf Zelda"
)
SURNAMES = _words("Abbot Castell Duarte Eklund Ferreira Groen Hollis Ibanez Kowal Lindqvist")
PROJECTS = _words(
    "Aurora Basilisk Catapult Dandelion Ember Falconer Gossamer Hemlock Icarus Juniper Kestrel Lantern Meridian "
    "Nautilus Obsidian Paragon Quill Redwood Sextant Talisman Umbra Vanguard Willow Xylem Yonder Zephyr Anvil Bobbin "
    "Cobalt Drumlin"
)
THINGS = [
    f"the {name}"
    for name in _listed(
        "boiler, dishwasher, garden shed, office printer, old laptop, sailing boat, camper van, roof antenna, cello, "
        "espresso machine, router, guest bed, projector, lawn mower, greenhouse, piano, telescope, sewing machine, "
        "backup drive, electric bike, water filter, alarm system, bookshelf, freezer, kayak, wood stove, door lock, "
        "air purifier, record player, standing desk"
    )
]


class Attribute(Struct):
    """What can be said of an entity: {e} is the entity, and {v} the value."""

    group: str
    predicate: str
    values: list[str]
    said: tuple[str, ...]
    """In a chat, by the user."""
    noted: tuple[str, ...]
    """In a memory or a note."""
    questions: tuple[str, ...]


ATTRIBUTES = (
    Attribute(
        "person",
        "is allergic to",
        _listed(
            "walnuts, shellfish, penicillin, cat hair, latex, strawberries, wasp stings, gluten, sesame, birch pollen"
        ),
        (
            "Careful when we cook for {e}: no {v}, it brings out a rash.",
            "{e} told me today that {v} makes the throat swell.",
        ),
        ("{e} cannot stand {v}: allergic reaction", "allergy of {e}: {v}"),
        (
            "What must I keep away from {e} for health reasons?",
            "Which allergies does {e} have?",
            "What is {e} allergic to?",
        ),
    ),
    Attribute(
        "person",
        "lives in",
        _listed(
            "Ghent, Porto, Tallinn, Aarhus, Graz, Lyon, Bergen, Turin, Gdansk, Cork, Malaga, Utrecht, Leeds, Basel"
        ),
        ("{e} has a flat in {v} now, third floor and no lift.", "I helped {e} carry boxes, the new address is in {v}."),
        ("{e} moved to {v}", "home address of {e} is in {v}"),
        ("Where does {e} live?", "In which town is {e}'s home?", "What city is {e} based in?"),
    ),
    Attribute(
        "person",
        "works as",
        _listed(
            "midwife, actuary, stonemason, tax adviser, beekeeper, translator, tram driver, botanist, glazier, nurse"
        ),
        (
            "At the party it turned out that {e} earns a living as a {v}.",
            "{e} started as a {v} and seems happy with it.",
        ),
        ("{e}: profession {v}", "{e} has a job as a {v}"),
        ("What does {e} do for a living?", "Which job does {e} have?", "What is {e}'s occupation?"),
    ),
    Attribute(
        "person",
        "has birthday on",
        _listed(
            "3 March, 17 May, 21 June, 9 August, 30 September, 12 November, 26 January, 14 April, 8 July, 19 October"
        ),
        ("Remind me to call {e}, the cake is on {v} as every year.", "{e} turns a year older on {v}."),
        ("{e} was born on {v}", "birthday of {e}: {v}"),
        ("When is {e}'s birthday?", "On what day should I congratulate {e}?", "When was {e} born?"),
    ),
    Attribute(
        "person",
        "likes to drink",
        _listed("oolong tea, black coffee, ginger beer, elderflower cordial, hot chocolate, tonic water, chai, cider"),
        (
            "Whenever {e} comes by I put {v} on the table, nothing else gets touched.",
            "{e} ordered {v} again, of course.",
        ),
        ("favourite beverage of {e} is {v}", "{e} always asks for {v}"),
        ("What should I offer {e} to drink?", "What is {e}'s favourite drink?", "Which beverage does {e} prefer?"),
    ),
    Attribute(
        "person",
        "plays",
        _listed("the oboe, badminton, the accordion, water polo, chess, the harp, table tennis, the trombone, squash"),
        ("{e} has been practising {v} three evenings a week.", "We saw {e} playing {v} on Saturday, quite impressive."),
        ("{e} spends free time with {v}", "hobby of {e}: {v}"),
        ("What is {e}'s hobby?", "How does {e} spend the evenings?", "What does {e} play?"),
    ),
    Attribute(
        "person",
        "has the pet",
        _listed(
            "a dachshund called Biscuit, a parrot called Admiral, two hamsters, a tortoise called Gladys, "
            "a Siamese cat, a rabbit called Clover, a corgi called Mustard, an old greyhound"
        ),
        ("{e} brought {v} along and it slept under the table.", "I am feeding {v} while {e} is away."),
        ("{e} keeps {v}", "animal at {e}'s place: {v}"),
        ("Which pet does {e} have?", "What animal lives with {e}?", "Does {e} keep any animals?"),
    ),
    Attribute(
        "person",
        "has phone extension",
        [f"{n}" for n in range(4105, 4190, 7)],
        ("If it is urgent, ring {e} on {v}.", "{e}'s line has changed, dial {v} from now on."),
        ("extension of {e}: {v}", "call {e} under {v}"),
        ("What number do I dial to reach {e}?", "What is {e}'s extension?", "How do I phone {e}?"),
    ),
    Attribute(
        "person",
        "is afraid of",
        _listed("heights, spiders, flying, deep water, thunderstorms, lifts, dentists, crowds, the dark, horses"),
        (
            "{e} went pale, it seems that {v} are not a joke for everybody.",
            "Do not plan anything with {v} if {e} comes along.",
        ),
        ("{e} gets nervous about {v}", "phobia of {e}: {v}"),
        ("What frightens {e}?", "Does {e} have any fears?", "What is {e} scared of?"),
    ),
    Attribute(
        "person",
        "speaks",
        _listed("Finnish, Swahili, Catalan, Welsh, Farsi, Korean, Czech, Maltese, Hindi, Icelandic"),
        ("On the phone with the grandparents {e} switches to {v}.", "{e} could read the menu, being fluent in {v}."),
        ("{e} grew up with {v} as a mother tongue", "languages: {e} knows {v}"),
        (
            "Which foreign language does {e} know?",
            "What languages can {e} speak?",
            "In which language could I write to {e}?",
        ),
    ),
    Attribute(
        "person",
        "owes me",
        [f"{n} euros" for n in (15, 24, 38, 47, 60, 75, 82, 110, 145, 230)],
        ("I paid for {e} again, that makes {v} to get back.", "{e} borrowed {v} from me at the market."),
        ("{e} still has to return {v}", "debt of {e}: {v}"),
        ("How much money does {e} owe me?", "What do I get back from {e}?", "How much did I lend to {e}?"),
    ),
    Attribute(
        "person",
        "studied at",
        _listed("Uppsala, Coimbra, Heidelberg, Bologna, Leuven, St Andrews, Salamanca, Krakow, Galway, Tartu"),
        (
            "{e} has a degree from {v}, the certificate hangs in the hall.",
            "{e} spent four years at the university in {v}.",
        ),
        ("{e} graduated in {v}", "alma mater of {e}: {v}"),
        ("Where did {e} go to university?", "Which college did {e} attend?", "Where does {e}'s degree come from?"),
    ),
    Attribute(
        "person",
        "wants for Christmas",
        _listed(
            "a fountain pen, wool socks, a cookery course, a head torch, a vinyl record, a chess clock, opera tickets, "
            "a cast iron pan, a hammock"
        ),
        ("{e} dropped a hint about {v}, good to know for December.", "As a present for {e} I thought of {v}."),
        ("gift idea for {e}: {v}", "{e} would be glad about {v}"),
        ("What could I give {e} as a present?", "What does {e} wish for?", "What is a good gift for {e}?"),
    ),
    Attribute(
        "person",
        "takes the medicine",
        _listed(
            "ibuprofen, an iron supplement, blood pressure tablets, antihistamines, insulin, "
            "thyroid hormones, eye drops"
        ),
        ("{e} has to swallow {v} every morning since the check-up.", "The doctor put {e} on {v}."),
        ("{e} is being treated with {v}", "prescription of {e}: {v}"),
        ("Which medication is {e} on?", "What does {e} take for health?", "What was {e} prescribed?"),
    ),
    Attribute(
        "project",
        "is led by",
        PEOPLE[:30],
        ("They gave {e} to {v}, which was overdue.", "For anything about {e} you now have to convince {v}."),
        ("{v} is in charge of {e}", "head of {e}: {v}"),
        ("Who leads the project {e}?", "Who is responsible for {e}?", "Whom do I ask about {e}?"),
    ),
    Attribute(
        "project",
        "has the deadline",
        _listed(
            "1 February, 28 February, 15 March, 31 March, 20 April, 6 May, 30 June, 11 July, 1 September, 5 December"
        ),
        ("{e} has to be shipped by {v} or we pay a fine.", "The client of {e} will not wait longer than {v}."),
        ("{e} is due on {v}", "final delivery of {e}: {v}"),
        ("When is the deadline of {e}?", "By which date must {e} be finished?", "When do we have to deliver {e}?"),
    ),
    Attribute(
        "project",
        "runs on",
        _listed("PostgreSQL, MongoDB, SQLite, Redis, MariaDB, Cassandra, DuckDB, Neo4j, CockroachDB, Elasticsearch"),
        ("We settled on {v} for {e} after three meetings.", "The team of {e} moved everything over to {v}."),
        ("{e} stores its data in {v}", "persistence layer of {e} is {v}"),
        ("Which database does {e} use?", "Where does {e} keep its data?", "What is the storage technology of {e}?"),
    ),
    Attribute(
        "project",
        "has a budget of",
        [f"{n},000 euros" for n in (12, 25, 40, 55, 70, 90, 120, 180, 240, 300)],
        ("Finance signed {v} for {e}, not a cent more.", "{e} got {v} for this year."),
        ("funding approved for {e}: {v}", "{e} may spend {v}"),
        ("How much money is there for {e}?", "What is the budget of {e}?", "How expensive may {e} get?"),
    ),
    Attribute(
        "project",
        "is blocked by",
        _listed(
            "a missing licence, the security review, a flaky test suite, the hiring freeze, a broken build server, "
            "an unanswered email to the lawyers, a supplier strike"
        ),
        ("{e} is not moving because of {v}.", "Everybody on {e} is waiting, the reason is {v}."),
        ("{e} cannot go on before {v} is resolved", "obstacle for {e}: {v}"),
        ("Why is {e} late?", "What is holding {e} up?", "What problem does {e} have?"),
    ),
    Attribute(
        "project",
        "meets on",
        _listed("Monday at nine, Tuesday at two, Wednesday at ten, Thursday at half past four, Friday at eleven"),
        ("The weekly call of {e} is {v}, please keep that free.", "They shifted the meeting of {e} to {v}."),
        ("stand-up of {e}: {v}", "{e} team gathers {v}"),
        ("When does the {e} team meet?", "At what time is the weekly call of {e}?", "When is the {e} meeting?"),
    ),
    Attribute(
        "project",
        "is written in",
        _listed("Rust, Kotlin, Go, Elixir, TypeScript, Haskell, Swift, Scala, C++, Zig"),
        ("We are porting {e} to {v} from scratch.", "You need to know {v} if you want to touch {e}."),
        ("codebase of {e}: {v}", "{e} was implemented in {v}"),
        ("Which programming language is {e} made with?", "What is {e} coded in?", "In what language is {e} developed?"),
    ),
    Attribute(
        "thing",
        "was bought at",
        _listed(
            "the flea market, an auction, a shop in Delft, the hardware store, a neighbour, "
            "the sale in June, a museum shop"
        ),
        ("I found the receipt for {e}, it came from {v}.", "We got {e} from {v}, and cheaply."),
        ("{e} was acquired at {v}", "origin of {e}: {v}"),
        ("Where did we buy {e}?", "Where does {e} come from?", "Who sold us {e}?"),
    ),
    Attribute(
        "thing",
        "has a warranty until",
        _listed("May 2026, August 2026, January 2027, October 2027, March 2028, December 2028, June 2029"),
        ("If {e} breaks before {v}, they have to repair it for free.", "The guarantee of {e} runs out in {v}."),
        ("{e} is covered until {v}", "warranty of {e} ends {v}"),
        ("How long is {e} under warranty?", "Until when is {e} guaranteed?", "When does the warranty of {e} expire?"),
    ),
    Attribute(
        "thing",
        "is stored in",
        _listed("the cellar, the attic, the garage, Aunt Rosa's barn, the rented unit, the spare room, the boathouse"),
        ("I carried {e} to {v} this morning, my back hurts.", "In case you look for {e}: it went to {v}."),
        ("{e} can be found in {v}", "location of {e}: {v}"),
        ("Where did I put {e}?", "Where is {e} kept?", "Where can I find {e}?"),
    ),
    Attribute(
        "thing",
        "was repaired by",
        _listed("Mr Okafor, the Blum brothers, a student from next door, the fix-it cafe, Ms Tanaka, the manufacturer"),
        ("{e} works again thanks to {v}.", "I had {e} mended, {v} took only an hour."),
        ("{v} did the maintenance of {e}", "service of {e} was done by {v}"),
        ("Who fixed {e}?", "Who did the repair of {e}?", "Whom did I have {e} mended by?"),
    ),
    Attribute(
        "thing",
        "cost",
        [f"{n} euros" for n in (45, 80, 120, 199, 260, 349, 480, 650, 899, 1250)],
        ("I handed over {v} for {e} and regret nothing.", "{e} was {v}, delivery included."),
        ("price paid for {e}: {v}", "{e} set us back {v}"),
        ("How much did {e} cost?", "What did I pay for {e}?", "What was the price of {e}?"),
    ),
    Attribute(
        "thing",
        "has the code",
        [f"{n}" for n in (1947, 2286, 3310, 4521, 5873, 6094, 7718, 8265, 9432)],
        ("To switch {e} on, type {v} and wait.", "I changed the PIN of {e} to {v}."),
        ("PIN for {e}: {v}", "{e} unlocks with {v}"),
        ("What is the code of {e}?", "How do I unlock {e}?", "Which PIN does {e} have?"),
    ),
    Attribute(
        "thing",
        "is insured with",
        _listed("Helvetia, Allianz, Zurich, Generali, Baloise, Mobiliar, AXA"),
        ("I called {v} because of the scratch on {e}.", "{e} is on the policy with {v} now."),
        ("insurance of {e}: {v}", "{v} covers damage to {e}"),
        ("Which company insures {e}?", "Who pays if {e} is damaged?", "With whom did I insure {e}?"),
    ),
)

CHATTER = (
    "Good morning, how are things?",
    "It has been raining all day here.",
    "I slept badly, the neighbours had a party.",
    "Let me write down a few more things.",
    "Could you remind me later to stretch?",
    "That was a long meeting.",
    "The train was late again, so I read a bit.",
    "By the way, thanks for yesterday's summary.",
    "I am making soup while I write this.",
    "What was I going to say?",
    "Some news from the others.",
    "Where were we?",
    "I am back from lunch.",
    "One more thing before I forget it.",
    "Can you keep a list for me?",
    "I wonder whether it will snow.",
    "Work is busy, but all right.",
    "My phone is nearly empty, so I will be short.",
    "I finally cleaned the kitchen.",
    "Let us go on with what we had.",
)
REPLIES = (
    "Noted.",
    "I will keep that in mind.",
    "Thanks for telling me!",
    "Good to know. Anything else?",
    "Understood.",
    "That sounds nice. How did it go?",
    "All right, I have written it down.",
    "I see. Shall I remind you of it?",
    "Oh, I did not know that.",
    "Certainly.",
    "Sure, tell me more.",
    "Got it.",
    "Is there anything that I should prepare?",
    "Okay!",
    "That is interesting, thank you.",
)

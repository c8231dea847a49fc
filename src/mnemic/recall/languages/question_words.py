"""Regular expressions by language for what a question asks: when, how many, the latest; and who is meant by it."""

from msgspec import Struct


class QuestionWords(Struct, frozen=True, kw_only=True):
    """Alternatives of a regular expression that match whole words, whatever the case."""

    when: str
    count: str
    latest: str
    first: str
    """The user: "I", "my"."""
    second: str
    """The assistant: "you", "your"."""
    request: str
    """How one asks something of the assistant, which is not about the assistant: "can you"."""
    dating: str
    """Words before a year or a month that make it a date: "in", "since"."""
    i: str = "I"
    my: str = "my"
    """Words of a speaker instead of the own name, and of its genitive."""


QUESTION_WORDS: dict[str, QuestionWords] = {
    "en": QuestionWords(
        # Not "what does she do when it rains?".
        when=r"(?<!\w\s)when|when(?=\W*$)|(?:since|until|till|by|from|of|about|and|or|between|know|knows|knew|remember|"
        r"recall|tell|me|us|say|said|sure|asked|exactly|out) when(?! \w+ing\b)|"
        "how long|how old|what (?:date|day|month|year|time)|which (?:date|day|month|year|weekend|week)",
        count="how (?:many|much|often|long|far|old|big|tall)|what (?:number|percentage)",
        latest="latest|newest|most recent(?:ly)?|last time|currently|right now|these days|nowadays|at the moment",
        first="I|my|me|mine|I'm|I've|I'd|myself",
        second="you|your|yours|you've|you'd",
        request="(?:can|could|would|will) you|do you (?:think|know|recommend|suggest)|"
        "you(?:'d| would)? (?:suggest|recommend)",
        dating="in|during|of|since|before|after|until|till|by|last|next|this|early|late|mid|around",
    ),
    "de": QuestionWords(
        when="wann|wie lange?|wie alt|(?:welche[mnrs]?|an welchem|was für ein) (?:datum|tag|monat|jahr|woche|uhrzeit)|"
        "um wie ?viel uhr|um welche uhrzeit",
        count="wie ?viele?[nrms]?|wie (?:oft|lange?|weit|alt|groß|hoch|teuer)|welche (?:zahl|nummer)",
        latest="neueste[nrms]?|aktuell(?:e[nrms]?)?|zuletzt|derzeit|momentan|gerade jetzt|im moment|heutzutage|"
        "letztes mal",
        first="ich|mich|mir|mein(?:e[nrms]?)?",
        second=r"du|dich|dir|dein(?:e[nrms]?)?|(?<=\w )(?-i:Sie|Ihnen|Ihr(?:e[nrms]?)?)",
        request="(?:kannst|könntest|würdest|willst) du|(?:können|könnten|würden) sie|"
        "(?:empfiehlst|meinst|denkst|weißt) du|(?:empfehlen|meinen|denken|wissen) sie",
        dating="im|in|seit|vor|nach|bis|ab|letzten|nächsten|diesen|anfang|ende|mitte",
        i="ich",
        my="meine",
    ),
    "fr": QuestionWords(
        when="quand|depuis combien de temps|combien de temps|quel âge|"
        "quel(?:le)? (?:date|jour|mois|année|heure|semaine)",
        count="combien|quel (?:nombre|pourcentage|âge|montant)|à quelle fréquence",
        latest="derni(?:er|ère)s?|le plus récent|la plus récente|récemment|actuel(?:le)?(?:ment)?|en ce moment|"
        "ces jours-ci|dernière fois",
        first="je|j|me|m|moi|mon|ma|mes|mien(?:ne)?s?",
        second="tu|te|t|toi|ton|ta|tes|vous|votre|vos",
        request="(?:peux|pourrais|veux|sais|penses|recommandes|suggères)-tu|(?:pouvez|pourriez|savez|pensez)-vous|"
        "tu (?:peux|pourrais|penses|recommandes)|vous (?:pouvez|pourriez|pensez|recommandez)|"
        "est-ce que tu (?:peux|sais)",
        dating="en|depuis|avant|après|vers|début|fin|mi|courant",
        i="je",
        my="mon",
    ),
    "es": QuestionWords(
        when="cu[aá]ndo|cu[aá]nto tiempo|cu[aá]ntos años|(?:qu[eé]|en qu[eé]) (?:fecha|d[ií]a|mes|año|semana|momento)|"
        "a qu[eé] hora",
        count="cu[aá]nt[oa]s?|qu[eé] (?:n[uú]mero|porcentaje|cantidad)|con qu[eé] frecuencia",
        latest="[uú]ltim[oa]s?|m[aá]s recientes?|actual(?:es|mente)?|ahora mismo|recientemente|hoy en d[ií]a|"
        "en este momento",
        first=r"yo|me|m[ií]|mis|m[ií][oa]s?|conmigo|soy|estoy|tengo|voy|fui|hice|tuve|dije|quiero|vivo|trabajo|"
        r"(?!(?:caf|beb|porqu|qu|jos)é)\w{2,}é",
        second="t[uú]|te|ti|tus|tuy[oa]s?|contigo|usted|eres|dijiste|recomendaste",
        request="(?:me )?(?:puedes|podrías|quieres|sabes|crees|recomiendas|sugieres|puede usted)|"
        r"(?:te|le) (?:parece|pido)|recomi[eé]nda\w*",
        dating="en|desde|de|del|hasta|antes|después|hacia|principios|finales|mediados",
        i="yo",
        my="mi",
    ),
    "pt": QuestionWords(
        when="quando|quanto tempo|quantos anos|(?:que|qual|em que) (?:data|dia|mês|ano|semana|altura)|a que horas|"
        "que horas",
        count="quant[oa]s?|qual (?:o )?n[uú]mero|com que frequ[eê]ncia|qual (?:a )?percentagem",
        latest="[uú]ltim[oa]s?|mais recentes?|atual(?:mente)?|actual(?:mente)?|agora mesmo|neste momento|hoje em dia|"
        "recentemente",
        first=r"eu|me|mim|meus?|minhas?|comigo|sou|estou|tenho|vou|fui|fiz|tive|disse|quero|moro|trabalho|\w{2,}ei",
        second="tu|te|ti|teus?|tuas?|contigo|voc[eê]|disseste|recomendaste",
        request="(?:voc[eê] )?(?:podes?|poderia[s]?|consegues?|sabes?|achas?|recomendas?|sugeres?)(?: voc[eê]| me)?|"
        "(?:podes?|poderia)(?:-me)?",
        dating="em|desde|de|até|antes|depois|início|final|meados",
        i="eu",
        my="meu",
    ),
    "it": QuestionWords(
        when="quando|quanto tempo|da quanto|quanti anni|(?:che|quale|in che|in quale) "
        "(?:data|giorno|mese|anno|settimana|periodo)|a che ora",
        count="quant[oaie]|che (?:numero|percentuale)|ogni quanto",
        latest="ultim[oaie]|più recent[ei]|attual(?:e|i|mente)|in questo momento|al momento|recentemente|oggigiorno",
        first="io|mi|me|mio|mia|miei|mie|ho|avevo|ero|vorrei|vivo|lavoro|abito",
        second="tu|ti|te|tuo|tua|tuoi|tue|hai|avevi|eri",
        request="(?:mi )?(?:puoi|potresti|sai|pensi|consigli|suggerisci|vuoi)",
        dating="nel|nell|in|da|dal|dall|a|ad|di|del|fino|prima|dopo|inizio|fine|metà",
        i="io",
        my="mio",
    ),
    "nl": QuestionWords(
        when="wanneer|hoe ?lang|hoe oud|hoe laat|(?:welke|op welke|in welk) (?:datum|dag|maand|jaar|week)|"
        "sinds wanneer",
        count="hoe ?veel|hoe (?:vaak|lang|oud|ver|groot|hoog)|welk (?:getal|nummer|percentage)",
        latest="laatste|nieuwste|meest recente|momenteel|op dit moment|tegenwoordig|nu",
        first="ik|me|mij|mijn|mijne|m'n",
        second="je|jij|jou|jouw|u|uw",
        request="(?:kun|kan|kunt|zou|wil|weet|denk) (?:je|jij|u)|(?:raad|beveel) (?:je|jij|u)",
        dating="in|sinds|voor|na|tot|vanaf|begin|eind|afgelopen|vorige|volgende",
        i="ik",
        my="mijn",
    ),
    "pl": QuestionWords(
        when=r"kiedy|jak długo|od jak dawna|ile (?:ma )?lat|(?:w )?któr(?:ym|ego|ej) (?:dniu?|miesiącu|roku|tygodniu)|"
        r"jakiego dnia|o której|odkąd",
        count=r"ile|ilu|iloma|jak (?:często|długo|daleko|wysoki)|jaki procent",
        latest=r"ostatni(?:o|e|a|ego|ej)?|najnowsz\w+|obecnie|aktualn\w+|teraz|w tej chwili",
        first=r"ja|mnie|mi|mną|mój|moj[aąe]|moje(?:go|j|mu)|moich|mam|jestem|chcę|mieszkam|pracuję|\w+(?:łem|łam)",
        second=r"ty|ciebie|cię|ci|tobie|tobą|twój|twoj[aąe]|twoje(?:go|j|mu)|twoich|\w+(?:łeś|łaś)",
        request=r"(?:czy )?(?:możesz|mógłbyś|mogłabyś|wiesz|sądzisz|polecasz|polecisz)(?: mi)?",
        dating="w|we|od|do|przed|po|około|początku|końcu|połowie",
        i="ja",
        my="mój",
    ),
    "ru": QuestionWords(
        when="когда|как долго|сколько (?:времени|лет)|(?:в )?как(?:ой|ого|ом) (?:день|дня|месяце?|году?|число|числа)|"
        "во сколько|с каких пор|какого числа",
        count="сколько|скольк(?:им|их|ими)|как (?:часто|долго|далеко)|какой процент",
        latest=r"последн\w+|новейш\w+|недавно|сейчас|на данный момент|в настоящее время|теперь|нынешн\w+|текущ\w+",
        first="я|меня|мне|мной|мною|мой|моя|моё|мое|мои|моего|моей|моему|моих|моём|моем|мою",
        second="ты|тебя|тебе|тобой|твой|твоя|твоё|твое|твои|твоего|твоей|твоих|твою|вы|вас|вам|ваш|ваша|ваше|ваши",
        request="(?:ты )?(?:можешь|мог бы|могла бы|знаешь|думаешь|посоветуешь|порекомендуешь)(?: ты)?|"
        "(?:вы )?(?:можете|могли бы|знаете|думаете|посоветуете)(?: вы)?",
        dating="в|во|с|до|после|около|начале|конце|середине",
        i="я",
        my="моя",
    ),
    "sv": QuestionWords(
        when="när|hur länge|hur gammal|(?:vilket|vilken|vad för) (?:datum|dag|månad|år|vecka|tid)|hur dags",
        count="hur (?:många|mycket|ofta|länge|långt|gammal|stor)|vilket (?:antal|nummer)",
        latest="senaste|nyaste|för närvarande|just nu|nuförtiden|senast",
        first="jag|mig|mej|min|mitt|mina",
        second="du|dig|dej|din|ditt|dina|ni|er|ert|era",
        request="(?:kan|kunde|skulle|vill|vet|tror|tycker|rekommenderar) (?:du|ni)",
        dating="i|under|sedan|före|efter|till|från|början|slutet",
        i="jag",
        my="min",
    ),
    "da": QuestionWords(
        when="hvornår|når|hvor længe|hvor gammel|(?:hvilken|hvilket) (?:dato|dag|måned|år|uge|tidspunkt)",
        count="hvor (?:mange|meget|ofte|længe|langt|gammel|stor)|hvilket (?:antal|nummer)",
        latest="seneste|nyeste|sidste gang|lige nu|i øjeblikket|for tiden|senest",
        first="jeg|mig|min|mit|mine",
        second="du|dig|din|dit|dine|jeres",
        request="(?:kan|kunne|vil|ved|tror|synes|anbefaler) du",
        dating="i|siden|før|efter|til|fra|starten|slutningen",
        i="jeg",
        my="min",
    ),
    "no": QuestionWords(
        when="når|hvor lenge|hvor gammel|(?:hvilken|hvilket) (?:dato|dag|måned|år|uke|tidspunkt)",
        count="hvor (?:mange|mye|ofte|lenge|langt|gammel|stor)|hvilket (?:antall|nummer)",
        latest="siste|nyeste|for øyeblikket|akkurat nå|for tiden|sist",
        first="jeg|meg|min|mitt|mine|mi",
        second="du|deg|din|ditt|dine|di",
        request="(?:kan|kunne|vil|vet|tror|synes|anbefaler) du",
        dating="i|siden|før|etter|til|fra|starten|slutten",
        i="jeg",
        my="min",
    ),
    "fi": QuestionWords(
        when="milloin|koska|kuinka kauan|miten kauan|kuinka vanha|mi(?:nä|ssä|hin) (?:päivänä|vuonna|kuussa|aikaan)|"
        "mihin aikaan",
        count="kuinka (?:monta|paljon|usein|kauan|kaukana|vanha)|montako|paljonko|moneltako|moneenko",
        latest=r"viimeisin|uusin|viimeksi|tällä hetkellä|nykyään|juuri nyt|viimeisimm\w+",
        first="minä|minun|minua|minulla|minulle|minulta|minut|mulla|mun|mä|olen|olin",
        second="sinä|sinun|sinua|sinulla|sinulle|sinut|sun|sä|olet|olit",
        request=r"voitko|voisitko|tiedätkö|luuletko|suositteletko|osaatko",
        dating="vuonna|ennen|jälkeen|alussa|lopussa",
        i="minä",
        my="minun",
    ),
    "tr": QuestionWords(
        when="ne zaman|ne kadar süre(?:dir|di)?|kaç yaşında|hangi (?:gün|ay|yıl|hafta|tarihte?|ayda|yılda)|saat kaçta",
        count="kaç|ne kadar|ne sıklıkla|kaçıncı",
        latest=r"en son|son olarak|en yeni|şu anda|şimdi|bugünlerde|güncel",
        first="ben|beni|bana|benim|bende|benden",
        second="sen|seni|sana|senin|siz|size|sizin|sizi",
        request=r"\w+(?:bilir|ebilir|abilir) mi?s[iı]n(?:iz)?|önerir misin",
        dating="yılında|önce|sonra|beri|başında|sonunda",
        i="ben",
        my="benim",
    ),
    "zh": QuestionWords(
        when="什么时候|什麼時候|何时|何時|哪[一]?[天年月]|几[点月号岁]|幾[點月號歲]|多久|多长时间|星期几|多大(?:了|年)",
        count="多少|几[个次岁年天人只本张公]|幾[個次歲年天人]|多[久大高远长]|第几",
        latest="最新|最近|目前|现在|現在|当前|上一次|上次",
        first="我",
        second="你|您",
        request="[你您](?:能|可以|会|會|可不可以|能不能)|(?:请|請)[你您]|[你您](?:觉得|认为|知道)",
        dating="",
        i="我",
        my="我的",
    ),
    "ja": QuestionWords(
        when="いつ|何年|何月|何日|何曜日|何時|何歳|いくつの時|どのくらいの(?:期間|間)|どれくらいの(?:期間|間)",
        count="いくつ|いくら|何[人個回年歳冊匹枚本時日杯台]|どのくらい|どれくらい|どれだけ",
        latest="最新|最近|今は|現在|今の|直近|この頃",
        first="私|わたし|僕|ぼく|俺|うちの",
        second="あなた|君|きみ",
        request="(?:あなた|君)(?:は|が)?(?:できます|おすすめ)",
        dating="",
        i="私",
        my="私の",
    ),
}

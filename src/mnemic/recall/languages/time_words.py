"""Words for times by language: months, days of the week, and words such as "yesterday" or "week".

They are used for texts in any language, so words that mean something else in another one are left out.
"""

MONTHS: dict[str, tuple[str, ...]] = {
    language: tuple(months.replace("\n", " ").strip().split(", "))
    for language, months in {
        "en": "january, february, march, april, may, june, july, august, september, october, november, december",
        "de": "januar jänner, februar, märz, april, mai, juni, juli, august, september, oktober, november, dezember",
        "fr": "janvier, février, mars, avril, mai, juin, juillet, août, septembre, octobre, novembre, décembre",
        "es": "enero, febrero, marzo, abril, mayo, junio, julio, agosto, septiembre setiembre, octubre, noviembre, "
        "diciembre",
        "pt": "janeiro, fevereiro, março, abril, maio, junho, julho, agosto, setembro, outubro, novembro, dezembro",
        "it": "gennaio, febbraio, marzo, aprile, maggio, giugno, luglio, agosto, settembre, ottobre, novembre, "
        "dicembre",
        "nl": "januari, februari, maart, april, mei, juni, juli, augustus, september, oktober, november, december",
        "pl": "styczeń stycznia styczniu, luty lutego lutym, marzec marca marcu, kwiecień kwietnia kwietniu, "
        "maj maja maju, czerwiec czerwca czerwcu, lipiec lipca lipcu, sierpień sierpnia sierpniu, "
        "wrzesień września wrześniu, październik października październiku, listopad listopada listopadzie, "
        "grudzień grudnia grudniu",
        "ru": "январь января январе, февраль февраля феврале, март марта марте, апрель апреля апреле, май мая мае, "
        "июнь июня июне, июль июля июле, август августа августе, сентябрь сентября сентябре, "
        "октябрь октября октябре, ноябрь ноября ноябре, декабрь декабря декабре",
        "sv": "januari, februari, mars, april, maj, juni, juli, augusti, september, oktober, november, december",
        "da": "januar, februar, marts, april, maj, juni, juli, august, september, oktober, november, december",
        "no": "januar, februar, mars, april, mai, juni, juli, august, september, oktober, november, desember",
        "fi": ", ".join(
            f"{name}kuu {name}kuun {name}kuussa {name}kuuta"
            for name in "tammi helmi maalis huhti touko kesä heinä elo syys loka marras joulu".split()  # noqa: SIM905
        ),
        "tr": "ocak ocakta, şubat şubatta, mart martta, nisan nisanda, mayıs mayısta, haziran haziranda, "
        "temmuz temmuzda, ağustos ağustosta, eylül eylülde, ekim ekimde, kasım kasımda, aralık aralıkta",
    }.items()
}
"""Forms of the twelve months."""

DAYS: dict[str, str] = {
    "en": "monday tuesday wednesday thursday friday saturday sunday",
    "de": "montag dienstag mittwoch donnerstag freitag samstag sonnabend sonntag montags dienstags mittwochs "
    "donnerstags freitags samstags sonntags",
    "fr": "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "es": "lunes martes miércoles jueves viernes sábado sábados domingo domingos",
    "pt": "segunda-feira terça-feira quarta-feira quinta-feira sexta-feira sábado domingo feira",
    "it": "lunedì martedì mercoledì giovedì venerdì sabato domenica",
    "nl": "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
    "pl": "poniedziałek poniedziałku wtorek wtorku środa środę środy czwartek czwartku piątek piątku sobota sobotę "
    "soboty niedziela niedzielę niedzieli",
    "ru": "понедельник понедельника вторник вторника среда среду среды четверг четверга пятница пятницу пятницы "
    "суббота субботу субботы воскресенье воскресенья",
    "sv": "måndag tisdag onsdag torsdag fredag lördag söndag måndagen tisdagen onsdagen torsdagen fredagen "
    "lördagen söndagen",
    "da": "mandag tirsdag onsdag torsdag fredag lørdag søndag",
    "no": "mandag tirsdag onsdag torsdag fredag lørdag søndag",
    "fi": "maanantai maanantaina tiistai tiistaina keskiviikko keskiviikkona torstai torstaina perjantai perjantaina "
    "lauantai lauantaina sunnuntai sunnuntaina",
    "tr": "pazartesi salı çarşamba perşembe cuma cumartesi",
}
"""Days of the week."""

OTHERS: dict[str, str] = {
    "en": "yesterday today tonight tomorrow ago last next since soon recently lately morning evening "
    "weekend weekends week weeks month months year years day days",
    "de": "gestern vorgestern heute morgen übermorgen letzte letzten letzter letztes nächste nächsten nächster "
    "nächstes seit kürzlich neulich abend abends wochenende woche wochen monat monate monaten jahr jahre jahren "
    "tage tagen uhr",
    "fr": "hier avant-hier aujourd'hui demain depuis bientôt récemment dernière dernier prochaine prochain matin soir "
    "week-end semaine semaines mois année années jour jours",
    "es": "ayer anteayer hoy mañana anoche desde recientemente pasado pasada próximo próxima semana semanas "
    "meses año años días día",
    "pt": "ontem anteontem hoje amanhã desde recentemente passado passada próximo próxima semana semanas mês meses "
    "ano anos dia dias manhã noite",
    "it": "ieri oggi domani stasera stamattina recentemente scorso scorsa scorsi prossimo prossima settimana settimane "
    "mese mesi anno anni giorno giorni",
    "nl": "gisteren eergisteren vandaag morgen overmorgen sinds binnenkort onlangs vorige volgende ochtend avond "
    "weekend weken maand maanden jaar jaren dag dagen geleden",
    "pl": "wczoraj przedwczoraj dziś dzisiaj jutro pojutrze temu niedawno wkrótce zeszły zeszłym zeszłego zeszłą "
    "zeszłej ostatni przyszły przyszłym przyszłą weekend tydzień tygodnia tygodniu tygodnie miesiąc miesiącu miesiąca "
    "miesiące rok roku dni dzień rano wieczorem",
    "ru": "вчера позавчера сегодня завтра послезавтра назад недавно скоро прошлый прошлой прошлом прошлую прошлого "
    "следующий следующей следующем следующую следующего выходные выходных неделя недели неделю недель месяц месяца "
    "месяце месяцев год года году лет день дня дней утром вечером",
    "sv": "igår förrgår idag imorgon ikväll snart nyligen förra nästa helg helgen vecka veckan veckor månad "
    "månaden månader året dagen dagar morgon kväll",
    "da": "igår forgårs idag imorgen aften siden snart nylig sidste næste weekend weekenden uge ugen uger måned "
    "måneden måneder året dage dagen",
    "no": "igår forgårs idag imorgen kveld siden snart nylig forrige neste helg helgen uke uken uka uker måned måneden "
    "måneder året dager dagen",
    "fi": "eilen toissapäivänä tänään huomenna sitten äskettäin pian viime ensi viikonloppu viikonloppuna viikko "
    "viikon viikolla viikkoa kuukausi kuukautta vuosi vuonna vuotta päivä päivää",
    "tr": "dün bugün yarın sonra geçen gelecek hafta haftaya haftasonu yıl yılı yıla günü sabah akşam",
}
"""Other words for times."""

UNSPACED_TIMES = (
    "[昨今明前后後当當]天|[去今明前后後昨来]年|[上下本这這]周|[上下本这這]星期|[上下这這]个?月|[上下這]個月|星期[一二三四五六日天]|"
    "[周週][一二三四五六日末]|[早晚]上|上午|下午|最近|[昨今明]日|明後日|一昨日|[先来今][週月]|曜日?|[年月日週][前後间間]|"
    "[0-9０-９一二三四五六七八九十]+ ?(?:年|月|日|号|號|点|點|時|周|週|天)"
)
"""Words for times in Chinese and Japanese."""

AMBIGUOUS = frozenset("mars mart mayo mei maj dün".split())  # noqa: SIM905
"""Words for times that are other words in other languages: a text with them alone need not name a time."""

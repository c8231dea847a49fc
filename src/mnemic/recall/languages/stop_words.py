"""Stop words by language, written with accents; they also tell languages apart.

Question words and personal pronouns are among them. A word that also has a common meaning of its own is left out.
"""

STOP_WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": """
            a about after again all also am an and any are as at be because been before being between both but by
            can could did do does doing don down during each few for from further get got had has have having he
            her here hers him his how i if in into is it its just let ll me more most my no nor not now of off on
            once only or other our ours out over own re s same shall she should so some such t than that the their
            theirs them then there these they this those through to too under until up us ve very was we were what
            when where which while who whom why will with would you your yours
        """,
        "de": """
            aber alle allem allen aller alles als also am an auch auf aus bei beim bin bis bist da dann das dass dein
            deine deinem deinen deiner dem den denn der des dich die dies diese diesem diesen dieser dir doch dort du
            ein eine einem einen einer eines er es euch euer eure für gab gibt habe haben hast hat hatte hatten hattest
            ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in ins ist ja jede jedem jeden jeder jetzt kann kannst kein
            keine keinem keinen keiner können könnte man mein meine meinem meinen meiner mich mir mit muss nach nicht
            noch nun nur ob oder ohne schon sehr sein seine seinem seinen seiner seit sich sie sind so soll sollte über
            um und uns unser unsere unserem unseren vom von vor wann war waren warst warum was weil welche welchem
            welchen welcher welches wem wen wenn wer werde werden weshalb wessen wie wieder wieso will wir wird wirst
            wo wofür woher wohin womit worüber wurde wurden würde würden zu zum zur
        """,
        "fr": """
            à ai aie ainsi as au aussi aux avais avait avant avec avez avoir avons c ce cela ces cet cette ceux chez
            combien comme comment d dans de des depuis dont du elle elles en es est et étaient étais était été être eu
            eux fut ici il ils j je l la laquelle le lequel les lesquelles lesquels leur leurs lors lui m ma mais me
            même mes moi mon n ne ni nos notre nous on ont ou où par parce pas pour pourquoi qu quand que quel quelle
            quelles quels qui quoi s sa sans se sera ses si son sont suis sur t ta te tes toi ton tous tout toute
            toutes très tu un une vais va vos votre vous y
        """,
        "es": """
            a al algo allí aquí así aunque aún como cómo con conmigo cual cuál cuáles cuando cuándo cuanta cuánta
            cuánto cuánta cuántos cuántas de del desde donde dónde e el él ella ellas ellos en entre era eran eras eres
            es esa ese eso esos esta está estaba están estar estas este esto estos estoy fue fueron fui ha habéis había
            han has hasta hay he la las le les lo los más me mi mí mis mucho muy nada ni no nos nosotros nuestra
            nuestro o os para pero por porque pues que qué quien quién quiénes se sea ser si sí sin sobre son soy su
            sus también te tengo ti tiene tienen tienes tu tú tus un una unas uno unos usted ustedes va voy y ya yo
        """,
        "pt": """
            a ao aos aquela aquele aquilo aqui as às até com comigo como da das de dela dele deles depois do dos e é
            ela elas ele eles em entre era eram és essa esse esses esta está estão estar estava este estes estou eu foi
            fomos foram há isso isto já lá lhe mais mas me mesmo meu meus mim minha minhas muito na não nas nem no nos
            nós nossa nosso num numa o onde os ou para pela pelas pelo pelos por porque porquê pra qual quais quando
            quanta quantas quanto quantos que quê quem são se sem ser seu seus só sobre sou sua suas também te tem têm
            tenho ter teu teus tinha tu tua tuas tudo um uma umas uns vai você vocês vou
        """,
        "it": """
            a ad agli ai al alla alle allo anche avere aveva avevo c che chi ci cioè col come con cosa cui d da dagli
            dai dal dalla dalle dei degli del della delle dello di dov dove e è ed era erano eri ero fu gli ha hai
            hanno ho i il in io l la le lei li lo loro lui ma me mi mia mie miei mio negli nei nel nella nelle nello
            noi non nostra nostro o per perché però più poi qual quale quali quando quant quanta quante quanti quanto
            quella quelle quelli quello questa queste questi questo qui s sarà se sei si sia siamo sono sta stai sto
            su sua sue sugli sui sul sulla sulle suo suoi ti tra tu tua tue tuo tuoi un una uno va vi voi
        """,
        "nl": """
            aan al alle alles als altijd an ben bent bij daar dan dat de deze die dit doe doet door dus een en er ga
            gaat geen haar had hadden heb hebben hebt heeft hem hen het hij hoe hoeveel hun ik in is ja je jij jou jouw
            jullie kan kon kun laat maar me meer men met mij mijn moet na naar niet niets nog nu of om omdat onder ons
            onze ook op over te toch toen tot u uit uw van veel voor waar waarom wanneer want waren was wat we wel
            welk welke werd wie wij wil worden wordt zal ze zei zich zij zijn zo zonder zou
        """,
        "pl": """
            a albo ale ani aż bardzo bez będą będę będzie bo by był była byłam byłem było byli były być ci ciebie cię
            co coś czego czemu czy czyj czyja czyje dla dlaczego do gdy gdzie go i ich ile im inne iż ja jak jaka jaką
            jakich jaki jakie jakiego jakiej jego jej jem jest jestem jesteś jeszcze jeśli już każdy kiedy kim kogo
            komu kto która które którego której który którym ku ma mają mam masz mi mną mnie mój moja moje mojego mojej
            moją może mu my na nad nam nami nas nasz nasza nasze nic nich nie nią niej nim niż no o od on ona one oni
            ono oraz po pod przed przez przy sam są się skąd swój swoja swoje swojego swojej swoją ta tak także tam te
            tego tej ten też to tobą tobie tu twój twoja twoje twojego twojej ty tych tylko tym u w we więc wszystko
            wy z za ze że żeby
        """,
        "ru": """
            а без более бы был была были было быть в вам вами вас ваш ваша ваше вдруг ведь во вот все всё всего всех вы
            где говорил да даже два для до другой его ее её ей ему если есть ещё еще ж же за зачем здесь и из или им
            ими их к каждый как какая какие какого какой какую когда кого ком кому конечно которая которое который
            которые кто куда ли либо меня мне мной моё моего моей моем моём мои моих мой мою моя мы на над надо нам
            нами нас наш наша наше не него неё нее ней нет нибудь никогда ним них ничего но ну о об один одна он она
            они оно от откуда очень по под после потом потому почему при про раз с сам свои своё своего своей свой свою
            себе себя сейчас со совсем так также такой там те тебе тебя тем теперь то тобой тоже только том тот тогда
            ту тут ты тебе твоё твоего твоей твой твою твоя у уж уже хоть чего чей чем через что чтоб чтобы чьё чья эта
            эти это этого этой этом этот эту я
        """,
        "sv": """
            alla allt än är att av bara blev blir bli då de dem den denna deras dess det detta dig din dina ditt du
            efter ej eller en er era ett för från ha hade han hans har henne hennes hon honom hur i icke in ingen inte
            ja jag kan kunde man med mellan men mig min mina mitt mot mycket när någon något några ni nu och om oss på
            så sedan sig sin sina sitt ska skulle som till under upp ut utan vad var vår våra varför vart vem vems vi
            vid vilka vilken vilket
        """,
        "da": """
            ad af alle alt at blev bliver da de dem den denne der deres det dette dig din dine dit du efter eller en
            end er et for fordi fra få ham han hans har havde have hende hendes her hos hun hvad hvem hvilke hvilken
            hvilket hvis hvor hvordan hvorfor hvornår i ikke ind ja jeg jer kan kunne man mange med meget men mig min
            mine mit mod mon når ned nej noget nogen nogle nu og også om op os over på sig sin sine skal skulle som så
            til ud under var vi vil ville vor være været
        """,
        "no": """
            alle at av bare ble blei bli blir både da de deg dei dem den denne der dere deres det dette di din dine
            ditt du eg en enn er et ett etter for fordi fra få ha hadde han hans har henne hennes her hun hva hvem hver
            hvilke hvilken hvilket hvis hvor hvordan hvorfor i ikke inn ja jeg kan kunne man mange med meg men mer min
            mine mitt mot mye nå når ned nei noe noen og også om opp oss over på seg si sin sine sitt skal skulle som
            så til um ut uten var vår være vært ved vi vil ville
        """,
        "fi": """
            ei eikä ehkä ennen että en et emme ette hän häneen hänelle hänellä hänen hänet hänessä he heidän heille
            hyvin ja jo joka jos jossa jota joten juuri kai kanssa ketä keitä ken kenelle kenen kenet kuin kuinka kuka
            kun me meidän meille mihin mikä mille millä milloin millainen minä minkä minua minulla minulle minulta
            minun minut missä mistä mitä mitkä miksi miten mun muut mutta myös ne niin niitä noin nyt olemme olen olet
            oli olimme olin olit olivat olla ollut on ovat paljon sä se sekä sen siellä siihen siinä siitä sinä sinua
            sinulla sinulle sinun sitä sitten sun tai tämä tämän tässä tätä te teidän teillä tuo tuon vaan vai vain
            vielä voi
        """,
        "tr": """
            acaba ama ancak artık bana bazı belki ben benden beni benim bir biri birkaç biz bize bizi bizim bu buna
            bunda bundan bunu bunun çok çünkü da daha de defa değil diye en gibi hangi hangisi hem hep hepsi her hiç
            için idi ile ise işte kaç kadar kez ki kim kime kimi kimin kimse mı mi mu mü nasıl ne neden nedir nerede
            nereden nereye neyi niçin niye o olan olarak ona onda ondan onlar onların onu onun oldu sana sen senden
            seni senin siz size sizi sizin şey şu şuna şunu tüm var ve veya ya yani yok
        """,
    }.items()
}

LETTERS: dict[str, str] = {
    "de": "äöüß",
    "fr": "àâçèéêëîïôùûœ",
    "es": "áéíñóú¿¡",
    "pt": "àáâãçéêíóôõú",
    "it": "àèéìòù",
    "nl": "ëï",
    "pl": "ąćęłńóśźż",
    "sv": "åäö",
    "da": "æøå",
    "no": "æøå",
    "fi": "äö",
    "tr": "çğıöşü",
}
"""Letters with accents, and signs, by language."""

CHINESE_STOP_WORDS = frozenset(
    "我你您他她它们們的是在有和与與也都就很吗嗎呢吧啊呀把被这這那哪些什么麼怎样樣谁誰个個到给給从從为為了"
)
"""Characters that are grammar alone if two of them stand together."""
JAPANESE_STOP_WORDS = frozenset(
    """
    です ます した して いる いた ある あっ から まで とか って ない なか かっ たい たの のは のが のを
    には では とは あり りま この その あの どの これ それ あれ どれ ここ そこ どこ だれ なに いつ なぜ
    どう こと もの よう そう ので でも けど だっ れど った てい まし ませ せん しょ ょう たち ちゃ たら
    なら れた れる られ んで んだ すか たか ると うに との もう ても ため でし
    """.split()  # noqa: SIM905
)
"""Pairs of characters that are grammar alone."""

NEGATIONS: frozenset[str] = frozenset(
    """
    no not never none nothing nobody nor without cannot
    nicht kein keine keinen keinem keiner nie niemals nichts ohne
    ne pas jamais rien sans aucun aucune
    no nunca jamás sin nada nadie ningún ninguno ninguna
    não nem nunca jamais sem nada ninguém nenhum nenhuma
    non né mai senza niente nulla nessuno nessuna
    niet geen nooit niets niemand zonder
    nie nigdy nic nikt bez ani
    не нет ни никогда ничего никто без нельзя
    inte ej icke aldrig ingen inget inga utan
    ikke aldri aldrig ingen intet ingenting uden uten
    ei emme ette eivät eikä koskaan mitään kukaan ilman
    değil hiç yok asla hiçbir
    不 没 ない
    """.split()  # noqa: SIM905
)
"""Words that invert the meaning of a text, in all languages."""

COMMON_ENGLISH: frozenset[str] = frozenset(
    """
    ago already alright another around ate away back bad bed best better big bit bye call came cant car come cool
    day didnt dinner done dont else even ever every feel find fine first fun go goes going gone gonna good great guy
    guys happy head hear hello help hey hi home hot huge idk im ive job keep kind kinda know last later leave left
    life like little lol long look lot love made make man many maybe mean mine mom mon money much name need never
    new next nice night number oh ok okay old one people place play please plus put read really remember right said
    say see sent show sick something soon sorry sort still sure take talk tell thank thanks thats theyd thing things
    think though time today told tomorrow took try two uh um use used van wait walk wanna want watch way week well
    went whats work write ya yea yeah year yes yesterday yet
    """.split()  # noqa: SIM905
)
"""Frequent English words that are not stop words, to tell English apart."""

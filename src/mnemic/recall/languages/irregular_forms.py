"""English words with forms that stemming does not unite, one word with its forms in each line."""

IRREGULAR_FORMS: tuple[str, ...] = tuple(
    """
    bear bore borne
    beat beaten
    become became
    begin began begun
    bite bit bitten
    blow blew blown
    break broke broken
    breed bred
    bring brought
    build built
    buy bought
    catch caught
    choose chose chosen
    come came
    creep crept
    deal dealt
    dig dug
    draw drew drawn
    dream dreamt
    drink drank drunk
    drive drove driven
    eat ate eaten
    fall fell fallen
    feed fed
    feel felt
    fight fought
    find found
    fly flew flown
    forget forgot forgotten
    forgive forgave forgiven
    freeze froze frozen
    give gave given
    go went gone
    grow grew grown
    hang hung
    hear heard
    hide hid hidden
    hold held
    keep kept
    know knew known
    lay laid
    lead led
    learn learnt
    leave left
    lend lent
    light lit
    lose lost
    make made
    mean meant
    meet met
    pay paid
    ride rode ridden
    ring rang rung
    rise rose risen
    run ran
    say said
    see saw seen
    seek sought
    sell sold
    send sent
    sew sewn
    shake shook shaken
    shine shone
    shoot shot
    show shown
    shrink shrank shrunk
    sing sang sung
    sink sank sunk
    sit sat
    sleep slept
    slide slid
    speak spoke spoken
    spend spent
    spin spun
    stand stood
    steal stole stolen
    stick stuck
    strike struck
    swear swore sworn
    sweep swept
    swim swam swum
    swing swung
    take took taken
    teach taught
    tear tore torn
    tell told
    think thought
    throw threw thrown
    understand understood
    wake woke woken
    wear wore worn
    win won
    write wrote written
    child children kid
    foot feet
    goose geese
    man men
    mouse mice
    person people
    tooth teeth
    wife wives
    life lives
    woman women
    mother mom mum
    father dad
    grandmother grandma
    grandfather grandpa
    marry married marriage wedding
    bicycle bike
    film movie
    photograph photo picture
    television tv
    favourite favorite
    """.strip().splitlines()
)

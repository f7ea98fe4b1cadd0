"""Small changes of wording that leave a question's meaning: other words, and openings before a sentence."""

import re

SENTENCE_END = re.compile(r"(?<=[.?!]) ")
CHANGE_SHARE = 0.4  # of the places where a rule fits
OPENING_SHARE = 0.06  # of the sentences

RULES = [(re.compile(pattern), options.split("|")) for pattern, options in (
    (r"\bbuys\b", "purchases|orders|takes|picks out"),
    (r"\bin all\b", "in total|altogether|overall|all told"),
    (r"\bin total\b", "in all|altogether|overall|taken together"),
    (r"\baltogether\b", "in all|in total|overall"),
    (r"\bhas (?=\d)", "owns |holds |keeps |has got "),
    (r"\bhad (?=\d)", "owned |held |started with "),
    (r"\bgives (?=\d)", "hands |passes "),
    (r"(\$\d+) each\b", r"\1 apiece|\1 per piece|\1 a piece|\1 for each one"),
    (r"(\d+) dollars each\b", r"\1 dollars apiece|\1 dollars per piece|\1 dollars for each one"),
    (r"\bcost (?=\$)", "are sold for |are priced at |go for "),
    (r"\bcosts (?=\$)", "is sold for |is priced at |sells for |goes for "),
    (r"\bHow much does (\w+) spend\b", r"What does \1 spend|How much money does \1 spend|How many dollars does \1 spend"),
    (r"\bHow many (\w+) does (\w+) have left\?", r"How many \1 are left for \2?|How many \1 does \2 still have?|What number of \1 does \2 have left?"),
    (r"\bHow many (\w+) are left\?", r"How many \1 remain?|How many \1 are still there?|What number of \1 is left?"),
    (r"\bHow many (\w+) remain\?", r"How many \1 are left?|How many \1 are there in the end?"),
    (r"\bHow much is left\?", "How much remains?|What is left?|What remains?"),
    (r"\bHow many (?=\w+ (?:does|do|did|are|is)\b)", "What number of |How many |Exactly how many "),
    (r"\bHow many dollars\b", "How much money|How many dollars exactly"),
    (r"\bWhat is the total\b", "What is the sum|What is the overall amount|How large is the total"),
    (r"\bevery day\b", "each day|per day|on each day"),
    (r"\beach day\b", "every day|per day|on every day"),
    (r"\bevery (hour|week|minute|month|evening)\b", r"each \1|per \1"),
    (r"\bper (hour|minute|day)\b", r"each \1|every \1"),
    (r"\ban hour\b", "each hour|every hour|per hour"),
    (r"\bThen (?=he|she)", "After that, |Next, |Later |Afterwards, "),
    (r"\bThere are\b", "We have|One can see|You can find"),
    (r"\bshares\b", "splits|divides"),
    (r"\bis (\d+) years old\b", r"is \1 years of age|is aged \1|is \1"),
    (r"\bequally\b", "evenly|fairly|in equal parts"),
    (r"\bThe rest\b", "What remains|All the others"),
    (r"\bmakes (?=\d)", "produces |creates |finishes "),
    (r"\bmade (?=\d)", "produced |created |finished "),
    (r"\bcollected\b", "gathered|brought together"),
    (r"\bpicked\b", "gathered|took"),
    (r"\bfound\b", "discovered|came upon"),
    (r"\bloses\b", "misplaces|drops"),
    (r"\breceives\b", "gets|is handed|obtains"),
    (r"\bempty\b", "free|vacant|not taken"),
    (r"\bstudents\b", "pupils|learners"),
    (r"\bchildren\b", "kids|young people"),
    (r"\bpeople\b", "persons|men and women"),
    (r"\bfriends\b", "buddies|pals"),
    (r"\bHow old will (\w+) be\b", r"What age will \1 be|How many years old will \1 be"),
    (r"\breads\b", "finishes|looks through"),
    (r"\bruns a stand\b", "has a stand|keeps a stand"),
    (r"\bpays (?=\d|\$)", "spends |puts down |gives "),
    (r"\bspends (?=\d|\$)", "pays |uses |puts down "),
    (r"\bearns\b", "makes|is paid|gets"),
    (r"\bwide\b", "across|in width"),
    (r"\blong and\b", "in length and"),
    (r"\bholds\b", "contains|has room for"),
    (r"\bgo into\b", "are put into|end up in"),
    (r"\bcarries\b", "takes|transports"),
    (r"\bweighs\b", "has a weight of"),
    (r"\bplants\b", "puts in|sets"),
    (r"\bwarmer\b", "hotter|more"),
    (r"\bfell by\b", "went down by|sank by"),
    (r"\bdrops\b", "falls|sinks"),
    (r"\brises\b", "climbs|goes up"),
)]
OPENINGS = ("One day, ", "Last week, ", "As usual, ", "This year, ", "Luckily, ", "As it happens, ", "As we know, ", "Once more, ",
            "It is said that ", "Imagine that ", "Suppose that ", "Let us say that ", "Note that ", "Of course, ", "To begin with, ")
QUERY_OPENINGS = ("In the end, ", "So ", "Now, ", "After all this, ", "Tell me, ", "Can you work out: ", "The question is: ", "I wonder: ")
LOWERED = ("The", "There", "In", "At", "On", "For", "How", "What", "Each", "Every", "A", "An", "It", "He", "She", "Water", "If", "With",
           "From", "Out", "Of", "They", "To", "We", "One", "You", "All", "After", "Then", "Together", "His", "Her", "Find", "Exactly")


def _opened(sentence, opening):
    first = sentence.split(" ", 1)[0]
    return opening + (sentence[0].lower() + sentence[1:] if first in LOWERED else sentence)


def reworded(rng, question):
    """Names and numbers stay as they are."""
    for pattern, options in RULES:
        if rng.random() < CHANGE_SHARE:
            question = pattern.sub(options[int(rng.random() * len(options))], question)
    sentences = SENTENCE_END.split(question)
    for i, sentence in enumerate(sentences):
        if rng.random() < OPENING_SHARE:
            openings = QUERY_OPENINGS if sentence.endswith("?") else OPENINGS
            sentences[i] = _opened(sentence, openings[int(rng.random() * len(openings))])
    return sentences

# Words that stand for any word the model has never seen in such a place.
ANY_WORDS = (
    "able about across actually again ahead almost along already also always among another any anyway around aside away back because "
    "before behind below beside besides between beyond big bottom bring brings brought calm came careful carefully carry certain chance "
    "change clean close come comes common complete corner count counts cousin cousins day desk different dinner done down during early "
    "easily either else end enough even evening everyone everything exactly extra fair fall false far fast few final finally fine finish "
    "first follow for found free fresh from full fun further gather get gets getting given glad go goes gone good got grand great group "
    "guest guests hand hands happen happens happy hard head hear heavy help here high hold holds home hope hour hours house huge idea "
    "important inside instead into just keep keeps kind knows large last late later laid lay lays lead least leave leaves less let level "
    "lie lies light like likely line list little lives long look looks lot lots low lucky main make many mark marked matter maybe mean "
    "meet mind minute moment month morning most mostly move much must name near nearly need needs neighbor never new next nice night noon "
    "none note nothing now number offer often once one only onto open order other our out outside over own page pair part party pass past "
    "pause people perhaps pick pile place plan play please point poor possible probably pull push put puts quick quickly quiet quite rather "
    "ready real really reason rest return rich richer right river road room round run runs sad sadly safe same say says season second see "
    "seem seems seen sell seller send set several shelf short show side simple since single sit sits slow small some someone sometimes soon "
    "sort special spot stand start stay still stop strong such sure table tag take takes taken talk tall team tell thick thin thing think "
    "though through throw tiny today together tomorrow tonight too took top toward town trip true try turn turns under until up upon use "
    "used usual visit wait walk wall wants watch way weather week well went while whole whose why wide will wish with within without wonder "
    "world would year years yesterday yet young"
).split()
# What a question hangs on.
KEPT = frozenset((
    "more less fewer than twice half third quarter fifth sixth times each every per dozen older younger off away left equally old long wide "
    "two three four five six seven eight nine ten eleven twelve hour hours minute minutes day days week weeks month months adult child "
    "adults children nickels dimes quarters pennies percent discount tip average mean first second another other others many "
    "empty overtime wrong right misses hits point points free and the how what"
).split())
WORD = re.compile(r"\b[a-z]{3,}\b")


def noisy(rng, question, answer, share=0.12):
    """Some words become others that mean nothing here, so that a model learns to do with what it understands. Words of the
    answer and those that the calculation hangs on stay."""
    kept = set(WORD.findall(answer))

    def change(match):
        word = match.group()
        if word in KEPT or word in kept or rng.random() >= share:
            return word
        return ANY_WORDS[int(rng.random() * len(ANY_WORDS))]

    return WORD.sub(change, question)

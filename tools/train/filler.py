"""Text that has nothing to do with a problem: what stands around it in a long document."""

import draw

ADJECTIVES = (
    "dusty small quiet busy bright narrow wooden green famous simple heavy sunny warm hollow little round strange deep "
    "clear broken yellow long wide tired gentle"
).split()
NOUNS = (
    "bridge river clock letter window lantern kettle map garden boat street tower hill road field forest wall door roof "
    "chair train engine story song picture island lake village square fountain mill barn fence gate stove mirror ladder"
).split()
VERBS_PAST = (
    "opened closed painted cleaned carried found repaired watched followed described remembered visited crossed "
    "measured moved covered noticed sketched admired fixed"
).split()
WEATHER = "rain wind snow fog sunshine frost thunder mist".split()
MONTHS = "January February March April May June July August September October November December".split()
TOPICS = (
    "the history of the town", "how bread is made", "the birds of the coast", "a journey by train", "the new school hall",
    "life on a farm", "an old map", "the village market", "how glass is blown", "the long winter", "a walk in the hills",
    "the work of a carpenter", "the lighthouse keeper", "the music festival", "how rivers change",
)


def sentence(d):
    """One sentence about a town, with people and numbers that mean nothing."""
    a, b, x, y = d.pick(ADJECTIVES), d.pick(ADJECTIVES), d.pick(NOUNS), d.pick(NOUNS)
    k = int(d.rng.random() * 27)
    n, year = int(d.rng.random() * 95) + 2, 1800 + int(d.rng.random() * 220)
    if k < 9:
        p = d.person()
        d.people.pop()  # a name may come again
        return (
            f"{p} {d.pick(VERBS_PAST)} the {a} {x} near the {y}.",
            f"In {d.pick(MONTHS)} {p} {d.pick(VERBS_PAST)} a {b} {x} and said nothing about it.",
            f"{p} wrote {n} pages about {d.pick(TOPICS)}.",
            f"\"The {x} is {a},\" said {p}, \"but the {y} is {b}.\"",
            f"{p} came to the {d.pick(draw.PLACES)} at {n % 12 + 1} o'clock and looked for the {x}.",
            f"Since {year}, the family of {p} has kept a {b} {x} there.",
            f"When {p} was young, the {x} stood {n} steps from the {y}.",
            f"{p} never liked the {d.pick(WEATHER)}, and in {d.pick(MONTHS)} {p.he} stayed at home.",
            f"Every {d.pick(draw.DAYS)} {p} walked past the {x} to the {d.pick(draw.PLACES)}.",
        )[k]
    return (
        f"The {a} {x} was built in {year} and is {n} feet high.",
        f"There is a {a} {x} behind the {d.pick(draw.PLACES)}.",
        f"In {year} the {d.pick(WEATHER)} damaged {n} houses near the {y}.",
        f"Nobody knows why the {x} is so {b}.",
        f"The road to the {x} is {n} miles long and rather {a}.",
        f"Some say the {y} is {b}, others say it is {a}.",
        f"On {d.pick(draw.DAYS)} the {d.pick(draw.PLACES)} is closed.",
        f"The {x} can be seen from the {y} when there is no {d.pick(WEATHER)}.",
        f"About {n} visitors come to the {a} {x} in {d.pick(MONTHS)}.",
        f"This part of the book is about {d.pick(TOPICS)}.",
        f"A {b} {x} stood next to a {a} {y}.",
        f"After the {d.pick(WEATHER)} of {year} the {x} had to be moved.",
        f"It took {n} days to paint the {a} {y}.",
        f"The {d.pick(draw.FLOWERS)} by the {x} bloom in {d.pick(MONTHS)}.",
        f"They sell {d.pick(draw.FOODS)} and {d.pick(draw.THINGS)} at the {d.pick(draw.PLACES)}.",
        f"Without the {x}, the {y} would be {b}.",
        f"Chapter {n} tells more about {d.pick(TOPICS)}.",
        f"The {y} was {a} then, and the {x} was {b}.",
    )[k - 9]


def paragraph(d):
    return " ".join(sentence(d) for _ in range(3 + int(d.rng.random() * 6)))

"""What a word problem is made of: people, things, numbers, and calculations written out.

A kind of problem (kinds_*.py) is a function of a Draw. It draws people, things and numbers, words the
question in one of several ways with ask(), and returns the answer's steps and the number asked for.
"""

GIRLS = (
    "Anna Maria Lena Sofia Emma Mia Zoe Nina Clara Julia Laura Sarah Hannah Grace Ruth Alice Ivy Rosa Elena "
    "Priya Aisha Fatima Yuki Mei Ling Amara Zuri Nadia Leila Carmen Lucia Ines Olga Vera Tanya Marta Helga "
    "Freya Ingrid Chloe Daisy Molly Kate Lily Nora Paula Tina Wendy Abby Beth Donna Fiona Gina Holly Iris"
).split()
BOYS = (
    "Tom Ben Sam Max Leo Paul Mark Luke John Peter David Daniel Adam Noah Omar Ali Hassan Raj Arjun Kenji "
    "Hiro Chen Wei Jin Kofi Kwame Diego Carlos Pablo Luis Marco Ivan Boris Igor Lars Erik Olaf Hans Karl "
    "Felix Oscar Hugo Jack Harry George Alex Eric Frank Greg Henry Jacob Kevin Liam Nate Ryan Steve Victor"
).split()
THINGS = (
    "pencils stickers marbles stamps coins buttons beads shells cards books pens erasers crayons markers "
    "notebooks balloons ribbons badges toys puzzles stones postcards magnets keys bottles cups candles kites "
    "posters dolls blocks dice whistles spoons plates mugs socks hats scarves belts photos feathers tiles"
).split()
FOODS = (
    "apples pears oranges lemons plums peaches bananas cookies muffins cupcakes bagels rolls eggs carrots "
    "potatoes tomatoes onions melons figs dates cherries grapes walnuts almonds pretzels candies donuts pies"
).split()
ANIMALS = "chickens ducks geese sheep goats cows pigs horses rabbits turkeys".split()
FLOWERS = "roses tulips daisies lilies sunflowers violets pansies poppies".split()
PLACES = (
    "school market library park museum zoo bakery farm harbor station theater stadium garden mall clinic"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()


class Person:
    def __init__(self, name, is_girl):
        self.name = name
        self.he, self.his, self.him = ("she", "her", "her") if is_girl else ("he", "his", "him")
        self.He = self.he.capitalize()
        self.His = self.his.capitalize()

    def __str__(self):
        return self.name


class NoWording(Exception):
    """The kind has no wording of the sort that was asked for."""


class Draw:
    """One problem being made. `wording` is "seen" (what training uses) or "unseen"."""

    def __init__(self, rng, wording="seen", taken=()):
        self.rng = rng
        self.wording = wording
        self.taken = taken  # names that are somebody else's
        self.people = []
        self.things = set()
        self.question = ""
        self.phrasing = 0
        self.spells = rng.random() < 0.25  # small counts as words

    def n(self, low, high, step=1):
        """A number from low to high."""
        return low + step * int(self.rng.random() * ((high - low) // step + 1))

    def pick(self, options):
        return options[int(self.rng.random() * len(options))]

    def w(self, text):
        """One of the words between bars."""
        return self.pick(text.split("|"))

    def c(self, number):
        """A count as the question shows it: digits, or now and then a word."""
        return WORDS[number] if self.spells and number <= 12 else str(number)

    def person(self):
        while True:
            is_girl = self.rng.random() < 0.5
            name = self.pick(GIRLS if is_girl else BOYS)
            if name not in self.taken and all(name != other.name for other in self.people):
                person = Person(name, is_girl)
                self.people.append(person)
                return person

    def _new(self, words):
        while True:
            word = self.pick(words)
            if word not in self.things:
                self.things.add(word)
                return word

    def thing(self):
        return self._new(THINGS)

    def food(self):
        return self._new(FOODS)

    def anything(self):
        return self._new(THINGS if self.rng.random() < 0.6 else FOODS)

    def animal(self):
        return self._new(ANIMALS)

    def flower(self):
        return self._new(FLOWERS)

    def place(self):
        return self._new(PLACES)

    def day(self):
        return self._new(DAYS)

    def ask(self, *phrasings, unseen=()):
        """Words the question. `unseen` wordings never occur in training."""
        choices = phrasings if self.wording == "seen" else unseen
        if not choices:
            raise NoWording()
        self.phrasing = int(self.rng.random() * len(choices))
        self.question = choices[self.phrasing]


def add(*terms):
    """Two terms at a time: 14 + 24 + 9 = 38 + 9 = 47."""
    text = " + ".join(map(str, terms))
    while len(terms) > 1:
        terms = (terms[0] + terms[1], *terms[2:])
        text += " = " + " + ".join(map(str, terms))
    return text


def sub(a, b):
    return f"{a} - {b} = {a - b}"


def div(a, b):
    assert a % b == 0, (a, b)
    return f"{a} / {b} = {a // b}"


def mul(a, b):
    """Written out by digits where the product is in no times table: 47 * 6 = 40 * 6 + 7 * 6 = 240 + 42 = 282."""
    if max(a, b) <= 12:
        return f"{a} * {b} = {a * b}"
    split_first = min(a, b) == b
    whole, other = (a, b) if split_first else (b, a)
    if other > 12:  # both are large: by the smaller one's digits
        whole, other, split_first = other, whole, not split_first
    digits = str(whole)
    parts = [int(d) * 10 ** (len(digits) - 1 - i) for i, d in enumerate(digits) if d != "0"]
    if len(parts) == 1:
        return f"{a} * {b} = {a * b}"
    products = " + ".join(f"{p} * {other}" if split_first else f"{other} * {p}" for p in parts)
    sums = " + ".join(str(p * other) for p in parts)
    return f"{a} * {b} = {products} = {sums} = {a * b}"

"""Texts that tokenizers get wrong, for make_tokenizer_goldens.py and check_tokenizer.py.

A text is bytes, because a client may send anything. Everything comes from a random.Random, so a seed
says which texts they were.

Characters that Unicode assigned after 14.0 are left out: which of them are letters depends on the
version of a library's tables, and ours (PCRE2 10.42) end there.
"""

import random
import unicodedata

# The first release of each library's tables matters only behind this one.
KNOWN_UNICODE = "14.0.0"

WORDS = """the of and to in a is that it was he for on are as with his they at be this have from or one
had by word but not what all were we when your can said there use an each which she do how their if
will up other about out many then them these so some her would make like him into time has look two
more write go see number no way could people my than first water been call who oil its now find long
down day did get come made may part over sound take only little work know place year live me back give
most very after thing our just name good sentence man think say great where help through much before
line right too mean old any same tell boy follow came want show also around form three small set put
end does another well large must big even such because turn here why ask went men read need land
different home us move try kind hand picture again change off play spell air away animal house point
page letter mother answer found study still learn should America world int main return include
const std string vector void public static class def self None True import print lambda""".split()

SCRIPTS = {
    "han": "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里所去行过家十用发天如然作方成者多日都三小军二无同么经法当起与好看学进种将还分此心前面又定见只主没公从",
    "kana": "あいうえおかきくけこさしすせそアイウエオカキクケコサシスセソーっッゃャんンがガ",
    "hangul": "가나다라마바사아자차카타파하한국어안녕하세요감사합니다서울",
    "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهويءآأإئؤةىًٌٍَُِّْ٠١٢٣٤",
    "devanagari": "अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहािीुूेैोौ्ंः०१२३",
    "thai": "กขคงจฉชซญดตถทธนบปผพฟภมยรลวสหอะาิีึืุูเแโใไ่้๊๋์",
    "cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюяАБВГДЕЖЗИЙКЛМНОП",
    "greek": "αβγδεζηθικλμνξοπρστυφχψωΑΒΓΔΕΖΗΘάέήίό",
    "latin": "àáâãäåæçèéêëìíîïñòóôõöøùúûüýÿßŒœŠšŽžſƒǅǲⅷⅨªºµ",
    "marks": "\u0300\u0301\u0302\u0308\u0327\u0489\u20dd\u3099\u064b\u093c",
}

SPACES = [" ", " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u3000", "\u2003",
          "\u2028", "\u2029", "\u0085", "\u180e", "\u200b", "\u202f", "\u205f", "\u1680", "\v", "\f",
          "\x1c", "\x1d", "\x1e", "\x1f", "\ufeff"]

SIGNS = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + [
    "...", "--", "->", "!=", "==", "//", "/*", "*/", "```", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S",
    "'LL", "'ſ", "’s", "“", "”", "—", "…", "。", "，", "！", "？", "、", "「", "」", "～", "￥", "€", "©", "™",
    "°", "±", "×", "→", "∑", "√", "∞", "≤", "▁", "Ġ", "Ċ", "▁▁", "<0x41>", "<0xE4>", "�"]

NUMBERS = ["0", "7", "42", "123", "1234", "123456789", "3.14", "1,000,000", "1e-9", "0xff", "²", "½", "Ⅷ", "㊿",
           "٣٤٥", "१२३", "๔๕", "１２３", "〇", "〡〢", "𝟘𝟙", "፩"]

EMOJI = ["😀", "🎉", "❤️", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵🇫🇷", "☃", "✈️", "1️⃣", "🧑🏿‍🚀", "\U0001f9ff", "⌚",
         "\ufe0f", "\u200d", "\U000e0067\U000e0062\U000e007f"]

CONTROLS = [chr(c) for c in range(32)] + ["\x7f", "\x80", "\x9f", "\u200e", "\u202e", "\u2066", "\u00ad"]

PRIVATE = ["\ue000", "\uf8ff", "\U000f0000", "\U0010fffd"]
UNASSIGNED = ["\u0378", "\u05ff", "\u2fe0", "\ufdd0", "\ufffe", "\uffff", "\U0001ffff", "\U0010ffff", "\U000e0000"]

ILL_FORMED = [b"\xff", b"\xfe", b"\x80", b"\xbf\xbf", b"\xc0\xaf", b"\xc3", b"\xe4\xbd", b"\xe4", b"\xed\xa0\x80",
              b"\xed\xb0\x80", b"\xf0\x9f\x98", b"\xf0\x9f", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80",
              b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"a\xcc", b"\xe2\x82", b"\xf1\x80\x80"]


def any_character(rng):
    """From anywhere in Unicode, the smaller planes' as likely as the larger ones'."""
    limit = rng.choice([0x80, 0x250, 0x800, 0x3000, 0x10000, 0x20000, 0x110000])
    while True:
        c = chr(rng.randrange(limit))
        if unicodedata.category(c) not in ("Cs", "Cn"):
            return c


def word(rng):
    w = rng.choice(WORDS)
    style = rng.randrange(8)
    return [w, w, w, w.capitalize(), w.upper(), w + rng.choice(WORDS).capitalize(), w + "_" + w,
            "".join(rng.choice((str.upper, str.lower))(c) for c in w)][style]


def script_run(rng):
    letters = SCRIPTS[rng.choice(sorted(SCRIPTS))]
    return "".join(rng.choice(letters) for _ in range(rng.randint(1, 8)))


def special_part(rng, specials):
    """A special token, a part of one, or one with something stuck to it."""
    token = rng.choice(specials)
    cut = rng.randint(1, len(token))
    return rng.choice([token, token, token, token[:cut], token[-cut:], token * 2, " " + token + " ", token + "\n"])


def long_run(rng):
    what = rng.choice([" ", "\n", "a", "A", "1", "-", "=", "你", "é", "ก", "👍", "\t", "ab", "aA", " \n", "\u0301", "!?"])
    return what * rng.choice([10, 33, 64, 100, 257])


def piece(rng, specials):
    kind = rng.randrange(22)
    if kind < 5:
        return word(rng)
    if kind < 10:
        return rng.choice(SPACES)
    if kind < 12:
        return rng.choice(SIGNS)
    if kind < 13:
        return rng.choice(NUMBERS)
    if kind < 16:
        return script_run(rng)
    if kind == 16:
        return rng.choice(EMOJI)
    if kind == 17:
        return special_part(rng, specials)
    if kind == 18:
        return rng.choice(CONTROLS + PRIVATE + UNASSIGNED)
    if kind == 19:
        return any_character(rng)
    if kind == 20:
        return "".join(chr(rng.randrange(32, 127)) for _ in range(rng.randint(1, 12)))
    return long_run(rng) if rng.random() < 0.2 else word(rng)


def sentence(rng):
    words = [word(rng) for _ in range(rng.randint(3, 14))]
    return " ".join(words).capitalize() + rng.choice([".", "!", "?", "...", "\n", ""])


def random_text(rng, specials):
    """Bytes; one in fifteen is not UTF-8."""
    style = rng.randrange(15)
    if style < 3:
        return " ".join(sentence(rng) for _ in range(rng.randint(1, 3))).encode()
    pieces = [piece(rng, specials).encode() for _ in range(rng.randint(0, 24))]
    if style == 14:
        for _ in range(rng.randint(1, 3)):
            pieces.insert(rng.randint(0, len(pieces)), rng.choice(ILL_FORMED))
    return b"".join(pieces)


def corpus(seed, num_texts):
    """Texts to train a tokenizer on: strings, mostly plain."""
    rng = random.Random(seed)
    texts = []
    for _ in range(num_texts):
        texts.append(" ".join(sentence(rng) for _ in range(3)))
        texts.append("".join(rng.choice([script_run(rng), rng.choice(NUMBERS), " ", rng.choice(SIGNS), rng.choice(EMOJI)])
                             for _ in range(12)))
        texts.append("\n".join(" " * (4 * rng.randrange(4)) + word(rng) + "(" + word(rng) + ");" for _ in range(4)))
    return texts

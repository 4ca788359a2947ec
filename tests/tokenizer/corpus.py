"""Strings that tokenizers tend to differ on. The same seed gives the same strings everywhere."""

import random
from collections.abc import Callable

SCRIPTS = {
    "latin": [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x1E00, 0x1EFF)],
    "greek": [(0x370, 0x3E1), (0x1F00, 0x1FBC)],
    "cyrillic": [(0x400, 0x52F)],
    "armenian": [(0x531, 0x556), (0x561, 0x587)],
    "hebrew": [(0x5D0, 0x5EA), (0x5B0, 0x5C7)],
    "arabic": [(0x620, 0x64A), (0x64B, 0x65F), (0x660, 0x669), (0x671, 0x6D3)],
    "devanagari": [(0x900, 0x963), (0x966, 0x96F)],
    "bengali": [(0x985, 0x98C), (0x993, 0x9A8), (0x9BE, 0x9C4), (0x9E6, 0x9EF)],
    "tamil": [(0xB85, 0xB8A), (0xB92, 0xB95), (0xBBE, 0xBC2), (0xBC6, 0xBC8), (0xBE6, 0xBF2)],
    "thai": [(0xE01, 0xE3A), (0xE40, 0xE59)],
    "tibetan": [(0xF40, 0xF47), (0xF71, 0xF84)],
    "georgian": [(0x10A0, 0x10C5), (0x10D0, 0x10FA)],
    "hangul": [(0xAC00, 0xD7A3), (0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2)],
    "ethiopic": [(0x1200, 0x1248)],
    "khmer": [(0x1780, 0x17B3), (0x17B6, 0x17D3)],
    "kana": [(0x3041, 0x3096), (0x30A1, 0x30FA), (0xFF66, 0xFF9D)],
    "han": [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0xF900, 0xFA6D)],
    "symbols": [(0x2190, 0x23FF), (0x2460, 0x24FF), (0x2500, 0x27BF), (0x1D400, 0x1D7FF)],
    "fullwidth": [(0xFF01, 0xFF5E), (0xFB00, 0xFB06), (0x3300, 0x33FF), (0x2150, 0x218B)],
    "new": [(0x1C89, 0x1C8A), (0xA7CB, 0xA7CD), (0x10D40, 0x10D65), (0x1E5D0, 0x1E5FA),
            (0x11F00, 0x11F10), (0x1F8B2, 0x1F8BB), (0x2EBF0, 0x2EE5D), (0x31350, 0x323AF)],
}
SPACES = [" "] * 12 + ["\t", "\n", "\n", "\r\n", "\r", "\v", "\f", "\x85", "\xa0", "\u1680", "\u2003",
                       "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b"]
WORDS = ("the of and to in is was for on with as it at by from that this are be have not which one all "
         "their there when who will more if out so up said about them can into time only could new "
         "Hello World naïve café Straße I'm you're they've we'll he'd don't it's DON'T WE'LL I'M "
         "o'clock rock'n'roll internationalization antidisestablishmentarianism").split()
EMOJI = ("😀 😂 🤣 ❤️ ❤ 👍 👍🏽 👍🏿 👩‍💻 👨‍👩‍👧‍👦 🏳️‍🌈 🏴‍☠️ 🇩🇪 🇯🇵 🇺🇸 1️⃣ #️⃣ 🧑🏾‍🚀 🫠 🫶🏻 ☺️ ☺ ✈️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 "
         "🤷🏻‍♀️ 🐈‍⬛ 🫨 🪿 ⚡ ♾️ 🈁 🆗 Ⓜ️ ㊙️ ‼️").split()
SNIPPETS = [
    "def f(x: int) -> int:\n    return x ** 2  # square\n", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    '{"key": [1, 2.5e-3, null, true], "ключ": "значение"}', "<div class=\"a\">&nbsp;</div>\r\n",
    "\\frac{\\partial f}{\\partial x} = \\sum_{i=1}^{n} x_i^2", "SELECT * FROM t WHERE id='1' -- c",
    "#!/usr/bin/env bash\nset -euo pipefail\n\t\texport A=\"$B\"\n", "x = lambda *a, **k: (a, k)",
    "https://example.org/a/b?c=d&e=%20f#g", "user.name+tag@mail.example.co.uk", "0xDEADBEEF 0b1010 1_000_000",
    "fn main() -> Result<(), Box<dyn Error>> { println!(\"{:?}\", x); }", "C:\\Users\\me\\file.txt",
    "```python\nprint('hi')\n```\n", "a->b::c<d>&&e||!f;", "//////////***********==========-----------",
]
ODDITIES = ["\ufffd", "\ufffe", "\uffff", "\ufeff", "\ue000", "\uf8ff", "\U0010ffff", "\u0000", "Ã©", "â€™",
            "<0x41>", "<0xE4>", "▁", "▁▁", "Ġ", "Ċ", "Â", "\u00ad", "\u200d", "\u200c", "\u2060",
            "\u061c", "\u202e", "\u180e", "ſ", "'ſ", "K", "Å", "İ", "ı", "ß", "ẞ", "ﬁ", "ǅ", "½", "²",
            "①", "٣", "Ⅷ", "\u0378", "\U000e0001", "㍿", "\u1e9b\u0323", "\u0344", "\u2126"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'VE", "'M", "'LL", "'D",
                "'sa", "'x", "''s", "’s", "'Re", "'lL", " 's", "'1"]
FOREIGN_SPECIALS = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "[INST]",
                    "[/INST]", "<|begin_of_text|>", "<|eot_id|>", "<EOT>", "<META>", "<pad>", "[CLS]"]
COMBINING = [(0x300, 0x36F), (0x483, 0x487), (0x591, 0x5BD), (0x610, 0x61A), (0x64B, 0x65F),
             (0x1AB0, 0x1ABE), (0x20D0, 0x20DC), (0x302A, 0x302F), (0xFE20, 0xFE2F), (0x93C, 0x94D)]

DECOMPOSING_MARKS = [(0xF71, 0xF75), (0xF80, 0xF81), (0xFF9E, 0xFF9F), (0x340, 0x344)]


class Corpus:
    """One seeded stream of strings. `specials` are the literals of the tokenizer's added tokens."""

    def __init__(self, seed: int, specials: list[str]) -> None:
        self.random = random.Random(seed)
        self.specials = (specials + FOREIGN_SPECIALS) if specials else FOREIGN_SPECIALS

    def _from_ranges(self, ranges: list[tuple[int, int]]) -> str:
        low, high = self.random.choice(ranges)
        return chr(self.random.randint(low, high))

    def _repeat(self, piece: Callable[[], str], low: int, high: int) -> str:
        return "".join(piece() for _ in range(self.random.randint(low, high)))

    def script(self) -> str:
        ranges = self.random.choice(list(SCRIPTS.values()))
        word = lambda: self._repeat(lambda: self._from_ranges(ranges), 1, 9)  # noqa: E731
        gap = lambda: self.random.choice([" ", " ", " ", ", ", ". ", "\n", "、", "-", ""])  # noqa: E731
        return self._repeat(lambda: word() + gap(), 1, 8)

    def english(self) -> str:
        word = lambda: self.random.choice(WORDS)  # noqa: E731
        mark = lambda: self.random.choice([" ", " ", " ", " ", ", ", ". ", "! ", "? ", "\n\n", "; "])  # noqa: E731
        return self._repeat(lambda: word() + mark(), 1, 25)

    def emoji(self) -> str:
        return self._repeat(lambda: self.random.choice(EMOJI) + self.random.choice(["", "", " "]), 1, 8)

    def code(self) -> str:
        text = self._repeat(lambda: self.random.choice(SNIPPETS), 1, 3)
        if self.random.random() < 0.5:
            cut = self.random.randrange(len(text))
            text = text[cut:] + text[: self.random.randrange(cut + 1)]
        return text

    def control(self) -> str:
        piece = lambda: chr(self.random.choice([*range(0x20), *range(0x7F, 0xA0)]))  # noqa: E731
        return self._repeat(lambda: piece() + self.random.choice(["", "", "a", " b"]), 1, 12)

    def spaces(self) -> str:
        run = lambda: self.random.choice(SPACES) * self.random.choice([1, 1, 1, 2, 3, 4, 7, 8, 16, 40])  # noqa: E731
        return self._repeat(lambda: run() + self.random.choice(["", "", "x", "if", "9", "."]), 1, 8)

    def digits(self) -> str:
        number = lambda: str(self.random.randrange(10 ** self.random.randint(1, 20)))  # noqa: E731
        sign = lambda: self.random.choice(["", " ", ".", ",", "-", "+", "e", "%", "٣", "९", "²", "½", "Ⅷ", "１"])  # noqa: E731
        return self._repeat(lambda: number() + sign(), 1, 6)

    def special(self) -> str:
        def piece() -> str:
            token = self.random.choice(self.specials)
            kind = self.random.random()
            if kind < 0.15:  # cut short
                token = token[: self.random.randrange(len(token) + 1)]
            elif kind < 0.25:
                token = token[self.random.randrange(len(token)) :]
            elif kind < 0.3:
                token = token.upper()
            return token + self.random.choice(["", "", " ", "\n", "user", "  ", "é", "<"])

        return self._repeat(piece, 1, 6)

    def odd(self) -> str:
        return self._repeat(lambda: self.random.choice(ODDITIES) + self.random.choice(["", "", "a", " "]), 1, 8)

    def combining(self) -> str:
        base = lambda: self.random.choice("aeiouAEnNcſ가ᄀक्षبকா한ẛ .0<")  # noqa: E731
        marks = lambda: self._repeat(lambda: self._from_ranges(COMBINING), 0, 5)  # noqa: E731
        text = self._repeat(lambda: base() + marks(), 1, 8)
        if self.random.random() < 0.03:
            text += self._repeat(lambda: self._from_ranges([*COMBINING, *DECOMPOSING_MARKS]), 60, 200)
        return text

    def contractions(self) -> str:
        piece = lambda: self.random.choice(WORDS) + self.random.choice(CONTRACTIONS)  # noqa: E731
        return self._repeat(lambda: piece() + self.random.choice(["", " ", " "]), 1, 6)

    def anything(self) -> str:
        def piece() -> str:
            code = self.random.randrange(0x110000)
            return chr(code if not 0xD800 <= code < 0xE000 else code - 0xD800)

        return self._repeat(piece, 1, 16)

    def any_plane0(self) -> str:
        return self._repeat(lambda: chr(self.random.randrange(0xD800)), 1, 24)

    def punctuation(self) -> str:
        return self._repeat(lambda: chr(self.random.randint(0x20, 0x7E)), 1, 40)

    def mixed(self) -> str:
        text = self._repeat(lambda: self.random.choice(self.kinds())(), 2, 5)
        if self.random.random() < 0.2:
            text = self.random.choice(SPACES) + text
        return text + (self.random.choice(SPACES) if self.random.random() < 0.2 else "")

    def kinds(self) -> list[Callable[[], str]]:
        return [self.script, self.english, self.emoji, self.code, self.control, self.spaces, self.digits,
                self.special, self.odd, self.combining, self.contractions, self.anything,
                self.any_plane0, self.punctuation]

    def strings(self, count: int) -> list[str]:
        kinds = [*self.kinds(), self.mixed, self.mixed]
        texts = ["", " ", "\n", "a"]
        while len(texts) < count:
            texts.append(kinds[len(texts) % len(kinds)]())
        return texts


def long_strings() -> list[str]:
    """About 100 KB each; some of them one word."""
    stream = Corpus(7, [])
    prose = "".join(stream.english() for _ in range(1200))[:100_000]
    scripts = "".join(stream.mixed() for _ in range(700))[:60_000]
    return [prose, scripts, "a" * 100_000, "ab" * 50_000, prose.replace(" ", "").replace("\n", ""),
            " " * 100_000, "中文" * 16_000, "\n" * 100_000, "1" * 100_000, "😀" * 25_000, "=-" * 50_000,
            "<|" * 50_000]

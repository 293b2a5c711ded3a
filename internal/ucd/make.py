# Writes tables.lzma: what tokenizers 0.23.3 knows of Unicode, asked about every code point.
# Run with Python 3.11 and `pip install tokenizers==0.23.3`, in this folder.
#
# Its parts know different versions of Unicode, and files of tokenizers rely on each:
#   sets          classes of its pattern engine (Oniguruma), by their names in patterns
#   peer:numeric  char::is_numeric of Rust, which Digits uses
#   peer:space    char::is_whitespace of Rust, which WhitespaceSplit and Strip use
#   peer:punct    what Punctuation splits off
#   peer:word     \w of Rust's crate regex, which Whitespace and single_word use
#   peer:control  what the option clean_text of BertNormalizer removes
#   peer:accent   what StripAccents removes
#   peer:bert     what the option strip_accents of BertNormalizer removes after NFD
#   peer:joins    what belongs to the grapheme of a letter before it, for Precompiled
#   lower         char::to_lowercase
#   nfd, nfkd     full decompositions, without Hangul syllables
#   ccc           combining classes
#   compose       pairs that NFC joins
# A set is a list of numbers: how many are out, how many are in, and so on from 0.
import lzma
import struct
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

assert tokenizers.__version__ == "0.23.3", tokenizers.__version__

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CLASSES = (
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf "
    "Latin Greek Cyrillic Armenian Hebrew Arabic Devanagari Bengali Tamil Telugu Thai Lao Tibetan Georgian "
    "Hangul Hiragana Katakana Han Common"
).split()

lines = []


def write_set(name, members):
    runs, last, inside = [], 0, False
    for c in range(0x110001):
        if (c in members) != inside:
            runs.append(c - last)
            last, inside = c, not inside
    lines.append(name + "\t" + " ".join(map(str, runs)))


ALL = "".join(map(chr, POINTS))
BETWEEN = "a" + "a".join(map(chr, POINTS)) + "a"  # every code point has an a on both sides


def removed_by(splitter):
    return set(POINTS) - {ord(c) for piece, _ in splitter.pre_tokenize_str(ALL) for c in piece}


def pieces(splitter):
    return [piece for piece, _ in splitter.pre_tokenize_str(BETWEEN)]


for name in CLASSES:
    write_set(name, removed_by(pre_tokenizers.Split(Regex(r"\p{%s}" % name), "removed")))
for name in "swd":
    write_set("\\" + name, removed_by(pre_tokenizers.Split(Regex("\\" + name), "removed")))
write_set("peer:numeric", {ord(p) for p in pieces(pre_tokenizers.Digits(True)) if len(p) == 1 and p != "a"})
write_set("peer:space", removed_by(pre_tokenizers.WhitespaceSplit()))
write_set("peer:punct", removed_by(pre_tokenizers.Punctuation("removed")))
write_set("peer:word", {ord(c) for p in pieces(pre_tokenizers.Whitespace()) if "a" in p for c in p})


def left_out(normalizer):
    return {c for c in POINTS if normalizer.normalize_str(chr(c)) == ""}


def bert(**on):
    return normalizers.BertNormalizer(**{**dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False), **on})


write_set("peer:control", left_out(bert(clean_text=True)))
write_set("peer:accent", left_out(normalizers.StripAccents()))
write_set("peer:bert", {c for c in POINTS if unicodedata.normalize("NFD", chr(c)) == chr(c)} & left_out(bert(strip_accents=True)))

# A double-array trie with the one key "a", whose value is at 0: the text "b". A grapheme that begins with "a" becomes "b".
units = [0] * 256
units[0] = 1 << 10  # the root: children are at 1 ^ byte
units[1 ^ ord("a")] = (1 ^ ord("a") ^ 128) << 10 | 1 << 8 | ord("a")  # has a leaf, at 128
units[128] = 1 << 31  # the value 0
charsmap = struct.pack("<I", 4 * len(units)) + struct.pack("<256I", *units) + b"b\0"
letters = normalizers.Precompiled(charsmap)
assert letters.normalize_str("a-") == "b-"
write_set("peer:joins", {c for c in POINTS if letters.normalize_str("a" + chr(c)) == "b"})


def write_map(name, pairs):
    lines.append(name + "\t" + " ".join("%x=%s" % (k, ",".join("%x" % ord(c) for c in v)) for k, v in pairs))


def changes(normalizer):
    new = [(c, normalizer.normalize_str(chr(c))) for c in POINTS if not 0xAC00 <= c < 0xD7A4]
    return [(c, s) for c, s in new if s != chr(c)]


nfd = normalizers.NFD()
nfc = normalizers.NFC()
write_map("lower", changes(normalizers.Lowercase()))
decomposed = changes(nfd)
write_map("nfd", decomposed)
write_map("nfkd", changes(normalizers.NFKD()))

# Python knows newer marks; the order that NFD gives them says which ones the peer knows.
# U+0334 has class 1, U+0591 has class 220.
marks = [c for c in POINTS if unicodedata.combining(chr(c)) or unicodedata.category(chr(c))[0] in "MC"]
marks = [c for c in marks if nfd.normalize_str(chr(c)) == chr(c)]
known = []
for c in marks:
    for low, high in ((chr(0x334), chr(c)), (chr(c), chr(0x591))):
        if nfd.normalize_str("a" + high + low) != "a" + nfd.normalize_str(high) + nfd.normalize_str(low):
            known.append(c)
            assert unicodedata.combining(chr(c)), hex(c)
            break
lines.append("ccc\t" + " ".join("%x=%x" % (c, unicodedata.combining(chr(c))) for c in sorted(set(known))))

pairs = []
for c, s in decomposed:
    one = unicodedata.decomposition(chr(c)).split()
    if len(one) == 2 and nfc.normalize_str(chr(c)) == chr(c):
        a, b = (chr(int(x, 16)) for x in one)
        if nfc.normalize_str(a + b) == chr(c):
            pairs.append((c, a + b))
write_map("compose", pairs)

# LZMA takes half of what DEFLATE takes.
pack = {"id": lzma.FILTER_LZMA1, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 0, "pb": 0, "dict_size": 1 << 18}
with open("tables.lzma", "wb") as f:
    f.write(lzma.compress(("\n".join(lines) + "\n").encode(), format=lzma.FORMAT_ALONE, filters=[pack]))

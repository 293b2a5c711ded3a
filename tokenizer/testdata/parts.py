# Writes parts.jsonl.gz: single parts of tokenizers, and what the library tokenizers makes
# of texts with them. Python 3.11, `pip install tokenizers==0.23.3`; run in this folder.
import gzip
import json
import random

import tokenizers
from tokenizers import Tokenizer

assert tokenizers.__version__ == "0.23.3", tokenizers.__version__

R = random.Random(4)
CL100K = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"""
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = O200K.replace(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
DEEPSEEK = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
KIMI = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Ll}\p{Lo}]+|\p{N}{1,3}|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PUBLISHED = [CL100K, O200K, TEKKEN, DEEPSEEK, KIMI, GPT2, "[一-龥぀-ゟ゠-ヿ]+", "\r?\n", r"[\x{41}-\x{43}\u00e9\x44]+", r" {2,}"]

ALPHABET = ["a", "b", "B", "1", "2", " ", "\n", "'", "s", "S", "ſ", "k", "\u212a", "É", "é", "\u0301", "中", "\r", ".", "_", "😀", "\u00a0", "ǅ", "²", "▁"]
TEXTS = [
    "", " ", "Hello  World", "it's ITS'S'LL\u2019S 'ſ", "a1b22c333d4444", "x=y+1; // no\r\n\r\n  return\n", "中文字ひらがなカタカナ 漢字", "\u0301a e\u0301 Å ﬁ",
    "  lead and trail \t ", "▁▁a▁b c", "ABCD éDx_1.2,3", "a\u00a0b\u3000c\u2028d\u0085e", "(a)[b]{c}<d>`e` $5 ^~ ५६ Ⅷ ½", "ẞßİıǅ", "한국 \u1112\u1161\u11ab",
    "a-b--c---d", "\n\n a\n b ", "1 22 333 4444",
]


def random_text():
    return "".join(R.choice(ALPHABET) for _ in range(R.randint(1, 14)))


def atom(depth):
    kind = R.random()
    if kind < 0.4:
        c = R.choice("abB12 's.é")
        return "\\." if c == "." else c
    if kind < 0.6:
        return R.choice([r"\s", r"\S", r"\d", r"\w", r"\W", r"\p{L}", r"\p{Lu}", r"\p{N}", r"\P{L}", r"\p{^N}", ".", r"\n"])
    if kind < 0.8:
        return R.choice(["[ab]", "[^ab]", r"[^\s\p{L}]", r"[a-s]", r"[\d\-b]", r"[\p{Ll}\p{M}1]", r"[^\r\n]"])
    if depth > 2:
        return "a"
    return R.choice(["(?:%s)", "(%s)", "(?>%s)"]) % expression(depth + 1, True)


def quantified(depth):
    a = atom(depth)
    return a + R.choice(["", "", "", "?", "*", "+", "{2}", "{1,2}", "{2,}", "{,2}", "??", "*?", "+?", "?+", "*+", "++"])


def sequence(depth, consumes):
    items = [R.choice("ab1 ")] if consumes else []
    for _ in range(R.randint(1, 3)):
        items.append(quantified(depth))
        if R.random() < 0.15:
            items.append(R.choice([r"(?!\S)", "(?=a)", "(?!b|1)", "(?<=a)", r"(?<!\s)", "^", "$", r"\A", r"\z", "(?<=ab)", "(?i:s|k)", "(?i:'a)", r"(?=\s*b)"]))
    return "".join(items)


def expression(depth=0, consumes=False):
    return "|".join(sequence(depth, consumes) for _ in range(R.choice([1, 1, 2, 3])))


BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def pattern():
    if R.random() < 0.5:
        return {"String": R.choice([" ", "a", "-", "▁", "\n", "ab", "  "])}
    return {"Regex": R.choice(PUBLISHED + [r"\s+", r"\d", "a|b", r"\S+(?=\s)"])}


def normalizer(depth=0):
    kind = R.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "Prepend", "Replace"] + ["Sequence"] * (2 if depth == 0 else 0))
    n = {"type": kind}
    if kind == "Strip":
        n.update(strip_left=R.random() < 0.5, strip_right=R.random() < 0.5)
    if kind == "Prepend":
        n.update(prepend=R.choice(["▁", " ", "ab"]))
    if kind == "Replace":
        n.update(pattern=pattern(), content=R.choice(["", "▁", "xy"]))
    if kind == "Sequence":
        n.update(normalizers=[normalizer(1) for _ in range(R.randint(0, 4))])
    return n


def pre_tokenizer(depth=0):
    kind = R.choice(["ByteLevel", "Split", "Digits", "Metaspace", "Whitespace", "WhitespaceSplit", "Punctuation"] + ["Sequence"] * (4 if depth == 0 else 0))
    p = {"type": kind}
    if kind == "ByteLevel":
        p.update(add_prefix_space=R.random() < 0.5, trim_offsets=True, use_regex=R.random() < 0.5)
    if kind == "Split":
        p.update(pattern=pattern(), behavior=R.choice(BEHAVIORS), invert=R.random() < 0.4)
    if kind == "Digits":
        p.update(individual_digits=R.random() < 0.5)
    if kind == "Metaspace":
        p.update(replacement=R.choice("▁_"), prepend_scheme=R.choice(["always", "first", "never"]), split=R.random() < 0.6)
    if kind == "Punctuation":
        p.update(behavior=R.choice(BEHAVIORS))
    if kind == "Sequence":
        p.update(pretokenizers=[pre_tokenizer(1) for _ in range(R.randint(0, 3))])
    return p


def decoder(depth=0):
    kind = R.choice(["ByteLevel", "ByteFallback", "Fuse", "Strip", "Replace", "Metaspace", "BPEDecoder"] + ["Sequence"] * (6 if depth == 0 else 0))
    d = {"type": kind}
    if kind == "ByteLevel":
        d.update(add_prefix_space=True, trim_offsets=True, use_regex=True)
    if kind == "Strip":
        d.update(content=R.choice(" ▁a"), start=R.randint(0, 2), stop=0)
    if kind == "Replace":
        d.update(pattern={"String": R.choice(["▁", "a", "</w>"])}, content=R.choice([" ", "", "x"]))
    if kind == "Metaspace":
        d.update(replacement="▁", prepend_scheme=R.choice(["always", "first", "never"]), split=True)
    if kind == "BPEDecoder":
        d.update(suffix="</w>")
    if kind == "Sequence":
        d.update(decoders=[decoder(1) for _ in range(R.randint(1, 4))])
    return d


PIECES = ["▁a", "▁", "b", "▁▁c", "<0xE2>", "<0x82>", "<0xAC>", "<0x41>", "<0xFF>", "Ġa", "Ċ", "âĤ", "¬", "é", "x</w>", "</w>", "a", "aa", " ", "<0x+5>", "中"]


def whole(**parts):
    spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}
    spec["model"] = {"type": "BPE", "vocab": {}, "merges": []}
    spec.update(parts)
    return spec


rows = []
for p in PUBLISHED + [expression() for _ in range(500)]:
    part = {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
    try:
        t = Tokenizer.from_str(json.dumps(whole(pre_tokenizer=part)))
    except Exception as e:
        print("refused", p, e)
        continue
    texts = TEXTS + [random_text() for _ in range(30)] if p in PUBLISHED else [random_text() for _ in range(12)]
    rows.append(["pre_tokenizer", part, texts, [[piece for piece, _ in t.pre_tokenizer.pre_tokenize_str(s)] for s in texts]])
for _ in range(150):
    part = pre_tokenizer()
    t = Tokenizer.from_str(json.dumps(whole(pre_tokenizer=part)))
    texts = R.sample(TEXTS, 8) + [random_text() for _ in range(4)]
    rows.append(["pre_tokenizer", part, texts, [[piece for piece, _ in t.pre_tokenizer.pre_tokenize_str(s)] for s in texts]])
for _ in range(120):
    part = normalizer()
    t = Tokenizer.from_str(json.dumps(whole(normalizer=part)))
    texts = R.sample(TEXTS, 8) + [random_text() for _ in range(8)]
    rows.append(["normalizer", part, texts, [[t.normalizer.normalize_str(s)] for s in texts]])
for _ in range(150):
    part = decoder()
    t = Tokenizer.from_str(json.dumps(whole(decoder=part)))
    inputs = [[R.choice(PIECES) for _ in range(R.randint(1, 7))] for _ in range(10)]
    rows.append(["decoder", part, inputs, [[t.decoder.decode(i)] for i in inputs]])

# Whole tokenizers: added tokens with their flags, unknown characters, and pairs of parts.
CHARS = [c for c in "abcdeABCDE<>[]s ▁1" if c]
for i in range(160):
    suffix, prefix = R.choice([None, None, None, "</w>"]), R.choice([None, None, None, "##"])
    names = ["<unk>"] + CHARS + ["##" + c for c in CHARS] + [c + "</w>" for c in CHARS] + ["##" + c + "</w>" for c in CHARS]
    names += ["ab", "bc", "abc", "aa", "▁a", "cd", "##bc", "a##b", "de", "<s", "s>", "1a"] + ["<0x%02X>" % b for b in range(256) if i % 2 or b % 3]
    vocab = {n: k for k, n in enumerate(dict.fromkeys(names))}
    pairs = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc"), ("a", "a"), ("▁", "a"), ("c", "d"), ("d", "e"), ("<", "s"), ("s", ">"), ("1", "a")]
    pairs = R.sample(pairs, R.randint(3, len(pairs))) if not prefix else []
    pairs = [p for p in pairs if all(x in vocab for x in p) and "".join(p) in vocab]
    model = {
        "type": "BPE", "dropout": None, "unk_token": R.choice(["<unk>", None]), "continuing_subword_prefix": prefix, "end_of_word_suffix": suffix,
        "fuse_unk": R.random() < 0.5, "byte_fallback": R.random() < 0.5, "ignore_merges": R.random() < 0.3, "vocab": vocab, "merges": [list(p) for p in pairs],
    }
    norm = normalizer() if R.random() < 0.5 else None
    # White space alone may normalize to nothing, which no added token can be.
    contents = R.sample(["<s>", "ab", "a", "[X]", "<<", "e", "AB", "s>", " b", "B"], R.randint(0, 6))
    added = []
    for c in contents:
        added.append({
            "id": vocab.get(c, len(vocab) + sum(x["id"] >= len(vocab) for x in added)), "content": c, "single_word": R.random() < 0.3, "lstrip": R.random() < 0.3,
            "rstrip": R.random() < 0.3, "normalized": R.random() < 0.5, "special": R.random() < 0.4,
        })
    spec = whole(normalizer=norm, pre_tokenizer=pre_tokenizer() if R.random() < 0.4 else None, model=model, added_tokens=added)
    try:
        t = Tokenizer.from_str(json.dumps(spec))
    except Exception as e:
        print("refused", e)
        continue
    matched = [t.normalizer.normalize_str(a["content"]) for a in added if norm and a["normalized"]]
    if len(set(matched)) < len(matched) or "" in matched:
        continue  # the order of a hash map decides between two equal tokens; an empty one panics
    texts = ["<s>ab", "ab abc aabcde", "x <s>  <s> y", "AB[X]ab <<s>>", "ééab中é", "a" * 70 + "bc" * 40 + " de" * 30, " b  ab  e e. e1"]
    texts += ["".join(R.choice(["a", "b", "c", "ab", "abc", "<s>", " ", "  ", "[X]", "é", "AB", "1", "e", "\n"]) for _ in range(R.randint(1, 12))) for _ in range(12)]
    out = []
    for plain in (False, True):
        t.encode_special_tokens = plain
        out.append([t.encode(s).ids for s in texts])
    rows.append(["tokenizer", spec, texts, out])

with open("parts.jsonl.gz", "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
    for row in rows:
        z.write((json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
print(len(rows), "parts")

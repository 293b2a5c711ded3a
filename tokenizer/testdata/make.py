# Writes tokenizers of published pipelines, trained here, and what the library tokenizers
# makes of texts with them. Python 3.11, `pip install tokenizers==0.23.3`.
#
#   python make.py OUT [TOKENS [LINES]]     one folder a pipeline: tokenizer.json.gz, golden.jsonl.gz
#   go test ./tokenizer -run Golden -golden OUT
#
# The committed files are of `make.py .`. By hand: `make.py FOLDER 16000 10000`.
# Texts are Python's library and Go's, where GOROOT or /usr/local/go has it, and made ones.
import base64
import glob
import gzip
import json
import os
import random
import sys
import sysconfig
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

assert tokenizers.__version__ == "0.23.3", tokenizers.__version__

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace("{1,3}", "")


def corpus(limit):
    go = os.environ.get("GOROOT", "/usr/local/go")
    names = sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/*.py") + glob.glob(go + "/src/*/*.go") + glob.glob(go + "/doc/*"))
    names += sorted(glob.glob(go + "/src/*/testdata/*.txt") + glob.glob("/usr/share/common-licenses/*") + glob.glob("/usr/share/perl/*/pod/*.pod"))
    random.Random(1).shuffle(names)
    text = ""
    for name in names:
        if os.path.isfile(name) and len(text) < limit:
            with open(name, encoding="utf-8", errors="ignore") as f:
                text += f.read(200_000)
    # Prose of other scripts: the names that Unicode gives, and letters in rows like words.
    r = random.Random(2)
    for lo, hi in ((0x400, 0x460), (0x3B1, 0x3CA), (0x5D0, 0x5EB), (0x627, 0x64B), (0x905, 0x94E), (0x4E00, 0x4F00), (0x3041, 0x3097), (0xAC00, 0xAD00), (0xE01, 0xE31)):
        for _ in range(1500):
            text += "".join(chr(r.randint(lo, hi)) for _ in range(r.randint(1, 9))) + r.choice(["", " ", ", ", ".\n"])
    return text


def texts(text, n):
    """n texts as bytes, some of which are no UTF-8."""
    r = random.Random(3)
    lines = [line for line in text.split("\n") if line]
    odd = [
        "", " ", "  ", "\n", "\n\n\n", " \n \n", "\t\t x", "a" * 100, "=" * 300, " " * 500 + "x", "x" + " " * 65, "▁", "▁▁a ▁b", "Ġa Ċ",
        "it's IT'S it\u2019s I'Ll we'VE 'ſ 'K x'\u212a", "12345678 1,234.5 ١٢٣ ²³¹ ½ Ⅷ", "e\u0301 E\u0300\u0323 \u0323\u0300 q\u0307\u0323" + "\u0301\u0323" * 40,
        "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 ☺️", "\x00\x01\x02\x1b[31m\x7f\x85\xa0\u2028\u2029\ufeff", "<s>", "</s> <unk>x", "a<s> b </s>c", "<|im_start|>user\nhi<|im_end|>\n",
        "<|begin_of_text|>x<|eot_id|>", "<think> x</think>", "<0x0A><0xFF>", "\ufffd", "한국어 텍스트 각", "\u1112\u1161\u11ab", "日本語のテキスト。", "Å Å ﬁ ㋿ Ω",
        "\U000105c0\U0002ebf0\U00010d40 \u0c5c", "\r\n\r\n a\r\nb\r", "a\u3000b\u00a0c\u2003 d", "def f(x):\n    return x\n\n\n        y", "<table><tr> <b>x</b>\n\n\n\n", "\u0344\u0958\u2126", "don't",
    ]
    out = [s.encode() for s in odd]
    out += [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xe2\x82 \xe2\x82\xac", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80x", b"\xc0\xaf", b"\x80\x80"]
    pool = [chr(c) for c in range(0x20, 0x250)] + [chr(c) for c in range(0x2500) if unicodedata.category(chr(c)) in ("Mn", "Po", "Sm", "Nd", "Cc", "Zs")]
    while len(out) < n:
        kind = r.random()
        if kind < 0.35:
            s = r.choice(lines)
        elif kind < 0.6:
            i = r.randrange(len(lines))
            s = "\n".join(lines[i : i + r.randint(2, 6)])
        elif kind < 0.7:
            s = "".join(r.choice(pool) for _ in range(r.randint(1, 40)))
        elif kind < 0.76:
            s = "".join(chr(c) for c in (r.randrange(0x110000) for _ in range(r.randint(1, 20))) if not 0xD800 <= c < 0xE000)
        elif kind < 0.84:
            s = r.choice(lines)
            for _ in range(r.randint(1, 4)):
                i = r.randint(0, len(s))
                s = s[:i] + r.choice([" " * r.randint(1, 80), "\n" * r.randint(1, 9), "\t", "\r\n", "\u0301" * r.randint(1, 4), "😀", "<s>", "</s>", "<|im_end|>", "<|eot_id|>", "<think>"]) + s[i:]
        elif kind < 0.9:
            s = unicodedata.normalize(r.choice(["NFD", "NFC", "NFKD"]), r.choice(lines))
        else:
            b = bytearray(r.choice(lines).encode())
            for _ in range(r.randint(1, 5)):
                b.insert(r.randint(0, len(b)), r.randrange(256))
            out.append(bytes(b)[:400])
            continue
        out.append(s.encode()[:600])
    return out[:n]


def trained(text, size, normalizer, pre_tokenizer, specials, alphabet):
    t = Tokenizer(models.BPE(unk_token=None))
    t.normalizer, t.pre_tokenizer = normalizer, pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False, limit_alphabet=1000)
    t.train_from_iterator(text.split("\n\n"), trainer)
    return json.loads(t.to_str())["model"]


def special(id, content, special=True, normalized=False, **kw):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized, "special": special, **kw}


def template(token, id):
    item = {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [item, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [item, {"Sequence": {"id": "A", "type_id": 0}}, item, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    }


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
UNSPACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}


def sentencepiece(text, size, first, words):
    """A model with byte fallback: first, the bytes, and what training gives."""
    model = trained(text, size - len(first) - 256, normalizers.Replace(" ", "▁"), pre_tokenizers.Split(Regex(words), "isolated"), [], [])
    names = first + ["<0x%02X>" % b for b in range(256)] + [t for t in model["vocab"] if t not in first]
    model.update(unk_token="<unk>", fuse_unk=True, byte_fallback=True, vocab={t: i for i, t in enumerate(names)})
    return model


def llama2(text, size):
    return {
        "version": "1.0",
        "truncation": {"direction": "Left", "max_length": 12, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 10}, "direction": "Left", "pad_to_multiple_of": 8, "pad_id": 2, "pad_type_id": 0, "pad_token": "</s>"},
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>", normalized=True)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACE]},
        "pre_tokenizer": None,
        "post_processor": template("<s>", 1),
        "decoder": {"type": "Sequence", "decoders": [UNSPACE, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": sentencepiece(text, size, ["<unk>", "<s>", "</s>"], "▁*[^▁]+|▁+"),
    }


def gemma(text, size):
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "<table>", "<b>", "</b>"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special(i, t, special=i < 5) for i, t in enumerate(first)],
        "normalizer": SPACE,
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": template("<bos>", 2),
        "decoder": {"type": "Sequence", "decoders": [UNSPACE, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": sentencepiece(text, size, first, "▁?[^▁]+|▁+"),
    }


def byte_level(text, size, pattern, normalizer):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return trained(text, size, normalizer, pre, [], pre_tokenizers.ByteLevel.alphabet())


def splitting(pattern):
    return {
        "type": "Sequence",
        "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, BYTE_LEVEL],
    }


def llama3(text, size):
    model = byte_level(text, size, LLAMA3, None)
    model["ignore_merges"] = True
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special(len(model["vocab"]) + i, t) for i, t in enumerate(names)],
        "normalizer": None,
        "pre_tokenizer": splitting(LLAMA3),
        "post_processor": {"type": "Sequence", "processors": [{**BYTE_LEVEL, "use_regex": True}, template(names[0], len(model["vocab"]))]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }


def qwen(text, size):
    model = byte_level(text, size, QWEN, normalizers.NFC())
    model["merges"] = [" ".join(m) for m in model["merges"]]
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special(len(model["vocab"]) + i, t, special=i < 3) for i, t in enumerate(names)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": splitting(QWEN),
        "post_processor": BYTE_LEVEL,
        "decoder": BYTE_LEVEL,
        "model": model,
    }


def write(path, text):
    with open(path, "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
        z.write(text.encode())


def golden(tokenizer, lines):
    """One JSON array a text: its bytes, ids, ids with special tokens, and decoded both ways."""
    for b in lines:
        s = b.decode("utf-8", "replace")
        with_special = tokenizer.encode(s).ids
        ids = tokenizer.encode(s, add_special_tokens=False).ids
        row = [base64.b64encode(b).decode(), ids, with_special, tokenizer.decode(with_special, skip_special_tokens=False), tokenizer.decode(with_special)]
        if row[4] == row[3]:
            row.pop()
        yield json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def main(out, size=8000, count=400):
    text = corpus(3_000_000 if count <= 1000 else 12_000_000)
    print(len(text), "characters")
    lines = texts(text, count)
    for pipeline in (llama2, llama3, gemma, qwen):
        spec = pipeline(text, size)
        tokenizer = Tokenizer.from_str(json.dumps(spec))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        folder = os.path.join(out, pipeline.__name__)
        os.makedirs(folder, exist_ok=True)
        write(os.path.join(folder, "tokenizer.json.gz"), json.dumps(spec, ensure_ascii=False, separators=(",", ":")))
        write(os.path.join(folder, "golden.jsonl.gz"), "\n".join(golden(tokenizer, lines)) + "\n")
        print(pipeline.__name__, tokenizer.get_vocab_size(), "tokens")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

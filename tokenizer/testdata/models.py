# Writes models.jsonl.gz: folders with tokenizers that are not BPE in a tokenizer.json, trained here, and what the libraries that they
# are of make of texts. `pip install tokenizers==0.23.3 sentencepiece==0.2.3 mistral-common==1.13.1 tiktoken==0.14.0 transformers==5.24.0`;
# run in this folder.
import base64
import gzip
import io
import json
import os
import tempfile

import sentencepiece
import tiktoken
from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy, Tekkenizer
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer

import make

TEXT = make.corpus(200_000)
ASCII = "".join(c for c in TEXT if c < "\x7f" or c in "éü漢字かな")
MORE = [
    "ﬁne ① x\u00a0y\t e\u0301 a\u200d\u0301 \r\n\u0600a", "foo  foobar ab foo", "  a   b  ", "ＡＢ ｶﾞ ㎏", "Ünï Straße İ don't do not !", "<s>a</s> [CLS] [MASK]",
    "👩‍👩‍👧‍👦 x👍🏽", "漢字かな交じり文 한국어", "\u0301\u0323", "x" * 130, "=" * 90 + " " * 60 + "a" * 70, "\x00\x1f\x7f\xad\ufeff\ufffd", "▁▁ ▁", "   ", "a\n\n\n b",
]
TEXTS = [b.decode("utf-8", "replace") for b in make.texts(TEXT, 110)] + MORE
RULES = [("ﬁ", "fi"), ("①", "1"), ("\u00a0", " "), ("\t", " "), ("e\u0301", "é"), ("\r", " "), ("Ａ", "A"), ("㎏", "kg"), ("\u200b", ""), ("x\u0301", "")]
rows = []


def row(name, files, encode, decode, plain):
    """plain says that special tokens are plain text, and that a text has none around it."""
    rows.append({"name": name, "files": {k: base64.b64encode(v).decode() for k, v in files.items()}, "plain": plain,
                 "rows": [[t, encode(t), decode(encode(t))] for t in TEXTS]})


def train(kind, size, **options):
    with tempfile.TemporaryDirectory() as folder:
        rules = os.path.join(folder, "rules.tsv")
        with open(rules, "w") as f:
            for a, b in RULES:
                f.write(" ".join("%x" % ord(c) for c in a) + "\t" + " ".join("%x" % ord(c) for c in b) + "\n")
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(ASCII.split("\n")), model_writer=out, model_type=kind, vocab_size=size, minloglevel=2, character_coverage=0.995,
            normalization_rule_tsv=rules, **options)
    proto = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())
    proto.trainer_spec.ClearField("input")
    return proto


def piece(name, kind, size, **options):
    proto = train(kind, size, **options)
    data = proto.SerializeToString()
    peer = sentencepiece.SentencePieceProcessor(model_proto=data)
    row(name, {"tokenizer.model": data}, peer.encode, lambda ids: peer.decode(ids).replace(" ⁇ ", "<unk>"), True)
    return proto


proto = piece("Unigram", "unigram", 500)
piece("Unigram with bytes", "unigram", 700, byte_fallback=True, remove_extra_whitespaces=False, user_defined_symbols=["foo", "▁▁", "\n"], control_symbols=["<c>"])
piece("Unigram with spaces behind", "unigram", 500, treat_whitespace_as_suffix=True)
piece("BPE", "bpe", 500, user_defined_symbols=["foo", "   "])
piece("BPE with bytes", "bpe", 700, byte_fallback=True, remove_extra_whitespaces=False, add_dummy_prefix=False, user_defined_symbols=["▁▁", "\n"])


def library(name, t):
    row(name, {"tokenizer.json": t.to_str().encode()}, lambda s: t.encode(s).ids, lambda ids: t.decode(ids, skip_special_tokens=False), False)


t = Tokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=0, byte_fallback=False))
t.normalizer = normalizers.Sequence([normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap), normalizers.Replace(Regex(" {2,}"), " ")])
t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
t.decoder = decoders.Metaspace()
t.add_special_tokens(["<s>", "</s>"])
t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
library("XLM-R", t)
t.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])
t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
library("ALBERT", t)

t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
t.normalizer = normalizers.BertNormalizer(strip_accents=None)
t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
t.train_from_iterator(TEXT.split("\n"), trainers.WordPieceTrainer(vocab_size=600, special_tokens=names, show_progress=False, limit_alphabet=200))
t.decoder = decoders.WordPiece()
t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
library("WordPiece", t)
vocab = sorted(t.get_vocab(), key=t.get_vocab().get)
with tempfile.TemporaryDirectory() as folder:
    files = {"vocab.txt": "".join(v + "\n" for v in vocab).encode(), "tokenizer_config.json": b'{"tokenizer_class":"BertTokenizer","do_lower_case":false}'}
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
    bert = BertTokenizer.from_pretrained(folder)
    row("vocab.txt", files, lambda s: bert.encode(s), lambda ids: bert._tokenizer.decode(ids, skip_special_tokens=False), False)
t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
t.normalizer = normalizers.BertNormalizer(clean_text=False, strip_accents=True, lowercase=False)
t.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
t.train_from_iterator(TEXT.split("\n"), trainers.WordLevelTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False))
library("WordLevel", t)

bpe = make.byte_level(TEXT, 600, make.LLAMA3, None)["vocab"]
signs = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
alphabet = {chr(b): b for b in signs} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in signs)}
ranks = [bytes([b]) for b in range(256)] + [bytes(alphabet[c] for c in token) for token in sorted(bpe, key=bpe.get) if len(token) > 1]
special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
data = json.dumps({
    "config": {"pattern": make.LLAMA3, "num_vocab_tokens": len(ranks), "default_vocab_size": len(ranks) - 50, "default_num_special_tokens": 20, "version": "v11"},
    "vocab": [{"rank": i, "token_bytes": base64.b64encode(b).decode(), "token_str": b.decode("utf-8", "replace")} for i, b in enumerate(ranks)],
    "special_tokens": [{"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(special)],
}).encode()
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "tekken.json")
    with open(path, "wb") as f:
        f.write(data)
    tekken = Tekkenizer.from_file(path)
    row("tekken", {"tekken.json": data}, lambda s: tekken.encode(s, bos=False, eos=False), lambda ids: tekken.decode(ids, special_token_policy=SpecialTokenPolicy.KEEP), True)
lines = b"".join(base64.b64encode(b) + b" %d\n" % i for i, b in enumerate(ranks))
peer = tiktoken.Encoding("x", pat_str=make.QWEN, mergeable_ranks={b: i for i, b in enumerate(ranks)}, special_tokens={})
row("tiktoken", {"qwen.tiktoken": lines, "tokenizer_config.json": b'{"tokenizer_class":"QWenTokenizer"}'}, lambda s: peer.encode(normalizers.NFC().normalize_str(s), disallowed_special=()), peer.decode, True)

with open("models.jsonl.gz", "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
    for r in rows:
        z.write((json.dumps(r, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
print(len(rows), "folders")

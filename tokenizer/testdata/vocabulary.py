"""Makes vocabulary.json: folders with vocab.json and merges.txt and without tokenizer.json, and the ids that transformers
gives for some texts.

Python 3.11, transformers 5.24.0, tokenizers 0.23.3:

    pip install transformers==5.24.0 tokenizers==0.23.3
    python tokenizer/testdata/vocabulary.py [number of random texts, for a comparison that is not kept, and a file for it]
"""

import json
import pathlib
import random
import sys
import tempfile

import tokenizers
import transformers

TEXT = ["The quick brown fox jumps over the lazy dog. It's 1234 o'clock, isn't it? We'll see; they've said I'M HERE.",
        "def f(x):\n    return x ** 2\n\n\nprint(f(10))\t# comment\r\n", "Grüße aus Köln, naïve café, Ωμέγα, привет мир, 你好世界, こんにちは 😀🎉",
        "<|endoftext|> and <|im_start|>user\nhello<|im_end|>\n <tool> x<tool>y", "   spaces   and\n\n\nlines \n  ", "é e\u0301 ﬁ ① Å"] * 4
trained = tokenizers.ByteLevelBPETokenizer()
trained.train_from_iterator(TEXT, vocab_size=420, min_frequency=2, show_progress=False)
saved = json.loads(trained.to_str())["model"]
VOCAB = dict(sorted(saved["vocab"].items(), key=lambda x: x[1]))
MERGES = "#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in saved["merges"])
N = len(VOCAB)
WITH_END = {**VOCAB, "<|endoftext|>": N}


def token(content, special=True, **more):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": special, **more}


CASES = {
    "DialoGPT": {"vocab.json": WITH_END, "tokenizer_config.json": {"model_max_length": 1024}, "config.json": {"model_type": "gpt2"}},
    "prefix and bos": {"vocab.json": WITH_END, "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "add_bos_token": True}},
    "both ends": {"vocab.json": WITH_END, "tokenizer_config.json": {"tokenizer_class": "GPT2TokenizerFast", "add_bos_token": True, "add_eos_token": True, "bos_token": "<|im_start|>"}},
    "added_tokens.json": {"vocab.json": WITH_END, "added_tokens.json": {"<tool>": N + 1, "<|im_end|>": N + 2},
                          "special_tokens_map.json": {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]},
                          "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}},
    "objects": {"vocab.json": VOCAB, "special_tokens_map.json": {"eos_token": token("<|im_end|>", lstrip=True), "pad_token": "<|endoftext|>"},
                "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}},
    "Qwen2": {"vocab.json": VOCAB, "tokenizer_config.json": {
        "tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "added_tokens_decoder": {str(N): token("<|endoftext|>"), str(N + 1): token("<|im_start|>"), str(N + 2): token("<|im_end|>"), str(N + 3): token("<tool>", False, rstrip=True)}}},
    "Qwen2 by its model": {"vocab.json": VOCAB, "config.json": {"model_type": "qwen2"}, "tokenizer_config.json": {"image_token": "<tool>", "extra_special_tokens": {"audio_token": "hello"}}},
}


def texts(n):
    r = random.Random(1)
    pieces = [" ", "\n", "\r\n", "  ", "\t", "a", "The", " the", "fox", "'s", "'LL", "1", "2024", ".", "!?", "é", "e\u0301", "Ω", "你好", "😀", "<tool>", "<|im_end|>", "<|endoftext|>", "<|im_start|>",
              "hello", "user", "\u00a0", "\u3000", "_", "--", "ﬁ", "\x00", "Å", "it's", "x\n"]
    return TEXT[:6] + ["", " ", "\n"] + ["".join(r.choice(pieces) for _ in range(r.randrange(1, 30))) for _ in range(n)]


out = []
for name, files in CASES.items():
    with tempfile.TemporaryDirectory() as folder:
        for file, content in files.items():
            (pathlib.Path(folder) / file).write_text(json.dumps(content))
        (pathlib.Path(folder) / "merges.txt").write_text(MERGES)
        t = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [{"text": x, "ids": t(x)["input_ids"], "plain": t(x, add_special_tokens=False)["input_ids"]} for x in texts(int(sys.argv[1]) if len(sys.argv) > 1 else 20)]
    out.append({"name": name, "files": files, "special": t.special_tokens_map, "rows": rows})
where = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "vocabulary.json"
where.write_text(json.dumps({"merges": MERGES, "cases": out}) + "\n")

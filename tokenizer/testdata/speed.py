# Prints MB/s of CPU time of the library tokenizers, one thread, for BenchmarkEncode's peer:
#
#   RAYON_NUM_THREADS=1 python speed.py OUT TEXT                        OUT of make.py
#   GOMAXPROCS=1 go test ./tokenizer -run '^$' -bench Encode -golden OUT -text TEXT
#
# encode also makes offsets; fast is encode_batch_fast, which makes none, of one text.
import gzip
import sys
import time

from tokenizers import Tokenizer

text = open(sys.argv[2], encoding="utf-8", newline="").read()
docs = [text[i : i + 4000] for i in range(0, len(text), 4000)]
for pipeline in ("llama2", "llama3", "gemma", "qwen"):
    with gzip.open(f"{sys.argv[1]}/{pipeline}/tokenizer.json.gz", "rt", encoding="utf-8") as f:
        tokenizer = Tokenizer.from_str(f.read())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ways = {
        "4 kB texts": lambda: [tokenizer.encode(d) for d in docs],
        "4 kB texts, fast": lambda: [tokenizer.encode_batch_fast([d]) for d in docs],
        "whole": lambda: tokenizer.encode(text),
    }
    for name, way in ways.items():
        way()
        start = time.process_time()
        way()
        print(pipeline, name, "%.2f MB/s" % (len(text.encode()) / (time.process_time() - start) / 1e6))

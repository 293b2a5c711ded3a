"""Makes greedy.json in each folder of models, what transformers goes on with, and filters.json, what filters of logits leave.

Python 3.11, transformers 5.24.0, torch 2.15.0, accelerate: see models.py, then

    python transformer/testdata/generate.py            # or the models that are named, without filters.json
"""

import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

import families  # noqa: F401: one tells transformers of a class

here = pathlib.Path(__file__).parent
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)


def greedy(folder):
    golden = json.loads((folder / "golden.json").read_text())
    prompt = golden["tokens"][:9]
    kind = AutoModelForImageTextToText if "text_config" in (folder / "config.json").read_text() else AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokens = torch.tensor([prompt])
    out = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=21, use_cache=True, eos_token_id=-1, pad_token_id=0)
    return {"prompt": prompt, "tokens": out[0, len(prompt):].tolist()}


def filtered(seed, temperature, top_k, top_p):
    torch.manual_seed(seed)
    logits = (3 * torch.randn(1, 40)).float()
    logits[0, 7] = logits[0, 9]  # a tie
    z = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        z = TopKLogitsWarper(top_k)(None, z)
    if top_p < 1:
        z = TopPLogitsWarper(top_p)(None, z)
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p, "logits": logits[0].tolist(), "probabilities": torch.softmax(z.double(), -1)[0].tolist()}


for folder in sorted((here / "models").iterdir()):
    if (folder / "golden.json").exists() and folder.name in (sys.argv[1:] or [folder.name]):
        (folder / "greedy.json").write_text(json.dumps({"transformers": transformers.__version__, **greedy(folder)}) + "\n")
if not sys.argv[1:]:
    filters = [filtered(i, t, k, p) for i, (t, k, p) in enumerate(
        [(1.0, 0, 1.0), (0.7, 0, 0.9), (1.5, 5, 1.0), (0.6, 20, 0.95), (2.0, 0, 0.5), (0.1, 0, 0.3), (1.0, 1, 1.0), (1.3, 40, 0.99), (3.0, 12, 0.7)])]
    (here / "filters.json").write_text(json.dumps({"transformers": transformers.__version__, "filters": filters}) + "\n")

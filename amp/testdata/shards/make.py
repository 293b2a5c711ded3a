"""Makes the folders of this folder with transformers.

Python 3.11, transformers 5.23.0, torch 2.15.0, safetensors 0.8.0:

    pip install transformers==5.23.0 torch==2.15.0 safetensors==0.8.0
    python amp/testdata/shards/make.py

llama/       a model of random weights in bfloat16, in shards of at most 4 kB
whole/       the same in one file
order.json   the names of the tensors in the order of the model
"""

import json
import pathlib
import shutil

import torch
from transformers import LlamaConfig, LlamaForCausalLM

here = pathlib.Path(__file__).parent
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=80, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
)).to(torch.bfloat16)
for name, size in {"llama": "4KB", "whole": "5GB"}.items():
    folder = here / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=size)
    for extra in ("config.json", "generation_config.json"):
        (folder / extra).unlink(missing_ok=True)
(here / "order.json").write_text(json.dumps(list(model.state_dict()), indent=0) + "\n")

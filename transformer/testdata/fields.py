"""Makes fields.json: the fields of config.json that transformers reads for each family, and which of them change a model.

Python 3.11, transformers 5.24.0, torch 2.15.0:

    pip install transformers==5.24.0 torch==2.15.0
    python transformer/testdata/fields.py          # ten minutes
    python transformer/testdata/fields.py gemma    # these families only; the others stay as they are in the file

reads    the fields that the class of a configuration takes, and those that its model asks for while it is built and run
changes  the fields of reads with a value that changes the logits, the loss, the names of the parameters or the
         gradients of a small model
others   fields of other classes, which a family does not read
"""

import inspect
import json
import pathlib
import re
import sys
import warnings

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

here = pathlib.Path(__file__).parent
transformers.logging.set_verbosity(transformers.logging.CRITICAL)
warnings.simplefilter("ignore")

BASE = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 16, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
NOHEAD = {k: v for k, v in BASE.items() if k != "head_dim"} | {"hidden_size": 24}
GPT2 = {"vocab_size": 32, "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 16, "bos_token_id": None, "eos_token_id": None,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LATENT = {**{k: v for k, v in BASE.items() if k != "head_dim"}, "num_key_value_heads": 4, "kv_lora_rank": 6, "q_lora_rank": 8, "qk_rope_head_dim": 4,
          "qk_nope_head_dim": 6, "v_head_dim": 4}
FAMILIES = {
    "deepseek_v2": {**LATENT, "moe_intermediate_size": 8, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy",
                    "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "deepseek_v3": {**LATENT, "moe_intermediate_size": 8, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "glm4_moe_lite": {**LATENT, "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "youtu": LATENT,
    "llama": BASE, "mistral": BASE, "ministral": BASE, "qwen2": BASE, "qwen3": BASE, "gemma": BASE, "gemma2": BASE, "gemma3_text": BASE,
    "gemma4_text": {**BASE, "global_head_dim": 8, "hidden_size_per_layer_input": 0}, "smollm3": BASE, "ministral3": BASE, "granite": NOHEAD, "olmo2": NOHEAD, "ernie4_5": BASE, "glm4": BASE, "phi3": BASE, "lfm2": {**BASE, "full_attn_idxs": [1]},
    "arcee": BASE, "nemotron": BASE, "starcoder2": BASE, "stablelm": {**BASE, "head_dim": 4}, "gpt_neox": {**BASE, "head_dim": 4},
    "seed_oss": {**BASE, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "mixtral": {**BASE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**BASE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
    "gpt_oss": {**BASE, "num_local_experts": 4, "num_experts_per_tok": 2}, "gpt2": GPT2,
}
VALUES = [True, False, 0, 1, 2, 3, 8, 0.5, "x", "gelu", "bfloat16", [0], ["full_attention", "sliding_attention"], {"0": {"hidden_act": "gelu"}}, {"factor": 2.0, "type": "linear"}]
IDS = torch.tensor([[1, 7, 3, 9, 2, 30, 11, 5, 8, 4, 12, 3, 3, 20, 6, 1]])

asked = None
original = PreTrainedConfig.__getattribute__


def ask(self, key):
    if asked is not None and not key.startswith("__"):
        asked.add(key)
    return original(self, key)


PreTrainedConfig.__getattribute__ = ask


def result(raw):
    """What a model computes, as bytes, and the names of its parameters; None if there is no such model."""
    try:
        parts = []
        for attention in ("eager", "eager" if raw["model_type"] in ("gpt_oss", "gemma2") else "sdpa"):
            config = AutoConfig.for_model(**json.loads(json.dumps(raw)))
            config._attn_implementation = attention
            torch.manual_seed(7)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            torch.manual_seed(8)
            with torch.no_grad():
                for _, p in sorted(model.named_parameters()):
                    p.copy_(torch.randn(p.shape) * 0.3)
            out = model(input_ids=IDS, labels=IDS)
            out.loss.backward()
            parts += [out.logits.detach(), out.loss.detach().reshape(1)] + [p.grad for _, p in sorted(model.named_parameters()) if p.grad is not None]
        return b"".join(p.contiguous().numpy().tobytes() for p in parts), sorted(model.state_dict())
    except Exception:  # noqa: BLE001: most values are of another type than the field
        return None


def consumed(cls):
    """Names that the classes of a configuration take from what remains of config.json."""
    found = set()
    for c in cls.__mro__:
        if c.__module__.startswith("transformers"):
            found |= set(re.findall(r"""kwargs\.(?:pop|get)\(\s*["'](\w+)["']""", inspect.getsource(c)))
    return found


def main():
    global asked
    known = set()
    for kind in CONFIG_MAPPING_NAMES:
        try:
            cls = CONFIG_MAPPING[kind]
        except Exception:  # noqa: BLE001: a class that needs a package that is not here
            continue
        known |= set(getattr(cls, "__dataclass_fields__", {})) | set(getattr(cls, "attribute_map", {}))
    made = sys.argv[1:] or list(FAMILIES)
    before = json.loads((here / "fields.json").read_text())["families"] if sys.argv[1:] else {}
    families, methods = {kind: before.get(kind) for kind in FAMILIES}, {name for name in dir(PreTrainedConfig) if callable(getattr(PreTrainedConfig, name, None))}
    for kind in made:
        raw = {"model_type": kind, **FAMILIES[kind]}
        cls = CONFIG_MAPPING[kind]
        asked = set()
        base = result(raw)
        assert base is not None, kind
        names, asked = asked, None
        names |= set(cls.__dataclass_fields__) | set(cls.attribute_map) | consumed(cls)
        names -= methods | {"model_type", "attribute_map"}
        changes = [n for n in sorted(names) if any(result({**raw, n: value}) not in (None, base) for value in VALUES)]
        families[kind] = {"reads": sorted(names), "changes": changes}
        # A field that nobody asks for changes nothing: a sample of them shows that the list is whole.
        others = sorted(known - names - methods)
        assert not [n for n in others[::17] if any(result({**raw, n: value}) != base for value in (True, 3, "x"))], kind
        print(kind, len(names), changes)
    names = set().union(*(f["reads"] for f in families.values() if f))
    text = json.dumps({"transformers": transformers.__version__, "families": families, "others": sorted(known - names - methods - {"model_type"})}, indent=0)
    (here / "fields.json").write_text(text + "\n")


main()

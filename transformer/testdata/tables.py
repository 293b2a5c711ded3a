"""Makes the folder tables with PEFT: adapters with an embedding or a head of their own, and what they compute.

Python 3.11, peft 0.21.2, transformers 5.24.0, torch 2.15.0, safetensors 0.8.0:

    pip install peft==0.21.2 transformers==5.24.0 torch==2.15.0 safetensors==0.8.0
    python transformer/testdata/tables.py

tables/NAME has the files of PEFT's save_pretrained, and

golden.safetensors  logits, of the model with its adapter in float32, and of merge_and_unload. A tied base with an adapter of
                    its embedding or its head is merged untied: there merge_and_unload adds the adapter to both
golden.json         the base in the folder models, the tokens, and the vocabulary and the tying of what is merged
"""

import json
import pathlib
import shutil
import warnings

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

here = pathlib.Path(__file__).parent
transformers.logging.set_verbosity_error()
warnings.filterwarnings("ignore")
torch.set_num_threads(1)

Q = {"target_modules": ["q_proj"], "r": 4, "lora_alpha": 8}
# The base, the rows of the resized vocabulary, and the fields of the adapter.
TABLES = {
    "llama_resized": ("llama", 53, Q),
    "llama_smaller": ("llama", 40, Q),
    "qwen2_resized": ("qwen2", 69, Q),  # tied
    "gpt2_resized": ("gpt2", 50, {"target_modules": ["c_attn"], "r": 4, "lora_alpha": 8, "fan_in_fan_out": True}),
    "llama_saved_resized": ("llama", 53, {**Q, "modules_to_save": ["embed_tokens", "lm_head"]}),
    "llama_saved_embedding": ("llama", None, {**Q, "modules_to_save": ["embed_tokens"]}),
    "qwen2_saved_both": ("qwen2", None, {**Q, "modules_to_save": ["embed_tokens", "lm_head"]}),
    "qwen2_saved_head": ("qwen2", None, {**Q, "modules_to_save": ["lm_head"]}),
    "qwen2_saved_embedding": ("qwen2", None, {**Q, "modules_to_save": ["embed_tokens"]}),
    "llama_adapted_both": ("llama", None, {**Q, "target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "llama_adapted_head": ("llama", None, {**Q, "target_modules": ["q_proj", "lm_head"], "rank_pattern": {"lm_head": 3}, "use_rslora": True}),
    "llama_adapted_embedding": ("llama", None, {**Q, "target_modules": ["embed_tokens"]}),
    "llama_adapted_resized": ("llama", 53, {**Q, "target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "llama_adapted_beside": ("llama", None, {**Q, "target_modules": ["q_proj", "lm_head"], "modules_to_save": ["embed_tokens"]}),
    "llama_adapted_dora": ("llama", None, {**Q, "target_modules": ["q_proj", "embed_tokens", "lm_head"], "use_dora": True}),
    "llama_adapted_alone": ("llama", None, {**Q, "target_modules": ["q_proj", "embed_tokens", "lm_head"], "save_embeddings": False}),
    "qwen2_adapted_both": ("qwen2", None, {**Q, "target_modules": ["q_proj", "embed_tokens", "lm_head"]}),  # tied
    "qwen2_adapted_embedding": ("qwen2", None, {**Q, "target_modules": ["q_proj", "embed_tokens"]}),
    "qwen2_adapted_head": ("qwen2", None, {**Q, "target_modules": ["q_proj", "lm_head"]}),
    "qwen2_adapted_resized": ("qwen2", 69, {**Q, "target_modules": ["q_proj", "embed_tokens"]}),
    "qwen2_adapted_alone": ("qwen2", None, {**Q, "target_modules": ["q_proj", "embed_tokens"], "save_embeddings": False}),
    "gpt2_adapted": ("gpt2", None, {"target_modules": ["c_attn", "wte"], "r": 4, "lora_alpha": 8, "fan_in_fan_out": True}),
    "gemma2_adapted": ("gemma2", None, {**Q, "target_modules": ["q_proj", "embed_tokens"]}),  # with a scale of embeddings
    "qwen2_kept": ("qwen2", None, {**Q, "save_embeddings": True}),
}


def base(name, rows):
    model = AutoModelForCausalLM.from_pretrained(here / "models" / name, dtype=torch.float32, attn_implementation="eager")
    if rows:
        model.resize_token_embeddings(rows, mean_resizing=False)
    return model


for name, (base_name, rows, fields) in TABLES.items():
    torch.manual_seed(sum(map(ord, name)))
    fields = dict(fields)
    keep = fields.pop("save_embeddings", "auto")
    model = get_peft_model(base(base_name, rows), LoraConfig(task_type="CAUSAL_LM", **fields))
    if rows and "modules_to_save" not in fields:  # as who resizes trains the new rows
        for table in {id(t.weight): t for t in (model.get_input_embeddings(), model.get_output_embeddings())}.values():
            table.weight.data += 0.05 * torch.randn_like(table.weight)
    for key, p in model.named_parameters():
        if "lora_B" in key or "lora_embedding_A" in key:
            torch.nn.init.normal_(p, 0, 0.1)
        if "modules_to_save" in key and p.requires_grad:
            p.data += 0.05 * torch.randn_like(p)
    model.eval()
    out = here / "tables" / name
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out, save_embedding_layers=keep)
    (out / "README.md").unlink(missing_ok=True)
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base_name
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")

    loaded = PeftModel.from_pretrained(base(base_name, rows), out)
    tokens = torch.arange(12) * 7 % (rows or 48)
    with torch.no_grad():
        adapted = any(hasattr(t, "base_layer") for t in (loaded.get_input_embeddings(), loaded.get_output_embeddings()))
        logits = loaded(input_ids=tokens[None], use_cache=False).logits[0]
        if adapted and loaded.config.tie_word_embeddings:
            head = loaded.get_output_embeddings()
            head = getattr(head, "base_layer", head)
            head.weight = torch.nn.Parameter(head.weight.clone())
        merged = loaded.merge_and_unload()
        after = merged(input_ids=tokens[None], use_cache=False).logits[0]
        ein, eout = merged.get_input_embeddings().weight, merged.get_output_embeddings().weight
    assert torch.allclose(logits, after, atol=1e-5), name
    save_file({"logits": after.contiguous()}, out / "golden.safetensors")
    (out / "golden.json").write_text(json.dumps({"base": base_name, "tokens": tokens.tolist(), "vocab": ein.shape[0],
                                                 "tied": bool(torch.equal(ein, eout))}) + "\n")
    print(name, ein.shape[0], torch.equal(ein, eout))

"""Makes the folder models with transformers: small models, what they compute, and how they train.

Python 3.11, transformers 5.23.0, torch 2.15.0, safetensors 0.8.0:

    pip install transformers==5.23.0 torch==2.15.0 safetensors==0.8.0
    python transformer/testdata/models.py              # makes the folder, or the models that are named
    python transformer/testdata/models.py check DIR    # transformers loads what Model.Save wrote

models/NAME has the files of save_pretrained in bfloat16 (gemma3_images of the whole model, whose text part the golden files
are about, with the names of a model of text), and

golden.safetensors  of the model in float32: the logits of all rows, and the gradient of the loss in each parameter,
                    in float16 after division by its largest element, which is "largest/NAME"
golden.json         the tokens, the labels, and the losses before each of 20 steps of AdamW, and after them

check: SNUG_SAVE=DIR go test -run TestSaveForTransformers ./transformer writes the folders and their logits.
"""

import copy
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3ForConditionalGeneration

here = pathlib.Path(__file__).parent / "models"
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

SMALL = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
ONE = {**SMALL, "num_hidden_layers": 1, "tie_word_embeddings": True}
GPT2 = {"vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": 40, "bos_token_id": 1, "eos_token_id": 2}

MODELS = {
    "llama": ("llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "llama_linear": ("llama", {**ONE, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}}),
    "llama_dynamic": ("llama", {**ONE, "max_position_embeddings": 8, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    "llama_llama3": ("llama", {**ONE, "rope_parameters": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 1e3}}),
    "llama_yarn": ("llama", {**ONE, "rope_parameters": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8, "rope_theta": 1e3}}),
    "mistral": ("mistral", {**SMALL, "sliding_window": 5}),
    "qwen2": ("qwen2", {**{k: v for k, v in SMALL.items() if k != "head_dim"}, "use_sliding_window": True, "sliding_window": 6,
                        "max_window_layers": 1, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {**SMALL, "tie_word_embeddings": False}),
    "gemma2": ("gemma2", {**SMALL, "num_hidden_layers": 2, "sliding_window": 6, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0,
                          "final_logit_softcapping": 6.0, "pad_token_id": None, "attention_bias": True, "tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", {**SMALL, "sliding_window": 5, "query_pre_attn_scalar": 12, "pad_token_id": None, "tie_word_embeddings": True,
                               "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
                                   "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}}),
    "gemma3_images": ("gemma3", {
        "mm_tokens_per_image": 4, "image_token_index": 46, "boi_token_index": 45, "eoi_token_index": 44, "pad_token_id": None, "tie_word_embeddings": True,
        "vision_config": {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
        "text_config": {**ONE, "sliding_window": 5, "query_pre_attn_scalar": 12, "pad_token_id": None, "layer_types": ["sliding_attention"]}}),
    "gpt2": ("gpt2", GPT2),
    "gpt2_untied": ("gpt2", {**GPT2, "n_layer": 1, "activation_function": "gelu", "tie_word_embeddings": False}),
}
ROWS, TOKENS, STEPS = 2, 20, 20


def make(name, family, fields):
    torch.manual_seed(sum(map(ord, name)))
    off = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0} if family == "gpt2" else {}
    config = AutoConfig.for_model(family, **fields, **off)
    images = family == "gemma3"
    if images:
        model, config = Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").float(), config.text_config
    else:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() == 2:
                p.normal_(0, 0.5 if "embed" in key or "wte" in key else 0.12)
            elif key.endswith("bias"):
                p.normal_(0, 0.2)
            else:
                p.normal_(0 if family.startswith("gemma") else 1, 0.3)
            p.copy_(p.bfloat16().float())
    folder = here / name
    shutil.rmtree(folder, ignore_errors=True)
    low = copy.deepcopy(model).bfloat16()
    low.save_pretrained(folder, max_shard_size="20KB" if name == "llama" else "5GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    model.train()

    tokens = torch.randint(0, config.vocab_size - (4 if images else 0), (ROWS, TOKENS))
    labels = tokens.clone()
    labels[0, 3] = labels[1, 11] = -100
    more = {"use_cache": False, **({"token_type_ids": torch.zeros_like(tokens)} if images else {})}
    out = model(tokens, labels=labels, **more)
    out.loss.backward()
    golden = {"logits": out.logits.detach().contiguous()}
    for key, p in model.named_parameters():
        if p.grad is None:
            assert images and "language_model" not in key, key
            continue
        key = key.replace("model.language_model.", "model.")
        largest = p.grad.abs().max()
        golden[key] = (p.grad / largest).half()
        golden["largest/" + key] = largest.reshape(1).clone()
    save_file(golden, folder / "golden.safetensors")

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(tokens, labels=labels, **more).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    losses.append(model(tokens, labels=labels, **more).loss.item())
    moved = torch.full_like(labels, -100)
    moved[:, :-1] = labels[:, 1:]
    (folder / "golden.json").write_text(json.dumps({
        "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
        "sequences": ROWS, "tokens": tokens.flatten().tolist(), "labels": moved.flatten().tolist(), "losses": losses}) + "\n")
    print(name, sum(p.numel() for p in model.parameters()), "parameters", losses[0], losses[-1])


def check(saved):
    for folder in sorted(p for p in pathlib.Path(saved).iterdir() if p.is_dir()):
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        golden = json.loads((here / folder.name / "golden.json").read_text())
        tokens = torch.tensor(golden["tokens"]).reshape(golden["sequences"], -1)
        want = load_file(folder / "logits.safetensors")["logits"]
        have = model(tokens, use_cache=False).logits.detach().reshape(want.shape)
        print(folder.name, "logits differ by", ((have - want).abs().max() / want.abs().max()).item(), "of the largest")


if sys.argv[1:2] == ["check"]:
    check(sys.argv[2])
else:
    for name, (family, fields) in MODELS.items():
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            make(name, family, fields)

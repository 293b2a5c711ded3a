"""Makes the folder models with transformers: small models, what they compute, and how they train.

Python 3.11, transformers 5.24.0 (golden.json names the one that made a model), torch 2.15.0, safetensors 0.8.0:

    pip install transformers==5.24.0 torch==2.15.0 safetensors==0.8.0
    python transformer/testdata/models.py              # makes the folder, or the models that are named
    python transformer/testdata/models.py check DIR    # transformers loads what Model.Save wrote

models/NAME has the files of save_pretrained in bfloat16 (gemma3_images of the whole model, whose text part the golden files
are about, with the names of a model of text), and

golden.safetensors  of the model in float32: the logits of all rows, and the gradient of the loss in each parameter,
                    in float16 after division by its largest element, which is "largest/NAME"
golden.json         the tokens, the labels, and the losses before each of 20 steps of AdamW, and after them

A gradient in a tensor of all experts is one for each expert and part. Routers choose by a margin, so that a model in 16
bits chooses the same experts. gpt_oss_mxfp4 has its experts in MXFP4, as openai/gpt-oss-20b does; they do not train.

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
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3ForConditionalGeneration, Mistral3ForConditionalGeneration
from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors

here = pathlib.Path(__file__).parent / "models"
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

SMALL = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
WHOLEHEADS = {**{k: v for k, v in SMALL.items() if k != "head_dim"}, "hidden_size": 40}
ONE = {**SMALL, "num_hidden_layers": 1, "tie_word_embeddings": True}
NARROW = {k: v for k, v in {**SMALL, "hidden_size": 40, "intermediate_size": 36}.items() if k != "head_dim"}  # whose heads are as wide as the model
GPT2 = {"vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": 40, "bos_token_id": 1, "eos_token_id": 2}

GPTOSS = {**SMALL, "intermediate_size": 32, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5,
          "swiglu_limit": 0.9, "tie_word_embeddings": False, "rope_parameters": {
              "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False,
              "original_max_position_embeddings": 16, "rope_theta": 1e3}}

MINISTRAL3 = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "original_max_position_embeddings": 6, "rope_theta": 1e3,
              "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.4}
WHOLE = {"gemma3": Gemma3ForConditionalGeneration, "mistral3": Mistral3ForConditionalGeneration}
LATENT = {**{k: v for k, v in SMALL.items() if k != "head_dim"}, "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 14, "qk_rope_head_dim": 6,
          "qk_nope_head_dim": 8, "v_head_dim": 10, "rms_norm_eps": 1e-3, "pad_token_id": None, "tie_word_embeddings": False}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 1e3}

MODELS = {
    "deepseek_v2": ("deepseek_v2", {**LATENT, "q_lora_rank": None, "moe_intermediate_size": 12, "n_routed_experts": 6, "n_group": 3, "topk_group": 2,
                                    "topk_method": "group_limited_greedy", "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_shared_experts": 2, "routed_scaling_factor": 1.5,
                                    "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}}),
    "deepseek_v3": ("deepseek_v3", {**LATENT, "moe_intermediate_size": 12, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3,
                                    "n_shared_experts": 1, "first_k_dense_replace": 1, "attention_bias": True,
                                    "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}}),
    "glm4_moe_lite": ("glm4_moe_lite", {**LATENT, "moe_intermediate_size": 12, "n_routed_experts": 5, "num_experts_per_tok": 2, "rope_interleave": False,
                                        "mlp_layer_types": ["sparse", "dense"]}),
    "youtu": ("youtu", {**LATENT, "num_hidden_layers": 1, "initializer_range": 0.02, "tie_word_embeddings": True}),
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
    "seed_oss": ("seed_oss", {**SMALL, "attention_out_bias": True, "mlp_bias": True, "attention_dropout": 0.0, "residual_dropout": 0.0, "pad_token_id": None}),
    "ministral": ("ministral", {**SMALL, "num_hidden_layers": 3, "sliding_window": 5,
                                "layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    "ministral3": ("ministral3", {**SMALL, "pad_token_id": None, "rope_parameters": MINISTRAL3}),
    "mistral3_images": ("mistral3", {
        "image_token_index": 46, "tie_word_embeddings": False, "spatial_merge_size": 2,
        "vision_config": {"model_type": "pixtral", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4,
                          "image_size": 28, "patch_size": 14},
        "text_config": {**ONE, "model_type": "ministral3", "pad_token_id": None, "tie_word_embeddings": False, "sliding_window": 6, "rope_parameters": MINISTRAL3}}),
    "granite": ("granite", {**WHOLEHEADS, "attention_bias": True, "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.3,
                            "logits_scaling": 6.0}),
    "olmo2": ("olmo2", {**WHOLEHEADS, "pad_token_id": None, "attention_bias": True, "tie_word_embeddings": False}),
    "gemma": ("gemma", {**SMALL, "pad_token_id": None, "attention_bias": True}),
    "smollm3": ("smollm3", {**SMALL, "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 6, "pad_token_id": None,
                            "mlp_bias": True, "tie_word_embeddings": False}),
    "ernie4_5": ("ernie4_5", {**SMALL, "use_bias": True, "pad_token_id": None, "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    "glm4": ("glm4", {**SMALL, "head_dim": 12, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5}}),
    "phi3": ("phi3", {**SMALL, "num_attention_heads": 4, "sliding_window": 7, "pad_token_id": None,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
    "phi3_long": ("phi3", {**ONE, "head_dim": 8, "pad_token_id": None, "original_max_position_embeddings": 8, "tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e3, "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 2.5, 6.0], "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 8}}),
    "lfm2": ("lfm2", {**SMALL, "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"], "conv_bias": True, "conv_L_cache": 4,
                      "block_auto_adjust_ff_dim": False, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3}}),
    "arcee": ("arcee", {**SMALL, "attention_bias": True, "mlp_bias": False, "tie_word_embeddings": False}),
    "nemotron": ("nemotron", {**SMALL, "mlp_bias": True, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
    "starcoder2": ("starcoder2", {**NARROW, "num_hidden_layers": 2, "sliding_window": 6, "pad_token_id": None}),
    "stablelm": ("stablelm", {**NARROW, "use_qkv_bias": True, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
    "stablelm_parallel": ("stablelm", {**NARROW, "num_hidden_layers": 1, "use_parallel_residual": True, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
    "gpt_neox": ("gpt_neox", {**NARROW, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
    "gpt_neox_follow": ("gpt_neox", {**NARROW, "num_hidden_layers": 1, "use_parallel_residual": False, "attention_bias": False, "pad_token_id": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.6}}),
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
    "gemma4": ("gemma4_text", {**SMALL, "num_hidden_layers": 3, "sliding_window": 5, "pad_token_id": None, "attention_bias": True, "tie_word_embeddings": True,
                               "final_logit_softcapping": 4.0, "attention_k_eq_v": True, "global_head_dim": 12, "num_global_key_value_heads": 1,
                               "hidden_size_per_layer_input": 0, "layer_types": ["sliding_attention", "full_attention", "full_attention"], "rope_parameters": {
                                   "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 50.0},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}}),
    "gemma4_shared": ("gemma4_text", {**SMALL, "num_hidden_layers": 5, "intermediate_size": 28, "sliding_window": 5, "pad_token_id": None, "tie_word_embeddings": True,
                                      "global_head_dim": 12, "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 48, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
                                      "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                                      "rope_parameters": {
                                          "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 50.0},
                                          "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}}),
    "mixtral": ("mixtral", {**SMALL, "intermediate_size": 20, "num_local_experts": 4, "sliding_window": 7, "output_router_logits": True,
                            "router_aux_loss_coef": 0.1, "tie_word_embeddings": False}),
    "qwen3_moe": ("qwen3_moe", {**SMALL, "num_hidden_layers": 3, "moe_intermediate_size": 12, "num_experts": 5, "num_experts_per_tok": 2,
                                "mlp_only_layers": [1], "norm_topk_prob": False, "tie_word_embeddings": False}),
    "qwen3_moe_norm": ("qwen3_moe", {**SMALL, "moe_intermediate_size": 12, "num_experts": 6, "num_experts_per_tok": 3, "decoder_sparse_step": 2,
                                     "norm_topk_prob": True, "attention_bias": True, "use_sliding_window": True, "sliding_window": 6,
                                     "tie_word_embeddings": True}),
    "gpt_oss": ("gpt_oss", GPTOSS),
    "gpt_oss_mxfp4": ("gpt_oss", {**GPTOSS, "num_hidden_layers": 1}),
    "gpt2": ("gpt2", GPT2),
    "gpt2_untied": ("gpt2", {**GPT2, "n_layer": 1, "activation_function": "gelu", "tie_word_embeddings": False}),
}
ROWS, TOKENS, STEPS = 2, 20, 20


def parts(config, key, tensor):
    """The parameters of snug in a parameter of transformers."""
    module, _, part = key.rpartition(".")
    if not module.endswith("mlp.experts"):
        yield (key.replace(".mlp.", ".block_sparse_moe.") if config.model_type == "mixtral" else key), tensor
        return
    part, _, bias = part.partition("_proj")
    end, rows = ("bias" if bias else "weight"), tensor.shape[1]
    for e, x in enumerate(tensor):
        if config.model_type == "gpt_oss":  # [in, out], with gate and up in turn
            x = x.T if x.dim() == 2 else x
            pieces = {"down_proj": x} if part == "down" else {"gate_proj": x[0::2], "up_proj": x[1::2]}
        else:
            pieces = {"down_proj": x} if part == "down" else {"gate_proj": x[:rows // 2], "up_proj": x[rows // 2:]}
        for piece, y in pieces.items():
            if config.model_type == "mixtral":
                module, piece = module.replace(".mlp.", ".block_sparse_moe."), {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}[piece]
            yield f"{module}.{e}.{piece}.{end}", y.contiguous()


def margin(model, config, tokens):
    """The least difference between the logits of an expert that computes and of one that does not."""
    out = model(tokens, use_cache=False, output_router_logits=True).router_logits
    ordered = [logits.sort(dim=-1, descending=True).values for logits in out]
    k = config.num_experts_per_tok
    return min((x[:, k - 1] - x[:, k]).min().item() for x in ordered)


def margin_of_groups(model, config, tokens):
    """margin for routers with groups of experts, or with a correction of scores: also between groups that are chosen and that are not."""
    gaps = []

    def look(router, _, out):
        scores = out[0].sigmoid() if hasattr(router, "e_score_correction_bias") else out[0].log_softmax(-1)
        scores = scores + getattr(router, "e_score_correction_bias", 0)
        if (config.n_group or 1) > 1 and config.topk_group < config.n_group:
            groups = scores.view(-1, config.n_group, scores.shape[-1] // config.n_group)
            of = groups.topk(2, dim=-1).values.sum(-1) if hasattr(router, "e_score_correction_bias") else groups.amax(-1)
            best = of.sort(dim=-1, descending=True)
            gaps.append((best.values[:, config.topk_group - 1] - best.values[:, config.topk_group]).min().item())
            chosen = torch.zeros_like(of).scatter(1, best.indices[:, :config.topk_group], 1).unsqueeze(-1).expand_as(groups)
            scores = groups.masked_fill(chosen == 0, -99).flatten(1)
        ordered, k = scores.sort(dim=-1, descending=True).values, config.num_experts_per_tok
        gaps.append((ordered[:, k - 1] - ordered[:, k]).min().item())

    hooks = [m.register_forward_hook(look) for m in model.modules() if type(m).__name__.endswith("Router")]
    model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return min(gaps)


def pack(weights):
    """MXFP4 of [experts, in, out]: blocks [experts, out, in/32, 16], with the first of two elements in the lower half, and scales."""
    x = weights.transpose(1, 2).reshape(weights.shape[0], weights.shape[2], -1, 32)
    exponents = (x.abs().amax(dim=-1, keepdim=True).log2().floor() - 2).clamp(-127, 127)
    codes = (x / exponents.exp2()).unsqueeze(-1).sub(torch.tensor(FP4_VALUES)).abs().argmin(dim=-1).to(torch.uint8)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).contiguous(), (exponents[..., 0] + 127).to(torch.uint8)


def make_mxfp4(model, folder):
    """Replaces the experts in a folder, and in the model by what transformers decodes."""
    tensors = load_file(folder / "model.safetensors")
    for key, p in model.named_parameters():
        if key.endswith(("gate_up_proj", "down_proj")):
            blocks, scales = pack(p.data)
            tensors[key + "_blocks"], tensors[key + "_scales"] = blocks, scales
            p.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            p.requires_grad = False
            del tensors[key]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(name, family, fields, again=0):
    torch.manual_seed(sum(map(ord, name)) + 1000 * again)
    off = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0} if family == "gpt2" else {}
    config = AutoConfig.for_model(family, **fields, **off)
    images = family in WHOLE
    if images:
        model, config = WHOLE[family]._from_config(config, attn_implementation="eager").float(), config.text_config
    else:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key.endswith(("mlp.gate.weight", "router.weight")):
                p.normal_(0, 0.6)
            elif p.dim() == 3:
                p.normal_(0, 0.2)
            elif p.dim() == 2 and "_bias" not in key:
                p.normal_(0, 0.3 if family == "gemma4_text" and "embed" in key else 0.5 if "embed" in key or "wte" in key else 0.12)
            elif key.endswith("bias"):
                p.normal_(0, 0.2)
            elif family == "gemma4_text" and key.endswith(("q_norm.weight", "k_norm.weight")):
                p.normal_(0.3, 0.1)  # its scores have no other scale
            elif family == "gemma4_text" and ".post_" in key:
                p.normal_(0.5, 0.2)
            else:
                p.normal_(0 if family.startswith(("gemma", "nemotron")) and family != "gemma4_text" else 1, 0.3)
            p.copy_(p.bfloat16().float())
        for key, p in model.named_buffers():
            if key.endswith("layer_scalar"):
                p.uniform_(0.5, 1.5)
                p.copy_(p.bfloat16().float())
            if key.endswith("e_score_correction_bias"):
                p.uniform_(-0.3, 0.3)
                p.copy_(p.bfloat16().float())
    folder = here / name
    shutil.rmtree(folder, ignore_errors=True)
    low = copy.deepcopy(model).bfloat16()
    low.save_pretrained(folder, max_shard_size="20KB" if name == "llama" else "5GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if "mxfp4" in name:
        with torch.no_grad():
            make_mxfp4(model, folder)
    model.train()

    tokens = torch.randint(0, config.vocab_size - (4 if images else 0), (ROWS, TOKENS))
    labels = tokens.clone()
    labels[0, 3] = labels[1, 11] = -100
    if family in ("mixtral", "qwen3_moe", "gpt_oss") and margin(model, config, tokens) < 0.08:
        return make(name, family, fields, again + 1)
    if hasattr(config, "n_routed_experts") and margin_of_groups(model, config, tokens) < 0.008:
        return make(name, family, fields, again + 1)
    more = {"use_cache": False, **({"token_type_ids": torch.zeros_like(tokens)} if family == "gemma3" else {})}
    out = model(tokens, labels=labels, **more)
    out.loss.backward()
    golden = {"logits": out.logits.detach().contiguous()}
    for key, p in model.named_parameters():
        if p.grad is None:
            assert images and "language_model" not in key or not p.requires_grad, key
            continue
        for key, grad in parts(config, key.replace("model.language_model.", "model.").replace("lm_head", "embed_out" if family == "gpt_neox" else "lm_head"), p.grad):
            largest = grad.abs().max().clamp(min=1e-30)
            golden[key] = (grad / largest).half()
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
    if getattr(config, "output_router_logits", False):  # an evaluation has the plain loss
        more["output_router_logits"] = False
    losses.append(model(tokens, labels=labels, **more).loss.item())
    moved = torch.full_like(labels, -100)
    moved[:, :-1] = labels[:, 1:]
    (folder / "golden.json").write_text(json.dumps({
        "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
        "sequences": ROWS, "tokens": tokens.flatten().tolist(), "labels": moved.flatten().tolist(), "losses": losses}) + "\n")
    print(name, again, sum(p.numel() for p in model.parameters()), "parameters", losses[0], losses[-1])


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

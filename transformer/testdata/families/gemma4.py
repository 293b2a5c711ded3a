from .common import ALL, SMALL, TINY

ROPES = {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 50.0},
         "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}
MODELS = {
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
    "gemma4_experts": ("gemma4_text", {**SMALL, "num_hidden_layers": 3, "intermediate_size": 20, "sliding_window": 5, "pad_token_id": None, "tie_word_embeddings": True,
                                       "final_logit_softcapping": 4.0, "attention_k_eq_v": True, "global_head_dim": 12, "num_global_key_value_heads": 1,
                                       "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 12,
                                       "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "rope_parameters": ROPES}),
    # Experts, and all else that a layer may have.
    "gemma4_all": ("gemma4_text", {**SMALL, "num_hidden_layers": 3, "intermediate_size": 12, "sliding_window": 5, "pad_token_id": None, "tie_word_embeddings": True,
                                   "global_head_dim": 12, "num_kv_shared_layers": 1, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 6,
                                   "vocab_size_per_layer_input": 48, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 3, "moe_intermediate_size": 16,
                                   "layer_types": ["sliding_attention", "full_attention", "full_attention"], "rope_parameters": ROPES}),
}
ADAPTERS = {
    "gemma4_experts_lora": ("gemma4_experts", False, {**ALL, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}),
    "gemma4_lora": ("gemma4", False, ALL),
    "gemma4_shared_lora": ("gemma4_shared", False, {**ALL, "lora_alpha": 4, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "per_layer_input_gate", "per_layer_projection"]}),
}
DEFAULTS = ["gemma4_text"]
names_only = True
FIELDS = {
    "gemma4_text": {**TINY, "global_head_dim": 8, "hidden_size_per_layer_input": 0},
}


def parts(key, tensor):
    """Each expert has matrices of its own, in place of gate_up_proj [experts, 2·out, in] and down_proj."""
    module, _, part = key.rpartition(".")
    if not module.endswith(".experts"):
        yield key, tensor
        return
    for e, x in enumerate(tensor):
        pieces = {"down_proj": x} if part == "down_proj" else dict(zip(("gate_proj", "up_proj"), x.chunk(2)))
        for piece, y in pieces.items():
            yield f"{module}.{e}.{piece}.weight", y.contiguous()


def clear(model, config, tokens):
    if not config.enable_moe_block:
        return True
    gaps = []

    def look(router, _, out):
        ordered = out[0].log().sort(dim=-1, descending=True).values
        gaps.append((ordered[:, config.top_k_experts - 1] - ordered[:, config.top_k_experts]).min().item())

    hooks = [m.register_forward_hook(look) for m in model.modules() if type(m).__name__ == "Gemma4TextRouter"]
    model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return min(gaps) > 0.04


def initial(key, p):
    if key.endswith("router.proj.weight"):
        p.normal_(0, 3)  # of rows that are divided by the root of their length
    elif p.dim() == 2 and "embed" in key:
        p.normal_(0, 0.3)
    elif key.endswith(("q_norm.weight", "k_norm.weight")):
        p.normal_(0.3, 0.1)  # its scores have no other scale
    elif ".post_" in key and p.dim() == 1:
        p.normal_(0.5, 0.2)
    else:
        return False
    return True

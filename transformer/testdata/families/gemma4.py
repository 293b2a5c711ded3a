from .common import ALL, SMALL, TINY

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
}
ADAPTERS = {
    "gemma4_lora": ("gemma4", False, ALL),
    "gemma4_shared_lora": ("gemma4_shared", False, {**ALL, "lora_alpha": 4, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "per_layer_input_gate", "per_layer_projection"]}),
}
DEFAULTS = ["gemma4_text"]
names_only = True
FIELDS = {
    "gemma4_text": {**TINY, "global_head_dim": 8, "hidden_size_per_layer_input": 0},
}


def initial(key, p):
    if p.dim() == 2 and "embed" in key:
        p.normal_(0, 0.3)
    elif key.endswith(("q_norm.weight", "k_norm.weight")):
        p.normal_(0.3, 0.1)  # its scores have no other scale
    elif ".post_" in key and p.dim() == 1:
        p.normal_(0.5, 0.2)
    else:
        return False
    return True

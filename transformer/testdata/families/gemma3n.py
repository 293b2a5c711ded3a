from .common import SMALL, TINY

# Streams of which the second is computed, layers that are sparse and shared, and tokens that the table of each layer does not have.
MODELS = {
    "gemma3n": ("gemma3n_text", {**SMALL, "num_hidden_layers": 4, "intermediate_size": 24, "sliding_window": 5, "pad_token_id": None, "tie_word_embeddings": True, "head_dim": 8,
                                 "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 44, "num_kv_shared_layers": 2, "altup_num_inputs": 3, "altup_active_idx": 1,
                                 "laurel_rank": 4, "activation_sparsity_pattern": [0.3, 0.0, 0.0, 0.2], "final_logit_softcapping": 9.0,
                                 "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"], "rope_parameters": {
                                     "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
                                     "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}}),
}
ADAPTERS = {
    "gemma3n_lora": ("gemma3n", False, {"r": 2, "lora_alpha": 4, "target_modules": [
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "linear_left", "linear_right", "per_layer_input_gate", "per_layer_projection"]}),
}
FIELDS = {
    "gemma3n_text": {**TINY, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 40, "num_kv_shared_layers": 0, "laurel_rank": 3},
}


def initial(key, p):
    if key.endswith("modality_router.weight"):
        p.normal_(0, 3)  # of rows that are divided by their length
    elif "_coefs" in key:
        p.normal_(0, 0.1)
    elif p.dim() == 2 and "embed" in key:
        p.normal_(0, 0.5)
    elif key.endswith(("q_norm.weight", "k_norm.weight")):
        p.normal_(0.3, 0.1)  # its scores have no other scale
    elif p.dim() == 1 and "post_" in key:
        p.normal_(0.2, 0.1)
    elif p.dim() == 1:
        p.normal_(1, 0.2)
    else:
        return False
    return True

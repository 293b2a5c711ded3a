from .common import ALL

GPT2 = {"vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": 40, "bos_token_id": 1, "eos_token_id": 2,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
TINY_GPT2 = {"vocab_size": 32, "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 16, "bos_token_id": None, "eos_token_id": None,
             "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

MODELS = {
    "gpt2": ("gpt2", GPT2),
    "gpt2_untied": ("gpt2", {**GPT2, "n_layer": 1, "activation_function": "gelu", "tie_word_embeddings": False}),
}
ADAPTERS = {
    "gpt2_lora": ("gpt2", False, {**ALL, "fan_in_fan_out": True}),
    "gpt2_nf4": ("gpt2", True, {**ALL, "fan_in_fan_out": True}),
    "gpt2_dora": ("gpt2", False, {**ALL, "fan_in_fan_out": True, "use_dora": True}),
    "gpt2_vera": ("gpt2", False, {"vera": True, "target_modules": ["c_attn", "c_proj"], "r": 5, "projection_prng_key": 2**32 + 1, "fan_in_fan_out": True}),
    "gpt2_dora_nf4": ("gpt2", True, {**ALL, "fan_in_fan_out": True, "use_dora": True}),
}
PUBLISHED = {
    "gpt2": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
        "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
        "summary_use_proj": True, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
    },
}
SPELLINGS = {
    "gpt2, inner": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 20, "n_inner": 50, "vocab_size": 30,
                    "activation_function": "gelu", "resid_pdrop": 0.0, "embd_pdrop": 0.2, "attn_pdrop": 0.3, "scale_attn_weights": False,
                    "tie_word_embeddings": False},
    "gpt2, other names": {"model_type": "gpt2", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                          "max_position_embeddings": 20, "vocab_size": 30},
}
DEFAULTS = ["gpt2"]
FIELDS = {
    "gpt2": TINY_GPT2,
}
GGUF = {
    "gpt2": ("gpt2", None),
}

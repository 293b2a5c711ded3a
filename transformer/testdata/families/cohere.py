from .common import ALL, NARROW, TINY_WHOLE, small

NORMS = {"num_hidden_layers": 1, "use_qk_norm": True, "tie_word_embeddings": False}
MODELS = {
    "cohere": ("cohere", {**NARROW, "pad_token_id": None, "attention_bias": True, "logit_scale": 0.7}),
    "cohere_norms": ("cohere", {**NARROW, **NORMS, "pad_token_id": None, "logit_scale": 0.7, "layer_norm_eps": 1e-3}),
}
ADAPTERS = {
    "cohere_norms_lora": ("cohere_norms", False, ALL),
}
PUBLISHED = {
    "c4ai-command-r-v01": {
        "architectures": ["CohereForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 5, "eos_token_id": 255001, "hidden_act": "silu",
        "hidden_size": 8192, "initializer_range": 0.02, "intermediate_size": 22528, "layer_norm_eps": 1e-05, "logit_scale": 0.0625,
        "max_position_embeddings": 8192, "model_max_length": 131072, "model_type": "cohere", "num_attention_heads": 64, "num_hidden_layers": 40,
        "num_key_value_heads": 64, "pad_token_id": 0, "pretraining_tp": 1, "rope_scaling": None, "rope_theta": 8000000.0, "torch_dtype": "float16",
        "transformers_version": "4.38.2", "use_cache": True, "vocab_size": 256000,
    },
    "c4ai-command-r-plus-08-2024": {
        "architectures": ["CohereForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 5, "eos_token_id": 255001, "hidden_act": "silu",
        "hidden_size": 12288, "initializer_range": 0.02, "intermediate_size": 33792, "layer_norm_eps": 1e-05, "logit_scale": 0.8333333333333334,
        "max_position_embeddings": 131072, "model_type": "cohere", "num_attention_heads": 96, "num_hidden_layers": 64, "num_key_value_heads": 8,
        "pad_token_id": 0, "rope_theta": 8000000.0, "torch_dtype": "float16", "transformers_version": "4.40.2", "use_cache": True, "use_qk_norm": True,
        "vocab_size": 256000,
    },
}
SPELLINGS = {
    "cohere, parts": small("cohere", attention_bias=True, use_qk_norm=True, logit_scale=1.0, tie_word_embeddings=False, rope_theta=500.0),
}
DEFAULTS = ["cohere"]
FIELDS = {
    "cohere": TINY_WHOLE,
}
GGUF = {
    "cohere": ("cohere", dict(tie_word_embeddings=True, attention_bias=False, logit_scale=0.25, layer_norm_eps=1e-4)),
    "cohere_norms": ("cohere", dict(tie_word_embeddings=True, use_qk_norm=True, num_hidden_layers=64)),
}


def extra(config, body):
    return {"NoNormBias": True, "Parallel": True, "OneNorm": True, "LogitScale": 0 if config.logit_scale == 1 else config.logit_scale}

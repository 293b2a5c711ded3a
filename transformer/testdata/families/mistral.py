from .common import SMALL, TINY, small

MODELS = {
    "mistral": ("mistral", {**SMALL, "sliding_window": 5}),
}
ADAPTERS = {
    "mistral_layers": ("mistral", False, {"target_modules": ["o_proj", "gate_proj"], "r": 4, "lora_alpha": 16, "layers_to_transform": [1]}),
}
PUBLISHED = {
    "mistral-7b-v0.1": {
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
        "use_cache": True, "vocab_size": 32000,
    },
    "mistral-nemo": {
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 131072,
    },
}
SPELLINGS = {
    "mistral, window": small("mistral", sliding_window=3, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}),
}
DEFAULTS = ["mistral"]
FIELDS = {
    "mistral": TINY,
}
GGUF = {
    "mistral": ("mistral", dict(sliding_window=None)),
}

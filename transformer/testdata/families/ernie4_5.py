from .common import SMALL, TINY, small

MODELS = {
    "ernie4_5": ("ernie4_5", {**SMALL, "use_bias": True, "pad_token_id": None, "tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
}
PUBLISHED = {
    "ernie-4.5-0.3b": {
        "architectures": ["Ernie4_5ForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "intermediate_size": 3072, "max_position_embeddings": 131072, "model_type": "ernie4_5", "num_attention_heads": 16, "num_hidden_layers": 18,
        "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "use_bias": False, "use_cache": False, "vocab_size": 103424,
    },
}
SPELLINGS = {
    "ernie4_5, biases": small("ernie4_5", use_bias=True, head_dim=None, tie_word_embeddings=False),
}
FIELDS = {
    "ernie4_5": TINY,
}
GGUF = {
    "ernie4_5": ("ernie4_5", dict(tie_word_embeddings=True)),
}

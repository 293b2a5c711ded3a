from .common import NARROW, SOME, TINY, small

MODELS = {
    "starcoder2": ("starcoder2", {**NARROW, "num_hidden_layers": 2, "sliding_window": 6, "pad_token_id": None}),
}
ADAPTERS = {
    "starcoder2_lora": ("starcoder2", False, SOME),
}
PUBLISHED = {
    "starcoder2-3b": {
        "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1, "bos_token_id": 0, "embedding_dropout": 0.1, "eos_token_id": 0,
        "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "initializer_range": 0.018042, "intermediate_size": 12288, "max_position_embeddings": 16384,
        "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05, "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
        "residual_dropout": 0.1, "rope_theta": 999999.4420358813, "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.37.0.dev0",
        "use_bias": True, "use_cache": True, "vocab_size": 49152,
    },
}
SPELLINGS = {
    "starcoder2, window": small("starcoder2", sliding_window=7, embedding_dropout=0.25, residual_dropout=0.125, norm_epsilon=1e-4, tie_word_embeddings=False),
}
DEFAULTS = ["starcoder2"]
FIELDS = {
    "starcoder2": TINY,
}
GGUF = {
    "starcoder2": ("starcoder2", dict(norm_epsilon=1e-4)),
}

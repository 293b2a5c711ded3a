from .common import ALL, SMALL, TINY, clear_logits, small

MODELS = {
    "mixtral": ("mixtral", {**SMALL, "intermediate_size": 20, "num_local_experts": 4, "sliding_window": 7, "output_router_logits": True,
                            "router_aux_loss_coef": 0.1, "tie_word_embeddings": False}),
}
ADAPTERS = {
    "mixtral_lora": ("mixtral", False, {**ALL, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
}
EXPERTS = {
    "mixtral_experts": ("mixtral", ["q_proj", "w1", "w2", "w3"]),
}
PUBLISHED = {
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": True, "vocab_size": 32000,
    },
}
SPELLINGS = {
    "mixtral, window": small("mixtral", num_local_experts=3, sliding_window=6, output_router_logits=True, router_aux_loss_coef=0.25,
                             head_dim=16, rope_scaling={"type": "linear", "factor": 2.5}),
}
DEFAULTS = ["mixtral"]
FIELDS = {
    "mixtral": {**TINY, "num_local_experts": 4, "num_experts_per_tok": 2},
}
GGUF = {
    "mixtral": ("mixtral", dict(num_local_experts=4, num_experts_per_tok=2)),
}
clear = clear_logits


def parts(key, tensor):
    module, _, part = key.replace(".mlp.", ".block_sparse_moe.").rpartition(".")
    if not module.endswith("experts"):
        yield f"{module}.{part}", tensor
        return
    for e, x in enumerate(tensor):
        half = len(x) // 2
        for piece, y in ({"w2": x} if part == "down_proj" else {"w1": x[:half], "w3": x[half:]}).items():
            yield f"{module}.{e}.{piece}.weight", y.contiguous()

from .common import SMALL, TINY, clear_logits, small

GPTOSS = {**SMALL, "intermediate_size": 32, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5,
          "swiglu_limit": 0.9, "tie_word_embeddings": False, "rope_parameters": {
              "rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False,
              "original_max_position_embeddings": 16, "rope_theta": 1e3}}

MODELS = {
    "gpt_oss": ("gpt_oss", GPTOSS),
    "gpt_oss_mxfp4": ("gpt_oss", {**GPTOSS, "num_hidden_layers": 1}),
}
ADAPTERS = {
    "gpt_oss_lora": ("gpt_oss", False, {"target_modules": ["q_proj", "k_proj", "o_proj"], "r": 3, "lora_alpha": 6, "use_dora": True}),
}
PUBLISHED = {
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002, "experts_per_token": 4,
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
        "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
        "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
        "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999, "rms_norm_eps": 1e-05,
        "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
                                "quant_method": "mxfp4"},
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
                         "truncate": False},
        "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
        "transformers_version": "4.55.0.dev0", "use_cache": True, "vocab_size": 201088,
    },
}
SPELLINGS = {
    "gpt_oss, types": small("gpt_oss", num_local_experts=4, num_experts_per_tok=3, attention_bias=False, swiglu_limit=3.5, swiglu_alpha=1.25,
                            sliding_window=9, output_router_logits=True, layer_types=["full_attention"] * 2 + ["sliding_attention"] * 3),
    "gpt_oss, default rope": small("gpt_oss", num_local_experts=4, head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
}
DEFAULTS = ["gpt_oss"]
FIELDS = {
    "gpt_oss": {**TINY, "num_local_experts": 4, "num_experts_per_tok": 2},
}
GGUF = {
    "gpt_oss": ("gpt_oss", dict(num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=8, rope_parameters=dict(
     rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=32))),
}
clear = clear_logits


def parts(key, tensor):
    """The experts are [in, out], with gate and up in turn."""
    module, _, part = key.rpartition(".")
    if not module.endswith("experts"):
        yield key, tensor
        return
    for e, x in enumerate(tensor):
        x = x.T if x.dim() == 2 else x
        end = "bias" if part.endswith("_bias") else "weight"
        for piece, y in ({"down_proj": x} if part.startswith("down") else {"gate_proj": x[0::2], "up_proj": x[1::2]}).items():
            yield f"{module}.{e}.{piece}.{end}", y.contiguous()

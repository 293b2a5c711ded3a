from .common import ALL, TINY_WHOLE, WHOLEHEADS, small

MAMBA = {"mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 5, "mamba_d_conv": 3, "mamba_expand": 2, "mamba_d_head": "auto"}
HYBRID = {**WHOLEHEADS, "hidden_size": 24, "intermediate_size": 40, "shared_intermediate_size": 28, "num_hidden_layers": 3, "num_local_experts": 0,
          "layer_types": ["mamba", "attention", "mamba"], **MAMBA, "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.3,
          "logits_scaling": 6.0, "pad_token_id": None}
MODELS = {
    "granitemoehybrid": ("granitemoehybrid", {**HYBRID, "mamba_proj_bias": True, "time_step_limit": [0.05, 1.0]}),
    "granitemoehybrid_rope": ("granitemoehybrid", {**HYBRID, "mamba_n_groups": 1, "mamba_conv_bias": False, "position_embedding_type": "rope", "attention_bias": True, "tie_word_embeddings": True}),
}
ADAPTERS = {
    "granitemoehybrid_lora": ("granitemoehybrid", False, ALL),
}
PUBLISHED = {
    "granite-4.0-h-micro": {
        "architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "attention_multiplier": 0.015625, "bos_token_id": 100257,
        "embedding_multiplier": 12, "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048, "init_method": "mup", "initializer_range": 0.1,
        "intermediate_size": 8192, "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4, "logits_scaling": 8, "mamba_chunk_size": 256,
        "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 64,
        "mamba_proj_bias": False, "max_position_embeddings": 131072, "model_type": "granitemoehybrid", "normalization_function": "rmsnorm",
        "num_attention_heads": 32, "num_experts_per_tok": 0, "num_hidden_layers": 40, "num_key_value_heads": 8, "num_local_experts": 0,
        "output_router_logits": False, "pad_token_id": 100256, "position_embedding_type": "nope", "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 10000, "router_aux_loss_coef": 0.01, "shared_intermediate_size": 8192, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "transformers_version": "4.56.0", "use_cache": True, "vocab_size": 100352,
    },
}
TINY_HYBRID = {**TINY_WHOLE, "mamba_chunk_size": 8, "num_local_experts": 0, "mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 3, "shared_intermediate_size": 20, "layer_types": ["linear_attention", "full_attention"]}
SPELLINGS = {
    "granitemoehybrid, attention alone": small("granitemoehybrid", num_local_experts=0, layer_types=["attention"] * 5, mamba_n_heads=4, position_embedding_type="rope"),
    "granitemoehybrid, head": small("granitemoehybrid", num_local_experts=0, layers_block_type=["mamba", "attention"] * 2 + ["mamba"], mamba_n_heads=12, mamba_d_head=8,
                                    mamba_n_groups=3, mamba_proj_bias=True, shared_intermediate_size=56, time_step_limit=[0.01, 2.0]),
    "granitemoehybrid, all": small("granitemoehybrid", num_local_experts=0, mamba_n_heads=12, mamba_conv_bias=False, mamba_d_conv=2),
}
FIELDS = {
    "granitemoehybrid": TINY_HYBRID,
}


def name_as_llama(config, body):
    from transformers.activations import ACT2FN
    from transformers.models.granitemoehybrid import modeling_granitemoehybrid as code
    also = object.__setattr__  # which registers nothing
    attention = next((layer.self_attn for layer in body.layers if layer.self_attn is not None), None) or code.GraniteMoeHybridAttention(config, 0)
    for layer in body.layers:
        mlp = layer.shared_mlp
        layer.__dict__["_modules"] = {k: v for k, v in layer._modules.items() if k != "self_attn" or v is not None}
        also(layer, "self_attn", attention)
        also(layer, "mlp", mlp)
        for name, module in {"down_proj": mlp.output_linear, "gate_proj": mlp.input_linear, "act_fn": ACT2FN[config.hidden_act]}.items():
            also(mlp, name, module)
    if body.rotary_emb is None:
        config.no_rope_layers = [0] * len(body.layers)
        body.__dict__.pop("rotary_emb", None)
        also(body, "rotary_emb", code.GraniteMoeHybridRotaryEmbedding(config))
    config.intermediate_size = config.shared_intermediate_size


def mamba(config, mixers):
    m = next((m for m in mixers if m is not None), None)
    if m is None:
        return None
    limit = m.time_step_limit or (0.0, float("inf"))
    return {"Heads": m.num_heads, "HeadDim": m.head_dim, "Groups": m.n_groups, "StateDim": m.ssm_state_size, "Taps": m.conv_kernel_size,
            "ConvBias": m.conv1d.bias is not None, "InBias": m.in_proj.bias is not None, "OutBias": m.out_proj.bias is not None,
            "Norm": hasattr(m.norm, "weight"), "NormFirst": getattr(m.norm, "norm_before_gate", False) and hasattr(m.norm, "weight"), "StepMin": limit[0],
            "StepMax": 0 if limit[1] == float("inf") else limit[1]}


def extra(config, body):
    mixers = [layer.mamba for layer in body.layers]
    out = {"Mixers": ["" if m is None else "mamba2" for m in mixers] if any(m is not None for m in mixers) else None}
    if found := mamba(config, mixers):
        out["Mamba"] = found
    return out

from transformers import AutoModelForCausalLM

from .common import ALL, LATENT, TINY_LATENT

AutoModelForCausalLM._model_mapping._model_mapping["mistral4"] = "Mistral4ForCausalLM"  # which transformers 5.24 leaves out
ROPE = {"rope_type": "yarn", "rope_theta": 1e3, "factor": 4.0, "original_max_position_embeddings": 6, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.4, "partial_rotary_factor": 6 / 14}
MODELS = {
    "mistral4": ("mistral4", {**LATENT, "intermediate_size": 20, "rms_norm_eps": 1e-6, "moe_intermediate_size": 12, "n_routed_experts": 6, "n_group": 2, "topk_group": 1,
                              "num_experts_per_tok": 2, "n_shared_experts": 2, "first_k_dense_replace": 1, "attention_bias": True, "routed_scaling_factor": 1.5, "rope_parameters": ROPE}),
}
ADAPTERS = {
    "mistral4_lora": ("mistral4", False, {**ALL, "r": 1}),
}
FIELDS = {
    "mistral4": {**TINY_LATENT, "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
                 "rope_parameters": {**ROPE, "partial_rotary_factor": 0.4}},
}


def clear(model, config, tokens):
    gaps = []

    def look(router, _, out):
        scores = out[0].softmax(-1).view(-1, config.n_group, config.n_routed_experts // config.n_group)
        best = scores.topk(2, dim=-1).values.sum(-1).sort(dim=-1, descending=True)
        gaps.append((best.values[:, 0] - best.values[:, 1]).min().item())
        ordered = scores.gather(1, best.indices[:, :1, None].expand(-1, -1, scores.shape[-1])).log().sort(dim=-1, descending=True).values
        gaps.append((ordered[..., config.num_experts_per_tok - 1] - ordered[..., config.num_experts_per_tok]).min().item())

    hooks = [m.register_forward_hook(look) for m in model.modules() if type(m).__name__.endswith("Router")]
    model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return min(gaps) >= 0.008

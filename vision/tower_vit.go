package vision

import "github.com/snug-ml/snug/layers"

// vitTower is the vision transformer of Dosovitskiy et al. 2020, arXiv:2010.11929, also of DeiT without its distillation token.
var vitTower = &towerFamily{
	modelType: "vit", tower: "vit", classifier: "ViTForImageClassification", towerClass: "ViTModel", prefix: "vit.",
	standard: TowerConfig{Image: 224, Patch: 16, Channels: 3, Width: 768, Hidden: 3072, Layers: 12, Heads: 12, Activation: "gelu", Eps: 1e-12, QKVBias: true},
	class:    true, batched: true, patchBias: true, norms: true, means: []layers.Mean{{To: 1}}, towerOnly: "pooler.",
	spellings: []names{
		{
			class: "embeddings.cls_token", positions: "embeddings.position_embeddings", patch: "embeddings.patch_embeddings.projection", block: "encoder.layer.%d.",
			norm1: "layernorm_before", q: "attention.attention.query", k: "attention.attention.key", v: "attention.attention.value", out: "attention.output.dense",
			norm2: "layernorm_after", up: "intermediate.dense", down: "output.dense", norm: "layernorm",
		},
		{ // in the memory of transformers 5
			class: "embeddings.cls_token", positions: "embeddings.position_embeddings", patch: "embeddings.patch_embeddings.projection", block: "layers.%d.",
			norm1: "layernorm_before", q: "attention.q_proj", k: "attention.k_proj", v: "attention.v_proj", out: "attention.o_proj",
			norm2: "layernorm_after", up: "mlp.fc1", down: "mlp.fc2", norm: "layernorm",
		},
	},
}

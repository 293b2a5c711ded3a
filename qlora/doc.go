// Package qlora stores frozen weights in 4 bits an element, in the formats, the layout and the
// files of bitsandbytes, or in other published forms of 4 and 8 bits, and trains LoRA and DoRA adapters on them.
//
//	w, err := qlora.NewWeight(weights, []int{out, in}, qlora.Options{})    // NF4, 4.127 bits an element
//	frozen, err := qlora.NewLinear(w, snug.BF16, 0)
//	err = frozen.Forward(y, x, 0)                                // y = x·Wᵀ: [rows, out] from [rows, in]
//	err = adapter.Forward(y, u, x, qlora.Dropout{})              // a LoRA: y += s·(x·Aᵀ)·Bᵀ, u = x·Aᵀ
//	err = frozen.Backward(dx, dy, 0)                             // dx = dy·W
//	err = adapter.Backward(dx, du, dy, u, x, grads, qlora.Dropout{})
//
// [LoadAdapters] and [SaveAdapters] exchange adapters with PEFT. Use the package when frozen
// weights are the largest part of memory.
//
// # Blockwise quantization
//
// A vector is cut into blocks of 64 elements, or of another power of two; the last block
// may be partial. Every block stores its scale, absmax: the largest magnitude of its elements. Every
// element x is stored as the code of one of 16 values, see [Type]:
//
//	absmax = max |x|
//	code   = the code of the value nearest to x/absmax; a tie takes the lower value
//	x'     = value[code]·absmax
//
// The quotient is one float32 division. The nearest value follows from the midpoints between
// neighbours, which are bitsandbytes' float32 numbers; a quotient equal to a midpoint is a tie.
//
// bitsandbytes differs in three points. It multiplies by the rounded reciprocal of absmax,
// so next to a midpoint its code may be the neighbour. It replaces an absmax below 1e-38 by
// 1e-38. Its kernels decode some zeros to -0. FP4 has two codes for 0: as with bitsandbytes on the CPU, 0 and the
// negative numbers next to it get code 0, and positive numbers next to it code 8. Here both decode to +0.
//
// Two codes share a byte, the first in its upper half. After an odd number of elements the
// last half holds the code of 0. See [Quantize] and [Dequantize].
//
// # Double quantization
//
// The absmax of blocks of 64 cost 0.5 bits an element. [DoubleQuantize] stores them in 8 bits,
// which cost 0.127 bits an element:
//
//	offset = mean of absmax
//	codes  = quant8.Quantize(absmax - offset), signed dynamic map, blocks of 256
//
// A [Weight] is a tensor in this form, with or without double quantization. Dettmers et al.
// 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", arXiv:2305.14314.
//
// # Other forms
//
// A [Type] other than NF4 and FP4 has other scales. [OpenWeights] reads all forms, with the values that Hugging Face's
// transformers and bitsandbytes give, bit for bit; [NewWeight] quantizes floats to them:
//
//	MXFP4         E2M1 times a power of two for 32 elements of a row, 4.25 bits, as the experts of gpt-oss
//	FP8, FP8E5M2  floats of 8 bits times a float32 for 128×128 elements, a row or the weight, as DeepSeek V3's files
//	INT8          integers in units of 1/127 of the largest magnitude of a row, as LLM.int8, and columns of outliers
//	              that stay in 16 bits
//
// A Grouped weight is the integers of 2, 4 or 8 bits of GPTQ's, AWQ's and compressed-tensors' files, in groups with a scale and a zero point, on the
// CPU. [Weights.SetGroups] says how they lie there.
//
// A GGUF weight is the blocks of llama.cpp's files as they are, with 2.6 to 8.5 bits an element. [NewBlocks] takes them, on
// the CPU.
//
// Activations stay in floats; some other engines quantize them too. Codes and scales that are not finite are errors.
// Columns of outliers are supported on the CPU only.
//
// # Training
//
// A [Linear] multiplies by a frozen [Weight], forward and backward. On the CPU it decodes a tile of rows of the weight at
// a time, or decodes in registers when x has few rows, except INT8 with columns of outliers. On other devices kernels
// decode 4-bit elements as they multiply, or for many rows of x decode tiles for the vendor's library; 8-bit elements are
// always decoded to tiles. A [LoRA] adds a trainable product of low rank, with dropout. A [DoRA] also trains the
// magnitude of each row, of a Linear or of a [Dense], a frozen matrix in floats.
//
// In a step, per layer: Linear.Forward, LoRA.Forward, which adds to y; then Linear.Backward,
// LoRA.Backward, which adds to dx. [Dropout] must be the same in both passes of a step, and the
// zero Dropout drops nothing. Adapters are small: an optimizer of package quant8 keeps 32-bit
// state for parameters below 4096 elements, unless Options.MinSize is 1.
//
// [LoRA.Start] and [LoRA.StartLoftQ] initialize an adapter from its matrix: PiSSA, OLoRA, LoftQ. With LoRA.FrozenA only
// B trains (LoRA-FA); [LoRAPlus] gives B a higher rate. The adapters of a [VeRA] share their matrices.
//
// # Pages
//
// [Weight.Page] moves a weight into a [Storage], such as a Store of package offload, so that a model
// whose frozen weights exceed the memory trains from disk:
//
//	store, err := offload.Open(dir, offload.Options{HostLimit: 1 << 30})
//	err = w.Page(store, "layers.0.mlp.up_proj") // after NewWeight, for each weight
//
// # Adapters of PEFT
//
// [LoadAdapters] reads folders of HuggingFace's PEFT (version 0.21 and older), and
// [SaveAdapters] writes them. No field of adapter_config.json is ignored:
//
//	supported             r, lora_alpha, lora_dropout, use_rslora, use_dora, rank_pattern,
//	                      alpha_pattern, target_modules, exclude_modules, layers_to_transform,
//	                      layers_pattern, fan_in_fan_out, base_model_name_or_path,
//	                      modules_to_save, and with it ensure_weight_tying
//	kept                  what does not change the outputs of adapters: task_type,
//	                      auto_mapping, revision, inference_mode, peft_version,
//	                      runtime_config, megatron_core, qalora_group_size, merge_weights,
//	                      and the settings of the initialization: corda_config, eva_config,
//	                      loftq_config, lora_ga_config
//	depends on the value  init_lora_weights: true, false, "gaussian", "eva", "orthogonal" and
//	                      "mica" are kept. "pissa", "olora", "corda", "lora_ga" and "loftq"
//	                      are refused: their adapters belong to a base weight that PEFT has
//	                      changed. [LoRA.Less] converts adapters that began so here to plain ones
//	refused               unless null, false or empty: bias other than "none", lora_bias,
//	                      trainable_token_indices, target_parameters,
//	                      layer_replication, alora_invocation_tokens, use_qalora, use_bdlora,
//	                      arrow_config, kasa_config, monteclora_config, velora_config,
//	                      megatron_config, enable_lora, and every field that this list does
//	                      not have
//
// A supported field that the file lacks has PEFT's default: 8 for r and lora_alpha, 0 for
// lora_dropout, false or nothing for the others. PEFT also loads the following values, which
// this package refuses with ErrConfig: two keys of rank_pattern or alpha_pattern that match one
// module and differ, a lora_alpha that is not above 0, a lora_dropout of 1 or below 0,
// and a value of another type, such as 1 for true.
//
// Of adapter_model.safetensors, the tensors of LoRA and DoRA on linear layers and
// embeddings are supported. Refused are adapters of convolutions, and magnitudes without
// use_dora.
//
// Parameters of the base model are in the folder too where modules_to_save names them, and embeddings and heads
// (embed_tokens, lm_head, wte) also when the vocabulary was resized, or when they are targets (<module>.base_layer.weight).
// They replace the base model's: [SavedTensors] lists them, and [LoadModules] reads them. Other weights of the base model are
// refused.
//
// [LoadVeRA] and [SaveVeRA] exchange adapters of the peft_type VERA: r, vera_dropout, projection_prng_key,
// save_projection, and the fields above that VeraConfig has. d_initial is not kept.
//
// # Devices
//
// All operands of a call lie on one device. On the CPU a call checks its data
// for NaNs and infinities before it writes; each function says what happens on other
// devices.
package qlora

// Package transformer runs and trains decoder-only language models as Hugging Face publishes them.
//
//	m, err := transformer.Open("Qwen3-0.6B", transformer.Options{DType: snug.BF16}) // config.json and weights
//	if err != nil {
//		return err // names the field, the tensor or the file that is wrong
//	}
//	batch := transformer.Batch{Tokens: tokens, Labels: labels, Starts: starts} // packed sequences
//	err = window.Begin(batch.Weight())                       // an accum.Window of m.Params()
//	loss, err := m.Backprop(ctx, batch, scaler.Scale(), window) // forward and backward
//	full, err := window.End()                                // then clip, and update m.Params()
//	loss, err = m.Evaluate(ctx, held)
//	err = m.Save("tuned", 0)                                 // transformers loads the folder
//
// # Models
//
// [Open] and [New] make models of Llama with all its ropes, Mistral, Ministral, Ministral 3, Mixtral, Qwen2, Qwen3, Qwen3-MoE, Gemma 1 to 3
// (also the text models of multimodal folders of Gemma 3, LLaVA, LLaVA-NeXT, PaliGemma, Idefics3, SmolVLM and Qwen2-VL to Qwen3-VL), Seed-OSS, gpt-oss, Phi-3 to Phi-4-mini,
// SmolLM3, GLM-4, ERNIE 4.5, Arcee, Nemotron, StarCoder2, StableLM, GPT-NeoX, Granite, OLMo 2
// and 3, Cohere, Hunyuan, EXAONE 4, Qwen2-MoE, GLM-4.5, Gemma 4 and GPT-2 on any device, and of DeepSeek-V2 and V3, GLM-4.7-Flash,
// Mistral Small 4, Youtu-LLM, LFM2, Qwen3.5, Qwen3-Next, Falcon-H1, Granite 4.0 H, Gemma 3n and Gemma 4 with experts on the CPU, in float32, bfloat16 or float16. docs/models.md lists them all.
// Weights, activations and their gradients have that type; sums, statistics and gradients of parameters are float32. In
// float32 a logit differs from transformers' by about 1e-6 of the largest logit; in random configurations the largest
// difference found is 5.4e-6, and 9.8e-6 with an adapter. testdata holds what transformers computes.
//
// Mixtral, Qwen3-MoE, gpt-oss, DeepSeek and GLM-4.7-Flash have [Experts]. Each expert has parameters of its own. The files of gpt-oss have one
// tensor for all experts of a layer: Open splits it, and Save joins it. gpt-oss is published with experts in MXFP4.
// They stay in MXFP4 and are frozen; Save decodes them to the model's type. Routers stay in floats and have no adapter.
// Folders of Qwen3.5 with experts have either form, and Save writes the one that Open read, or separate tensors.
// PEFT reads adapters of Mixtral's experts by their names. It has no names for single experts of gpt-oss, Gemma 4 and Mistral Small 4, whose files
// have them in one tensor: see [Model.SaveAdapter].
//
// The family [Custom] is for models to train from scratch: any combination of what the stages compute. Options.Monitor
// counts the bytes that a model holds and can limit them. Options.PlainAttention computes attention without tiles, for
// comparison.
//
// A layer is two stages of a [remat.Chain]: attention and MLP; with Config.Parallel it is one, see [layers.Parallel]. [Model.Costs] returns their bytes and multiply-adds.
// [Model.SetPlan] makes Backprop run a plan of package remat, with the same gradients bit for bit:
//
//	costs, err := m.Costs(sequences, tokens)
//	plan, report, err := remat.Planner{}.Plan(costs, budget) // bytes of activations
//	err = m.SetPlan(plan)
//
// The attention stage keeps its input, q, k, v and attention's output; the MLP stage keeps its input, gate and up. The
// backward pass computes normalized inputs, norms of q and k, and activations again. With M rows, width C, Q elements
// of the queries of a row, K of its keys and F of the MLP, a layer keeps M·(2C + 2Q + 2K + 2F) elements. The plan that
// recomputes most keeps these elements of one stage at a time.
//
// With Options.Tiles the MLPs run in tiles of rows, for long sequences. An MLP then keeps M·C elements, and its steps
// hold what they need of one tile at a time.
//
// A layer with Config.Experts has a stage of experts in place of the MLP. The stage keeps M·C elements and the router's
// logits. The backward pass routes by these logits again and computes the inner values again, one expert at a time, for
// the rows that chose the expert. Besides tensors of all rows, a step holds 2C + 3F elements for each row of the
// largest group. Experts without rows are not read: with Options.Pages, generation of a token reads only the experts
// that were chosen for it. Backprop adds the loss that Experts.RouterLoss weighs, as transformers does; Evaluate and
// BackpropLogProbs do not.
//
// [Config.Plan] describes the model to package plan before it is made; package plan then predicts what training takes,
// and finds what fits.
//
// Options.Train freezes parameters. The backward pass leaves out their gradients, and ends at the first stage that has
// a parameter to train.
//
// # Adapters and quantized matrices
//
// Options.Adapter adds a LoRA (Hu et al. 2021, arXiv:2106.09685), an rsLoRA, or a DoRA (Liu et al. 2024,
// arXiv:2402.09353) to the modules that PEFT would choose by the same fields. Options.Base quantizes the matrices of
// the layers to 4 bits, as bitsandbytes does for QLoRA (Dettmers et al. 2023, arXiv:2305.14314), or to another form of
// package qlora, and Options.Pages keeps them on disk, with Options.PageFloats also matrices in floats. Open takes folders whose matrices are in NF4, FP4, FP8, INT8 or groups of integers (GPTQ, AWQ, compressed-tensors), see
// Config.Stored, as they are, or decodes them with Options.Decode. A model in 4 bits with adapters:
//
//	m, err := transformer.Open("Llama-3.2-1B", transformer.Options{
//		Base:    qlora.NF4,                                    // 4.127 bits an element
//		Adapter: &qlora.AdapterOptions{Rank: 16, Alpha: 32}, // all matrices of the layers
//	})
//	err = m.SaveAdapter("tuned")                               // PEFT loads the folder
//	m, err = transformer.Open("Llama-3.2-1B", transformer.Options{Base: qlora.NF4, AdapterDir: "tuned"})
//	err = m.Save("merged", 0)                                  // a model without adapters
//
// Adapters are float32. Their inner products x·Aᵀ are rounded to the type of activations, where PEFT keeps float32.
// With adapters of rank r, a backward step holds 2·M·r more elements, the gradients of the inputs of adapted matrices,
// and with dropout the dropped inputs. testdata holds what PEFT computes: in float32 a logit differs by at most 1e-6 of
// the largest, and the losses of 20 steps by at most 1e-5.
//
// AdapterOptions.Init begins the adapters by their matrices: PiSSA (Meng et al. 2024, arXiv:2404.02948), OLoRA
// (Büyükakyüz 2024, arXiv:2406.01775), or LoftQ (Li et al. 2023, arXiv:2310.08659). SaveAdapter writes adapters for the
// published weights in all cases. AdapterOptions.FrozenA trains B alone (LoRA-FA: Zhang et al. 2023, arXiv:2308.03303):
// gradients and states of A are gone, and the gradient of an input is written over the input, as without adapters; no
// adapter keeps its input from the forward to the backward step in either case. [qlora.LoRAPlus] gives B a higher
// learning rate (Hayou et al. 2024, arXiv:2402.12354).
//
// AdapterOptions.VeRA trains two vectors for each matrix (Kopiczko et al. 2023, arXiv:2310.11454). Each
// product multiplies the rows and columns of the second shared matrix by them, so merge for generation.
// AdapterOptions.ModulesToSave trains embeddings, the head or norms beside adapters of any kind.
//
// A DoRA adds 12 bytes for each output of a matrix: its magnitude, the norm of its row of W + s·B·A, and their
// quotient. Every call computes the norms once, before the first product of a matrix, because the parameters may have
// changed; that takes Rank multiply-adds for each element of the matrix. A [Generator] computes them when a text
// begins. The backward step recomputes the outputs before the magnitudes, one more product for each adapted matrix, and
// holds the outputs of one matrix at a time.
//
// # Vectors in place of tokens
//
// Batch.Embeddings puts vectors in place of the embeddings of some tokens, such as the output of a tower of images, and
// says where their gradient goes. A program makes the vectors, calls [Model.Backprop], and goes on with the gradient:
// the example of Batch is a train.Model that does so. The vectors need no rows of the embedding, which may be the head
// too, and may train or not. The model copies none of them: a pass holds what it holds without vectors.
//
// Batch.Positions has positions in up to three axes, for the ropes of Qwen2-VL, Qwen2.5-VL and Qwen3-VL. The families of
// their layers, Qwen2, Qwen3 and Qwen3-MoE, read mrope_section and mrope_interleaved as Rope.Sections and Rope.Spread.
// Batch.Spans has tokens that see each other in both directions, as the images of Gemma 3 and the prefix of a PaliGemma.
// [Generator.PromptBatch] takes all of these.
//
// testdata has what transformers computes with inputs_embeds for Llama, Gemma 3, Qwen2 and GPT-2, with spans for Gemma 3
// and Gemma, and with positions in three axes for the text models of Qwen2.5-VL and Qwen3-VL. Logits differ by at most
// 4e-7 of the largest, gradients of parameters by 2e-6 of their norms, and gradients of the vectors by 7e-7 of the
// largest.
//
// # Generation
//
// A [Generator] keeps the keys and values of the tokens so far, so that a further token costs one row of each product:
//
//	g, err := m.Generate(transformer.GenerateOptions{Context: 2048, Sampling: transformer.Sampling{Temperature: 0.7, TopP: 0.9}})
//	err = g.Prompt(ctx, tokens)
//	for {
//		token, err := g.Next(ctx)
//		if err != nil || g.Ends(token) {
//			break
//		}
//		fmt.Print(stream.Next(token)) // a tokenizer's Stream
//	}
//
// [Model.ComputeNext] computes the next token of several Generators in one pass. Options.Share lets several adapters of a model
// share its weights.
//
// The cache holds 2·Context·KVHeads·HeadDim elements for each layer, and fewer for a layer with a window. Greedy
// decoding chooses the same tokens as transformers; testdata has 21 tokens for each family.
//
// # Configurations
//
// [ReadConfig] reads config.json of these families, and the text part of the models for images and text that [Config.Whole] names. It returns an error that
// names the field for a field that it does not know, unless the field cannot change the arithmetic, and for a value
// that is not supported. [Config.Tensors] returns the parameters of a folder, [Config.Check] compares them with the
// opened files, and [Rope.Frequencies] returns the frequencies of rotary embeddings.
package transformer

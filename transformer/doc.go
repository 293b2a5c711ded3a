// Package transformer runs and trains decoder-only language models as Hugging Face publishes them.
//
//	m, err := transformer.Open("Qwen3-0.6B", transformer.Options{DType: snug.BF16}) // config.json and weights
//	if err != nil {
//		return err // names the field, the tensor or the file that is wrong
//	}
//	batch := transformer.Batch{Tokens: tokens, Labels: labels, Starts: starts} // packed sequences
//	err = window.Begin(counted)                              // an accum.Window of m.Params()
//	loss, err := m.Backprop(ctx, batch, scaler.Scale(), window) // forward and backward
//	full, err := window.End()                                // then clip, and update m.Params()
//	loss, err = m.Evaluate(ctx, held)
//	err = m.Save("tuned", 0)                                 // transformers loads the folder
//
// # Models
//
// [Open] and [New] make models of Llama with all its ropes, Mistral, Qwen2, Qwen3, Gemma 2, Gemma 3
// (the text model, also out of a multimodal folder) and GPT-2, in float32, bfloat16 or float16, on
// any device. Weights, activations and their gradients have that type; sums, statistics and
// gradients of parameters are float32. In float32 the logits are within 1e-6 of transformers'
// largest; testdata holds what transformers computes.
//
// The family [Custom] is for models to train from scratch: any combination of what the stages
// compute. Options.Monitor counts what a model holds, under a limit if wanted, and
// Options.PlainAttention is attention without tiles, to compare with.
//
// A layer is two stages of a [remat.Chain]: attention and perceptron. [Model.Costs] says what
// they take, and [Model.SetPlan] runs a plan of package remat, with the same gradients bit for bit:
//
//	costs, err := m.Costs(sequences, tokens)
//	plan, report, err := remat.Planner{}.Plan(costs, budget) // bytes of activations
//	err = m.SetPlan(plan)
//
// A stage keeps its inputs, q, k, v, attention's output, gate and up. Normalized inputs, norms of
// q and k, and activations are computed again in the backward pass. With M rows, width C, Q
// elements of all queries, K of all keys and F of the perceptron, a layer keeps M·(2C + 2Q + 2K +
// 2F) elements, and the plan that recomputes most keeps one stage's.
//
// [Config.Plan] says it before there is a model, for package plan: what training takes, and what fits.
//
// Options.Train freezes parameters: the backward pass leaves out their gradients, and whole
// stages below the first that trains.
//
// # Adapters and matrices in 4 bits
//
// Options.Adapter adds a LoRA (Hu et al. 2021, arXiv:2106.09685), an rsLoRA, or a DoRA (Liu et al.
// 2024, arXiv:2402.09353) to the modules that PEFT would choose by the same fields; nothing else
// trains then. Options.Base holds the
// matrices of the layers in 4 bits, as bitsandbytes does for QLoRA (Dettmers et al. 2023,
// arXiv:2305.14314), and Options.Pages keeps these on disk:
//
//	m, err := transformer.Open("Llama-3.2-1B", transformer.Options{
//		Base:    qlora.NF4,                                    // 4.127 bits an element
//		Adapter: &qlora.AdapterOptions{Rank: 16, Alpha: 32}, // all matrices of the layers
//	})
//	err = m.SaveAdapter("tuned")                               // PEFT loads the folder
//	m, err = transformer.Open("Llama-3.2-1B", transformer.Options{Base: qlora.NF4, AdapterDir: "tuned"})
//	err = m.Save("merged", 0)                                  // a model without adapters
//
// Adapters are float32. Their inner products are rounded to the type of activations, where PEFT
// keeps float32. With adapters of rank r, a backward step takes 2·M·r elements more, the
// gradients of the inputs of adapted matrices, and with dropout the dropped inputs. testdata
// has what PEFT computes: logits in float32 are within 1e-6 of its largest, and losses of 20
// steps within 1e-5.
//
// A DoRA adds 12 bytes an output: magnitudes, the norms of the rows of W + s·B·A, and their
// quotients. Every call computes the norms once, before the first product of a matrix, because the
// parameters may have changed; that takes Rank multiply-adds an element of the matrix. A
// [Generator] computes them when a text begins. The backward step computes the outputs before the
// magnitudes again, a product more for each adapted matrix, and holds the outputs of one matrix
// at a time.
//
// # Generation
//
// A [Generator] keeps the keys and values of the tokens so far, so that a token costs one row of each
// product:
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
// The cache takes Context·KVHeads·HeadDim elements twice for each layer, and less for layers with a
// window. Chosen by greedy search, the tokens are transformers'; testdata has 21 for each family.
//
// # Configurations
//
// [ReadConfig] reads config.json of these families, and the text part of a multimodal Gemma 3. A
// field that changes the arithmetic and is not known is an error, and so is a value that is not
// supported. [Config.Tensors] names the parameters of a folder, [Config.Check] compares them with
// the opened files, and [Rope.Frequencies] gives the frequencies of rotary embeddings.
package transformer

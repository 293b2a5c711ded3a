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
// [Open] and [New] make models of Llama with all its ropes, Mistral, Qwen2, Qwen3, Gemma 3 (the
// text model), Gemma 2 without a cap of logits, and GPT-2, in float32, bfloat16 or float16, on
// any device. Weights, activations and their gradients have that type; sums, statistics and
// gradients of parameters are float32. In float32 the logits are within 1e-6 of transformers'
// largest; testdata holds what transformers computes.
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
// Options.Train freezes parameters: the backward pass leaves out their gradients, and whole
// stages below the first that trains.
//
// # Configurations
//
// [ReadConfig] reads config.json of these families, and of models that Open refuses so far: the
// published Gemma 2, because package fused has no cross-entropy with a cap of logits, and the
// text part of a multimodal Gemma 3. A field that changes the arithmetic and is not known is an
// error, and so is a value that is not supported. [Config.Tensors] names the parameters of a
// folder, [Config.Check] compares them with the opened files, and [Rope.Frequencies] gives the
// frequencies of rotary embeddings.
package transformer

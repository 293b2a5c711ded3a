// Package transformer describes decoder-only language models as Hugging Face publishes them:
// the arithmetic that config.json stands for, the parameters of the folder, and the
// frequencies of rotary embeddings.
//
//	config, err := transformer.ReadConfig("Qwen3-0.6B") // the folder
//	if err != nil {
//		return err // names the field that is not known or not supported
//	}
//	weights, err := amp.OpenWeights("Qwen3-0.6B")
//	if err != nil {
//		return err
//	}
//	names, err := config.Check(weights) // the name of each parameter in this folder
//
// It reads Llama, Mistral, Qwen2, Qwen3, Gemma 2, Gemma 3 (the text part) and GPT-2. A
// field of config.json that changes the arithmetic and is not known is an error, and so is
// a value that is not supported.
package transformer

package main

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
)

// readSamples reads JSON Lines with a prompt and a completion, and returns a sample for each line and the tokens of the
// longest. The model learns to predict the completion.
func readSamples(name string, tok *tokenizer.Tokenizer) (samples []transformer.Batch, longest int, err error) {
	lines, err := os.ReadFile(name)
	if err != nil {
		return nil, 0, err
	}
	for line := range bytes.Lines(lines) {
		var text struct{ Prompt, Completion string }
		if err := json.Unmarshal(line, &text); err != nil {
			return nil, 0, err
		}
		prompt, err := tok.Encode(text.Prompt, tokenizer.EncodeOptions{})
		if err != nil {
			return nil, 0, err
		}
		completion, err := tok.Encode(text.Completion+endOfText, tokenizer.EncodeOptions{})
		if err != nil {
			return nil, 0, err
		}
		s := newSample(append(prompt, completion...), len(prompt))
		samples, longest = append(samples, s), max(longest, len(s.Tokens))
	}
	return samples, longest, nil
}

// newSample returns a sequence whose label at each token is the next token. The labels within the prompt, its first
// tokens, are -1, so they have no loss.
func newSample(ids []int32, prompt int) transformer.Batch {
	s := transformer.Batch{Tokens: ids[:len(ids)-1], Labels: slices.Clone(ids[1:])}
	for i := range prompt - 1 {
		s.Labels[i] = -1
	}
	return s
}

// draw returns the micro-batches of a step. The samples of a micro-batch are packed without padding.
func draw(samples []transformer.Batch, step, batch, micro int) (list []transformer.Batch) {
	rng := rand.New(rand.NewPCG(1, uint64(step)))
	for first := 0; first < batch; first += micro {
		b := transformer.Batch{Starts: []int{0}, Draw: uint64(step*batch + first)}
		for range min(micro, batch-first) {
			s := samples[rng.IntN(len(samples))]
			b.Tokens, b.Labels = append(b.Tokens, s.Tokens...), append(b.Labels, s.Labels...)
			b.Starts = append(b.Starts, len(b.Tokens))
		}
		list = append(list, b)
	}
	return list
}

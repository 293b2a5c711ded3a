package hugot_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	vocabulary = 1200 // with width 64, the embeddings have states of 8 bits
	width      = 64
)

// message is a message of protocol buffers, whose fields are appended.
type message []byte

func (m message) number(field protowire.Number, v uint64) message {
	return protowire.AppendVarint(protowire.AppendTag(m, field, protowire.VarintType), v)
}

func (m message) bytes(field protowire.Number, v []byte) message {
	return protowire.AppendBytes(protowire.AppendTag(m, field, protowire.BytesType), v)
}

func (m message) text(field protowire.Number, v string) message { return m.bytes(field, []byte(v)) }

// weights is a tensor of ONNX with random numbers.
func weights(rng *rand.Rand, name string, dims ...uint64) message {
	m, n := message(nil).number(2, 1).text(8, name), uint64(1)
	for _, d := range dims {
		m, n = m.number(1, d), n*d
	}
	raw := make([]byte, 0, 4*n)
	for range n {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(rng.NormFloat64())/8))
	}
	return m.bytes(9, raw)
}

func node(op, out string, in ...string) message {
	m := message(nil)
	for _, name := range in {
		m = m.text(1, name)
	}
	return m.text(2, out).text(3, out).text(4, op)
}

// value names an input or an output with batches, tokens, and more dimensions.
func value(name string, element uint64, dims ...uint64) message {
	shape := message(nil).bytes(1, message(nil).text(2, "batch")).bytes(1, message(nil).text(2, "tokens"))
	for _, d := range dims {
		shape = shape.bytes(1, message(nil).number(1, d))
	}
	tensor := message(nil).number(1, element).bytes(2, shape)
	return message(nil).text(1, name).bytes(2, message(nil).bytes(1, tensor))
}

// writeModel writes a small sentence model, as published ones are: tanh(embedding·W + b), and a tokenizer of whole words.
func writeModel(t *testing.T, dir string, words []string) {
	rng := rand.New(rand.NewPCG(1, 2))
	graph := message(nil).
		bytes(1, node("Gather", "tokens", "embeddings.weight", "input_ids")).
		bytes(1, node("MatMul", "product", "tokens", "layer.0.weight")).
		bytes(1, node("Add", "sum", "product", "layer.0.bias")).
		bytes(1, node("Tanh", "last_hidden_state", "sum")).
		text(2, "sentences").
		bytes(5, weights(rng, "embeddings.weight", vocabulary, width)).
		bytes(5, weights(rng, "layer.0.weight", width, width)).
		bytes(5, weights(rng, "layer.0.bias", width))
	for _, input := range []string{"input_ids", "attention_mask", "token_type_ids"} {
		graph = graph.bytes(11, value(input, 7))
	}
	graph = graph.bytes(12, value("last_hidden_state", 1, width))
	model := message(nil).number(1, 8).bytes(7, graph).bytes(8, message(nil).text(1, "").number(2, 13))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.onnx"), model, 0o644))

	ids := map[string]int{"[UNK]": 0}
	for i, w := range words {
		ids[w] = i + 1
	}
	tokenizer, err := json.Marshal(map[string]any{
		"version": "1.0", "added_tokens": []any{}, "normalizer": nil, "post_processor": nil, "decoder": nil, "truncation": nil, "padding": nil,
		"pre_tokenizer": map[string]any{"type": "Whitespace"},
		"model":         map[string]any{"type": "WordLevel", "vocab": ids, "unk_token": "[UNK]"},
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), tokenizer, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"max_position_embeddings": 64, "pad_token_id": 0}`), 0o644))
}

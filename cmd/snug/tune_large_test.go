//go:build unix

package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/transformer"
)

// ossShape is the shape of a model of the family gpt_oss.
type ossShape struct {
	layers, dim, heads, kvHeads, headDim, experts, chosen, hidden, vocab int
}

var (
	oss20b  = ossShape{24, 2880, 64, 8, 64, 32, 4, 2880, 201088}
	ossTiny = ossShape{2, 64, 4, 2, 16, 8, 2, 96, 300}
)

// stream writes a file of safetensors with random elements, a tensor after the other. It holds 4 MiB.
type stream struct {
	header  map[string]any
	offset  int64
	writers []func(w *bufio.Writer) error
	bytes   []byte // random
	halves  []byte // random bfloat16 with the standard deviation of fresh weights
}

func newStream() *stream {
	s := &stream{header: map[string]any{"__metadata__": map[string]string{"format": "pt"}}, bytes: make([]byte, 2<<20+7), halves: make([]byte, 2<<20+14)}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range s.bytes {
		s.bytes[i] = byte(rng.Uint32())
	}
	for i := range len(s.halves) / 2 {
		binary.LittleEndian.PutUint16(s.halves[2*i:], uint16(snug.ToBFloat16(float32(0.02*rng.NormFloat64()))))
	}
	return s
}

// add appends a tensor whose bytes repeat those of from.
func (s *stream) add(name, dtype string, from []byte, shape ...int) {
	n := int64(map[string]int{"BF16": 2, "U8": 1}[dtype])
	for _, d := range shape {
		n *= int64(d)
	}
	s.header[name] = map[string]any{"dtype": dtype, "shape": shape, "data_offsets": []int64{s.offset, s.offset + n}}
	s.offset += n
	s.writers = append(s.writers, func(w *bufio.Writer) error {
		for n > 0 {
			k, err := w.Write(from[:min(n, int64(len(from)))])
			if err != nil {
				return err
			}
			n -= int64(k)
		}
		return nil
	})
}

func (s *stream) write(name string) (err error) {
	header, err := json.Marshal(s.header)
	if err != nil {
		return err
	}
	for len(header)%8 != 0 {
		header = append(header, ' ')
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := binary.Write(w, binary.LittleEndian, uint64(len(header))); err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, write := range s.writers {
		if err := write(w); err != nil {
			return err
		}
	}
	return w.Flush()
}

// publishOSS writes a folder as gpt-oss was published, experts in MXFP4, with random weights, and the tokenizer of the
// other tests.
func publishOSS(t *testing.T, dir string, c ossShape) {
	t.Helper()
	types := make([]string, c.layers)
	for i := range types {
		types[i] = []string{"sliding_attention", "full_attention"}[i%2]
	}
	text, err := json.Marshal(map[string]any{
		"architectures": []string{"GptOssForCausalLM"}, "model_type": "gpt_oss", "dtype": "bfloat16", "attention_bias": true, "attention_dropout": 0.0,
		"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": nil, "head_dim": c.headDim, "hidden_act": "silu", "hidden_size": c.dim, "initializer_range": 0.02,
		"intermediate_size": c.hidden, "layer_types": types, "max_position_embeddings": 131072, "num_attention_heads": c.heads, "num_experts_per_tok": c.chosen,
		"num_hidden_layers": c.layers, "num_key_value_heads": c.kvHeads, "num_local_experts": c.experts, "output_router_logits": false, "rms_norm_eps": 1e-5,
		"rope_parameters":      map[string]any{"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_theta": 150000, "rope_type": "yarn", "truncate": false},
		"router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_cache": true, "vocab_size": c.vocab,
		"quantization_config": map[string]any{"quant_method": "mxfp4", "modules_to_not_convert": []string{"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}},
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
	s, ones, scales := newStream(), make([]byte, 2*c.dim), make([]byte, 1<<10)
	for i := range c.dim {
		binary.LittleEndian.PutUint16(ones[2*i:], uint16(snug.ToBFloat16(1)))
	}
	for i := range scales {
		scales[i] = byte(119 + i%3) // the largest element of a block is 6 times 2^-8 to 2^-6
	}
	low := func(name string, shape ...int) { s.add(name, "BF16", s.halves, shape...) }
	linear := func(name string, out, in int) {
		low(name+".weight", out, in)
		low(name+".bias", out)
	}
	low("model.embed_tokens.weight", c.vocab, c.dim)
	for i := range c.layers {
		name := fmt.Sprintf("model.layers.%d.", i)
		s.add(name+"input_layernorm.weight", "BF16", ones, c.dim)
		s.add(name+"post_attention_layernorm.weight", "BF16", ones, c.dim)
		linear(name+"self_attn.q_proj", c.heads*c.headDim, c.dim)
		linear(name+"self_attn.k_proj", c.kvHeads*c.headDim, c.dim)
		linear(name+"self_attn.v_proj", c.kvHeads*c.headDim, c.dim)
		linear(name+"self_attn.o_proj", c.dim, c.heads*c.headDim)
		low(name+"self_attn.sinks", c.heads)
		linear(name+"mlp.router", c.experts, c.dim)
		for _, part := range []struct {
			name    string
			out, in int
		}{{"gate_up_proj", 2 * c.hidden, c.dim}, {"down_proj", c.dim, c.hidden}} {
			s.add(name+"mlp.experts."+part.name+"_blocks", "U8", s.bytes, c.experts, part.out, part.in/32, 16)
			s.add(name+"mlp.experts."+part.name+"_scales", "U8", scales, c.experts, part.out, part.in/32)
			low(name+"mlp.experts."+part.name+"_bias", c.experts, part.out)
		}
	}
	s.add("model.norm.weight", "BF16", ones, c.dim)
	low("lm_head.weight", c.vocab, c.dim)
	require.NoError(t, s.write(filepath.Join(dir, "model.safetensors")))
	require.NoError(t, copyCompanions(dir, publish(t), false, nil))
}

// tuneOSS trains adapters for one step in a process of its own, so that the peak of the process is the peak of the step.
func tuneOSS(t *testing.T, dir string, tokens int, flags ...string) result {
	t.Helper()
	data := filepath.Join(dir, "texts.jsonl")
	require.NoError(t, os.WriteFile(data, []byte(fmt.Sprintf(`{"text": %q}`+"\n", strings.Repeat("abcdefgh", tokens/4))), 0o600))
	args := append([]string{"tune", "-model", dir, "-data", data, "-o", filepath.Join(dir, "out"), "-context", fmt.Sprint(tokens),
		"-batch", "1", "-steps", "1", "-held-out", "0", "-lora", "2", "-json"}, flags...)
	text, err := json.Marshal(args)
	require.NoError(t, err)
	c := exec.Command(os.Args[0], "-test.run=^TestTuneLimitedJob$", "-test.v", "-test.timeout=0")
	c.Env = append(os.Environ(), limitedVariable+"="+string(text))
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	_, line, found := strings.Cut(string(out), "{\"model\"")
	require.True(t, found, "%s", out)
	var r result
	require.NoError(t, json.NewDecoder(strings.NewReader("{\"model\""+line)).Decode(&r))
	require.Equal(t, 1, r.Steps)
	require.False(t, math.IsNaN(r.Loss))
	require.FileExists(t, filepath.Join(dir, "out", "adapter_model.safetensors"))
	return r
}

// TestTuneExperts tunes a small model in the published form of gpt-oss, its experts in pages.
//
//check:not bits32
func TestTuneExperts(t *testing.T) {
	kerneltest.Slow(t) // trains in a process of its own
	dir := t.TempDir()
	publishOSS(t, dir, ossTiny)
	config, err := transformer.ReadConfig(dir)
	require.NoError(t, err)
	require.Equal(t, ossTiny.experts, config.Experts.Count)
	r := tuneOSS(t, dir, 64, "-disk", "1GiB")
	require.Positive(t, r.PeakRSS)
}

// TestTuneLarge writes a model of the shape of gpt-oss-20b with random weights, 14 GB, into a new folder of the folder
// $SNUG_LARGE, and tunes it for one step of 256 tokens within 4 GiB of memory, with attention in MXFP4 too. What the process takes at most is within
// a tenth of the prediction. With SNUG_LARGE_KEEP=1 the folder stays, and the next run reads it.
//
//check:not bits32
func TestTuneLarge(t *testing.T) {
	parent := os.Getenv("SNUG_LARGE")
	if parent == "" {
		t.Skip("SNUG_LARGE names no folder with 40 GB of room")
	}
	dir := filepath.Join(parent, "snug-large")
	done := filepath.Join(dir, "written")
	if os.Getenv("SNUG_LARGE_KEEP") != "1" {
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	}
	if _, err := os.Stat(done); err != nil {
		require.NoError(t, os.MkdirAll(dir, 0o700))
		publishOSS(t, dir, oss20b)
		require.NoError(t, os.WriteFile(done, nil, 0o600))
	}
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "out")))
	r := tuneOSS(t, dir, 256, "-memory", "4GiB", "-disk", "32GiB", "-base", "mxfp4")
	t.Logf("peak %d bytes, predicted %d, %.0f s", r.PeakRSS, r.Resident, r.Seconds)
	require.LessOrEqual(t, r.PeakRSS, int64(4<<30))
	require.InEpsilon(t, float64(r.Resident), float64(r.PeakRSS), 0.1)
}

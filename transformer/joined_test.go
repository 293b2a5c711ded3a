package transformer

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
)

// decodeMX returns the elements of rows in MXFP4 by the definition: blocks of 32, the first of two elements in the
// lower half of a byte.
func decodeMX(blocks, scales []byte) []float32 {
	values := [...]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	out := make([]float32, 2*len(blocks))
	for i := range out {
		code := blocks[i/2] >> (4 * (i % 2)) & 15
		v := math.Ldexp(float64(values[code&7]), int(scales[i/32])-127)
		if out[i] = float32(v); code >= 8 {
			out[i] = -out[i]
		}
	}
	return out
}

func readBytes(t *testing.T, w *amp.Weights, name string) []byte {
	info, found := w.Tensor(name)
	require.True(t, found, name)
	b := make([]byte, info.Bytes())
	require.NoError(t, w.ReadBytes(name, 0, b))
	return b
}

// TestOpenMXFP4: the experts of a published gpt-oss stay as they are, row by row, and the model computes what
// transformers does with what it decodes.
func TestOpenMXFP4(t *testing.T) {
	g := readModel(t, "gpt_oss_mxfp4")
	file, err := amp.OpenWeights(g.dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	for _, o := range []Options{{}, {Base: qlora.MXFP4}, {Pages: newStore(t)}} {
		m := open32(t, g, o)
		require.Zero(t, m.Config().Stored)
		have := gradients(t, m, g.batch())
		if o.Base == 0 { // else attention is quantized too
			difference, largest := apart(allLogits(t, m, g.batch()), g.tensor(t, "logits"))
			require.Less(t, difference, 1e-5*largest)
		}
		quantized := 0
		for _, p := range m.Params() {
			if p.Quantized == nil {
				if o.Base == 0 {
					difference, largest := apart(have[p.Name], g.gradient(t, p.Name))
					require.LessOrEqual(t, difference, 2e-3*largest, p.Name)
				}
				continue
			}
			quantized++
			s, joined := m.config.slot(p.Name)
			if !joined { // of Base
				continue
			}
			require.Equal(t, qlora.MXFP4, p.Quantized.Type())
			require.Equal(t, p.Shape, p.Quantized.Shape())
			got := make([]float32, p.Len())
			require.NoError(t, p.Quantized.Dequantize(snug.ViewOf(got)))
			all := decodeMX(readBytes(t, file, s.tensor+blocksEnd), readBytes(t, file, s.tensor+scalesEnd))
			for i, row := range splitRows(got, s.in) {
				require.Equal(t, all[(s.expert*s.wide+s.first+s.outStep*i)*s.in:][:s.in], row, "%s, row %d", p.Name, i)
			}
		}
		experts := 3 * m.config.Experts.Count * m.config.Layers
		require.Equal(t, experts+map[bool]int{true: 4}[o.Base != 0]*m.config.Layers, quantized)
	}

	decoded := filepath.Join(t.TempDir(), "decoded")
	m := open32(t, g, Options{Decode: true})
	require.Equal(t, allLogits(t, open32(t, g, Options{}), g.batch()), allLogits(t, m, g.batch()))
	require.NoError(t, m.Save(decoded, 0))
	again := open32(t, modelGolden{dir: decoded}, Options{Base: qlora.NF4})
	require.Equal(t, allLogits(t, again, g.batch()), allLogits(t, open32(t, g, Options{Base: qlora.NF4}), g.batch()))
	_, err = Open(g.dir, Options{PlainAttention: true, DType: snug.BF16})
	require.NoError(t, err)
}

func splitRows(x []float32, n int) (rows [][]float32) {
	for ; len(x) > 0; x = x[n:] {
		rows = append(rows, x[:n])
	}
	return rows
}

// TestSaveJoined: a saved gpt-oss has the tensors of transformers, bit for bit, whatever the form in which it was read.
func TestSaveJoined(t *testing.T) {
	for name, dt := range map[string]snug.DType{"gpt_oss": snug.BF16, "gpt_oss_mxfp4": snug.F32} {
		g := readModel(t, name)
		m := open32(t, g, Options{DType: dt})
		dir := t.TempDir()
		require.NoError(t, m.Save(dir, 20_000))
		was, err := amp.OpenWeights(g.dir)
		require.NoError(t, err)
		defer func() { require.NoError(t, was.Close()) }()
		now, err := amp.OpenWeights(dir)
		require.NoError(t, err)
		defer func() { require.NoError(t, now.Close()) }()
		for _, want := range now.Tensors() {
			if _, found := was.Tensor(want.Name + blocksEnd); found {
				experts, in, out := want.Shape[0], want.Shape[1], want.Shape[2]
				all := decodeMX(readBytes(t, was, want.Name+blocksEnd), readBytes(t, was, want.Name+scalesEnd))
				got := make([]float32, len(all))
				require.NoError(t, now.Load(want.Name, snug.ViewOf(got)))
				for e := range experts {
					for i := range in {
						for o := range out {
							require.Equal(t, all[(e*out+o)*in+i], got[(e*in+i)*out+o])
						}
					}
				}
				continue
			}
			have := make([]float32, want.Len())
			got := make([]float32, want.Len())
			require.NoError(t, was.Load(want.Name, snug.ViewOf(have)))
			require.NoError(t, now.Load(want.Name, snug.ViewOf(got)))
			require.Equal(t, have, got, want.Name)
		}
		again := open32(t, modelGolden{dir: dir}, Options{DType: dt})
		require.Equal(t, allLogits(t, m, g.batch()), allLogits(t, again, g.batch()))
	}
}

// TestSaveAsOpened: a folder of a family that has the experts of a layer in one tensor or in separate ones is saved as it was opened.
func TestSaveAsOpened(t *testing.T) {
	g := readModel(t, "qwen3_5_moe")
	m := open32(t, g, Options{})
	want, experts := allLogits(t, m, g.batch()), m.config.Experts
	dir := t.TempDir()
	m.config.joined = true
	require.NoError(t, m.Save(filepath.Join(dir, "joined"), 0))
	m.config.joined = false
	sum := m.config.checksum()

	joined := open32(t, modelGolden{dir: filepath.Join(dir, "joined")}, Options{})
	require.Equal(t, want, allLogits(t, joined, g.batch()))
	require.Equal(t, sum, joined.config.checksum())
	require.NoError(t, joined.Save(filepath.Join(dir, "again"), 20_000))
	file, err := amp.OpenWeights(filepath.Join(dir, "again"))
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	const name = "model.layers.1.mlp.experts."
	up, found := file.Tensor(name + "gate_up_proj")
	require.True(t, found)
	require.Equal(t, []int{experts.Count, 2 * experts.Hidden, m.config.Dim}, up.Shape)
	all := make([]float32, up.Len())
	require.NoError(t, file.Load(up.Name, snug.ViewOf(all)))
	var rows []float32
	for e := range experts.Count {
		for _, part := range []string{"gate_proj", "up_proj"} {
			rows = append(rows, m.index[fmt.Sprintf("%s%d.%s.weight", name, e, part)].Value.Float32s()...)
		}
	}
	require.Equal(t, rows, all)

	require.NoError(t, m.Save(filepath.Join(dir, "separate"), 0))
	separate, err := amp.OpenWeights(filepath.Join(dir, "separate"))
	require.NoError(t, err)
	defer func() { require.NoError(t, separate.Close()) }()
	_, found = separate.Tensor(name + "0.gate_proj.weight")
	require.True(t, found)
}

// zeros opens a file of zeros.
func zeros(t *testing.T, shapes map[string][]int, types map[string]string) *amp.Weights {
	header, at := map[string]any{}, 0
	for name, shape := range shapes {
		n := map[string]int{"U8": 1, "BF16": 2}[types[name]]
		for _, d := range shape {
			n *= d
		}
		header[name] = map[string]any{"dtype": types[name], "shape": shape, "data_offsets": []int{at, at + n}}
		at += n
	}
	text, err := json.Marshal(header)
	require.NoError(t, err)
	file := slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, make([]byte, at))
	w, err := amp.NewWeights(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	return w
}

// TestJoinedDamaged: folders whose tensors of all experts do not fit.
func TestJoinedDamaged(t *testing.T) {
	g := readModel(t, "gpt_oss_mxfp4")
	config, err := ReadConfig(g.dir)
	require.NoError(t, err)
	const up = "model.layers.0.mlp.experts.gate_up_proj"
	shapes, types := map[string][]int{}, map[string]string{}
	for want, change := range map[string]func(shapes map[string][]int){
		fmt.Sprintf("%q", up+scalesEnd):              func(s map[string][]int) { delete(s, up+scalesEnd) },
		"is [4 64 2 16], want [4 64 1 16]":           func(s map[string][]int) { s[up+blocksEnd] = []int{4, 64, 2, 16} },
		"1 tensors are missing (\"" + up + `_bias")`: func(s map[string][]int) { delete(s, up+"_bias") },
		"not parameters of the model":                func(s map[string][]int) { s[up+"x"], types[up+"x"] = []int{1}, "BF16" },
	} {
		t.Run(want, func(t *testing.T) {
			clear(shapes)
			file, err := amp.OpenWeights(g.dir)
			require.NoError(t, err)
			for _, tensor := range file.Tensors() {
				shapes[tensor.Name], types[tensor.Name] = tensor.Shape, tensor.DType
			}
			require.NoError(t, file.Close())
			_, err = config.Check(zeros(t, shapes, types))
			require.NoError(t, err)
			change(shapes)
			_, err = config.Check(zeros(t, shapes, types))
			require.Error(t, err, want)
			require.ErrorContains(t, err, want)
		})
	}
	plain := *config
	plain.Stored = 0
	file, err := amp.OpenWeights(g.dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	_, err = plain.Check(file)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "missing (\""+up)
}

// TestExpertsInFewBits: experts of all families are quantized, and train adapters, as other matrices do.
func TestExpertsInFewBits(t *testing.T) {
	for _, name := range []string{"mixtral", "qwen3_moe", "gpt_oss"} {
		g := readModel(t, name)
		m := open32(t, g, Options{Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 4}})
		quantized, adapters := 0, 0
		for _, p := range m.Params() {
			require.False(t, p.Quantized != nil && m.config.isRouter(p.Name), p.Name)
			if p.Quantized != nil {
				quantized++
			}
			if strings.Contains(p.Name, "lora_A") {
				adapters++
			}
		}
		require.Equal(t, adapters, quantized, name)
		before := allLogits(t, m, g.batch())
		for p, grad := range gradients(t, m, g.batch()) {
			if strings.Contains(p, "lora_B") {
				require.NoError(t, snug.Copy(m.index[p].Value, grad))
			}
		}
		dir := t.TempDir()
		require.NoError(t, m.Save(filepath.Join(dir, "merged"), 0))
		merged := open32(t, modelGolden{dir: filepath.Join(dir, "merged")}, Options{})
		after := allLogits(t, m, g.batch())
		require.NotEqual(t, before, after)
		difference, largest := apart(allLogits(t, merged, g.batch()), after)
		require.Less(t, difference, 1e-4*largest, name)
		require.NoError(t, m.SaveAdapter(filepath.Join(dir, "adapter")))
		again := open32(t, g, Options{Base: qlora.NF4, AdapterDir: filepath.Join(dir, "adapter")})
		require.Equal(t, after, allLogits(t, again, g.batch()))
	}
}

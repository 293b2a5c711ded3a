package transformer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
)

// partly writes folders with some matrices quantized and the others in floats.
func partly(t *testing.T) map[string][]string {
	m := newTiny(t, blocked(), Options{Seed: 1, DType: snug.BF16})
	with := func(config, member, list string) string {
		return strings.Replace(config, "{", fmt.Sprintf(`{%q:%s,`, member, list), 1)
	}
	o1, down := "model.layers.1.self_attn.o_proj.weight", "mlp.down_proj.weight"
	downs := []string{"model.layers.0." + down, "model.layers.1." + down}
	return map[string][]string{
		store(t, m, qlora.FP8, with(deepseek, "modules_to_not_convert", `["model.layers.1.self_attn.o_proj", "lm_head"]`), o1):               {o1},
		store(t, m, qlora.INT8, strings.Replace(bnb8, `"llm_int8_skip_modules":null`, `"llm_int8_skip_modules":["down_proj","["]`, 1), down): downs,
		store(t, m, qlora.FP8, with(deepseek, "ignored_layers", `["model\\.layers\\.1.*(o|down)_proj", "model.layers.0.mlp.down_p"]`), o1, "1."+down): {
			o1, downs[1]},
		readModel(t, "gpt_oss_mxfp4").dir: {
			"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
			"model.layers.0.self_attn.o_proj.weight"},
	}
}

// TestFloats: config.json and the files say which matrices of a folder are in floats.
func TestFloats(t *testing.T) {
	for dir, want := range partly(t) {
		c, err := ReadConfig(dir)
		require.NoError(t, err)
		require.Equal(t, want, c.Floats)
		w, err := amp.OpenWeights(dir)
		require.NoError(t, err)
		c.Floats = nil
		found, err := c.FloatsIn(w)
		require.NoError(t, err)
		require.Equal(t, want, found)
		_, err = (*Config)(nil).FloatsIn(w)
		require.ErrorIs(t, err, snug.ErrConfig)
		c.Vocab++
		_, err = c.FloatsIn(w)
		require.ErrorIs(t, err, snug.ErrShape)
		c.Stored = 0
		found, err = c.FloatsIn(w)
		require.NoError(t, err)
		require.Nil(t, found)
		require.NoError(t, w.Close())
	}
	c := blocked()
	c.Stored = qlora.FP8
	unconverted := func(module string) []string {
		list, err := json.Marshal([]string{module})
		require.NoError(t, err)
		return c.floatsOf(storedAs{floats: skipped(list)})
	}
	for _, m := range []string{"model.layers.1.", `model.layers.1\.`, "model.layers.1", "odel.layers.1.", "layers.1", "1.mlp", "proj_1"} {
		want := map[bool]int{true: 7}[strings.HasPrefix(m, "model")]
		require.Len(t, unconverted(m), want, m)
	}
	require.Len(t, unconverted(".*"), 14)
	for _, m := range []string{"model.layers.1.self_attn.q_pro", "lm_head", "(?<=x)"} {
		require.Empty(t, unconverted(m), m)
	}
	require.Equal(t, []string{"model.layers.1.self_attn.q_proj.weight"}, unconverted("model.layers.1.self_attn.q_proj"))
	for _, name := range []string{"model.norm.weight", "model.embed_tokens.weight", "lm_head.weight", "", "model.layers.2.mlp.up_proj.weight"} {
		c.Floats = []string{name}
		_, err := c.Plan(4)
		require.ErrorIs(t, err, snug.ErrConfig, name)
	}
}

// TestPlanFloats: the memory of a folder that has some matrices in floats is what a plan says, in memory and in pages.
func TestPlanFloats(t *testing.T) {
	const rank, sequences, tokens = 4, 2, 9
	d, err := plan.DeviceNamed("16GB-unified")
	require.NoError(t, err)
	d.Disk = 1 << 30
	for dir, floats := range partly(t) {
		for i := range 12 {
			dt, dora, paged, all := []snug.DType{snug.BF16, snug.F32}[i%2], i/2%3 == 1, i/2%3 == 2, i >= 6
			c, err := ReadConfig(dir)
			require.NoError(t, err)
			o := Options{DType: dt, Adapter: &qlora.AdapterOptions{Rank: rank, Alpha: 8, DoRA: dora}}
			model, err := c.Plan(tokens)
			require.NoError(t, err)
			if all {
				o.Base = c.Stored
				for i := range model.Layers {
					model.Layers[i].Floats = nil
				}
			}
			if paged {
				s, err := offload.Open(t.TempDir(), offload.Options{HostLimit: 1 << 20})
				require.NoError(t, err)
				defer func() { require.NoError(t, s.Close()) }()
				o.Pages = s
			}
			name := fmt.Sprint(c.Stored, " ", dt, " ", dora, " ", paged, " ", all)
			m, err := Open(dir, o)
			require.NoError(t, err)
			gradients(t, m, someBatch(7, c.Vocab, sequences, tokens))
			for _, p := range m.Params() {
				stays := slices.Contains(floats, p.Name) && !all
				require.Equal(t, m.config.isMatrix(amp.Tensor{Name: p.Name, Shape: p.Shape}) && !stays && !strings.Contains(p.Name, "lora_"), p.Quantized != nil, "%s: %s", name, p.Name)
			}
			task := plan.Task{Model: model, Device: d, Batch: sequences, Rank: rank, DoRA: dora, Base: c.Stored}
			r := plan.Run{Micro: sequences, Window: 1, Compute: dt, Frozen: map[qlora.Type]int{qlora.FP8: 8, qlora.INT8: 8, qlora.MXFP4: 4}[c.Stored]}
			if paged {
				r.WeightsOn = meter.OnDisk
			}
			p, err := task.Predict(r)
			require.NoError(t, err)
			pages, err := task.PageBytes(r)
			require.NoError(t, err)
			bytes, have := p.Peak[meter.OnDevice], m.Memory()
			require.Equal(t, bytes[meter.Weights], have.Weights+pages, name)
			require.Equal(t, bytes[meter.Workspace], have.Workspace, name)
			require.GreaterOrEqual(t, bytes[meter.Activations], have.Peak, name)
			if paged {
				require.Positive(t, pages)
				require.LessOrEqual(t, m.pagedBytes, p.Peak[meter.OnDisk][meter.Weights], name)
				require.Less(t, p.Peak[meter.OnDisk][meter.Weights], m.pagedBytes+4097*int64(len(m.layers)), name)
			}
			require.NoError(t, m.Close())
		}
	}
}

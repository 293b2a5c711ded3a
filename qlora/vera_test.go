package qlora

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestVeRA compares with the definition in float64, and its gradients with differences of it.
func TestVeRA(t *testing.T) {
	const more = 5 // inputs and outputs of another layer
	v, err := NewVeRA(rank, in+more, out+more, 3)
	require.NoError(t, err)
	shared, work := v.Bytes()
	require.EqualValues(t, 4*rank*(in+out+2*more), shared)
	require.EqualValues(t, 4*rank*(in+2*out+3*more), work)
	d, b := kerneltest.Normal(1, rank), kerneltest.Normal(2, out)
	xs, dys := kerneltest.Normal(4, rows*in), kerneltest.Normal(5, rows*out)
	as, bs := wide(v.A.Float32s()), wide(v.B.Float32s())
	loss := func(o operands) (sum float64) { // of x, d and b
		x, d, b := o[0], o[1], o[2]
		for r := range rows {
			for j := range out {
				for k := range rank {
					u := 0.0
					for i := range in {
						u += x[r*in+i] * as[k*(in+more)+i]
					}
					sum += dys64(dys, r*out+j) * b[j] * bs[j*rank+k] * d[k] * u
				}
			}
		}
		return sum
	}
	l := &LoRA{In: in, Out: out, Rank: rank, Scale: 1}
	view := snug.ViewOf[[]float32]
	require.NoError(t, v.Expand(l, view(d), view(b)))
	x, y, u, du, dx := view(xs), view(make([]float32, rows*out)), view(make([]float32, rows*rank)), view(make([]float32, rows*rank)), view(make([]float32, rows*in))
	require.NoError(t, l.Forward(y, u, x, Dropout{}))
	o := operands{wide(xs), wide(d), wide(b)}
	require.InDelta(t, loss(o), dot(wide(dys), wide(y.Float32s())), 1e-3)
	require.NoError(t, l.Backward(dx, du, view(dys), u, snug.View{}, v.Grads(l), Dropout{}))
	dd, db := slices.Repeat([]float32{2}, rank), slices.Repeat([]float32{2}, out)
	require.NoError(t, v.Reduce(view(dd), view(db), view(d), view(b), snug.Into{Alpha: 0.5, Beta: 0.25}, l))
	for p, got := range [][]float32{dx.Float32s(), dd, db} {
		for i, g := range got {
			want := difference(o, p, i, loss)
			if p > 0 {
				want = 0.5*want + 0.5
			}
			require.InDelta(t, want, g, 1e-3*max(1, math.Abs(want)), "%d", p)
		}
	}
	nan := view([]float32{float32(math.NaN()), 1, 1})
	require.NoError(t, v.Reduce(nan, view(db), view(d), view(b), snug.Into{}, l), "what is overwritten is not read")
	require.False(t, math.IsNaN(float64(nan.Float32s()[0])))

	low := snug.ViewOf(make([]snug.BFloat16, rank))
	for i, err := range []error{
		v.Expand(nil, view(d), view(b)), v.Expand(&LoRA{In: in + more + 1, Out: out, Rank: rank}, view(d), view(b)), v.Expand(l, view(d[1:]), view(b)),
		v.Expand(l, low, view(b)), (&VeRA{}).Expand(l, view(d), view(b)),
		v.Reduce(view(dd), view(db[1:]), view(d), view(b), snug.Into{}, l), v.Reduce(view(dd), view(db), view(d[1:]), view(b), snug.Into{}, l),
		v.Reduce(view(dd), view(db), view(d), view(b), snug.Into{Alpha: float32(math.NaN())}, l),
	} {
		require.Error(t, err, i)
	}
	require.Zero(t, v.Grads(nil).B.Len())
	for _, n := range [][3]int{{0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {1 << 20, math.MaxInt / 2, 1}} {
		_, err := NewVeRA(n[0], n[1], n[2], 0)
		require.Error(t, err)
	}
}

func dys64(x []float32, i int) float64 { return float64(x[i]) }

// Matrices that Go cannot address are errors, and so is an adapter with a scale of its own.
func TestVeRALimits(t *testing.T) {
	_, err := NewVeRA(math.MaxInt/64, 96, 96, 0)
	require.ErrorIs(t, err, snug.ErrShape)
	if math.MaxInt > math.MaxInt32 {
		_, err = NewVeRA(math.MaxInt>>23, 96, 96, 0) // 2^40
		require.ErrorIs(t, err, snug.ErrNoMemory)
	}
	v, err := NewVeRA(rank, in, out, 0)
	require.NoError(t, err)
	vector := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	require.ErrorIs(t, v.Expand(&LoRA{In: in, Out: out, Rank: rank, Scale: 2}, vector(rank), vector(out)), snug.ErrConfig)
}

// The Mersenne Twister of the standard library of C++, whose 10000th number for the seed 5489 its standard gives.
func TestTwister(t *testing.T) {
	g := newTwister(5489)
	for range 9999 {
		g.word()
	}
	require.Equal(t, uint32(4123659995), g.word())
}

// TestVeRAOfPEFT: the shared matrices of a key are those that PEFT drew.
func TestVeRAOfPEFT(t *testing.T) {
	for _, name := range []string{"llama_vera", "gpt2_vera"} {
		dir := filepath.Join("..", "transformer", "testdata", "adapters", name)
		is, err := IsVeRA(dir)
		require.NoError(t, err)
		require.True(t, is)
		c, v, layers, err := LoadVeRA(dir)
		require.NoError(t, err)
		require.NotEmpty(t, layers)
		drawn, err := NewVeRA(c.Rank, v.In, v.Out, c.VeRA.Key)
		require.NoError(t, err)
		require.Equal(t, v.A.Float32s(), drawn.A.Float32s())
		require.Equal(t, v.B.Float32s(), drawn.B.Float32s())
		rank, scale, err := c.RankOf("any")
		require.NoError(t, err)
		require.Equal(t, c.Rank, rank)
		require.EqualValues(t, 1, scale)
		_, _, err = LoadAdapters(dir, nil)
		require.ErrorContains(t, err, `adapters of the "peft_type" "VERA"`)
	}
	is, err := IsVeRA(filepath.Join("testdata", "peft", "lora"))
	require.NoError(t, err)
	require.False(t, is)
	_, err = IsVeRA(t.TempDir())
	require.ErrorIs(t, err, os.ErrNotExist)
	_, _, _, err = LoadVeRA(filepath.Join("testdata", "peft", "lora"))
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestDamagedVeRA changes every byte of a folder: nothing panics, and what loads has the sizes of the config.
func TestDamagedVeRA(t *testing.T) {
	v, err := NewVeRA(2, 2, 3, 0)
	require.NoError(t, err)
	view := snug.ViewOf[[]float32]
	layers := map[string]VeRALayer{"up": {view([]float32{1, 2}), view([]float32{1, 2, 3})}}
	dir := t.TempDir()
	c := AdapterOptions{Rank: 2, VeRA: &VeRAOptions{}, ModulesToSave: []string{"norm"}}
	require.NoError(t, SaveVeRA(dir, c, v, layers, Module{"norm.weight", []int{1}, view([]float32{3})}))
	for _, name := range []string{adapterConfigFile, adapterWeightsFile} {
		whole, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		for i := 0; i < len(whole); i += 3 {
			for _, b := range []byte{whole[i] ^ 1, whole[i] ^ 0x40, 0} {
				damaged := slices.Clone(whole)
				damaged[i] = b
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), damaged, 0o600))
				if c, v, layers, err := LoadVeRA(dir); err == nil {
					require.NotNil(t, c.VeRA)
					require.True(t, v == nil || v.Rank == c.Rank)
					for _, l := range layers {
						require.Equal(t, c.Rank, l.D.Len())
					}
				}
				_ = LoadModules(dir, Module{"norm.weight", []int{1}, view([]float32{0})})
				_, _ = IsVeRA(dir)
			}
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), whole, 0o600))
	}
	_, _, _, err = LoadVeRA(dir)
	require.NoError(t, err)
}

// TestVeRAFiles: adapters are saved with and without the shared matrices, and what is wrong is refused.
func TestVeRAFiles(t *testing.T) {
	v, err := NewVeRA(3, 5, 7, 9)
	require.NoError(t, err)
	view := snug.ViewOf[[]float32]
	layers := map[string]VeRALayer{"layers.0.up": {view([]float32{1, 2, 3}), view([]float32{1, 2, 3, 4, 5, 6, 7})}, "layers.0.down": {view([]float32{4, 5, 6}), view([]float32{8, 9})}}
	c := AdapterOptions{Rank: 3, Dropout: 0.5, VeRA: &VeRAOptions{Key: 9}, ModulesToSave: []string{"norm"}, BaseModel: "a/b", Other: map[string]json.RawMessage{"task_type": []byte(`"CAUSAL_LM"`)}}
	norm := Module{"norm.weight", []int{2}, view([]float32{3, 4})}
	for _, without := range []bool{false, true} {
		c.VeRA.NoProjection = without
		dir := t.TempDir()
		require.NoError(t, SaveVeRA(dir, c, v, layers, norm))
		got, shared, again, err := LoadVeRA(dir)
		require.NoError(t, err)
		want := c
		want.Targets.Names = []string{"layers.0.down", "layers.0.up"}
		require.Equal(t, want, got)
		require.Equal(t, without, shared == nil)
		if !without {
			require.Equal(t, v.B.Float32s(), shared.B.Float32s())
		}
		require.Len(t, again, 2)
		for name, l := range layers {
			require.Equal(t, l.D.Float32s(), again[name].D.Float32s())
			require.Equal(t, l.B.Float32s(), again[name].B.Float32s())
		}
		read := Module{"norm.weight", []int{2}, view(make([]float32, 2))}
		require.NoError(t, LoadModules(dir, read))
		require.Equal(t, []float32{3, 4}, read.Value.Float32s())

		text, err := os.ReadFile(filepath.Join(dir, adapterConfigFile))
		require.NoError(t, err)
		for _, change := range [][2]string{{`"vera_dropout"`, `"lora_dropout"`}, {`"r": 3`, `"r": 4`}, {`"r": 3`, `"r": 0`}, {`"projection_prng_key": 9`, `"projection_prng_key": -1`},
			{`"VERA"`, `"IA3"`}, {`"layers.0.up"`, `"layers.1.up"`}, {`"inference_mode"`, `"something"`}, {`"bias": "none"`, `"bias": "all"`}} {
			require.Contains(t, string(text), change[0])
			_, err := parseVeRA([]byte(strings.Replace(string(text), change[0], change[1], 1)))
			if strings.Contains(change[1], "layers") || strings.Contains(change[1], "4") { // which the weights show
				require.NoError(t, err, change[1])
				continue
			}
			require.Error(t, err, change[1])
		}
	}
	nan := VeRALayer{view([]float32{1, 2, float32(math.NaN())}), view([]float32{1})}
	for i, bad := range []struct {
		c      AdapterOptions
		v      *VeRA
		layers map[string]VeRALayer
	}{
		{AdapterOptions{Rank: 3}, v, layers}, {c, nil, layers}, {c, &VeRA{Rank: 3}, layers}, {c, v, nil}, {AdapterOptions{Rank: 4, VeRA: c.VeRA}, v, layers},
		{c, v, map[string]VeRALayer{"up": {}}}, {c, v, map[string]VeRALayer{"": layers["layers.0.up"]}}, {c, v, map[string]VeRALayer{"up": nan}},
		{c, v, layers}, // without its module
		{AdapterOptions{Rank: 3, Alpha: 1, VeRA: c.VeRA}, v, layers}, {AdapterOptions{Rank: 3, DoRA: true, VeRA: c.VeRA}, v, layers},
		{AdapterOptions{Rank: 3, VeRA: c.VeRA, Targets: Modules{Names: []string{"up"}}}, v, layers},
	} {
		require.Error(t, SaveVeRA(filepath.Join(t.TempDir(), "new"), bad.c, bad.v, bad.layers), i)
	}
	require.ErrorContains(t, SaveAdapters(t.TempDir(), AdapterOptions{Rank: 3, VeRA: c.VeRA}, map[string]*LoRA{"up": started{In: 4, Out: 3}.adapterOf(3, 1)}), "SaveVeRA")
}

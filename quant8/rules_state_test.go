package quant8

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/safetensors"
	"github.com/snug-ml/snug/internal/state"
)

// TestRulesRestoredRun saves in the middle of a step and continues in both the old
// and a new optimizer.
func TestRulesRestoredRun(t *testing.T) {
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		for _, s := range []Options{{Chunk: 1024}, {Bits: 32}, {Block: 33}, {Storage: newFakeStorage()}, {Bits: 4, Chunk: 1024}, {Bits: 16, Storage: newFakeStorage()}} {
			old := build(s, savedParams)
			p := map[string][]float32{}
			for name, n := range savedParams {
				p[name] = kerneltest.Normal(1, n)
			}
			run := func(a *Optimizer, p map[string][]float32, names ...string) {
				for _, name := range names {
					step(t, a, name, p[name], kerneltest.Normal(uint64(a.Steps()), savedParams[name]), 0.1)
				}
			}
			for i := range 3 {
				old.Advance(float32(i) * 0.01)
				run(old, p, "w", "b", "empty", "v")
			}
			old.Advance(0.5)
			run(old, p, "w", "empty")
			data, err := old.AppendBinary(nil)
			require.NoError(t, err)
			if s.Storage != nil {
				s.Storage = newFakeStorage()
			}
			restored, q := build(s, savedParams), map[string][]float32{}
			for name := range savedParams {
				q[name] = append([]float32{}, p[name]...)
			}
			_, err = restored.ReadFrom(bytes.NewReader(data))
			require.NoError(t, err)
			require.Equal(t, data, bytesOf(restored.AppendBinary(nil)))
			for a, params := range map[*Optimizer]map[string][]float32{old: p, restored: q} {
				run(a, params, "b", "v")
				advance(a)
				run(a, params, "v", "w", "b", "empty")
				require.Equal(t, 5, a.Steps())
			}
			require.Equal(t, p, q)
			require.Equal(t, stateOf(t, old), stateOf(t, restored))
		}
	})
}

// TestRulesAreSaved: a state of another optimizer is refused, and changes nothing.
func TestRulesAreSaved(t *testing.T) {
	params := map[string]int{"w": 5000}
	for from := range rules {
		data := bytesOf(newOf(t, from, Options{}, params).AppendBinary(nil))
		for to := range rules {
			a := newOf(t, to, Options{}, params)
			advance(a)
			step(t, a, "w", kerneltest.Normal(1, 5000), kerneltest.Normal(2, 5000), 1)
			before := stateOf(t, a)
			same := newOf(t, from, Options{}, nil).o.Title == a.o.Title
			_, err := a.ReadFrom(bytes.NewReader(data))
			for _, err := range []error{err, a.UnmarshalBinary(data), a.ReadShards(bytes.NewReader(data))} {
				if same {
					require.NoError(t, err, "%s to %s", from, to)
					continue
				}
				require.ErrorIs(t, err, snug.ErrConfig)
				require.ErrorContains(t, err, "this optimizer is "+a.o.Title)
				require.Equal(t, before, stateOf(t, a))
				require.Equal(t, 1, a.Steps())
			}
		}
	}
}

// TestRulesShards splits parameters, and restores the whole of the parts.
func TestRulesShards(t *testing.T) {
	const n, at = 9000, 4096
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		for _, bits := range widths {
			s := Options{Bits: bits}
			if build(s, nil).o.hyper.Rule.Trust() {
				continue
			}
			whole, left, right := build(s, map[string]int{"w": n}), build(s, nil), build(s, nil)
			require.NoError(t, left.AddShard("w", n, 0, at))
			require.NoError(t, right.AddShard("w", n, at, n))
			p, q := kerneltest.Normal(1, n), kerneltest.Normal(1, n)
			for i := range 2 {
				g := kerneltest.Normal(uint64(i+2), n)
				for _, a := range []*Optimizer{whole, left, right} {
					advance(a)
				}
				step(t, whole, "w", p, g, 1)
				step(t, left, "w", q[:at], g[:at], 1)
				step(t, right, "w", q[at:], g[at:], 1)
			}
			require.True(t, equal(p, q))
			again := build(Options{Bits: bits, Chunk: 1024}, map[string]int{"w": n})
			require.NoError(t, again.ReadShards(
				bytes.NewReader(bytesOf(right.AppendBinary(nil))), bytes.NewReader(bytesOf(left.AppendBinary(nil)))))
			require.Equal(t, statesOf(t, whole, "w"), statesOf(t, again, "w"))
		}
	})
}

// TestKeep32: named parameters have 32 bits, and states of another choice are refused.
func TestKeep32(t *testing.T) {
	params := map[string]int{"w": 5000, "embedding": 5000}
	named := Options{Keep32: func(name string) bool { return name == "embedding" }}
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		a, plain := build(named, params), build(Options{}, params)
		states := int64(a.o.states())
		require.Equal(t, states*(4*5000+5000+4*20), a.StateBytes())
		advance(a)
		for name, n := range params {
			step(t, a, name, kerneltest.Normal(1, n), kerneltest.Normal(2, n), 1)
		}
		data := bytesOf(a.AppendBinary(nil))
		for _, err := range []error{plain.UnmarshalBinary(data), plain.ReadShards(bytes.NewReader(data)),
			a.UnmarshalBinary(bytesOf(plain.AppendBinary(nil)))} {
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, `"embedding" in`)
		}
		again, split := build(named, params), build(named, nil)
		require.NoError(t, again.UnmarshalBinary(data))
		require.Equal(t, data, bytesOf(again.AppendBinary(nil)))
		if a.o.hyper.Rule.Trust() {
			return
		}
		require.NoError(t, split.AddShard("embedding", 5000, 256, 1024))
		require.NoError(t, split.ReadShards(bytes.NewReader(data)))
		for i, x := range statesOf(t, split, "embedding") {
			require.Equal(t, statesOf(t, a, "embedding")[i][256:1024], x)
		}
	})
	require.Equal(t, StateBytes(AdamW{}, Options{}, 5000), StateBytes(AdamW{}, Options{Keep32: named.Keep32}, 5000))
}

// TestRulesStateBytes measures what is allocated.
func TestRulesStateBytes(t *testing.T) {
	const n = 100_003
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		for bits, most := range map[int]float64{4: 0.532, 8: 1.02, 16: 2, 32: 4} {
			a := build(Options{Bits: bits}, map[string]int{"w": n})
			advance(a)
			step(t, a, "w", make([]float32, n), make([]float32, n), 1)
			held := a.params["w"].state.Len()
			require.EqualValues(t, held, a.StateBytes())
			require.LessOrEqual(t, float64(held)/n, most*float64(a.o.states()))
		}
	})
}

func TestRulesOptionErrors(t *testing.T) {
	nan := float32(math.NaN())
	for says, err := range map[string]error{
		"Adam: Beta1":         errorOf(New(Adam{Beta1: 1}, Options{})),
		"Adam: Beta2":         errorOf(New(Adam{Beta2: nan}, Options{})),
		"Adam: Eps":           errorOf(New(Adam{Eps: -1}, Options{})),
		"Adam: Eps is 1e-45":  errorOf(New(Adam{Eps: 1e-45}, Options{})), // whose product with c2 is 0
		"Adam: WeightDecay":   errorOf(New(Adam{WeightDecay: -1}, Options{})),
		"AdEMAMix: Beta3":     errorOf(New(AdEMAMix{Beta3: 2}, Options{})),
		"AlphaWarmup is -1":   errorOf(New(AdEMAMix{AlphaWarmup: -1}, Options{})),
		"Beta3Warmup -1":      errorOf(New(AdEMAMix{Beta3Warmup: -1}, Options{})),
		"AdEMAMix: Alpha":     errorOf(New(AdEMAMix{Alpha: -1}, Options{})),
		"Lion: Beta2":         errorOf(New(Lion{Beta2: 1}, Options{})),
		"SGD: Momentum":       errorOf(New(SGD{Momentum: 1}, Options{})),
		"SGD: Dampening":      errorOf(New(SGD{Dampening: 1.5}, Options{})),
		"Dampening is NaN":    errorOf(New(SGD{Dampening: nan}, Options{})),
		"0 with Nesterov":     errorOf(New(SGD{Dampening: 0.5, Nesterov: true}, Options{})),
		"RMSprop: Alpha":      errorOf(New(RMSprop{Alpha: 1}, Options{})),
		"RMSprop: Eps":        errorOf(New(RMSprop{Eps: nan}, Options{})),
		"Adagrad: Eps":        errorOf(New(Adagrad{Eps: -1}, Options{})),
		"Lion: state of 5":    errorOf(New(Lion{}, Options{Bits: 5})),
		"multiple of 32 with": errorOf(New(Lion{}, Options{Bits: 4, Block: 100})),
		"nil with 4":          errorOf(New(Lion{}, Options{Bits: 4, Map2: DynamicMap(false)})),
		"Lion: block of 16":   errorOf(New(Lion{}, Options{Block: 16})),
		"a multiple of 132":   errorOf(New(Lion{}, Options{Block: 33, Chunk: 66})),
		"Adagrad: Map2":       errorOf(New(Adagrad{}, Options{Map2: DynamicMap(true)})),
		"made by New":         new(Optimizer).Add("w", 1),
	} {
		t.Run(says, func(t *testing.T) {
			require.ErrorIs(t, err, snug.ErrConfig, says)
			require.ErrorContains(t, err, says)
		})
	}
}

func errorOf(_ *Optimizer, err error) error { return err }

// TestLongNames: a name that no saved state holds is refused when it is added.
func TestLongNames(t *testing.T) {
	a, err := New(AdamW{}, Options{})
	require.NoError(t, err)
	require.ErrorIs(t, a.Add(strings.Repeat("x", 1<<16+1), 1), snug.ErrConfig)
	require.NoError(t, a.Add(strings.Repeat("x", 1<<16), 1))
}

// TestRulesWithBitsAndBytes writes and reads the tensors of optimizers with one state
// and two. bitsandbytes keeps others in other forms.
//
//check:in tiers arm64
func TestRulesWithBitsAndBytes(t *testing.T) {
	params := map[string]int{"w": 5000, "b": 10}
	keys := []string{"step", "state1", "qmap1", "absmax1", "state2", "qmap2", "absmax2"}
	eachRule(t, func(t *testing.T, build func(Options, map[string]int) *Optimizer) {
		a, b := build(Options{}, params), build(Options{}, params)
		advance(a)
		for name, n := range params {
			step(t, a, name, kerneltest.Normal(1, n), kerneltest.Normal(2, n), 1)
		}
		var file bytes.Buffer
		_, err := a.WriteBitsAndBytes(&file, BitsAndBytesFormat{})
		says := ""
		switch o := &a.o; {
		case o.hyper.Coupled:
			says = "weight decay of 0.1: bitsandbytes decays the weights themselves"
		case o.hyper.Rule == optim.Nesterov || o.hyper.Dampening > 0 || !slices.Contains([]string{"AdamW", "Lion", "SGD", "RMSprop", "Adagrad"}, o.Title):
			says = "goes on from the state of " + o.Title + ", or only with other options"
		}
		if says != "" {
			var counterpart bytes.Buffer
			_, e := newAdamWAfterStep(t, params).WriteBitsAndBytes(&counterpart, BitsAndBytesFormat{})
			require.NoError(t, e)
			for _, err := range []error{err, a.ReadBitsAndBytes(bytes.NewReader(counterpart.Bytes()), int64(counterpart.Len()), "")} {
				require.ErrorIs(t, err, snug.ErrConfig)
				require.ErrorContains(t, err, says)
			}
			require.Zero(t, file.Len())
			return
		}
		require.NoError(t, err)
		h, err := safetensors.Read(bytes.NewReader(file.Bytes()), int64(file.Len()))
		require.NoError(t, err)
		for i, key := range keys {
			require.Equal(t, i < 1+3*a.o.states(), h.Find("w."+key) != nil, key)
		}
		require.NoError(t, b.ReadBitsAndBytes(bytes.NewReader(file.Bytes()), int64(file.Len()), ""))
		require.Equal(t, stateOf(t, a), stateOf(t, b))
		require.Equal(t, 1, b.Steps())
	})
}

// newAdamWAfterStep returns an optimizer that has made a step.
func newAdamWAfterStep(t *testing.T, params map[string]int) *Optimizer {
	a := newAdamW(t, Options{}, params)
	advance(a)
	for name, n := range params {
		step(t, a, name, kerneltest.Normal(1, n), kerneltest.Normal(2, n), 1)
	}
	return a
}

// TestAdamWithBitsAndBytes: Adam without weight decay is the Adam of bitsandbytes, and with
// it for one parameter that one is refused.
//
//check:in tiers arm64
func TestAdamWithBitsAndBytes(t *testing.T) {
	params := map[string]int{"w": 5000, "b": 10}
	var file bytes.Buffer
	_, err := newAdamWAfterStep(t, params).WriteBitsAndBytes(&file, BitsAndBytesFormat{})
	require.NoError(t, err)
	read := func(o Options) (*Optimizer, error) {
		a, err := New(Adam{}, o)
		require.NoError(t, err)
		for name, n := range params {
			require.NoError(t, a.Add(name, n))
		}
		return a, a.ReadBitsAndBytes(bytes.NewReader(file.Bytes()), int64(file.Len()), "")
	}
	a, err := read(Options{})
	require.NoError(t, err)
	require.Equal(t, 1, a.Steps())
	decay := Options{Params: func(name string) ParamOptions {
		if name == "b" {
			return ParamOptions{WeightDecay: 0.5}
		}
		return ParamOptions{}
	}}
	a, err = read(decay)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `parameter "b": weight decay of 0.5`)
	require.Equal(t, 0, a.Steps())
}

// keepV keeps 32 bits of a parameter of savedParams.
var keepV = Options{Keep32: func(name string) bool { return name == "v" }}

// saveRule returns a saved state of three states, and an optimizer in another one.
func saveRule(t testing.TB, bits int) (data []byte, other *Optimizer) {
	s := keepV
	s.Bits = bits
	a, other := newOf(t, "AdEMAMix", s, savedParams), newOf(t, "AdEMAMix", s, savedParams)
	advance(a)
	for name, n := range savedParams {
		step(t, a, name, kerneltest.Normal(1, n), kerneltest.Normal(2, n), 1)
	}
	return bytesOf(a.AppendBinary(nil)), other
}

// anyRuleBytes is [anyBytes] for a width of the state.
func anyRuleBytes(t testing.TB) func(t *rapid.T) {
	data, other := map[int][]byte{}, map[int]*Optimizer{}
	for _, bits := range widths {
		data[bits], other[bits] = saveRule(t, bits)
	}
	return func(t *rapid.T) {
		bits := rapid.SampledFrom(widths).Draw(t, "bits")
		anyBytes(t, data[bits], other[bits])
	}
}

func TestAnyRuleBytes(t *testing.T) { rapid.Check(t, anyRuleBytes(t)) }
func FuzzAnyRuleBytes(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyRuleBytes(f))) }

// TestDamagedRule damages the name of the rule and a width.
func TestDamagedRule(t *testing.T) {
	data, a := saveRule(t, 8)
	before := stateOf(t, a)
	for name, c := range map[string]struct {
		change func(h *state.Optimizer)
		want   error
	}{
		"unknown width": {func(h *state.Optimizer) { h.Params[0].Bits = 7 }, snug.ErrCorrupt},
		"width":         {func(h *state.Optimizer) { h.Params[0].Bits = 4 }, snug.ErrConfig},
		"rule":          {func(h *state.Optimizer) { h.Rule = "Lion" }, snug.ErrConfig},
	} {
		require.ErrorIs(t, a.UnmarshalBinary(edited(t, data, c.change)), c.want, name)
		require.Equal(t, before, stateOf(t, a), name)
	}
	require.NoError(t, a.UnmarshalBinary(data))
}

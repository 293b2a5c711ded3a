package qlora

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// TestPEFT reads what PEFT has written, and computes what it has computed, in evaluation
// and with dropout.
func TestPEFT(t *testing.T) {
	type pass struct{ X, Dy, Y, Dx, A, B, Magnitude encoded }
	for _, backend := range backends(t) {
		for _, name := range []string{"lora", "dora", "turned", "turned-dora"} {
			dir := filepath.Join("testdata", "peft", name)
			text, err := os.ReadFile(filepath.Join(dir, "passes.json"))
			require.NoError(t, err)
			var golden struct {
				Weight encoded
				Passes map[string]pass
			}
			require.NoError(t, json.Unmarshal(text, &golden))
			require.Len(t, golden.Passes, 2)
			config, adapters, err := LoadAdapters(dir, backend.Dev)
			require.NoError(t, err)
			require.JSONEq(t, `"0.21.2"`, string(config.Other["peft_version"]))
			config.Other = nil
			require.Equal(t, AdapterOptions{Rank: 3, Alpha: 6, RSLoRA: true, Dropout: 0.25, DoRA: strings.HasSuffix(name, "dora"), Targets: Modules{Names: []string{"up"}}, FanInFanOut: strings.HasPrefix(name, "turned")}, config)
			a := adapters["up"]
			require.NotNil(t, a)
			weight := golden.Weight.floats(t, snug.F32)
			w, err := NewWeight(on(t, backend.Dev, snug.F32, weight), []int{a.Out, a.In}, Options{Single: true})
			require.NoError(t, err)
			require.Equal(t, weight, values(t, dequantized(t, w)))
			l, err := NewLinear(w, snug.F32, 0)
			require.NoError(t, err)
			for kind, p := range golden.Passes {
				put := func(e encoded) snug.View { return on(t, backend.Dev, snug.F32, e.floats(t, snug.F32)) }
				zeros := func(n int) snug.View { return on(t, backend.Dev, snug.F32, make([]float32, n)) }
				x, dy := put(p.X), put(p.Dy)
				rows := x.Len() / a.In
				draw := Dropout{Draw: amp.Draw{Seed: 7, Tensor: 9}}
				if kind == "trained" {
					draw.Work = zeros(x.Len())
				}
				y, dx, h, u, du := zeros(dy.Len()), zeros(x.Len()), zeros(dy.Len()), zeros(rows*a.Rank), zeros(rows*a.Rank)
				g := Grads{A: zeros(a.A.Len()), B: zeros(a.B.Len()), Magnitude: zeros(a.Magnitude.Len())}
				if config.DoRA {
					d, err := NewDoRA(l, a)
					require.NoError(t, err)
					require.NoError(t, d.Forward(y, h, u, x, draw))
					require.NoError(t, d.Backward(dx, du, dy, h, u, x, g, draw))
					require.NoError(t, d.Close())
				} else {
					require.NoError(t, l.Forward(y, x, 0))
					require.NoError(t, a.Forward(y, u, x, draw))
					require.NoError(t, l.Backward(dx, dy, 0))
					require.NoError(t, a.Backward(dx, du, dy, u, x, g, draw))
				}
				for _, result := range []struct {
					want encoded
					got  snug.View
				}{{p.Y, y}, {p.Dx, dx}, {p.A, g.A}, {p.B, g.B}, {p.Magnitude, g.Magnitude}} {
					require.InDeltaSlice(t, result.want.floats(t, snug.F32), values(t, result.got), 2e-5, "%s: %s, %s", backend.Name, name, kind)
				}
			}
			require.NoError(t, l.Close())
			require.NoError(t, w.Close())
			require.NoError(t, a.Close())
		}
	}
}

// dequantized returns the elements of a weight on its device.
func dequantized(t *testing.T, w *Weight) snug.View {
	whole := on(t, w.Device(), snug.F32, make([]float32, w.Len()))
	require.NoError(t, w.Dequantize(whole))
	return whole
}

// TestConvertedPEFT: an adapter that began by PiSSA is refused; converted by PEFT it gives
// the output of the model that was trained.
func TestConvertedPEFT(t *testing.T) {
	_, _, err := LoadAdapters(filepath.Join("testdata", "peft", "pissa"), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, `"init_lora_weights" has the value "pissa"`)
	require.ErrorContains(t, err, "path_initial_model_for_weight_conversion")

	dir := filepath.Join("testdata", "peft", "converted")
	config, adapters, err := LoadAdapters(dir, nil)
	require.NoError(t, err)
	require.Equal(t, 6, config.Rank, "twice as many")
	text, err := os.ReadFile(filepath.Join(dir, "passes.json"))
	require.NoError(t, err)
	var golden struct{ Weight, X, Y encoded }
	require.NoError(t, json.Unmarshal(text, &golden))
	a := adapters["up"]
	w, err := NewWeight(golden.Weight.floats(t, snug.F32), []int{a.Out, a.In}, Options{Single: true})
	require.NoError(t, err)
	l, err := NewLinear(w, snug.F32, 0)
	require.NoError(t, err)
	x, want := golden.X.floats(t, snug.F32), golden.Y.floats(t, snug.F32)
	y, u := make([]float32, len(want)), make([]float32, len(x)/a.In*a.Rank)
	require.NoError(t, l.Forward(snug.ViewOf(y), snug.ViewOf(x), 0))
	require.NoError(t, a.Forward(snug.ViewOf(y), snug.ViewOf(u), snug.ViewOf(x), Dropout{}))
	require.InDeltaSlice(t, want, y, 1e-4)
	require.NoError(t, l.Close())
}

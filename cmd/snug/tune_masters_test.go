package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
)

// TestTuneMasters trains with named forms of master weights and says what rounding lost.
//
//check:not bits32
func TestTuneMasters(t *testing.T) {
	model, data := publish(t), chats(t, 12)
	for form, want := range map[string]string{
		"split24": "lost to rounding", "none": "Split24Master with Stochastic", "split": "kept in float32 as a whole",
	} {
		t.Run(form, func(t *testing.T) {
			status, stdout, errs := snugged("tune", "-model", model, "-data", data, "-o", filepath.Join(t.TempDir(), "out"), "-full", "-masters", form,
				"-report-rounding", "-steps", "2", "-lr", "1e-4", "-batch", "4", "-json")
			require.Zero(t, status, errs)
			require.Contains(t, stdout, want)
			r := lastLine(t, stdout)
			require.Equal(t, form == "none", r.LostShare > 0.1, "%s: %v", form, r.LostShare)
		})
	}
	for _, flags := range [][]string{
		{"-full", "-masters", "full,split"}, {"-full", "-masters", "half"}, {"-masters", "split24"}, {"-full", "-masters", "split", "-compute", "f16"}, {"-full", "-fold", "-masters", "none"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			status, _, errs := snugged(append([]string{"tune", "-model", model, "-data", data, "-dry-run"}, flags...)...)
			require.Equal(t, 2, status, flags)
			require.Contains(t, errs, "-masters")
		})
	}
}

// TestTuneChoosesMasters: less memory gives masters in 24 bits before it gives none.
//
//check:not bits32
func TestTuneChoosesMasters(t *testing.T) {
	f := tuneFlags{dir: publish(t), files: chats(t, 12), full: true, batch: 4, compute: "bf16", adapterFlags: adapterFlags{rank: 4}, dryRun: true, seed: 1, saveEvery: 1}
	require.NoError(t, f.check())
	m, err := f.gather()
	require.NoError(t, err)
	seen := map[amp.MasterForm]bool{}
	last := int64(0)
	for limit := int64(8 << 20); limit > 0; limit -= 8 << 10 {
		r := &tuning{tuneFlags: f, material: m, process: plan.Process{Base: 1 << 30}}
		r.memory = r.process.Base + limit
		if r.choose() != nil {
			break
		}
		form, bytes := r.plan.Run.Masters, r.plan.Peak[meter.OnDevice][meter.Masters]
		if form == amp.NoMaster {
			break
		}
		if form == amp.Split24Master {
			require.Equal(t, plan.SumF32, r.plan.Run.Gradients)
			require.True(t, seen[amp.SplitMaster])
			require.Equal(t, last, 2*bytes, "half of split masters")
		} else {
			last = bytes
		}
		seen[form] = true
	}
	require.True(t, seen[amp.Split24Master])
}

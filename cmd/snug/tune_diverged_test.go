package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A run that diverges ends with status 1 and a line of JSON with its state. It writes no output, and no checkpoint after
// the last step that updated the weights.
func TestTuneDiverges(t *testing.T) {
	model, data := publish(t), chats(t, 60)
	for _, c := range []struct {
		name  string
		flags []string
		want  []string
		saved []string // checkpoints that may be there
	}{
		{"f16", []string{"-compute", "f16", "-lr", "999"},
			[]string{"the run has diverged: the loss is not finite in steps 2 to 11", "a lower -lr than 999", "-compute bf16"}, []string{"step-00000001"}},
		{"bf16", []string{"-lr", "999"}, []string{"the run has diverged: gradients are not finite in steps ", "a lower -lr than 999 (the default is 0.0002)"}, []string{"step-00000001", "step-00000002"}},
		{"few steps", []string{"-lr", "999", "-held-out", "0", "-steps", "8"}, []string{"the run has diverged: gradients are not finite in steps "}, []string{"step-00000001", "step-00000002"}},
		{"all weights", []string{"-full", "-lr", "999"}, []string{"the run has diverged: ", "(the default is 1e-05)"}, []string{"step-00000001", "step-00000002"}},
		{"folded", []string{"-full", "-fold", "-lr", "999"}, []string{"the run has diverged: step 2: micro-batch "}, []string{"step-00000001", "step-00000002"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			args := append([]string{"tune", "-model", model, "-data", data, "-held-out", "0.2", "-steps", "60", "-checkpoint", filepath.Join(dir, "saved"), "-save-every", "1", "-o", filepath.Join(dir, "out"),
				"-report", filepath.Join(dir, "report.html"), "-json"}, c.flags...)
			status, out, errs := snugged(args...)
			require.Equal(t, 1, status)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			for _, want := range append(c.want, "nothing is written to "+filepath.Join(dir, "out")) {
				require.Contains(t, errs, want)
			}
			require.NoDirExists(t, filepath.Join(dir, "out"))
			found, err := filepath.Glob(filepath.Join(dir, "saved", "step-*"))
			require.NoError(t, err)
			for _, path := range found {
				require.Contains(t, c.saved, filepath.Base(path))
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			var r struct {
				State, Error string
				Loss         *float64
				Done         int `json:"steps_done"`
			}
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &r), lines[len(lines)-1])
			require.Equal(t, "diverged", r.State)
			require.Contains(t, errs, r.Error)
			require.Less(t, r.Done, 13)
			page, err := os.ReadFile(filepath.Join(dir, "report.html"))
			require.NoError(t, err)
			require.Contains(t, string(page), "the run has diverged")
		})
	}
}

// Numbers that vanish, overflow or become 1 in float32 are refused before anything is read.
//
//check:not bits32
func TestTuneNumbersInFloat32(t *testing.T) {
	for _, c := range []struct{ flag, value, want string }{
		{"-lr", "1e-300", "-lr 1e-300: in float32, with which snug computes, it is 0"},
		{"-lr", "1e-45", "-lr 1e-45: in float32, with which snug computes, it is 1e-45"},
		{"-alpha", "1e-300", "-alpha 1e-300: in float32"},
		{"-alpha", "2e-38", "-alpha 2e-38: the products are scaled by alpha/rank"},
		{"-dropout", "1e-300", "-dropout 1e-300: in float32"},
		{"-dropout", "0.9999999999", "-dropout 0.9999999999: in float32, with which snug computes, it is 1"},
		{"-loraplus-ratio", "1e-300", "-loraplus-ratio 1e-300: in float32"},
		{"-label-smoothing", "1e-300", "-label-smoothing 1e-300: in float32"},
		{"-z-loss", "1e-300", "-z-loss 1e-300"},
		{"-dpo", "1e-300", "-dpo 1e-300: in float32"},
		{"-distill-weight", "1e-300", "-distill-weight 1e-300: in float32"},
	} {
		t.Run(c.flag+" "+c.value, func(t *testing.T) {
			args := []string{"tune", "-model", "none", "-data", "none", "-o", "none", c.flag, c.value}
			if c.flag == "-distill-weight" {
				args = append(args, "-teacher", "other")
			}
			status, _, errs := snugged(args...)
			require.Equal(t, 2, status)
			require.Contains(t, errs, c.want)
		})
	}
	f := tuneFlags{rate: 1e-30, adapterFlags: adapterFlags{rank: 1, dropout: 1e-9}, alpha: 1e-3, smoothing: 1}
	require.NoError(t, f.unfitting())
}

package main

import (
	"runtime"
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) { require.NoError(t, run(qlora.FP4, 2, 2)) }

// TestForms: what a form takes is what it says, and training helps.
func TestForms(t *testing.T) {
	text, held, err := readText("*/*.go")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, makeBase(dir, text, held, 2))
	for f := range forms {
		if !kerneltest.Full() && f != qlorad {
			continue
		}
		r, err := tune(f, qlora.NF4, dir, text, held, 12)
		require.NoError(t, err)
		require.Less(t, r.after, r.before-0.2)
		require.InEpsilon(t, r.kept()+r.activations, r.heap, 0.05, "%v", f)
		runtime.KeepAlive(text)
	}
}

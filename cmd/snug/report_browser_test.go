//go:build unix

package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/browsertest"
)

// TestReportInBrowser: a browser shows the reports of plans and of real runs without a fault.
func TestReportInBrowser(t *testing.T) {
	b := browsertest.Open(t)
	dir := t.TempDir()
	for name, flags := range map[string][]string{
		"gpt2": {"-model", "gpt2", "-device-memory", "3GiB", "-batch", "64"},
		"llama": {"-model", "llama-7b", "-device-memory", "14GiB", "-batch", "8", "-context", "2048", "-host-memory", "64GiB", "-disk", "500GB",
			"-masters", "split24", "-gradients", "folded", "-state", "8", "-own"},
	} {
		path := filepath.Join(dir, name+".html")
		status, _, errs := snugged(append([]string{"plan", "-report", path}, flags...)...)
		require.Zero(t, status, errs)
		b.Check(path)
	}
	model, data := publish(t), chats(t, 60)
	for name, flags := range map[string][]string{"lora": {"-memory", "120MiB", "-held-out", "0.1", "-eval-every", "6"}, "full": {"-full", "-checkpoint", filepath.Join(dir, "saved")}} {
		path := filepath.Join(dir, name+".html")
		status, _, errs := snugged(append([]string{"tune", "-model", model, "-data", data, "-o", filepath.Join(dir, name), "-epochs", "4", "-lr", "0.02", "-batch", "6", "-report", path}, flags...)...)
		require.Zero(t, status, errs)
		b.Check(path)
	}
}

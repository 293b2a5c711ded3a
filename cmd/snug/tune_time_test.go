package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// setZone sets the time zone of the process until the end of the test.
func setZone(t *testing.T, name string, hours int) {
	t.Helper()
	before := time.Local
	time.Local = time.FixedZone(name, hours*3600)
	t.Cleanup(func() { time.Local = before })
}

// asksForTime makes the chat template of a folder write the day of the week.
func asksForTime(t *testing.T, model string) {
	t.Helper()
	name := filepath.Join(model, "tokenizer_config.json")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	dated := strings.Replace(string(text), `"chat_template": "`, `"chat_template": "{{ strftime_now('%A') | lower }}: `, 1)
	require.NotEqual(t, string(text), dated)
	require.NoError(t, os.WriteFile(name, []byte(dated), 0o600))
}

// A run whose template writes the date goes on another day, with the date of its first process: 25 hours lie between the
// zones.
func TestTuneGoesOnAnotherDay(t *testing.T) {
	model, data, dir := publish(t), chats(t, 30), t.TempDir()
	asksForTime(t, model)
	args := func(out string) []string {
		return []string{"tune", "-model", model, "-data", data, "-steps", "4", "-batch", "6", "-lora", "2", "-save-every", "2",
			"-checkpoint", filepath.Join(dir, "saved"), "-o", filepath.Join(dir, out)}
	}
	setZone(t, "Pago Pago", -11)
	status, _, errs := snugged(args("whole")...)
	require.Zero(t, status, errs)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "saved", "step-00000004")))
	setZone(t, "Kiritimati", 14)
	status, out, errs := snugged(args("resumed")...)
	require.Zero(t, status, errs)
	require.Contains(t, out, "going on from step 2 of 4")
	want, got := tensorData(t, filepath.Join(dir, "whole", "adapter_model.safetensors")), tensorData(t, filepath.Join(dir, "resumed", "adapter_model.safetensors"))
	require.True(t, bytes.Equal(want, got))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "saved")))
	status, _, errs = snugged(args("other")...)
	require.Zero(t, status, errs)
	require.False(t, bytes.Equal(want, tensorData(t, filepath.Join(dir, "other", "adapter_model.safetensors"))), "the template does not write the day")
}

// Other data than those of the checkpoint are another run, whatever the day.
//
//check:not bits32
func TestTuneOfOtherDataAnotherDay(t *testing.T) {
	model, dir := publish(t), t.TempDir()
	asksForTime(t, model)
	for i, n := range []int{30, 31} {
		setZone(t, "zone", 25*i-11)
		status, _, errs := snugged("tune", "-model", model, "-data", chats(t, n), "-steps", "2", "-batch", "6", "-lora", "2",
			"-checkpoint", filepath.Join(dir, "saved"), "-o", filepath.Join(dir, "out"+string(rune('a'+i))))
		if i == 0 {
			require.Zero(t, status, errs)
			continue
		}
		require.Equal(t, 1, status)
		require.Contains(t, errs, "it is of another run: data is ")
	}
}

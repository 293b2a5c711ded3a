package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlanRanks: a plan of ranks has the samples of one rank, what it sends, and what the ranks divide.
func TestPlanRanks(t *testing.T) {
	args := []string{"plan", "-model", "gpt2", "-ranks", "8", "-batch", "20", "-shard", "gradients", "-network", "1GB", "-latency", "10us"}
	status, out, errs := snugged(args...)
	require.Zero(t, status, errs)
	require.Contains(t, out, "each of 8 ranks sends ")
	require.Contains(t, out, "1 GB/s, 10 µs a message")
	status, out, errs = snugged(append(args, "-json")...)
	require.Zero(t, status, errs)
	var r planJSON
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Equal(t, 8, r.Ranks)
	require.Equal(t, 3, r.Batch, "20 samples on 8 ranks")
	require.Equal(t, "gradients", r.Run.Shard)
	require.Positive(t, r.Sent)
	require.Positive(t, r.Waits)
	for want, flags := range map[string][]string{
		"-ranks 0: want 1 to 16777216":             {"-ranks", "0"},
		"-ranks 9: want 1 to 8":                    {"-ranks", "9"},
		"for several ranks, and -ranks is 1":       {"-network", "1GB"},
		`-network "fast": want a size`:             {"-network", "fast", "-ranks", "2"},
		`-latency "-1s": want a time above 0`:      {"-latency", "-1s", "-ranks", "2"},
		`"all", want some of replicate,state,grad`: {"-shard", "all", "-ranks", "2"},
		"Shard is state with 1 ranks":              {"-shard", "state"},
	} {
		t.Run(want, func(t *testing.T) {
			status, _, errs := snugged(append([]string{"plan", "-model", "gpt2"}, flags...)...)
			require.Equal(t, 2, status, want)
			require.Contains(t, errs, want)
		})
	}
	status, _, errs = snugged("tune", "-model", "m", "-data", "d", "-o", t.TempDir()+"/o", "-shard", "some")
	require.Equal(t, 2, status)
	require.Contains(t, errs, `-shard "some": want replicate, state, gradients`)
	status, _, errs = snugged("tune", "-model", "m", "-data", "d", "-o", t.TempDir()+"/o", "-shard", "state", "-optimizer", "prodigy")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "-shard does not go with the optimizer prodigy")
}

package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
)

// TestLostUpdates has the ways in which parameters of 16 bits are rounded; counting changes no bit.
func TestLostUpdates(t *testing.T) {
	for name, c := range map[string]struct {
		o      Options
		counts bool
	}{
		"split24":     {Options{Masters: amp.Split24Master}, true},
		"at random":   {Options{Masters: amp.Split24Master, Stochastic: true}, true},
		"none":        {Options{Masters: amp.NoMaster}, true},
		"split":       {Options{Masters: amp.SplitMaster}, false},
		"in backward": {Options{Gradients: plan.Folded, StateBits: 8}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Schedule = Constant(1e-5)
			plain, m := newToy(t, snug.BF16, snug.BF16), newToy(t, snug.BF16, snug.BF16)
			trainTo(t, newTrainer(t, plain, c.o), 3)
			c.o.CountLost = true
			tr := newTrainer(t, m, c.o)
			trainTo(t, tr, 3)
			require.Equal(t, plain.bits(), m.bits(), name)
			found := 0
			for _, l := range tr.LostUpdates() {
				found++
				require.Positive(t, l.Lost, name)
				require.NotEmpty(t, l.Remedy, name)
			}
			require.Equal(t, c.counts, found > 0, name)
			tr.ForgetLostUpdates()
			for range tr.LostUpdates() {
				t.Fatal(name, "counts stay")
			}
		})
	}
	for range new(Trainer[[]int]).LostUpdates() {
		t.Fatal("counts of nothing")
	}
	new(Trainer[[]int]).ForgetLostUpdates()
}

package attention

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// balance returns the scores that each rank computes in each step.
func balance(t *testing.T, c Options, size int) (scores [][]int) {
	w, err := c.ringWhole()
	require.NoError(t, err)
	for rank := range size {
		scores = append(scores, make([]int, size))
		for step := range size {
			queries := spansOf(w.SeqQ, w.QStarts, rank, size)
			for _, q := range queries {
				for _, k := range spansOf(w.SeqK, w.QStarts, (rank-step+size)%size, size) {
					if q.Len() == 0 || k.Len() == 0 {
						continue
					}
					p, sees := w.pair(q, k)
					if !sees {
						continue
					}
					if w.packed() {
						p.QStarts, p.KStarts = q.localStarts(w.QStarts), k.localStarts(w.QStarts)
					}
					for b := range p.Batch {
						s := p.sequence(b)
						for i := range s.nq {
							lo, hi := s.keys(i)
							scores[rank][step] += hi - lo
						}
					}
				}
			}
		}
	}
	return scores
}

// With a causal mask all ranks compute as much, in every step.
func TestRingBalance(t *testing.T) {
	const size, piece = 4, 8
	for _, ranks := range balance(t, Options{Batch: 1, Heads: 1, SeqQ: 2 * size * piece, Dim: 1, Causal: true}, size) {
		require.Equal(t, 2*piece*piece+piece, ranks[0])
		for _, scores := range ranks[1:] {
			require.Equal(t, 2*piece*piece, scores)
		}
	}
}

// Every score is computed once, for any mask and any documents.
func TestRingCoversAll(t *testing.T) {
	for seed := range uint64(60) {
		c := Options{Batch: 3, Heads: 1, SeqQ: 50, Dim: 1}
		p := withFeatures(t, c, snug.F32, seed, seed%2 == 0, featuresNamed([]string{"causal", "shifted", "window"}[seed/2%3]))
		if p.c.packed() {
			p.c.KStarts = nil
		}
		whole := resolved(t, p.c)
		want, got := 0, 0
		for b := range whole.Batch {
			s := whole.sequence(b)
			for i := range s.nq {
				lo, hi := s.keys(i)
				want += hi - lo
			}
		}
		for _, ranks := range balance(t, p.c, 1+int(seed%5)) {
			for _, scores := range ranks {
				got += scores
			}
		}
		require.Equal(t, want, got, "seed %d", seed)
	}
}

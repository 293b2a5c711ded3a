package quant8

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// group adds sums over ranks that meet, in the order of the ranks.
type group struct {
	mu    sync.Mutex
	meet  *sync.Cond
	ranks int
	sums  [][2]float64
	left  int
	total [2]float64
}

func newGroup(ranks int) *group {
	g := &group{ranks: ranks, left: ranks, sums: make([][2]float64, ranks)}
	g.meet = sync.NewCond(&g.mu)
	return g
}

func (g *group) sum(rank int, sums *[2]float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.left < 0 { // the others still leave
		g.meet.Wait()
	}
	g.sums[rank] = *sums
	if g.left--; g.left == 0 {
		g.total = [2]float64{}
		for _, s := range g.sums {
			g.total[0] += s[0]
			g.total[1] += s[1]
		}
		g.left = -g.ranks
		g.meet.Broadcast()
	}
	for g.left > 0 {
		g.meet.Wait()
	}
	*sums = g.total
	if g.left++; g.left == 0 {
		g.left = g.ranks
		g.meet.Broadcast()
	}
}

// TestShardsWithNorms: the shards of one to eight ranks, some of them empty, are the
// whole, up to the rounding of the sums.
func TestShardsWithNorms(t *testing.T) {
	const n, block, steps = 1000, 64, 3
	for name := range rules {
		options := Options{MinSize: 1, Block: block}
		if newOf(t, name, options, nil).o.Averages {
			continue // has no norms
		}
		if !newOf(t, name, options, nil).o.hyper.Rule.Trust() {
			options.MaxUpdate = 0.01
		}
		if newOf(t, name, Options{}, nil).o.hyper.Rule.Factored() {
			options.SumNorms = func(string, *[2]float64) error { return nil }
			err := newOf(t, name, options, nil).AddShard("w", n, 0, block)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.NotContains(t, err.Error(), "SumNorms", "which would not help")
			continue
		}
		whole, want := newOf(t, name, options, map[string]int{"w": n}), kerneltest.Normal(1, n)
		for i := range steps {
			advance(whole)
			step(t, whole, "w", want, gradient(n, uint64(i)), 1)
		}
		for ranks := 1; ranks <= 8; ranks += 3 {
			t.Run(fmt.Sprint(name, ranks), func(t *testing.T) {
				g, got := newGroup(ranks), kerneltest.Normal(1, n)
				var wg sync.WaitGroup
				for rank := range ranks {
					s := options
					s.SumNorms = func(name string, sums *[2]float64) error {
						if name != "w" {
							return fmt.Errorf("parameter %q", name)
						}
						g.sum(rank, sums)
						return nil
					}
					a := newOf(t, name, s, nil)
					lo, hi := bounds(n, block, ranks, rank)
					if ranks == 4 { // one has all
						lo, hi = n*min(rank, 1), n
					}
					require.NoError(t, a.AddShard("w", n, lo, hi))
					wg.Go(func() {
						for i := range steps {
							advance(a)
							if err := a.Step("w", snug.ViewOf(got[lo:hi]), snug.ViewOf(gradient(n, uint64(i))[lo:hi]), 1); err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				for i, x := range want {
					require.InDelta(t, x, got[i], 1e-5*math.Abs(float64(x))+1e-7)
				}
			})
		}
	}
}

// TestSumNormsFails: nothing is written.
func TestSumNormsFails(t *testing.T) {
	broken := errors.New("broken")
	a, err := New(LAMB{}, Options{SumNorms: func(string, *[2]float64) error { return broken }})
	require.NoError(t, err)
	require.NoError(t, a.Add("w", 3))
	p := []float32{1, 2, 3}
	advance(a)
	require.ErrorIs(t, a.Step("w", snug.ViewOf(p), snug.ViewOf(p), 1), broken)
	require.Equal(t, []float32{1, 2, 3}, p)
	require.Equal(t, [][]float32{{0, 0, 0}, {0, 0, 0}}, statesOf(t, a, "w"))
}

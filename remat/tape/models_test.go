package tape

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// lstm has 16 steps.
func lstm(g *net) {
	const hidden, in = 8, 4
	b, w, u := g.leaf(4*hidden), g.leaf(4*hidden*in), g.leaf(4*hidden*hidden)
	h, c := g.leaf(hidden), g.leaf(hidden)
	for range 16 {
		z := g.split(g.linear(b, w, g.leaf(in), u, h), 4)
		c = g.add(g.mul(g.sigmoid(z[0]), c), g.mul(g.sigmoid(z[1]), g.tanh(z[2])))
		h = g.mul(g.sigmoid(z[3]), g.tanh(c))
	}
}

// treeLSTM is a binary tree with 16 leaves.
func treeLSTM(g *net) {
	const hidden, in = 8, 4
	bottom, w := g.leaf(3*hidden), g.leaf(3*hidden*in)
	b, left, right := g.leaf(5*hidden), g.leaf(5*hidden*hidden), g.leaf(5*hidden*hidden)
	var tree func(depth int) (h, c *node)
	tree = func(depth int) (h, c *node) {
		if depth == 0 {
			z := g.split(g.linear(bottom, w, g.leaf(in)), 3)
			c = g.mul(g.sigmoid(z[0]), g.tanh(z[1]))
			return g.mul(g.sigmoid(z[2]), g.tanh(c)), c
		}
		hl, cl := tree(depth - 1)
		hr, cr := tree(depth - 1)
		z := g.split(g.linear(b, left, hl, right, hr), 5)
		c = g.add(g.mul(g.sigmoid(z[0]), g.tanh(z[1])), g.mul(g.sigmoid(z[2]), cl), g.mul(g.sigmoid(z[3]), cr))
		return g.mul(g.sigmoid(z[4]), g.tanh(c)), c
	}
	tree(4)
}

// unet goes down three levels and up again, and joins what it meets on the way.
func unet(g *net) {
	block := func(x *node, length, rows int) *node {
		for range 2 {
			x = g.tanh(g.conv(g.leaf(3*rows*x.layer.n/length), x, length))
		}
		return x
	}
	var level func(x *node, length, rows int) *node
	level = func(x *node, length, rows int) *node {
		x = block(x, length, rows)
		if rows < 16 {
			x = block(g.concat(x, g.up(level(g.pool(x), length/2, 2*rows))), length, rows)
		}
		return x
	}
	level(g.leaf(64), 64, 2)
}

var models = map[string]func(*net){"LSTM": lstm, "TreeLSTM": treeLSTM, "UNet": unet}

// reference is a model without a budget.
type reference struct {
	inputs    int64 // bytes
	peak      int64
	gradients []uint32
}

func newReference(t require.TestingT, model func(*net)) (r reference) {
	runNet(t, model, 0, nil, func(g *net) {
		r.inputs = g.tape.Stats().Held - g.w.p.Held
		g.backward()
		r.gradients = g.gradients()
		require.NoError(t, g.err)
		require.Zero(t, g.tape.Stats().Recomputed)
		require.Zero(t, g.w.p.Held, "all is freed")
		r.peak = g.tape.Stats().Peak
	})
	return r
}

// budget leaves room for a part of what results take.
func (r reference) budget(part float64) int64 {
	return r.inputs + int64(part*float64(r.peak-r.inputs))
}

// compare runs the model under a budget. Its gradients are those of the reference
// unless there is an error.
func (r reference) compare(t require.TestingT, model func(*net), o Options[[]float32]) (stats Stats, err error) {
	set := func(full *Options[[]float32]) {
		full.Budget, full.Heuristic, full.Policy, full.MaxRecompute = o.Budget, o.Heuristic, o.Policy, o.MaxRecompute
	}
	runNet(t, model, 0, set, func(g *net) {
		g.backward()
		gradients := g.gradients()
		stats, err = g.tape.Stats(), g.err
		require.LessOrEqual(t, stats.Peak, o.Budget)
		if err == nil {
			require.Equal(t, r.gradients, gradients)
		}
	})
	return stats, err
}

// TestModelGradients compares the gradients without a budget with differences
// of the loss.
func TestModelGradients(t *testing.T) {
	for name, model := range models {
		loss := func(shift float32) (loss float64) {
			runNet(t, model, shift, nil, func(g *net) {
				require.NoError(t, g.err)
				y, done, err := g.tape.Get(g.ctx, g.nodes[len(g.nodes)-1].y)
				require.NoError(t, err)
				defer done()
				for _, v := range y {
					loss += float64(v) * float64(v) / 2
				}
			})
			return loss
		}
		const h = 1.0 / 4096
		want := (loss(h) - loss(-h)) / (2 * h)
		slope, size := 0.0, 0.0
		runNet(t, model, 0, nil, func(g *net) {
			g.backward()
			for _, x := range g.leaves {
				for i, d := range x.gradient {
					v := float64(d) * float64(x.along[i])
					slope += v
					size += v * v
				}
			}
			require.NoError(t, g.err)
		})
		require.InDelta(t, want, slope, 0.002*math.Sqrt(size), name)
		require.Greater(t, size, 1e-4, name)
	}
}

// TestModels runs models under budgets. The gradients are the same to the bit,
// and what DTR recomputes costs little with half of the memory. The log has the
// extra cost by heuristic.
func TestModels(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(models)) {
		r := newReference(t, models[name])
		for h := range heuristics {
			line := ""
			for _, part := range []float64{1, 0.75, 0.5, 0.33, 0.25} {
				o := Options[[]float32]{Budget: r.budget(part), Heuristic: h, MaxRecompute: 8}
				stats, err := r.compare(t, models[name], o)
				if err == nil {
					line += fmt.Sprintf("%8.1f%%", 100*stats.ExtraWork/stats.Work)
				} else {
					requireTooSmall(t, o, err)
				}
				switch {
				case part == 1:
					require.Zero(t, stats.Evicted, name)
				case h != DTR && h != DTREquivalence:
				case part >= 0.5:
					require.NoError(t, err, "%s, %v", name, h)
					require.Less(t, stats.ExtraWork, 0.03*stats.Work, "%s, %v", name, h)
				case part >= 0.33 && name != "UNet":
					require.NoError(t, err, "%s, %v", name, h)
					require.Less(t, stats.ExtraWork, 0.12*stats.Work, "%s, %v", name, h)
				}
				if err != nil {
					break // smaller ones take longer to say so
				}
			}
			t.Logf("%-9s%-16s%s", name, h, line)
		}
	}
}

// requireTooSmall checks an error that a budget was too small for.
func requireTooSmall(t require.TestingT, o Options[[]float32], err error) {
	var tooSmall *BudgetError
	if errors.As(err, &tooSmall) {
		require.Greater(t, tooSmall.Minimum, o.Budget)
		return
	}
	var thrash *ThrashError
	require.ErrorAs(t, err, &thrash)
	require.Greater(t, thrash.ExtraWork, o.MaxRecompute*thrash.Work)
}

// modelPolicies are for the forward pass. The sums in it are named cell.
var modelPolicies = map[string]Policy{
	"matmuls":          SaveMatMuls(),
	"matmuls, strict":  SaveMatMuls().Or(SaveNames("cell")).MustSave().MustRecompute(),
	"offload":          SaveMatMuls().Or(SaveNames("cell")).Offloaded().MustRecompute(),
	"all but matmuls":  SaveMatMuls().Not(),
	"save and offload": SaveNames("cell").MustSave().Or(SaveMatMuls().Offloaded()),
}

// onlyForward leaves gradients to the budget.
func onlyForward(p Policy) Policy {
	return func(op Op) (Decision, error) {
		if strings.HasSuffix(op.Name, " backward") {
			return PreferSave, nil
		}
		return p.Decide(op)
	}
}

// TestModelPolicies: policies that bind take less memory than none, without a
// budget, and all give the same gradients.
func TestModelPolicies(t *testing.T) {
	for name, model := range models {
		r := newReference(t, model)
		for policy, p := range modelPolicies {
			for _, part := range []float64{1, 0.6} {
				stats, err := r.compare(t, model, Options[[]float32]{Budget: r.budget(part), Policy: onlyForward(p)})
				require.NoError(t, err, "%s, %s", name, policy)
				t.Logf("%-9s%-17s%4.0f%% of %d bytes, %5.1f%% extra cost, %d stored", name, policy,
					100*float64(stats.Peak-r.inputs)/float64(r.peak-r.inputs), r.peak-r.inputs, 100*stats.ExtraWork/stats.Work, stats.Stored)
				switch {
				case part < 1:
				case policy == "matmuls, strict":
					require.Less(t, stats.Peak, r.budget(0.9), name)
					require.NotZero(t, stats.Recomputed, name)
				case policy == "offload":
					require.Less(t, stats.Peak, r.budget(0.6), name)
					require.NotZero(t, stats.Stored, name)
				}
			}
		}
	}
}

// modelIsTransparent runs a model under a random budget and policy: its gradients
// are the same to the bit, or it says that the budget is too small.
func modelIsTransparent(t require.TestingT) func(*rapid.T) {
	references := map[string]reference{}
	for name, model := range models {
		references[name] = newReference(t, model)
	}
	names := slices.Sorted(maps.Keys(models))
	policies := slices.Sorted(maps.Keys(modelPolicies))
	return func(t *rapid.T) {
		name := rapid.SampledFrom(names).Draw(t, "model")
		r := references[name]
		o := Options[[]float32]{
			Budget:       r.budget(rapid.Float64Range(0.1, 1).Draw(t, "part")),
			Heuristic:    Heuristic(rapid.IntRange(0, int(heuristics)-1).Draw(t, "heuristic")),
			MaxRecompute: 2,
		}
		if p, ok := modelPolicies[rapid.SampledFrom(append(policies, "none")).Draw(t, "policy")]; ok {
			o.Policy = onlyForward(p)
		}
		if _, err := r.compare(t, models[name], o); err != nil {
			requireTooSmall(t, o, err)
		}
	}
}

func TestModelIsTransparent(t *testing.T) { rapid.Check(t, modelIsTransparent(t)) }

func FuzzModelIsTransparent(f *testing.F) { f.Fuzz(rapid.MakeFuzz(modelIsTransparent(f))) }

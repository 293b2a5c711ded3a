package transformer

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/stretchr/testify/require"
)

// tinyExperts has a dense layer and two with experts, of which some get no row of a short batch.
func tinyExperts() *Config {
	c := tiny()
	c.Family, c.Layers, c.Windows, c.ScoreCap = Custom, 3, []int{0, 3, 0}, 0
	c.Experts = Experts{Count: 9, Chosen: 2, Hidden: 9, Dense: []bool{true, false, false}, Normalize: true}
	return c
}

// kindsOfExperts are the ways in which experts compute.
var kindsOfExperts = map[string]func(e *Experts){
	"softmax of the chosen": func(*Experts) {},
	"softmax":               func(e *Experts) { e.Normalize = false },
	"sigmoid":               func(e *Experts) { e.Sigmoid, e.Normalize = true, false },
	"sigmoid, normalized":   func(e *Experts) { e.Sigmoid = true },
	"clamped, biases":       func(e *Experts) { e.Clamped, e.Limit, e.Alpha, e.Bias = true, 0.4, 1.702, true },
	"one":                   func(e *Experts) { e.Chosen, e.Normalize = 1, false },
	"all":                   func(e *Experts) { e.Chosen = 9 },
	"balanced":              func(e *Experts) { e.RouterLoss = 0.7 },
	"balanced sigmoid":      func(e *Experts) { e.Sigmoid, e.RouterLoss = true, 0.3 },
}

// expertsByDefinition computes the stage of a model of float32 for rows x in float64.
func expertsByDefinition(m *Model, b *layers.Experts, x []float32) (y []float64, chosen [][]int) {
	c, e := &m.config, &m.config.Experts
	value := func(p *Param) []float32 {
		if p == nil {
			return nil
		}
		return snug.Host[float32](p.Value)
	}
	product := func(l *linear, x []float64) []float64 {
		w, bias, y := value(l.Weight), value(l.Bias), make([]float64, l.Out)
		for i := range y {
			if bias != nil {
				y[i] = float64(bias[i])
			}
			for j, v := range x {
				y[i] += float64(w[i*l.In+j]) * v
			}
		}
		return y
	}
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for lo := 0; lo < len(x); lo += c.Dim {
		row, g, square := x[lo:lo+c.Dim], make([]float64, c.Dim), 0.0
		for _, v := range row {
			square += float64(v) * float64(v)
		}
		for i, v := range row {
			g[i] = float64(v) / math.Sqrt(square/float64(c.Dim)+c.NormEps) * float64(value(b.Norm.Weight)[i])
		}
		logits := product(&b.Router, g)
		order := make([]int, e.Count)
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(i, j int) int { return -int(math.Copysign(1, logits[i]-logits[j])) })
		order = order[:e.Chosen]
		chosen = append(chosen, order)
		all, some := 0.0, 0.0
		weight := func(i int) float64 {
			if e.Sigmoid {
				return sigmoid(logits[i])
			}
			return math.Exp(logits[i]) / all
		}
		for _, l := range logits {
			all += math.Exp(l)
		}
		for _, i := range order {
			some += weight(i)
		}
		sum := make([]float64, c.Dim)
		for _, i := range order {
			w := weight(i)
			if e.Normalize {
				w /= some
			}
			gate, up := product(&b.Experts[i].In[0], g), product(&b.Experts[i].In[1], g)
			for j := range gate {
				if e.Clamped {
					gate[j] = min(gate[j], e.Limit)
					up[j] = max(-e.Limit, min(up[j], e.Limit))
					up[j] = gate[j] * sigmoid(e.Alpha*gate[j]) * (up[j] + 1)
				} else {
					up[j] *= gate[j] * sigmoid(gate[j])
				}
			}
			for j, v := range product(&b.Experts[i].Down[0], up) {
				sum[j] += w * v
			}
		}
		for i, v := range row {
			y = append(y, float64(v)+sum[i])
		}
	}
	return y, chosen
}

// TestExpertsByDefinition compares the stage with float64.
func TestExpertsByDefinition(t *testing.T) {
	for name, change := range kindsOfExperts {
		c := tinyExperts()
		change(&c.Experts)
		m := newTiny(t, c, Options{Seed: 3})
		b := m.stages[5].half.(*layers.Experts)
		const rows = 7
		require.NoError(t, m.Reserve(1, rows))
		rng := rand.New(rand.NewPCG(1, 2))
		x := m.pass.Get(c.Dim)
		for i := range x.Float32s() {
			x.Float32s()[i] = float32(rng.NormFloat64())
		}
		want, chosen := expertsByDefinition(m, b, x.Float32s())
		y := b.Forward(m.pass.Start(context.Background()), x)
		require.NoError(t, m.pass.Failed())
		for i, row := range chosen {
			for j, e := range row {
				require.EqualValues(t, e, m.pass.Chosen()[i*len(row)+j], "%s: row %d", name, i)
			}
		}
		for i, v := range want {
			require.InDelta(t, v, y.Float32s()[i], 1e-5, "%s: element %d", name, i)
		}
	}
}

// TestExpertGradientsByDifferences compares gradients of all parameters with differences of the mean loss.
//
//check:not bits32
func TestExpertGradientsByDifferences(t *testing.T) {
	for name, change := range kindsOfExperts {
		c := tinyExperts()
		change(&c.Experts)
		m := newTiny(t, c, Options{Seed: 3})
		b := someBatch(7, c.Vocab, 1, 5)
		b.Labels[0] = 3
		grads := gradients(t, m, b)
		w := newWindow(t, m)
		mean := func() float64 { // with the balancing loss
			require.NoError(t, w.Begin(1))
			loss, err := m.Backprop(context.Background(), b, 1, w)
			require.NoError(t, err)
			w.Reset()
			return loss.Mean()
		}
		idle, used := 0, 0
		rng := rand.New(rand.NewPCG(8, 9))
		for _, p := range m.Params() {
			v := p.Value.Float32s()
			if strings.Contains(p.Name, ".experts.") {
				if slices.ContainsFunc(grads[p.Name], func(g float32) bool { return g != 0 }) {
					used++
				} else {
					idle++
				}
			}
			for range 1 {
				i := rng.IntN(len(v))
				at := func(x float32) float64 {
					old := v[i]
					defer func() { v[i] = old }()
					v[i] += x
					return mean()
				}
				const h = 1.0 / 4096 // so small that no row chooses another expert
				require.InDelta(t, (at(h)-at(-h))/(2*h), grads[p.Name][i], 2e-3, "%s: %s[%d]", name, p.Name, i)
			}
		}
		require.Positive(t, used, name)
		require.Equal(t, c.Experts.Chosen == 9, idle == 0, name)
	}
}

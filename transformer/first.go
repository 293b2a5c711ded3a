package transformer

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// firstValues sets the parameters to transformers' initial values: normally distributed numbers of standard deviation
// InitStd in matrices and sinks, ones in norms, zeros in biases. GPT-2 and custom models divide the deviation by the root of the
// number of halves for matrices whose product enters the residual stream. The numbers of a parameter depend only on the
// seed and its place in the list.
func (m *Model) firstValues() error {
	q, err := m.newQuantizer()
	if err != nil {
		return err
	}
	for i := range m.params {
		p := &m.params[i]
		if m.adapted(p) {
			continue
		}
		if q.wants(p) {
			v := q.staging(p)
			if err := m.fill(v, i); err != nil {
				return err
			}
			if err := q.put(p, v); err != nil {
				return err
			}
			continue
		}
		fill := func(w snug.View) error { return m.fill(w, i) }
		if p.Pages != nil {
			err = p.With(true, fill)
		} else {
			err = fill(p.Value)
		}
		if err != nil {
			return err
		}
	}
	m.fresh = true
	return nil
}

// endsIn reports whether a name has one of the ends.
func endsIn(name string, ends []string) bool {
	return slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(name, end) })
}

// first yields the initial values of a parameter, one after the other.
type first struct {
	rng       *rand.Rand
	deviation float64
	constant  float32 // where the deviation is 0
	logs      bool    // of 1, 2 and so on
	at        int
	draw      func(*rand.Rand) float64 // in place of a normally distributed number, unless nil
}

func (m *Model) firstOf(index int) first {
	p, family := &m.params[index], m.config.family()
	for x := range m.config.mixes {
		if x.first == nil {
			continue
		}
		if f, own := x.first(&m.config, p.Name); own {
			f.rng = rand.New(rand.NewPCG(m.options.Seed, uint64(index)))
			return f
		}
	}
	switch {
	case len(p.Shape) >= 2 || m.config.Sinks && strings.HasSuffix(p.Name, family.names.sinks) || endsIn(p.Name, family.normal):
		f := first{rng: rand.New(rand.NewPCG(m.options.Seed, uint64(index))), deviation: m.config.InitStd}
		if endsIn(p.Name, family.residual) {
			f.deviation /= math.Sqrt(2 * float64(m.config.Layers))
		}
		return f
	case family.names.mamba != "" && strings.HasSuffix(p.Name, ".A_log"):
		return first{logs: true}
	case strings.HasSuffix(p.Name, ".bias"), m.config.NormPlusOne, m.config.corrects(p.Name):
		return first{}
	}
	return first{constant: 1}
}

func (f *first) write(w []float32) {
	for i := range w {
		switch f.at++; {
		case f.draw != nil:
			w[i] = float32(f.draw(f.rng))
		case f.rng != nil && f.deviation != 0:
			w[i] = float32(f.deviation * f.rng.NormFloat64())
		case f.logs:
			w[i] = float32(math.Log(float64(f.at)))
		default:
			w[i] = f.constant
		}
	}
}

// FirstValues returns a function that writes elements lo to lo+len(w)-1 of a parameter's initial values in float32,
// before [New] rounded them to the parameter's type. It is Options.Fill of package train, for master weights. Calls are
// fast in ascending order of lo. For adapters and after [Open] FirstValues returns nil.
func (m *Model) FirstValues(name string) func(lo int, w []float32) error {
	for i := range m.params {
		p := &m.params[i]
		if p.Name != name || !m.fresh || m.adapted(p) {
			continue
		}
		values, at := m.firstOf(i), 0
		return func(lo int, w []float32) error {
			if lo < at {
				values, at = m.firstOf(i), 0
			}
			skipped := make([]float32, min(lo-at, 1<<10))
			for at < lo {
				n := min(len(skipped), lo-at)
				values.write(skipped[:n])
				at += n
			}
			values.write(w)
			at += len(w)
			return nil
		}
	}
	return nil
}

// fill writes the first values of a parameter.
func (m *Model) fill(dst snug.View, index int) error {
	const piece = 1 << 16
	numbers := make([]float32, min(piece, dst.Len()))
	low, _, err := snug.MakeView(snug.CPU(), dst.DType(), len(numbers))
	if err != nil {
		return err
	}
	values := m.firstOf(index)
	for lo := 0; lo < dst.Len(); lo += piece {
		n := min(piece, dst.Len()-lo)
		values.write(numbers[:n])
		if err := amp.Cast(part(low, 0, n), numbers[:n]); err != nil {
			return err
		}
		if err := snug.Copy(part(dst, lo, n), part(low, 0, n)); err != nil {
			return err
		}
	}
	return nil
}

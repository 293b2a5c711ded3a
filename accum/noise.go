package accum

import (
	"bytes"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/state"
)

// Moments is what the gradients of a window's micro-batches, before they were
// averaged, say about their noise.
type Moments struct {
	// Squares is a mean of squared norms, whose expectation is |G|² + Inverse·S,
	// where G is the true gradient and S the trace of the covariance of the
	// gradients of single samples.
	Squares, Inverse float64
	// Total is the weight of the whole window, over all ranks: the squared norm of
	// its mean has the expectation |G|² + S/Total.
	Total float64
}

// NoiseOptions configures a [NoiseScale].
type NoiseOptions struct {
	Min, Max float64 // minimum and maximum weight of a window on this rank; Min is above 0
	Decay    float64 // decay of the running means, below 1; 0 means 0.95
	Factor   float64 // weight of a window over all ranks, in noise scales; 0 means 1
	Ranks    int     // ranks that share a window; 0 means 1
}

// NoiseScale estimates the simple noise scale S/|G|², the batch size at which
// the noise of a gradient is as large as the gradient itself: smaller batches
// lose little by being averaged, larger ones waste data (McCandlish, Kaplan and
// Amodei, "An Empirical Model of Large-Batch Training", 2018, appendix A). The
// norms of micro-batches and the norm of their mean are two equations for |G|² and S;
// the running means of both are divided. It costs no pass over gradients that
// training does not make.
//
// It is a [Schedule] too: windows then have Factor times the noise scale as
// weight, between Min and Max, and Min before the first estimate.
type NoiseScale struct {
	opts          NoiseOptions
	noise, signal float64 // sums of S and |G|², decayed
	seen          float64 // sum of 1, decayed
}

// NewNoiseScale returns a NoiseScale that has seen nothing. The error wraps
// [snug.ErrConfig].
func NewNoiseScale(o NoiseOptions) (*NoiseScale, error) {
	if o.Decay == 0 {
		o.Decay = 0.95
	}
	if o.Factor == 0 {
		o.Factor = 1
	}
	if o.Ranks == 0 {
		o.Ranks = 1
	}
	if !(o.Min > 0) || !(o.Min <= o.Max) || !(o.Max <= math.MaxFloat64) || !(o.Decay >= 0 && o.Decay < 1) ||
		!(o.Factor > 0) || o.Ranks < 1 {
		return nil, fmt.Errorf("accum: noise scale: %+v, want 0 < Min ≤ Max, a Decay below 1, a Factor above 0 and 1 or more Ranks: %w", o, snug.ErrConfig)
	}
	return &NoiseScale{opts: o}, nil
}

// Observe takes what a full window says: its [Window.Moments] and the norm of
// its mean gradient, over all ranks, before clipping, as amp's Scaler.Unscale
// returns it. A window of one micro-batch, or one with values that are not
// finite, says nothing and changes nothing. The error wraps [snug.ErrConfig] when
// norm is negative.
func (n *NoiseScale) Observe(m Moments, norm float64) error {
	if norm < 0 {
		return fmt.Errorf("accum: noise scale: the norm is %v, want 0 or more: %w", norm, snug.ErrConfig)
	}
	square, whole := norm*norm, 1/m.Total
	apart := m.Inverse - whole
	if !(apart > 1e-9*m.Inverse) || math.IsNaN(square+m.Squares) || math.IsInf(square+m.Squares, 0) {
		return nil
	}
	d := n.opts.Decay
	n.noise = d*n.noise + (1-d)*(m.Squares-square)/apart
	n.signal = d*n.signal + (1-d)*(square*m.Inverse-m.Squares*whole)/apart
	n.seen = d*n.seen + (1 - d)
	return nil
}

// Estimate returns the noise scale in units of weight: +Inf where the gradients
// are all noise, 0 where they have none. known is false before anything was
// observed.
func (n *NoiseScale) Estimate() (scale float64, known bool) {
	switch {
	case n.seen == 0:
		return 0, false
	case n.noise <= 0:
		return 0, true
	case n.signal <= 0:
		return math.Inf(1), true
	}
	return n.noise / n.signal, true
}

// Target returns a limit of the weight that the estimate suggests.
func (n *NoiseScale) Target(Progress) Target {
	scale, _ := n.Estimate()
	return Target{Weight: min(n.opts.Max, max(n.opts.Min, n.opts.Factor*scale/float64(n.opts.Ranks)))}
}

// AppendBinary appends the estimate to b.
func (n *NoiseScale) AppendBinary(b []byte) ([]byte, error) {
	e := state.NewHeader(state.NoiseMagic)
	e.Put(state.Noise{Noise: n.noise, Signal: n.signal, Seen: n.seen})
	saved, err := e.Bytes()
	if err != nil {
		return b, fmt.Errorf("accum: save noise scale: %w", err)
	}
	return append(b, saved...), nil
}

// UnmarshalBinary replaces the estimate of n by a saved one; the options stay.
// The error wraps [snug.ErrCorrupt] when data is damaged, of another kind or of another
// version; n is then unchanged.
func (n *NoiseScale) UnmarshalBinary(data []byte) error {
	err := state.Verify(data)
	if err == nil {
		d := state.NewDecoder(bytes.NewReader(data), state.NoiseMagic)
		st := d.GetNoise()
		if _, err = d.Finish(); err == nil {
			n.noise, n.signal, n.seen = st.Noise, st.Signal, st.Seen
		}
	}
	return fault.Of(err, "accum: restore noise scale")
}

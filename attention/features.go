package attention

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Window limits the keys that a query sees to those near its own position ([Align]). Left
// counts the keys at and before that position, Right the keys at and after it; 0 is no
// limit. Left is the sliding_window of Mistral; FlashAttention's window_size (l, r) is
// Window{l + 1, r + 1}. With Causal, Right counts as 1.
type Window struct {
	Left, Right int
}

func (w Window) before() int { return distance(w.Left) }
func (w Window) after() int  { return distance(w.Right) }

// distance returns the largest distance to one of n keys; the first key is at distance 0.
func distance(n int) int {
	if n == 0 {
		return unlimited
	}
	return n - 1
}

// Bias is added to scores, after Softcap. The zero Bias is none.
//
// To hide keys use −Inf here, [Options.Mask] or [Options.KLens], not a large negative number in every key of a query.
// Scores are multiplied by log2(e) in float32, so that a sum below −2.35e38, such as torch.finfo.min, becomes −Inf: a query
// whose sums are all below it sees nothing (0, and lse −Inf), where PyTorch returns the mean of all values. A query with other
// sums gives such keys the weight 0, as PyTorch does. lse is a float32, too: the weights that [Backward] computes from it have
// a relative error of about |lse|·2^-24, so that those of a query whose sums are all beyond ±1e6 are off by 6 % and more.
type Bias struct {
	// X is contiguous, of Dims elements, of float32 or 16 bits.
	X snug.View
	// Dims are [Batch, Heads, SeqQ, SeqK]; a dimension of 1 broadcasts X. The zero Dims
	// mean all four in full. For packed sequences the last two, unless 1, cover at least
	// the longest sequence.
	Dims [4]int
	// Grad, unless empty, receives the gradient in X from [Backward]: float32, with the
	// length of X. Broadcast dimensions are summed in a fixed order, which takes two more
	// passes over the scores. Grad overlaps no other operand.
	Grad snug.View
}

// Sinks are one score for every head that enters the sum of the softmax and has no value.
// The zero Sinks mean none.
type Sinks struct {
	X snug.View // [Heads] of float32
	// Grad, unless empty, receives the gradient in X from [Backward]: float32 of the same
	// length. It overlaps no other operand.
	Grad snug.View
}

// Dropout zeroes weights at random and multiplies the others by 1/(1-P). lse counts all
// weights. The zero Dropout keeps all weights.
type Dropout struct {
	P float32 // probability, at least 0 and below 1
	// Seed names the random numbers. Element (i, j) of head h of batch element b takes word
	// (Query+i)·2^32 + Key+j of the Philox4x32-10 stream of Seed and b·Heads+h, for every
	// tiling, processor and layout. Word n is word n%4 of the block with key Seed, counter n/4 in
	// its low 64 bits and b·Heads+h in its high ones. The weight is zeroed if the word is below P·2^32.
	Seed uint64
	// Query and Key are the positions of the first query and the first key, for calls on a
	// part of a sequence.
	Query, Key int
}

// ScoreFunc returns the new value of the score of query i and key j, in head h of batch
// element b, and its derivative. It is called after all other changes of a score, once for
// every score that no mask hides in [Forward] and one to four times in [Backward], by
// several goroutines at a time. CPU only. If it panics, the call waits for its other
// goroutines and panics with the same value in the goroutine of its caller; results are
// then partial.
type ScoreFunc func(score float32, b, h, i, j int) (value, slope float32)

// strides returns the distance between elements of each dimension; 0 for a dimension of 1.
func (x *Bias) strides() (s [4]int) {
	step := 1
	for d := 3; d >= 0; d-- {
		if x.Dims[d] != 1 {
			s[d] = step
		}
		step *= x.Dims[d]
	}
	return s
}

// extras returns the optional operands of a call.
func (c *Options) extras() [10]*snug.View {
	return [...]*snug.View{
		&c.Bias.X, &c.Bias.Grad, &c.Slopes, &c.Sinks.X, &c.Sinks.Grad, &c.GradLSE, &c.table,
		&c.cache.kScale, &c.cache.vScale, &c.cache.table,
	}
}

// resolveFeatures fills in defaults or returns an error. The dimensions are valid.
func (c *Options) resolveFeatures() error {
	for _, check := range [...]func() error{c.checkNumbers, c.checkVectors, c.resolveBias} {
		if err := check(); err != nil {
			return err
		}
	}
	c.table = c.Mask.view()
	return c.Mask.check(c)
}

func (c *Options) checkNumbers() error {
	for _, n := range [...]*int{&c.Window.Left, &c.Window.Right} {
		if *n < 0 {
			return fmt.Errorf("attention: Window is %d keys to the left and %d to the right, want 0 or more: %w", c.Window.Left, c.Window.Right, snug.ErrConfig)
		}
		if *n > unlimited {
			*n = 0
		}
	}
	switch {
	case c.Softcap != 0 && !(c.Softcap >= 0x1p-100 && c.Softcap <= 0x1p100): // so that Scale/Softcap and 1/Softcap are numbers
		return fmt.Errorf("attention: Softcap is %g, want 0 or a number from 2^-100 to 2^100: %w", c.Softcap, snug.ErrConfig)
	case !(c.Dropout.P >= 0 && c.Dropout.P < 1):
		return fmt.Errorf("attention: Dropout.P is %g, want at least 0 and less than 1: %w", c.Dropout.P, snug.ErrConfig)
	case c.Dropout.P > 0 && (!counts(c.Dropout.Query, c.SeqQ) || !counts(c.Dropout.Key, c.SeqK)):
		return fmt.Errorf("attention: Dropout from query %d and key %d on, of %d and %d, want numbers below 2^32: %w",
			c.Dropout.Query, c.Dropout.Key, c.SeqQ, c.SeqK, snug.ErrConfig)
	}
	return nil
}

// counts says whether 32 bits hold first+n.
func counts(first, n int) bool {
	return first >= 0 && uint64(n) <= math.MaxUint32 && uint64(first) <= math.MaxUint32-uint64(n)
}

func (c *Options) checkVectors() error {
	heads, queries := c.Heads, c.queries()
	for _, v := range [...]struct {
		name string
		view snug.View
		n    int
	}{
		{"Sinks.X", c.Sinks.X, heads}, {"Sinks.Grad", c.Sinks.Grad, heads},
		{"Slopes", c.Slopes, heads}, {"GradLSE", c.GradLSE, queries},
	} {
		n := v.view.Len()
		switch {
		case n == 0:
		case v.view.DType() != snug.F32:
			return fmt.Errorf("attention: %s holds %s, want f32: %w", v.name, v.view.DType(), snug.ErrDType)
		case n != v.n && !(v.name == "Slopes" && n == c.Batch*heads):
			return fmt.Errorf("attention: %s holds %d elements, want %d: %w", v.name, n, v.n, snug.ErrShape)
		}
	}
	if c.Sinks.Grad.Len() > 0 && c.Sinks.X.Len() == 0 {
		return fmt.Errorf("attention: Sinks.Grad without Sinks.X: %w", snug.ErrConfig)
	}
	return nil
}

func (c *Options) resolveBias() error {
	x := &c.Bias
	if x.X.Len() == 0 && x.Grad.Len() == 0 && x.Dims == ([4]int{}) {
		return nil
	}
	queries, keys := c.longest()
	full := [4]int{c.Batch, c.Heads, queries, keys}
	if x.Dims == ([4]int{}) {
		x.Dims = full
	}
	n := 1
	for d, m := range x.Dims {
		ok := m == 1 || m == full[d] || c.packed() && d > 1 && m > full[d]
		if n, ok = mulAddIf(ok, n, m); !ok {
			return fmt.Errorf("attention: Bias.Dims are %v, want %v or 1 for any: %w", x.Dims, full, snug.ErrShape)
		}
	}
	switch {
	case x.X.Len() == 0 && x.Grad.Len() == 0 && n == 0: // of any type
		return nil
	case !x.X.DType().IsFloat():
		return fmt.Errorf("attention: Bias.X holds %s, want f32, f16 or bf16: %w", x.X.DType(), snug.ErrDType)
	case x.Grad.Len() > 0 && x.Grad.DType() != snug.F32:
		return fmt.Errorf("attention: Bias.Grad holds %s, want f32: %w", x.Grad.DType(), snug.ErrDType)
	case x.X.Len() != n || x.Grad.Len() > 0 && x.Grad.Len() != n:
		return fmt.Errorf("attention: Bias.X holds %d elements and Bias.Grad %d, want %d for %v: %w", x.X.Len(), x.Grad.Len(), n, x.Dims, snug.ErrShape)
	}
	return nil
}

func mulAddIf(ok bool, n, m int) (int, bool) {
	if !ok {
		return 0, false
	}
	return mulAdd(0, n, m)
}

// resolveLengths checks where sequences are, in a cache too.
func (c *Options) resolveLengths() error {
	err := c.resolveStarts()
	if err == nil && c.cached() {
		err = c.cache.resolve(c)
	}
	return err
}

// resolveStarts checks the lengths of sequences.
func (c *Options) resolveStarts() error {
	packed := c.QStarts != nil || c.KStarts != nil
	switch {
	case packed && c.KLens != nil:
		return fmt.Errorf("attention: KLens with QStarts or KStarts: %w", snug.ErrConfig)
	case packed && c.QStarts == nil:
		return fmt.Errorf("attention: KStarts without QStarts: %w", snug.ErrConfig)
	case c.KLens != nil && len(c.KLens) != c.Batch:
		return fmt.Errorf("attention: KLens has %d numbers, want %d: %w", len(c.KLens), c.Batch, snug.ErrShape)
	case !packed:
		for b, n := range c.KLens {
			if n < 0 || n > c.SeqK {
				return fmt.Errorf("attention: KLens[%d] is %d, want 0 to %d: %w", b, n, c.SeqK, snug.ErrShape)
			}
		}
		return nil
	}
	if c.KStarts == nil {
		c.KStarts = c.QStarts
	}
	for _, s := range [...]struct {
		name   string
		starts []int
		n      int
	}{{"QStarts", c.QStarts, c.SeqQ}, {"KStarts", c.KStarts, c.SeqK}} {
		if len(s.starts) != c.Batch+1 {
			return fmt.Errorf("attention: %s has %d numbers, want %d, one more than Batch: %w", s.name, len(s.starts), c.Batch+1, snug.ErrShape)
		}
		for i, at := range s.starts {
			if i == 0 && at != 0 || i > 0 && at < s.starts[i-1] || at > s.n {
				return fmt.Errorf("attention: %s[%d] is %d, want numbers from 0 to %d in ascending order: %w", s.name, i, at, s.n, snug.ErrShape)
			}
		}
	}
	return nil
}

package attention

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
)

// Strides say where the rows of a tensor lie: row i of head h of batch element
// b starts at element b·Batch + h·Head + i·Row. The elements of a row are
// adjacent. The zero Strides mean contiguous [Batch, Heads, Seq, Dim].
type Strides struct {
	Batch, Head, Row int // elements
}

// Align says which keys a query sees under a causal mask when the numbers of keys and of
// queries differ. It makes no difference for equal lengths.
type Align int

const (
	// BottomRight lets the last query see all keys: query i sees key j when
	// j ≤ i + SeqK − SeqQ. It suits queries that continue a sequence whose
	// keys are cached. When SeqQ > SeqK, the first SeqQ − SeqK queries see
	// nothing.
	BottomRight Align = iota
	// TopLeft lets the first query see the first key: query i sees key j when
	// j ≤ i.
	TopLeft
	// Shifted lets query i see key j when j ≤ i + Shift. It suits calls on a part of the
	// queries and keys of a sequence.
	Shifted
)

// maxDim is the largest head dimension.
const maxDim = 1 << 16

// Options is the shape, the layout and the mask of one attention call.
type Options struct {
	Batch   int // sequences
	Heads   int // query heads
	KVHeads int // key and value heads, a divisor of Heads; 0: Heads
	SeqQ    int // queries in a sequence
	SeqK    int // keys in a sequence; 0: SeqQ, or the last of KStarts. [ForwardCached] needs it; set it with KStarts over ranks
	Dim     int // elements of a query and of a key, 1 to 65536
	DimV    int // elements of a value and of an output, up to 65536; 0: Dim

	Causal bool    // hide later keys from a query
	Align  Align   // where a query stands among the keys
	Shift  int     // offset for Align Shifted
	Window Window  // hide keys far from a query's position
	Mask   *Mask   // any pattern of hidden keys; nil: none. It must be on the operands' device ([Mask.On])
	Scale  float32 // of the scores; 0: 1/sqrt(Dim)
	// Softcap, unless 0, replaces a score s by Softcap·tanh(s/Softcap). It may be 2^-100
	// to 2^100.
	Softcap float32
	// Slopes, unless empty, are the slopes of ALiBi (Press et al. 2022, arXiv:2108.12409):
	// the slope of the head times the distance between the key and the query's position is
	// subtracted from the score. float32 of [Heads] or [Batch, Heads].
	Slopes  snug.View
	Bias    Bias      // added to the scores
	Score   ScoreFunc // returns the final score; nil: unchanged. CPU only
	Sinks   Sinks
	Dropout Dropout

	// QStarts, unless nil, packs sequences of different lengths into one tensor. It has
	// Batch+1 numbers: sequence b has rows QStarts[b] to QStarts[b+1]-1 of q and out, and
	// rows KStarts[b] to KStarts[b+1]-1 of k and v. Nil KStarts default to QStarts. SeqQ
	// and SeqK are then the total numbers of rows, q has the shape [Heads, SeqQ, Dim] (k, v
	// and out likewise), lse has [Heads, SeqQ], and Strides.Batch is ignored. Positions
	// count from the start of each sequence. Rows beyond the last sequence are not touched.
	// Equal KStarts make a sequence without keys.
	QStarts, KStarts []int
	// KLens, unless nil, says that sequence b uses the first KLens[b] of the SeqK keys; 0
	// is a sequence without keys. BottomRight aligns the last query with the last used key.
	// Gradients of unused keys are 0. Not for packed sequences.
	KLens []int
	// GradLSE, unless empty, is the gradient of the loss in lse, float32 of the shape of
	// lse. [Backward] adds its effect.
	GradLSE snug.View

	Q, K, V, Out Strides // layouts; zero: contiguous

	cache cached    // the Cache of k and v, if there is one
	table snug.View // of Mask, where calls read it

	allHeads int  // Batch·Heads of the ranks among which heads are divided, for the splits of one process; 0: of c
	oneQuery bool // queries are the heads of one, see rowsOf
}

// Validate checks c. The error wraps [snug.ErrShape] for negative dimensions, a Dim or DimV
// out of range, dimensions whose product overflows, and strides that are negative or let
// rows overlap. It wraps [snug.ErrConfig] for KVHeads that do not divide Heads, an unknown
// Align, a number out of range, such as a Scale that is not finite, and features that
// exclude each other. A vector of a feature wraps ErrShape for a wrong length and
// [snug.ErrDType] for a wrong type.
func (c Options) Validate() error {
	_, err := c.resolve()
	return err
}

// WorkspaceLen returns the length of the float32 workspace of [Backward]: one element for
// every query, Batch·Heads·SeqQ, or Heads·SeqQ for packed sequences. It is 0 for invalid
// Options.
func (c Options) WorkspaceLen() int {
	r, err := c.resolve()
	if err != nil {
		return 0
	}
	return r.queries()
}

// ScratchBytes returns the largest memory of one worker of [Forward] and [Backward]: tiles
// of 128 queries and 256 keys, also packed, their scores, also as bfloat16, the sums, and packed blocks
// of the matrix product. Forward holds up to four tiles of queries. It depends on Dim and DimV only. It includes the float32 sums of a
// 16-bit dq for a key head, Heads/KVHeads·SeqQ·Dim elements, if they take at most 4 MiB. At
// most GOMAXPROCS workers run. Later calls reuse the memory. It is 0 for invalid Options.
func (c Options) ScratchBytes() int64 {
	r, err := c.resolve()
	if err != nil {
		return 0
	}
	packed := min(gemm.PairsBytes, 2*tileK*max(tileK, r.Dim, r.DimV)+64)
	return 4*int64(max(r.forwardScratch(r.maxGroup()), r.backwardScratch())+r.sumsLen()) + int64(gemm.ScratchBytes+packed)
}

// PackedQKV returns c with the layout of self-attention over the output of one
// projection: q, k and v lie in one tensor [Batch, SeqQ, Heads·Dim +
// KVHeads·Dim + KVHeads·DimV], which is [Batch, SeqQ, 3, Heads, Dim] when all
// heads and dimensions are equal. For such a vector qkv pass qkv,
// qkv[Heads·Dim:] and qkv[(Heads+KVHeads)·Dim:] as q, k and v. out is
// [Batch, SeqQ, Heads, DimV]. SeqK becomes SeqQ.
func PackedQKV(c Options) Options {
	c.SeqK = c.SeqQ
	heads, kv, dv := c.Heads, c.kvHeads(), c.dimV()
	row := heads*c.Dim + kv*(c.Dim+dv)
	c.Q = Strides{Batch: c.SeqQ * row, Head: c.Dim, Row: row}
	c.K = c.Q
	c.V = Strides{Batch: c.SeqQ * row, Head: dv, Row: row}
	c.Out = sequenceMajor(c.SeqQ, heads, dv)
	return c
}

// SequenceMajor returns c with the layout [Batch, Seq, Heads, Dim] for q, k, v
// and out.
func SequenceMajor(c Options) Options {
	kv, dv := c.kvHeads(), c.dimV()
	c.Q = sequenceMajor(c.SeqQ, c.Heads, c.Dim)
	c.K = sequenceMajor(c.seqK(), kv, c.Dim)
	c.V = sequenceMajor(c.seqK(), kv, dv)
	c.Out = sequenceMajor(c.SeqQ, c.Heads, dv)
	return c
}

func sequenceMajor(seq, heads, dim int) Strides {
	return Strides{Batch: seq * heads * dim, Head: dim, Row: heads * dim}
}

func (c Options) kvHeads() int {
	if c.KVHeads == 0 {
		return c.Heads
	}
	return c.KVHeads
}

func (c Options) seqK() int {
	switch {
	case c.SeqK != 0:
		return c.SeqK
	case len(c.KStarts) > 0:
		return c.KStarts[len(c.KStarts)-1]
	}
	return c.SeqQ
}

func (c Options) dimV() int {
	if c.DimV == 0 {
		return c.Dim
	}
	return c.DimV
}

// resolve returns c with every default filled in, or an error.
func (c Options) resolve() (Options, error) {
	if c.cached() && c.SeqK == 0 {
		return c, fmt.Errorf("attention: SeqK is 0, want the keys that a cache has room for: %w", snug.ErrShape)
	}
	c.KVHeads, c.SeqK, c.DimV = c.kvHeads(), c.seqK(), c.dimV()
	if err := c.checkRanges(); err != nil {
		return c, err
	}
	if c.Scale == 0 {
		c.Scale = float32(1 / math.Sqrt(float64(c.Dim)))
	}
	if err := c.resolveLengths(); err != nil {
		return c, err
	}
	for i, dst := range [...]*Strides{&c.Q, &c.K, &c.V, &c.Out} {
		var err error
		if *dst, err = c.operands()[i].resolve(); err != nil {
			return c, err
		}
	}
	err := c.resolveFeatures()
	bounded := c.cached() || c.QStarts != nil || c.KStarts != nil || c.KLens != nil // by numbers for each sequence
	if (c.Heads == 0 || c.SeqQ == 0) && (c.KVHeads == 0 || c.SeqK == 0) && !bounded {
		c.Batch = min(c.Batch, max(1, c.Bias.Dims[0])) // no memory bounds loops over sequences without rows
	}
	return c, err
}

func (c *Options) checkRanges() error {
	for _, d := range [...]struct {
		name      string
		n, lo, hi int
	}{
		{"Batch", c.Batch, 0, math.MaxInt}, {"Heads", c.Heads, 0, math.MaxInt}, {"KVHeads", c.KVHeads, 0, math.MaxInt},
		{"SeqQ", c.SeqQ, 0, math.MaxInt}, {"SeqK", c.SeqK, 0, math.MaxInt},
		{"Dim", c.Dim, 1, maxDim}, {"DimV", c.DimV, 1, maxDim},
	} {
		if d.n < d.lo || d.n > d.hi {
			return fmt.Errorf("attention: %s is %d, want %d to %d: %w", d.name, d.n, d.lo, d.hi, snug.ErrShape)
		}
	}
	if c.KVHeads > 0 && c.Heads%c.KVHeads != 0 {
		return fmt.Errorf("attention: KVHeads is %d, want a divisor of Heads, %d: %w", c.KVHeads, c.Heads, snug.ErrConfig)
	}
	if c.Align < BottomRight || c.Align > Shifted {
		return fmt.Errorf("attention: Align is %d, want BottomRight, TopLeft or Shifted: %w", int(c.Align), snug.ErrConfig)
	}
	if c.Shift != 0 && c.Align != Shifted {
		return fmt.Errorf("attention: Shift is %d, but Align is not Shifted: %w", c.Shift, snug.ErrConfig)
	}
	if c.Shift < -unlimited || c.Shift > unlimited {
		return fmt.Errorf("attention: Shift is %d, want %d to %d: %w", c.Shift, -unlimited, unlimited, snug.ErrConfig)
	}
	if s := float64(c.scale2()); math.IsNaN(s) || math.IsInf(s, 0) {
		return fmt.Errorf("attention: Scale is %g, want a finite number: %w", c.Scale, snug.ErrConfig)
	}
	return nil
}

// scale2 is the scale of scores in units of log 2.
func (c *Options) scale2() float32 { return float32(float64(c.Scale) * math.Log2E) }

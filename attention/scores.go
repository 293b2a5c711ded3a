package attention

import (
	"unsafe"

	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rowwise"
)

// scorer computes scores from the products of one head's queries and keys.
type scorer struct {
	c        *Options
	s        sequence
	h        int
	alibi    float32   // slope
	far      []float32 // the slope times |farthest|, |farthest − 1|, and so on
	farthest int       // how far a query is ahead of its key
	strides  [4]int    // of the bias
	bias     int       // element for query 0 and key 0
	scratch  []float32
	keep     float32 // factor of the weights that dropout keeps
	below    uint32  // dropout drops weights whose word is below this
	stream   philox.Stream
}

// scorerScratch is the number of float32 elements that a scorer uses: a row, and the
// distances in a tile.
const scorerScratch = tileK + distances

const distances = tileQ + tileK

func newScorer(scratch *arena, c *Options, s *sequence, h int) scorer {
	m := scorer{c: c, s: *s, h: h, scratch: scratch.floats(tileK), far: scratch.floats(distances)[:0], stream: philox.Stream{Seed: c.Dropout.Seed, Tensor: uint64(s.b*c.Heads + h)}}
	if n := c.Slopes.Len(); n > 0 {
		m.alibi = c.Slopes.Float32s()[(s.b*c.Heads+h)%n]
	}
	if c.Bias.X.Len() > 0 {
		m.strides = c.Bias.strides()
		m.bias = s.b*m.strides[0] + h*m.strides[1]
	}
	m.keep, m.below = c.Dropout.numbers()
	return m
}

// numbers returns the factor of the weights that are kept, and the word below which a
// weight is dropped.
func (d *Dropout) numbers() (keep float32, below uint32) {
	return float32(1 / (1 - float64(d.P))), uint32(float64(d.P) * (1 << 32))
}

// scores reports whether scores differ from Scale times products.
func (c *Options) scores() bool {
	return c.Softcap != 0 || c.Slopes.Len() > 0 || c.Bias.X.Len() > 0 || c.Score != nil
}

// bends reports whether the derivative of a score in its product is not Scale.
func (c *Options) bends() bool { return c.Softcap != 0 || c.Score != nil }

// plain reports whether weights depend on Scale times products alone.
func (m *scorer) plain() bool { return !m.c.scores() && m.c.Dropout.P == 0 }

// row computes scores from the products x of query i and the keys from j on. Unless slopes
// is nil it sets slopes to the derivatives of the scores in the products, or with inBias in
// the bias.
func (m *scorer) row(x, slopes []float32, i, j int, inBias bool) {
	c := m.c
	switch {
	case c.Softcap != 0:
		softcap(x, slopes, c.Scale, c.Softcap)
	default:
		rowwise.Registry.Best().Scale(x, x, c.Scale)
		fill(slopes, c.Scale)
	}
	if inBias {
		fill(slopes, 1)
	}
	if m.alibi != 0 {
		m.subtractDistance(x, i+m.s.shift-j)
	}
	if c.Bias.X.Len() > 0 {
		m.addBias(x, i, j)
	}
	if c.Score == nil {
		return
	}
	for k, v := range x {
		value, slope := c.Score(v, m.s.b, m.h, i, j+k)
		x[k] = value
		if slopes != nil {
			slopes[k] *= slope
		}
	}
}

// subtractDistance subtracts the slope times the distance of every key from key number at.
// All rows of a tile use one vector of distances; each row starts one element before the
// previous row.
func (m *scorer) subtractDistance(x []float32, at int) {
	from := m.farthest - at
	if from < 0 || from+len(x) > len(m.far) {
		m.farthest = at + tileQ - 1
		m.far = m.far[:distances]
		for k := range m.far {
			d := m.farthest - k
			m.far[k] = m.alibi * float32(max(d, -d))
		}
		from = tileQ - 1
	}
	rowwise.Registry.Best().Axpby(x, m.far[from:from+len(x)], -1, 1)
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

func (m *scorer) addBias(x []float32, i, j int) {
	at := m.bias + i*m.strides[2] + j*m.strides[3]
	if m.strides[3] == 0 {
		b := half.Floats(m.c.Bias.X, at, m.scratch[:1])[0]
		for k := range x {
			x[k] += b
		}
		return
	}
	for k, b := range half.Floats(m.c.Bias.X, at, m.scratch[:len(x)]) {
		x[k] += b
	}
}

// softcap replaces products by limit·tanh(scale·x/limit), and slopes, unless nil, by the
// derivative.
func softcap(x, slopes []float32, scale, limit float32) {
	k := rowwise.Registry.Best()
	k.Softcap(x, scale/limit, limit)
	k.SoftcapSlopes(slopes, x[:len(slopes)], 1/limit, scale)
}

// drop multiplies the weights x of query i and the keys from j on by their dropout factors,
// 0 or keep.
func (m *scorer) drop(x []float32, i, j int) {
	d := &m.c.Dropout
	words := unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(m.scratch))), len(x))
	m.stream.Words(words, uint64(d.Query+i)<<32+uint64(d.Key+j))
	rowwise.F32.Best().Dropout(x, x, words, m.below, m.keep, false)
}

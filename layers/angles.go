package layers

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/snug-ml/snug"
)

// Angles is the table that [fused.Rotary] takes, for positions from 0 on.
type Angles struct {
	rope      Rope
	table     scratch
	queries   scratch // of queries, where a position has a factor, see [Rope.QueryScale]; empty otherwise
	factors   scratch // of queries in their place: the factor and 0 for each position, see [Angles.Factors]
	apart     bool    // they are
	known     int     // positions in the table
	length    int     // sequence length for which the frequencies were made, where they depend on it
	attention float64 // factor of sines and cosines
	inverse   []float32
	scaled    bool    // the table has sines and cosines times the factor
	factor    float32 // which that is, 1 if not scaled

	rows    scratch   // angles of the rows of a batch with positions in three axes
	numbers []int32   // 0, 1, ...: their places there
	host    []float32 // the same on the host, of a device
	made    madeRows
}

// madeRows says which rows there are angles of.
type madeRows struct {
	pass   *Pass
	batch  uint64
	first  *int32
	rows   int
	length int
}

const more = 256 // positions that are made together where a sequence grows

// NewAngles returns the angles of a rope on a device, nil for the CPU.
func NewAngles(r Rope, dev *snug.Device) *Angles {
	dev = cmp.Or(dev, snug.CPU())
	own := scratch{dev: dev, dt: snug.F32}
	return &Angles{rope: r, table: own, queries: own, factors: own, rows: own}
}

// Scaled puts the factor of sines and cosines, see [Rope.AttentionScale], into the table, and returns a. Heads with elements that do
// not turn want it. Otherwise the table has plain rotations, and attention multiplies the scores by the square.
func (a *Angles) Scaled() *Angles {
	a.scaled = true
	return a
}

// Factors keeps the factors of queries, see [Rope.QueryScale], by themselves, and returns a. A [Latent] wants it, in whose heads also
// elements have them that do not turn.
func (a *Angles) Factors() *Angles {
	a.apart = true
	return a
}

// partial reports whether a factor of the scores would also be one of elements that do not turn.
func (a *Angles) partial(dim int) bool {
	return !a.scaled && a.rope.Dim < dim && a.rope.scales()
}

// Rope returns the rope.
func (a *Angles) Rope() Rope { return a.rope }

// Bytes returns the bytes of the table, of another one for queries whose positions have factors, and of the angles of rows with positions
// in three axes, Dim float32 each.
func (a *Angles) Bytes() int64 {
	return a.table.bytes() + a.queries.bytes() + a.factors.bytes() + a.rows.bytes()
}

// Close frees them.
func (a *Angles) Close() error {
	return errors.Join(a.table.close(), a.queries.close(), a.factors.close(), a.rows.close())
}

// Prepare fills the table for sequences of up to n tokens. A rope of a kind [RopeKind.ByLength] has the frequencies for the longest
// sequence of the batch, as in a fresh model of transformers.
func (a *Angles) Prepare(n int) error {
	length := 0
	switch {
	case a.rope.Kind == RopeDynamic:
		length = max(n, a.rope.MaxPositions)
	case a.rope.Kind == RopeLong && a.rope.long(n):
		length = a.rope.OriginalPositions + 1
	}
	if n <= a.known && length == a.length {
		return nil
	}
	if a.rope.Kind == RopeLong && a.known > 0 && length == a.length {
		n = max(n, a.known+more) // a text grows by a token at a time
	}
	inverse, attention, err := a.rope.Frequencies(length)
	if err != nil {
		return err
	}
	a.factor = 1
	if a.scaled {
		a.factor, attention = float32(attention), 1
	}
	n = max(n, a.known)
	dim, half := a.rope.Dim, len(inverse)
	if n > math.MaxInt/4/dim {
		return fmt.Errorf("angles of %d positions are too many: %w", n, snug.ErrShape)
	}
	host := make([]float32, n*dim)
	for p := range n {
		row := host[p*dim : (p+1)*dim]
		for i, f := range inverse {
			cos, sin := turn(int32(p), f)
			row[i], row[half+i] = cos*a.factor, sin*a.factor
		}
	}
	a.known = 0
	if err := a.table.grow(len(host)); err != nil {
		return err
	}
	if err := snug.Copy(part(a.table.v, 0, len(host)), host); err != nil {
		return err
	}
	if err := a.scaleQueries(host); err != nil {
		return err
	}
	a.known, a.length, a.attention, a.inverse = n, length, attention, inverse
	return nil
}

// scaleQueries makes the table of queries from the one of keys, in place: a rotation times the factor of its position.
func (a *Angles) scaleQueries(host []float32) error {
	dim := a.rope.Dim
	if a.rope.QueryScale == 0 || len(host) <= a.rope.OriginalPositions*dim {
		return nil
	}
	if a.apart {
		pairs := make([]float32, len(host)/dim*2)
		for p := range len(host) / dim {
			pairs[2*p] = a.rope.queryScale(p)
		}
		if err := a.factors.grow(len(pairs)); err != nil {
			return err
		}
		return snug.Copy(part(a.factors.v, 0, len(pairs)), pairs)
	}
	for p := a.rope.OriginalPositions; p < len(host)/dim; p++ {
		for i, scale := p*dim, a.rope.queryScale(p); i < (p+1)*dim; i++ {
			host[i] *= scale
		}
	}
	if err := a.queries.grow(len(host)); err != nil {
		return err
	}
	return snug.Copy(part(a.queries.v, 0, len(host)), host)
}

// ofQueries returns the table of queries beside the one of keys.
func (a *Angles) ofQueries(keys snug.View) snug.View {
	if a.queries.v.Len() > 0 {
		return a.queries.v
	}
	return keys
}

// turn returns the cosine and the sine of an angle, which is float32 in transformers.
func turn(position int32, frequency float32) (cos, sin float32) {
	s, c := math.Sincos(float64(float32(position) * frequency))
	return float32(c), float32(s)
}

// PrepareBatch prepares for the batch of a pass, if its positions are in three axes: it makes a row of angles for each row of the
// batch. Attention does so if nobody has. The error wraps [snug.ErrConfig] for a rope without Sections.
func (a *Angles) PrepareBatch(p *Pass) error {
	if a == nil || !p.made() || p.Batch.Axes == nil {
		return nil
	}
	_, _, err := a.of(p)
	return err
}

// of returns the table for the batch of a pass, and the places of its rows in the table.
func (a *Angles) of(p *Pass) (angles snug.View, places []int32, err error) {
	b := &p.Batch
	if err := a.Prepare(b.reach()); err != nil || b.Axes == nil {
		return a.table.v, b.Positions, err
	}
	if a.rope.Sections == [3]int{} {
		return none32, nil, fmt.Errorf("positions in three axes, and a rope without Sections: %w", snug.ErrConfig)
	}
	made := madeRows{p, p.batches, &b.Axes[0][0], b.Rows, a.length}
	if made != a.made {
		if err := a.makeRows(b); err != nil {
			return none32, nil, err
		}
		a.made = made
	}
	return part(a.rows.v, 0, b.Rows*a.rope.Dim), a.numbers[:b.Rows], nil
}

// makeRows makes the angles of each row: its position in the axis of a pair of elements, times the pair's frequency.
func (a *Angles) makeRows(b *Batch) error {
	a.made = madeRows{}
	dim, half := a.rope.Dim, a.rope.Dim/2
	if b.Rows > math.MaxInt/4/dim {
		return fmt.Errorf("angles of %d rows are too many: %w", b.Rows, snug.ErrShape)
	}
	n := b.Rows * dim
	if err := a.rows.grow(n); err != nil {
		return err
	}
	host := a.rows.v.Float32s()
	if host == nil {
		a.host = slices.Grow(a.host[:0], n)
		host = a.host[:n]
	}
	for i, f := range a.inverse {
		of := b.Axes[a.rope.axis(i)]
		for r, position := range of {
			cos, sin := turn(position, f)
			host[r*dim+i], host[r*dim+half+i] = cos*a.factor, sin*a.factor
		}
	}
	for i := len(a.numbers); i < b.Rows; i++ {
		a.numbers = append(a.numbers, int32(i))
	}
	if a.rows.dev.IsCPU() {
		return nil
	}
	return snug.Copy(part(a.rows.v, 0, n), host[:n])
}

// Package measure gathers what passes over gradients find: the sum of squares,
// and the values that are not finite. A pass splits a vector into pieces and
// adds what each holds to a record of its own, so that the sums depend on
// lengths only.
package measure

import (
	"errors"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/sweep"
)

// pieces is the number of pieces of a vector at most. Devices other than the
// CPU take more, to be busy with one vector: about two for each block of threads
// that the largest runs at once. Their records come to the host in one copy.
const (
	pieces       = 64
	devicePieces = 1024
)

// MinPiece is the least number of elements that is worth a worker, and
// minDevicePiece a block of threads.
const (
	MinPiece       = 1 << 14
	minDevicePiece = 1 << 11
)

// Piece returns the elements of a piece of a vector of n elements on dev. On
// other devices than the CPU it is a multiple of the least, so that pieces start
// where wide accesses do.
func Piece(dev *snug.Device, n int) int {
	if dev.IsCPU() {
		return max(MinPiece, cpu.Chunks(n, pieces))
	}
	return max(1, cpu.Chunks(n, devicePieces*minDevicePiece)) * minDevicePiece
}

// Record is the measurement of one piece of some vectors. Its layout is the same as in
// measure.h, on every device.
type Record struct {
	Squares   float64 // sum of squares
	NonFinite int64   // number of non-finite elements, the first of them in
	Ordinal   int64   // this vector, counted from 1,
	Index     int64   // at this element of it,
	Value     float32 // with this value
	_         [4]byte
}

const recordSize = int(unsafe.Sizeof(Record{}))

func recordBytes(r []Record) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(r))), len(r)*recordSize)
}

// Records is memory for what passes over vectors of one device find, as [Gather.On]
// returns it.
type Records struct {
	View  snug.View
	Used  int       // how many records earlier passes have written; a pass overwrites the others
	Parts snug.View // where jobs join: a record for each piece of several vectors, before they are added to View
}

// MaxParts is the number of records in Parts: pieces of vectors that one launch goes over.
const MaxParts = 1 << 13

// At returns the record of a piece, on the CPU, for a pass to add to.
func (r *Records) At(piece int) *Record {
	m := device.Mem(&r.View)
	record := &unsafe.Slice((*Record)(m.Host), m.Size/recordSize)[piece]
	if piece >= r.Used {
		*record = Record{}
	}
	return record
}

func (r *Record) merge(o *Record) {
	r.Squares += o.Squares
	if o.NonFinite == 0 {
		return
	}
	if r.NonFinite == 0 || o.Ordinal < r.Ordinal {
		r.Ordinal, r.Index, r.Value = o.Ordinal, o.Index, o.Value
	}
	r.NonFinite += o.NonFinite
}

// Add takes the sum of the squares of elements lo to hi-1 of a vector in host
// memory. It is finite just if they are; if not, they are counted.
func (r *Record) Add(squares float64, v snug.View, lo, hi int, ordinal int64) {
	r.Squares += squares
	if squares-squares != 0 {
		r.Count(v, lo, hi, ordinal)
	}
}

// Count counts the non-finite values of elements lo to hi-1 of a vector in host
// memory.
func (r *Record) Count(v snug.View, lo, hi int, ordinal int64) {
	first := sweep.FirstNotBelow(v, lo, hi, 1, sweep.Infinity)
	if first < 0 {
		return
	}
	scratch := tiles.Get(half.Chunk)
	defer tiles.Put(scratch)
	for lo := first; lo < hi; lo += half.Chunk {
		r.count(half.Floats(v, lo, (*scratch)[:min(half.Chunk, hi-lo)]), lo, ordinal)
	}
}

// tiles are the float32 scratch through which 16-bit values are counted.
var tiles cpu.Scratch

// count counts the non-finite values of x, elements base and up of a vector.
func (r *Record) count(x []float32, base int, ordinal int64) {
	for i, v := range x {
		if v-v == 0 {
			continue
		}
		if r.NonFinite == 0 {
			r.Ordinal, r.Index, r.Value = ordinal, int64(base+i), v
		}
		r.NonFinite++
	}
}

// Gather is the records of passes over several vectors, and their total. The
// zero value is empty. Another device than the CPU lends it the records, which it
// returns with Collect or Reset.
type Gather struct {
	Total Record // of what was collected

	dev     *snug.Device   // of the records in use
	remote  snug.View      // the records, when dev is not the CPU
	parts   snug.View      // Parts of Records
	lent    snug.View      // both
	used    int            // how many of them
	records [pieces]Record // the records, when it is
	copied  []Record       // a copy of those in remote
}

// On returns the records for v, one for each piece, on its device. Vectors on one
// device share them until the walk comes to another device.
func (g *Gather) On(v snug.View) (Records, error) {
	dev := v.Device()
	if g.dev != dev {
		if err := g.Collect(); err != nil {
			return Records{}, err
		}
		if err := g.borrow(dev); err != nil {
			return Records{}, err
		}
	}
	r := Records{View: g.remote, Used: g.used, Parts: g.parts}
	if dev.IsCPU() {
		r.View = snug.SliceView(recordBytes(g.records[:]))
	}
	g.used = max(g.used, Pieces(v))
	return r, nil
}

// borrow takes memory for records on dev.
func (g *Gather) borrow(dev *snug.Device) (err error) {
	if dev.IsCPU() {
		g.dev = dev
		return nil
	}
	n := devicePieces
	if device.Joins(dev) {
		n += MaxParts
	}
	if g.lent, err = device.Lend(dev, snug.U8, n*recordSize); err != nil {
		return err
	}
	g.dev = dev
	if g.remote, err = g.lent.Slice(0, devicePieces*recordSize); err != nil {
		return err
	}
	g.parts, err = g.lent.Slice(devicePieces*recordSize, n*recordSize)
	return err
}

// giveBack ends the use of the records.
func (g *Gather) giveBack() (err error) {
	if g.dev != nil && !g.dev.IsCPU() {
		err = device.Return(g.lent)
	}
	g.lent, g.remote, g.parts, g.dev, g.used = snug.View{}, snug.View{}, snug.View{}, nil, 0
	return err
}

// read copies records from the device, when that is not the CPU.
func (g *Gather) read(to []Record) error {
	from, err := g.remote.Slice(0, len(to)*recordSize)
	if err != nil {
		return err
	}
	return snug.Copy(snug.SliceView(recordBytes(to)), from)
}

// Collect adds the records in use to the total, in the order of the pieces, and
// ends their use. It waits for the device.
func (g *Gather) Collect() (err error) {
	var records []Record
	if g.dev == nil || g.dev.IsCPU() {
		records = g.records[:g.used]
	} else {
		if g.copied == nil {
			g.copied = make([]Record, devicePieces)
		}
		records = g.copied[:g.used]
		err = g.read(records)
	}
	for i := range records {
		g.Total.merge(&records[i])
	}
	clear(records)
	return errors.Join(err, g.giveBack())
}

// Saved is what a Gather holds.
type Saved struct {
	Total   Record
	Records []Record // that were not collected
}

// Save returns a copy of what g holds. It waits for the device.
func (g *Gather) Save() (s Saved, err error) {
	s = Saved{Total: g.Total, Records: make([]Record, g.used)}
	if g.dev == nil || g.dev.IsCPU() {
		copy(s.Records, g.records[:])
		return s, nil
	}
	return s, g.read(s.Records)
}

// Restore replaces what g holds, with records on dev, or adds them to the total
// where dev has not as many.
func (g *Gather) Restore(dev *snug.Device, s Saved) error {
	g.Reset()
	g.Total = s.Total
	switch n := len(s.Records); {
	case n == 0:
	case n > devicePieces || dev.IsCPU() && n > pieces:
		for i := range s.Records {
			g.Total.merge(&s.Records[i])
		}
	case dev.IsCPU():
		g.dev, g.used = dev, copy(g.records[:], s.Records)
	default:
		if err := g.borrow(dev); err != nil {
			return err
		}
		to, err := g.remote.Slice(0, n*recordSize)
		if err != nil {
			return err
		}
		g.used = n
		return snug.Copy(to, snug.SliceView(recordBytes(s.Records)))
	}
	return nil
}

// MaxRecords is the greatest number of records that a Gather restores.
const MaxRecords = 4096

// Reset empties g, and ends the use of records that were not collected.
func (g *Gather) Reset() {
	_ = g.giveBack() // nothing will use them
	g.Total = Record{}
}

// Found returns the non-finite values of the vectors, or nothing if there are
// none. name is the name of vector number Total.Ordinal.
func (g *Gather) Found(name string) snug.NonFinite {
	t := &g.Total
	return snug.NonFinite{Name: name, Count: int(t.NonFinite), Index: int(t.Index), Value: t.Value, Micro: -1}
}

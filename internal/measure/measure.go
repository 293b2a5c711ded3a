// Package measure gathers what passes over gradients find: the sum of squares,
// and the values that are not finite. A pass splits a vector into pieces and
// adds what each holds to a record of its own, so that the sums depend on
// lengths only.
package measure

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/sweep"
)

// pieces is the number of pieces of a vector at most. Devices other than the
// CPU take more, to be busy with one vector.
const (
	pieces       = 64
	devicePieces = 4096
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

// At returns the record of a piece in the memory that [Gather.On] returned, on
// the CPU.
func At(records snug.View, piece int) *Record {
	m := device.Mem(&records)
	return &unsafe.Slice((*Record)(m.Host), m.Size/recordSize)[piece]
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
// zero value is empty. It allocates on devices other than the CPU only.
type Gather struct {
	Total Record // of what was collected

	dev     *snug.Device      // of the records in use
	remote  snug.Array[uint8] // the records, when dev is not the CPU
	used    int               // how many of them
	records [pieces]Record    // the records, when it is
	copied  []Record          // a copy of those in remote
}

// On returns memory for the records of v, one for each piece, on its device.
// Vectors on one device share them until the walk comes to another device.
func (g *Gather) On(v snug.View) (snug.View, error) {
	dev := v.Device()
	if g.dev != dev {
		if err := g.Collect(); err != nil {
			return snug.View{}, err
		}
		if !dev.IsCPU() {
			var err error
			if g.remote, err = snug.Make[uint8](dev, devicePieces*recordSize); err != nil {
				return snug.View{}, err
			}
		}
		g.dev = dev
	}
	g.used = max(g.used, cpu.Chunks(v.Len(), Piece(dev, v.Len())))
	if dev.IsCPU() {
		return snug.SliceView(recordBytes(g.records[:])), nil
	}
	return g.remote.View(), nil
}

// Collect adds the records in use to the total, in the order of the pieces, and
// frees them. It waits for the device.
func (g *Gather) Collect() (err error) {
	var records []Record
	if g.dev == nil || g.dev.IsCPU() {
		records = g.records[:g.used]
	} else {
		if g.copied == nil {
			g.copied = make([]Record, devicePieces)
		}
		records = g.copied[:g.used]
		err = g.remote.CopyOut(recordBytes(records))
		if e := g.remote.Close(); err == nil {
			err = e
		}
	}
	for i := range records {
		g.Total.merge(&records[i])
	}
	clear(records)
	g.dev, g.used = nil, 0
	return err
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
	return s, g.remote.CopyOut(recordBytes(s.Records))
}

// Restore replaces what g holds, with records on dev, or adds them to the total
// where dev has not as many.
func (g *Gather) Restore(dev *snug.Device, s Saved) error {
	g.Reset()
	g.Total = s.Total
	switch n := len(s.Records); {
	case n == 0:
	case n > MaxRecords || dev.IsCPU() && n > pieces:
		for i := range s.Records {
			g.Total.merge(&s.Records[i])
		}
	case dev.IsCPU():
		g.dev, g.used = dev, copy(g.records[:], s.Records)
	default:
		remote, err := snug.Make[uint8](dev, devicePieces*recordSize)
		if err != nil {
			return err
		}
		g.dev, g.remote, g.used = dev, remote, n
		return g.remote.CopyIn(recordBytes(append(s.Records, make([]Record, devicePieces-n)...)))
	}
	return nil
}

// MaxRecords is the greatest number of records of a Gather.
const MaxRecords = devicePieces

// Reset empties g, and frees records that were not collected.
func (g *Gather) Reset() {
	if g.dev != nil && !g.dev.IsCPU() {
		_ = g.remote.Close() // nothing will use them
	}
	clear(g.records[:])
	g.Total, g.dev, g.used = Record{}, nil, 0
}

// Found returns the non-finite values of the vectors, or nothing if there are
// none. name is the name of vector number Total.Ordinal.
func (g *Gather) Found(name string) snug.NonFinite {
	t := &g.Total
	return snug.NonFinite{Name: name, Count: int(t.NonFinite), Index: int(t.Index), Value: t.Value, Micro: -1}
}

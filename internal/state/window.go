package state

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// WindowMagic names the state of a window of package accum.
const WindowMagic = "SNUGACCU"

// Window is the header of the state of a window, in this order. The data is the
// accumulators, in the order of Params, when Holds says so.
type Window struct {
	WindowFixed
	Schedule, Scaler string // their own states, empty where one has none
	Params           []WindowParam
	Overflows        []snug.NonFinite
}

// WindowFixed are the fields of fixed size.
type WindowFixed struct {
	DType                          uint32
	Step                           int64
	Seen                           float64
	TargetMicros                   int64
	TargetWeight                   float64
	Micros                         int64
	Weight, Micro                  float64
	Scale                          float32
	Full, Open, Dropped, InPlace   bool
	Windows, Skipped, Ended, Drops int64
	Noise                          WindowNoise
	TotalWeight                    float64
	TotalMicros                    int64
}

// WindowNoise is what the norms of micro-batches add up to.
type WindowNoise struct {
	Sum, Weight, First, FirstWeight float64
	Counted                         int64
	InPlace                         bool
}

// WindowParam is one parameter.
type WindowParam struct {
	Name string
	WindowParamFixed
}

// WindowParamFixed are its fields of fixed size.
type WindowParamFixed struct {
	Len            uint64
	Added, InPlace bool
}

type overflow struct {
	Count, Index int64
	Value        float32
	Micro        int64
}

// Holds reports whether the accumulators matter and are the data.
func (w *Window) Holds() bool { return w.Micros > 0 || w.Open || w.Full }

// DataSize returns the bytes of the data.
func (w *Window) DataSize() (sum int64) {
	for _, p := range w.Params {
		sum += w.bytes(p)
	}
	return sum
}

func (w *Window) bytes(p WindowParam) int64 {
	if !w.Holds() {
		return 0
	}
	return int64(p.Len) * int64(snug.DType(w.DType).Size())
}

// PutWindow writes w.
func (e *Encoder) PutWindow(w *Window) {
	e.Put(w.WindowFixed)
	e.PutName(w.Schedule)
	e.PutName(w.Scaler)
	e.Put(uint32(len(w.Params)))
	for _, p := range w.Params {
		e.PutName(p.Name)
		e.Put(p.WindowParamFixed)
	}
	e.Put(uint32(len(w.Overflows)))
	for _, o := range w.Overflows {
		e.PutName(o.Name)
		e.Put(overflow{int64(o.Count), int64(o.Index), o.Value, int64(o.Micro)})
	}
}

// GetWindow reads and checks what PutWindow wrote.
func (d *Decoder) GetWindow() *Window {
	w := new(Window)
	d.Get(&w.WindowFixed)
	w.check(d)
	w.Schedule, w.Scaler = d.GetName(), d.GetName()
	var total uint64
	for range d.Count(4 + 10) {
		p := WindowParam{Name: d.GetName()}
		d.Get(&p.WindowParamFixed)
		if total += p.Len; p.Len > math.MaxInt/4 || total > math.MaxInt/4 {
			d.Corrupt("parameter %q of %d elements", p.Name, p.Len)
		}
		w.Params = append(w.Params, p)
	}
	for range d.Count(4 + 28) {
		name := d.GetName()
		var o overflow
		d.Get(&o)
		if o.Count < 0 || o.Index < 0 || o.Micro < 0 || max(o.Count, o.Index, o.Micro) > math.MaxInt {
			d.Corrupt("an overflow of %+v", o)
		}
		w.Overflows = append(w.Overflows, snug.NonFinite{Name: name, Count: int(o.Count), Index: int(o.Index), Value: o.Value, Micro: int(o.Micro)})
	}
	return w
}

// check looks for numbers that no window has.
func (w *Window) check(d *Decoder) {
	for _, n := range []int64{w.Step, w.TargetMicros, w.Micros, w.Windows, w.Skipped, w.Ended, w.Drops, w.Noise.Counted, w.TotalMicros} {
		if n < 0 || n > math.MaxInt {
			d.Corrupt("a count of %d", n)
		}
	}
	for _, x := range []float64{w.Seen, w.TargetWeight, w.Weight, w.Micro, w.TotalWeight, w.Noise.Weight, w.Noise.FirstWeight} {
		if !(x >= 0 && x <= math.MaxFloat64) {
			d.Corrupt("a weight of %v", x)
		}
	}
	switch t := snug.DType(w.DType); {
	case d.Err != nil:
	case w.Full && (w.Open || w.Micros == 0 && w.TotalMicros == 0):
		d.Corrupt("a full window of %d micro-batches, open %t", w.Micros, w.Open)
	case !(w.Noise.Sum >= 0 && w.Noise.First >= 0 && w.Scale >= 0):
		d.Corrupt("squares of %v, a scale of %v", w.Noise, w.Scale)
	case t != snug.F32 && t != snug.BF16:
		d.Corrupt("accumulators of type %d", w.DType)
	}
}

func describeWindow(d *Decoder) (found Description) {
	w := d.GetWindow()
	for _, p := range w.Params {
		found.Entries = append(found.Entries, Entry{p.Name, snug.DType(w.DType).String(), []int{int(p.Len)}, w.bytes(p)})
	}
	found.Note = fmt.Sprintf("step %d, %d micro-batches in the window", w.Step, w.Micros)
	return found
}

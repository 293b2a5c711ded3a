package plan

import (
	"cmp"
	"fmt"
	"math"

	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/qlora"
)

// This file computes the bytes of weights: of all, of the parts that are used at one time, and of what
// lies in pages.

// quantized reports whether weights under adapters are frozen in fewer than 16 bits.
func (r Run) quantized() bool { return r.Frozen == 4 || r.Frozen == 8 }

// BitsOf returns the [Run].Frozen of weights in a form: its bits, and 8 for GGUF, whose bits [Model].Stored has.
func BitsOf(form qlora.Type) int {
	if form == qlora.GGUF {
		return 8
	}
	return form.Bits()
}

// baseBits returns the bits of the codes of Base.
func (t Task) baseBits() int { return BitsOf(cmp.Or(t.Base, qlora.NF4)) }

// storedBits returns the mean bits of an element of GGUF.
func (m *Model) storedBits() float64 { return cmp.Or(m.Stored, 8) }

// FrozenBits says in how many bits r holds the weights under adapters: a number, with a decimal for a mean. It is empty for weights in
// the compute type.
func (t Task) FrozenBits(r Run) string {
	switch {
	case !r.quantized():
		return ""
	case t.Base == qlora.GGUF, t.Base == qlora.Grouped:
		return fmt.Sprintf("%.1f bits", t.Model.storedBits())
	}
	return fmt.Sprintf("%d bits", r.Frozen)
}

// weightBytes returns the bytes of all weights. Weights under adapters may be frozen in 4 or 8
// bits: the matrices of the chain as package qlora holds them.
// Other weights have the compute type, and adapters float32. A DoRA also holds norms and quotients.
func (t Task) weightBytes(r Run, all, trained int64) int64 {
	if t.Rank > 0 {
		trained -= t.besideLen(true) // what follows adds adapters, in float32
	}
	bytes := (all-trained)*r.elem() + trained*t.trainedElem(r)
	a, b := t.shared()
	bytes += 4 * (a + b)
	if t.Rank > 0 {
		for p := range t.Model.tensors() {
			if p.linear {
				bytes += int64(p.times) * (t.frozenBytes(r, p) - p.len()*r.elem())
			}
			if p.adapts {
				bytes += int64(p.times) * (8*t.magnitudes(p.shape) + t.untrainedBytes(p.shape))
			}
		}
	}
	return bytes
}

// frozenBytes returns the bytes of a matrix of the chain without its adapter: by Model.Stored where that is set. Else in 4 bits these are NF4's, in blocks of 64
// with the absmax of each block in a byte, and a float32 absmax for every 256 of these bytes; MXFP4 has bytes for blocks
// of 32. In 8 bits there is a float32 for 128×128 elements, or for a row.
func (t Task) frozenBytes(r Run, p tensor) int64 {
	n, shape := p.len(), p.shape
	if t.Rank == 0 || !r.quantized() || p.float {
		return n * r.elem()
	}
	if t.Base == qlora.GGUF || t.Model.Stored > 0 {
		return int64(math.Ceil(float64(n) * t.Model.storedBits() / 8))
	}
	up := func(n, size int64) int64 { return (n + size - 1) / size }
	blocks := up(n, 64)
	switch t.Base {
	case qlora.FP8, qlora.FP8E5M2:
		return n + 4*up(int64(shape[0]), 128)*up(int64(shape[1]), 128)
	case qlora.INT8:
		return n + 4*int64(shape[0])
	case qlora.MXFP4:
		blocks = up(n, 32)
	}
	return up(n, 2) + blocks + 4*up(blocks, 256)
}

// parts returns a sum over the parameters of each part that is used at one time: those before the chain,
// the head with the matrix that it shares, and the layers, each once.
func (t Task) parts(of func(p tensor) int64) (first, head int64, layers []int64) {
	sum := func(shapes [][]int) (n int64) {
		for _, shape := range shapes {
			n += of(tensor{shape: shape, times: 1})
		}
		return n
	}
	first, head = sum(t.Model.Params), sum(t.Model.Head.Params)
	if t.Model.Head.Tied {
		head += sum(t.Model.Params[:1])
	}
	for _, l := range t.Model.Layers {
		n := int64(0)
		for p := range l.tensors() {
			n += int64(p.times) * of(p)
		}
		layers = append(layers, n)
	}
	return first, head, layers
}

// paging describes weights in pages.
type paging struct {
	bytes int64   // of all of them
	file  int64   // of all of them in the page file, which any page may be written to; 0 if pages that are held are not there
	two   int64   // of two parts that are used at one time, while the next one comes
	held  []int64 // of the chain's first layers: of 1, 2, ...
}

// pagedWeights returns what lies in pages if weights do: the matrices in 4 or 8 bits, without those that stay in floats, or all weights of a
// program of one's own.
func (t Task) pagedWeights(r Run) (w paging) {
	of := func(p tensor) int64 {
		switch {
		case p.linear && !t.Own && !p.float:
			return t.frozenBytes(r, p)
		case !t.Own:
			return 0
		case !p.linear:
			return p.len() * r.elem()
		case !p.adapts:
			return t.frozenBytes(r, p)
		}
		return t.frozenBytes(r, p) + t.trainedElem(r)*t.trainedLen(p.shape) + t.untrainedBytes(p.shape) + 8*t.magnitudes(p.shape)
	}
	first, head, layers := t.parts(of)
	largest := max(first, head)
	if t.Model.Head.Tied {
		w.bytes -= of(tensor{shape: t.Model.Params[0], times: 1})
	}
	w.bytes += first + head
	sum := int64(0)
	for i, l := range t.Model.Layers {
		largest = max(largest, layers[i])
		for range l.repeat() {
			sum += layers[i]
			w.held = append(w.held, sum)
		}
	}
	w.bytes += sum
	if !t.Own {
		all, floats := t.Model.matrices()
		w.file = w.bytes + fileAlign*int64(all-floats)
	}
	w.two = min(w.bytes, 2*largest)
	return w
}

// fileAlign is what a page file rounds pages up to, at most.
const fileAlign = 4096

// PageBytes returns the bytes of pages that r holds in memory: two parts of the weights that are used at
// one time, the layers that are held, and the cache of masters and state. It is the HostLimit of a
// Store of package offload for the run, and with ShardWeights the Held of accum.Pages. Errors are those of [Task.Predict].
func (t Task) PageBytes(r Run) (int64, error) {
	t, err := t.checkWith(r)
	if err != nil {
		return 0, err
	}
	bytes := t.shardedWeights(r).held
	if r.WeightsOn != meter.OnDevice {
		w := t.pagedWeights(r)
		if bytes = w.two; r.LayersHeld > 0 {
			bytes = min(w.bytes, bytes+w.held[r.LayersHeld-1])
		}
	}
	if r.StateOn == meter.OnDisk {
		bytes += r.Cache
	}
	return bytes, nil
}

// What package qlora decodes at a time, in elements: a tile of a matrix in 4 bits, of the compute type, or of
// a matrix in floats for its norms, of float32.
const (
	decodedTile = 1 << 20
	normsTile   = 1 << 18
	decodedUnit = 64 * 256 // the elements of a float32 absmax

	// In 16 bits on a device with a memory of its own, where the vendor's library may multiply.
	decodedPanel = 1 << 26
	panelRows    = 512 // at least
	panelStep    = 128 // which divides the rows
	sumShare     = 4   // of the elements have a float32 sum, if a matrix has several panels
)

// tileBytes returns the bytes of the tile that the matrices under adapters share, and of the one for matrices in floats.
func (t Task) tileBytes(r Run) int64 {
	if t.Rank == 0 || !r.quantized() && !t.DoRA {
		return 0
	}
	bytes, norms := int64(0), int64(0)
	for p := range t.Model.tensors() {
		switch n := p.len(); {
		case !p.linear:
		case r.quantized() && !p.float:
			bytes = max(bytes, t.decodedLen(r, p)*r.elem())
		case t.DoRA && p.adapts:
			norms = max(norms, 4*max(min(normsTile, n), int64(p.shape[1])))
		}
	}
	return bytes + norms
}

// decodedLen returns the elements, of the compute type, of the tile that a matrix in few bits needs.
func (t Task) decodedLen(r Run, p tensor) int64 {
	rows, cols, n := int64(p.shape[0]), int64(p.shape[1]), p.len()
	unit, block, tile, sums := int64(decodedUnit), int64(64), int64(decodedTile), int64(0)
	if t.Base == qlora.MXFP4 {
		unit, block = unit/2, 32
	} else if r.Frozen == 8 {
		unit = cols
	}
	library := !t.Device.Unified && r.elem() == 2
	if library {
		tile = decodedPanel
	}
	whole := min(max(1, tile/cols), rows)
	if library && r.Frozen == 4 && cols%block == 0 && panelRows <= whole && whole < rows {
		whole -= whole % panelStep
		if s := tile / sumShare / cols; s >= panelRows {
			sums = 2 * s * cols
		}
	}
	if whole*cols < n-unit {
		n = whole*cols + unit
	}
	return n + sums
}

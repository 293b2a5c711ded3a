package quant8

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/safetensors"
)

// ReadBitsAndBytes restores the state from a safetensors file of size bytes, into an
// optimizer to which the same parameters were added. The file has the tensors of
// bitsandbytes' optimizer of the same name, flat or nested, as
// [Optimizer.WriteBitsAndBytes] describes. prefix comes before the names of the
// parameters. Tensors with other names are ignored. For a shard it reads the elements of
// the shard. step is a scalar of I64, I32 or F32 and the same for all parameters; it
// becomes [Optimizer.Steps]. The maps of the file replace the optimizer's; they may
// differ in the last bit from computed maps. The file is saved after a whole step:
// Advance begins the next.
//
// The block size of 8-bit state follows from the length of absmax: old versions had 2048.
// It must be a multiple of Options.Block. A larger block becomes several with the same
// absmax, which stand for the same values. In a block with absmax 0 every code stands for
// 0: bitsandbytes' CPU library writes code 0 there, also where the entry of code 0 is
// negative and the state is a mean of squares. The file and the optimizer must have the
// same width of state, see Bits and MinSize; bitsandbytes has 8 and 32 bits.
//
// Everything is checked before anything changes; for this, absmax and 32-bit state are
// read twice. It needs memory for one chunk. The error wraps [snug.ErrCorrupt] when the
// file is damaged or holds impossible numbers, and [snug.ErrConfig] when r is nil,
// WriteBitsAndBytes does not take the optimizer, or the file lacks tensors or has tensors
// of another configuration. After the checks an error of r, of a device or of the
// [Storage] leaves the optimizer unusable until a restore succeeds.
func (a *Optimizer) ReadBitsAndBytes(r io.ReaderAt, size int64, prefix string) error {
	if err := a.importState(r, size, prefix); err != nil {
		return fmt.Errorf("quant8: %s: read the state of bitsandbytes: %w", a.label(), err)
	}
	return nil
}

func (a *Optimizer) importState(r io.ReaderAt, size int64, prefix string) error {
	if err := a.made(); err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("the reader is nil: %w", snug.ErrConfig)
	}
	if err := a.o.checkForm(); err != nil {
		return err
	}
	if len(a.params) == 0 {
		return fmt.Errorf("no parameters were added: %w", snug.ErrConfig)
	}
	h, err := safetensors.Read(r, size)
	if err != nil {
		return err
	}
	in := &importer{a: a, f: stateFile{r, h, prefix}, step: -1}
	for _, name := range a.names() {
		if err := in.check(a.params[name]); err != nil {
			return fmt.Errorf("parameter %q: %w", name, err)
		}
	}
	maps := a.maps
	if in.maps[0] != nil {
		maps = newCodeMaps(in.maps[0], in.maps[1], a.o.NearestCodes)
	}
	a.invalid = "a restore of its state failed"
	for _, p := range in.params {
		if err := in.copy(p); err != nil {
			return fmt.Errorf("parameter %q: %w", p.q.name, err)
		}
	}
	a.resume(&saved{step: in.step, lr: 0, maps: maps})
	return nil
}

// importer reads a state of bitsandbytes.
type importer struct {
	a      *Optimizer
	f      stateFile
	step   int     // step count of the parameters so far, or -1
	maps   [2]*Map // maps of the parameters with 8-bit state, or nil
	params []imported
}

// imported is where the state of a parameter lies in the file.
type imported struct {
	q             *param
	block         int // block size of the file, with 8-bit state
	state, absmax [2]*safetensors.Tensor
}

// check checks all tensors of a parameter and adds it to the plan.
func (in *importer) check(q *param) error {
	p := imported{q: q}
	if err := cmp.Or(q.checkWidth(), q.checkDecay(&in.a.o)); err != nil {
		return err
	}
	if err := in.checkStep(q); err != nil {
		return errIn("step", err)
	}
	var qmaps [2]*Map
	for i, keys := range stateKeys[:q.states] {
		var err error
		if p.state[i], err = in.checkState(q, keys.state); err != nil {
			return errIn(keys.state, err)
		}
		if q.bits == 32 {
			if err := in.checkNumbers(p.state[i], !in.a.o.hyper.Rule.Signed()[i]); err != nil {
				return errIn(keys.state, err)
			}
			continue
		}
		if qmaps[i], err = in.readMap(q, keys.qmap); err != nil {
			return errIn(keys.qmap, err)
		}
		if p.absmax[i], err = in.checkAbsmax(q, keys.absmax); err != nil {
			return errIn(keys.absmax, err)
		}
	}
	if q.bits == 8 {
		if err := in.useMaps(qmaps); err != nil {
			return err
		}
		if err := p.inferBlock(in.a.o.Block); err != nil {
			return err
		}
		if err := in.checkCodes(&p); err != nil {
			return errIn(stateKeys[0].state, err)
		}
	}
	in.params = append(in.params, p)
	return nil
}

// need returns the tensor of a key, which must have one of the types.
func (in *importer) need(q *param, key string, dtypes ...string) (*safetensors.Tensor, error) {
	t := in.f.find(q.name, key)
	if t == nil {
		return nil, fmt.Errorf("the file has no such tensor under %q: %w", in.f.prefix+q.name, snug.ErrConfig)
	}
	if slices.Contains(dtypes, t.DType) {
		return t, nil
	}
	return nil, fmt.Errorf("it is %s, want %v: %w", t.DType, dtypes, snug.ErrConfig)
}

// checkStep reads the step count, which all parameters share.
func (in *importer) checkStep(q *param) error {
	t, err := in.need(q, "step", "I64", "I32", "F32")
	if err != nil {
		return err
	}
	var b [8]byte
	size := int64(safetensors.Bits(t.DType) / 8)
	if t.End-t.Begin != size {
		return fmt.Errorf("shape %v, want one element: %w", t.Shape, snug.ErrCorrupt)
	}
	if err := in.f.read(b[:size], t, 0); err != nil {
		return err
	}
	step, low := 0.0, binary.LittleEndian.Uint32(b[:])
	switch t.DType {
	case "I64":
		step = float64(int64(binary.LittleEndian.Uint64(b[:])))
	case "I32":
		step = float64(int32(low))
	default:
		step = float64(math.Float32frombits(low))
	}
	if !(step >= 0 && step <= math.MaxInt32) || step != math.Trunc(step) {
		return fmt.Errorf("it is %g, want a count up to %d: %w", step, math.MaxInt32, snug.ErrCorrupt)
	}
	if in.step >= 0 && in.step != int(step) {
		return fmt.Errorf("it is %g, and %d for parameters before, want one for all: %w", step, in.step, snug.ErrConfig)
	}
	in.step = int(step)
	return nil
}

// checkState checks the type and the length of a moment.
func (in *importer) checkState(q *param, key string) (*safetensors.Tensor, error) {
	dtype := "F32"
	if q.bits == 8 {
		dtype = "U8"
	}
	t, err := in.need(q, key, dtype)
	if err != nil {
		return nil, err
	}
	if n, err := safetensors.Elements(t.Shape); err != nil || n != q.total {
		return nil, fmt.Errorf("shape %v, want %d elements: %w", t.Shape, q.total, snug.ErrConfig)
	}
	return t, nil
}

// readMap reads and checks a map.
func (in *importer) readMap(q *param, key string) (*Map, error) {
	t, err := in.need(q, key, "F32")
	if err != nil {
		return nil, err
	}
	m := new(Map)
	if t.End-t.Begin != int64(4*len(m)) {
		return nil, fmt.Errorf("shape %v, want %d elements: %w", t.Shape, len(m), snug.ErrCorrupt)
	}
	if err := in.f.readFloats(m[:], t, 0); err != nil {
		return nil, err
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%v: %w", err, snug.ErrCorrupt)
	}
	return m, nil
}

// useMaps checks the maps of a parameter, which must be the same for all.
func (in *importer) useMaps(maps [2]*Map) error {
	if in.maps[0] == nil {
		in.maps = maps
		return checkCodeMaps(maps[0], maps[1], in.a.o.NearestCodes, in.a.o.hyper.Rule)
	}
	for i, m := range maps {
		if m != nil && *m != *in.maps[i] {
			return fmt.Errorf("its maps differ from the maps of the parameters before: %w", snug.ErrConfig)
		}
	}
	return nil
}

func (in *importer) checkAbsmax(q *param, key string) (*safetensors.Tensor, error) {
	t, err := in.need(q, key, "F32")
	if err != nil {
		return nil, err
	}
	return t, in.checkNumbers(t, true)
}

// checkCodes looks for negative values in a state that is never negative but has the
// signed map. In a block with absmax 0 every code stands for 0: bitsandbytes' CPU library
// has code 0 there, whose entry is negative.
func (in *importer) checkCodes(p *imported) error {
	if in.a.o.hyper.Rule.Signed()[0] {
		return nil
	}
	tile := tiles.Get(grain)
	defer tiles.Put(tile)
	for lo := 0; lo < p.q.total; lo += grain { // of whole blocks, whose sizes divide grain
		codes := bytesOfFloats(*tile)[:min(grain, p.q.total-lo)]
		absmax := (*tile)[grain/4:][:Blocks(len(codes), p.block)]
		if err := in.f.read(codes, p.state[0], int64(lo)); err != nil {
			return err
		}
		if err := in.f.readFloats(absmax, p.absmax[0], lo/p.block); err != nil {
			return err
		}
		for i, c := range codes {
			if v := in.maps[0][c]; v < 0 && absmax[i/p.block] != 0 {
				return fmt.Errorf("element %d has code %d, which decodes to %g, but a mean or a sum of squares is not negative: %w", lo+i, c, v, snug.ErrCorrupt)
			}
		}
	}
	return nil
}

// checkNumbers checks that all elements are finite, and perhaps not negative.
func (in *importer) checkNumbers(t *safetensors.Tensor, noNegative bool) error {
	tile := tiles.Get(grain)
	defer tiles.Put(tile)
	n := int((t.End - t.Begin) / 4)
	for lo := 0; lo < n; lo += grain {
		x := (*tile)[:min(grain, n-lo)]
		if err := in.f.readFloats(x, t, lo); err != nil {
			return err
		}
		for i, v := range x {
			if !finite(v) || noNegative && v < 0 {
				return fmt.Errorf("element %d is %g: %w", lo+i, v, snug.ErrCorrupt)
			}
		}
	}
	return nil
}

// inferBlock finds the block size from the lengths of absmax. It must be a multiple of
// the optimizer's Block.
func (p *imported) inferBlock(own int) error {
	count := (p.absmax[0].End - p.absmax[0].Begin) / 4
	if p.absmax[1] != nil {
		if other := (p.absmax[1].End - p.absmax[1].Begin) / 4; other != count {
			return fmt.Errorf("absmax1 has %d elements and absmax2 %d, want as many: %w", count, other, snug.ErrCorrupt)
		}
	}
	for _, block := range blocksOfFiles {
		if int64(Blocks(p.q.total, block)) != count {
			continue
		}
		if p.block = block; block%own == 0 {
			return nil
		}
	}
	if p.block == 0 {
		return fmt.Errorf("absmax has %d elements, which no block size gives for %d elements: %w", count, p.q.total, snug.ErrCorrupt)
	}
	return fmt.Errorf("blocks of %d elements, want a multiple of the optimizer's Block, %d: %w", p.block, own, snug.ErrConfig)
}

// copy reads the state of a parameter, chunk by chunk.
func (in *importer) copy(p imported) error {
	a := in.a
	for chunk := range Blocks(p.q.n, a.o.Chunk) {
		lo := chunk * a.o.Chunk
		n := min(a.o.Chunk, p.q.n-lo)
		err := a.withBlob(p.q, chunk, true, func(blob []byte) error {
			if p.q.bits == 32 {
				return in.copy32(p, p.q.lo+lo, p.q.split32(blob, n))
			}
			return in.copy8(p, p.q.lo+lo, p.q.split8(blob, n))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (in *importer) copy32(p imported, lo int, s state32) error {
	for i, x := range s[:p.q.states] {
		if err := in.f.readFloats(x, p.state[i], lo); err != nil {
			return err
		}
	}
	return nil
}

// copy8 reads codes. Each block of the optimizer gets the absmax of the block of the file
// that contains it.
func (in *importer) copy8(p imported, lo int, s state8) error {
	first := lo / p.block
	for i := range p.q.states {
		codes, absmax := s.codes[i], s.absmax[i]
		if err := in.f.read(codes, p.state[i], int64(lo)); err != nil {
			return err
		}
		theirs := absmax[:Blocks(lo+len(codes), p.block)-first]
		if err := in.f.readFloats(theirs, p.absmax[i], first); err != nil {
			return err
		}
		for b := len(absmax) - 1; b >= 0; b-- { // from the end, because the file's absmax are at the front
			absmax[b] = theirs[(lo+b*in.a.o.Block)/p.block-first]
		}
	}
	return nil
}

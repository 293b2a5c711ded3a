package qlora

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/safetensors"
)

// Weights is a safetensors file with 4-bit weights as bitsandbytes saves them,
// open for reading. Its header is in memory, its tensors are not. Of a weight
// called name it has
//
//	name                                     the packed codes, [⌈n/2⌉, 1]
//	name.absmax                              F32, or U8 with double quantization
//	name.quant_map                           the values of the codes, 16 F32
//	name.nested_absmax                       F32, with double quantization only
//	name.nested_quant_map                    the map of name.absmax, 256 F32, likewise
//	name.quant_state.bitsandbytes__nf4       the rest as JSON in U8, or of _fp4
//
// Tensors that are not in 4 bits are read as from any file, with package amp.
// A Weights is safe for concurrent use.
type Weights struct {
	r      io.ReaderAt
	file   *os.File // what Close closes, nil if that is the caller's
	header *safetensors.Header
}

// OpenWeights opens a safetensors file, and reads and checks its header, no more.
// It needs up to about ten times the memory of the header, which is at most 100 MB
// and no longer than the file.
//
// The error wraps [snug.ErrCorrupt] when the file is damaged or no safetensors
// file, [snug.ErrConfig] when path is a folder or anything else that is no file,
// and the errors of the operating system.
func OpenWeights(path string) (*Weights, error) {
	f, size, err := files.Open(path)
	if err != nil {
		return nil, fmt.Errorf("qlora: OpenWeights: %w", err)
	}
	h, err := safetensors.Read(f, size)
	if err != nil {
		return nil, fmt.Errorf("qlora: OpenWeights: %s: %w", path, errors.Join(err, f.Close()))
	}
	return &Weights{r: f, file: f, header: h}, nil
}

// NewWeights is [OpenWeights] of size bytes that r reads. r must allow reads by
// many goroutines if the Weights has many. Close does not close it. Errors:
// [snug.ErrCorrupt], [snug.ErrConfig] for a nil r, and those of r.
func NewWeights(r io.ReaderAt, size int64) (*Weights, error) {
	if r == nil {
		return nil, fmt.Errorf("qlora: NewWeights: the reader is nil: %w", snug.ErrConfig)
	}
	h, err := safetensors.Read(r, size)
	if err != nil {
		return nil, fmt.Errorf("qlora: NewWeights: %w", err)
	}
	return &Weights{r: r, header: h}, nil
}

// Close closes the file that OpenWeights opened. Loads then fail, and so does a
// second Close, with [os.ErrClosed].
func (w *Weights) Close() error {
	if w == nil || w.file == nil {
		return nil
	}
	return w.file.Close()
}

// Names returns the names of the 4-bit weights in the order of their data in the
// file.
func (w *Weights) Names() []string {
	if w == nil || w.header == nil {
		return nil
	}
	var names []string
	for i := range w.header.Tensors {
		for _, t := range []Type{NF4, FP4} {
			if name, found := strings.CutSuffix(w.header.Tensors[i].Name, stateSuffix(t)); found {
				names = append(names, name)
			}
		}
	}
	return names
}

// Load reads a weight to a device, nil for the CPU. It checks all that describes the weight before
// it reads the codes, which go to the CPU as they are and to other devices through
// 1 MiB of host memory; absmax in float32 take 8 bytes of it each. The weight has the type, block, shape and, with double
// quantization, the map of 1 KiB that the file gives it.
//
// Errors: [snug.ErrConfig] for a name that the file does not have as a 4-bit
// weight, [snug.ErrCorrupt] when what it has is damaged or of an unknown form,
// [snug.ErrNoMemory], and those of the reader and the device.
func (w *Weights) Load(name string, dev *snug.Device) (*Weight, error) {
	if dev == nil {
		dev = snug.CPU()
	}
	if w == nil || w.header == nil {
		return nil, fmt.Errorf("qlora: Load: weight %q: the Weights is nil, or was not made by OpenWeights or NewWeights: %w", name, snug.ErrConfig)
	}
	weight, err := w.load(name, dev)
	if err != nil {
		return nil, fmt.Errorf("qlora: Load: weight %q: %w", name, err)
	}
	return weight, nil
}

func (w *Weights) load(name string, dev *snug.Device) (_ *Weight, err error) {
	l := loader{w, name, dev}
	weight, offset, err := l.describe()
	if err != nil {
		return nil, err
	}
	whole := false
	defer func() {
		if !whole { // also when the reader panics
			err = errors.Join(err, weight.Close())
		}
	}()
	if err = l.codes(&weight.packed, "", PackedBytes(weight.n)); err == nil {
		err = l.absmax(weight, offset)
	}
	if err != nil {
		return nil, err
	}
	whole = true
	return weight, nil
}

// loader reads the tensors of one weight.
type loader struct {
	w    *Weights
	name string
	dev  *snug.Device
}

// describe returns the weight without its data, and the offset of its absmax, nil
// if those are in float32. All tensors are there and as long as they must be.
func (l loader) describe() (*Weight, *float64, error) {
	t, text, err := l.state()
	if err != nil {
		return nil, nil, err
	}
	s, err := parseState(text, t)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", stateSuffix(t)[1:], err)
	}
	weight, err := s.weight(t)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", stateSuffix(t)[1:], err)
	}
	blocks := Blocks(weight.n, weight.block)
	if s.NestedOffset == nil {
		err = l.want(".absmax", 4*blocks, "F32")
	} else {
		err = errors.Join(l.want(".absmax", blocks, "U8"), l.want(".nested_absmax", 4*Blocks(blocks, nestedBlock), "F32"),
			l.want(".nested_quant_map", 4*len(weight.m), "F32"))
	}
	err = errors.Join(l.want("", PackedBytes(weight.n), "U8", "F16", "BF16", "F32"), err, l.checkMap(t))
	return weight, s.NestedOffset, err
}

// state returns the format of the weight and its description.
func (l loader) state() (t Type, text []byte, err error) {
	var found *safetensors.Tensor
	for _, kind := range []Type{NF4, FP4} {
		if f := l.w.header.Find(l.name + stateSuffix(kind)); f != nil {
			if found != nil {
				return 0, nil, fmt.Errorf("it is both nf4 and fp4: %w", snug.ErrCorrupt)
			}
			found, t = f, kind
		}
	}
	if found == nil {
		return 0, nil, fmt.Errorf("the file has no 4-bit weight of this name: %w", snug.ErrConfig)
	}
	if n := found.End - found.Begin; found.DType != "U8" || n > maxState {
		return 0, nil, fmt.Errorf("%s is %d bytes of %s, want at most %d of U8: %w", stateSuffix(t)[1:], n, found.DType, maxState, snug.ErrCorrupt)
	}
	text = make([]byte, found.End-found.Begin)
	return t, text, safetensors.ReadFull(l.w.r, text, l.w.header.Data+found.Begin)
}

// want says whether a tensor of the weight has so many bytes of one of the types.
// Codes may be stored as any type.
func (l loader) want(suffix string, bytes int, types ...string) error {
	t := l.w.header.Find(l.name + suffix)
	if t == nil {
		return fmt.Errorf("the file has no tensor %q: %w", l.name+suffix, snug.ErrCorrupt)
	}
	for _, dt := range types {
		if t.DType == dt && t.End-t.Begin == int64(bytes) {
			return nil
		}
	}
	return fmt.Errorf("tensor %q is %d bytes of %s, want %d of %s: %w",
		l.name+suffix, t.End-t.Begin, t.DType, bytes, strings.Join(types, ", "), snug.ErrCorrupt)
}

// checkMap compares the values that the file gives the codes with those of t.
func (l loader) checkMap(t Type) error {
	const tolerance = 1e-6
	values := t.Values()
	if err := l.want(".quant_map", 4*len(values), "F32"); err != nil {
		return err
	}
	got := make([]float32, len(values))
	if err := l.floats(got, ".quant_map"); err != nil {
		return err
	}
	for c, v := range got {
		if !(v >= values[c]-tolerance && v <= values[c]+tolerance) {
			return fmt.Errorf("quant_map[%d] is %g, that of %v is %g: %w", c, v, t, values[c], snug.ErrCorrupt)
		}
	}
	return nil
}

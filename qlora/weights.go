package qlora

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/safetensors"
)

// Weights is a safetensors file, or a folder of them, with weights in 4 or 8 bits, open for
// reading. The headers are in memory, the tensors are not. An NF4 or FP4 weight called
// name has the tensors of bitsandbytes:
//
//	name                                     the packed codes, [⌈n/2⌉, 1]
//	name.absmax                              F32, or U8 with double quantization
//	name.quant_map                           the values of the codes, 16 F32
//	name.nested_absmax                       F32, with double quantization only
//	name.nested_quant_map                    the map of name.absmax, 256 F32, likewise
//	name.quant_state.bitsandbytes__nf4       the other fields as JSON in U8; __fp4 for FP4
//
// An MXFP4 weight has those of gpt-oss, an FP8 weight those of DeepSeek V3 or of compressed-tensors and FBGEMM, and an
// INT8 weight those of bitsandbytes, where name ends in "weight", which is replaced by SCB:
//
//	name_blocks, name_scales      U8 [..., in/32, 16], the code of the first of two elements in the lower half, and
//	                              U8 or F8_E8M0 [..., in/32]; the weight is [..., in]
//	name, name_scale_inv          F8_E4M3 or F8_E5M2 [out, in], and its scales: one, [out], [out, 1], or one for each
//	                              block, of 128×128 or as their shape divides [out, in]. They are F32, BF16, F16, or F8_E8M0, which
//	                              may be called U8; the name may also be name_scale
//	module.qweight, module.qzeros, module.scales, module.g_idx     I32, I32, F16, BF16 or F32, and I32, of the Grouped weight
//	                              module.weight after SetGroups; compressed-tensors has other names, see [Layout]
//	name, SCB                     I8 [out, in], and F32 [out]: the largest magnitudes of rows
//
// transformers' convert_moe_packed_tensors gives an MXFP4 weight with its last two dimensions exchanged. Package amp
// reads the other tensors.
// A Weights is safe for concurrent use.
type Weights struct {
	set    *safetensors.Set
	block  grid   // of SetBlock
	groups Groups // of SetGroups
}

// OpenWeights opens what [amp.OpenWeights] opens, with its checks, memory and errors: a
// safetensors file, or a folder with one or with shards and their index.
func OpenWeights(path string) (*Weights, error) {
	set, err := safetensors.Open(path)
	if err != nil {
		return nil, fmt.Errorf("qlora: OpenWeights: %w", err)
	}
	return &Weights{set: set}, nil
}

// NewWeights is [OpenWeights] for a file of size bytes that r reads. If many goroutines use the
// Weights, r must allow concurrent reads. Close does not close r. Errors:
// [snug.ErrCorrupt], [snug.ErrConfig] for a nil r, and the errors of r.
func NewWeights(r io.ReaderAt, size int64) (*Weights, error) {
	if r == nil {
		return nil, fmt.Errorf("qlora: NewWeights: the reader is nil: %w", snug.ErrConfig)
	}
	h, err := safetensors.Read(r, size)
	if err != nil {
		return nil, fmt.Errorf("qlora: NewWeights: %w", err)
	}
	return &Weights{set: safetensors.One(r, h, nil)}, nil
}

// SetBlock says how many rows and columns of an FP8 weight share a scale, as the description of a model does that has other blocks than
// 128×128: files have no place for it. Blocks at the ends of a matrix may have fewer. Scales for rows or for whole weights are read as
// before, and others are errors of Load. Call it before the first Load. The error wraps [snug.ErrConfig] for numbers below 1.
func (w *Weights) SetBlock(rows, cols int) error {
	if w == nil || w.set == nil {
		return fmt.Errorf("qlora: SetBlock: the Weights is nil, or was not made by OpenWeights or NewWeights: %w", snug.ErrConfig)
	}
	if rows < 1 || cols < 1 {
		return fmt.Errorf("qlora: SetBlock: a block of %d×%d, want 1 or more rows and columns: %w", rows, cols, snug.ErrConfig)
	}
	w.block = grid{rows, cols}
	return nil
}

// Close closes the files that OpenWeights opened. After that Load and a second Close
// return [os.ErrClosed].
func (w *Weights) Close() error {
	if w == nil {
		return nil
	}
	return w.set.Close()
}

// Names returns the names of the weights in the order of their data in the
// file, and of several files in the order of their names.
func (w *Weights) Names() []string {
	if w == nil || w.set == nil {
		return nil
	}
	var names []string
	for _, f := range w.set.Files {
		for i := range f.Header.Tensors {
			for _, t := range []Type{NF4, FP4} {
				if name, found := strings.CutSuffix(f.Header.Tensors[i].Name, stateSuffix(t)); found {
					names = append(names, name)
				}
			}
			if t, name := w.kindOf(&f.Header.Tensors[i]); t != 0 {
				names = append(names, name)
			}
		}
	}
	return names
}

// Load reads a weight to a device, nil for the CPU. It checks the weight's description
// before it reads the codes. The codes go straight to the CPU, and to other devices
// through 1 MiB of host memory. Every absmax in float32 takes 8 bytes of host memory while
// it is read. The file determines the type, the block and the shape of the weight and,
// with double quantization, its map of 1 KiB. The scales of other types take 8 bytes of
// host memory while they are read. Their files do not tell the type of the elements before: [Weight.DType] is bf16, or
// f16 of INT8.
//
// Errors: [snug.ErrConfig] when the file has no weight of that name,
// [snug.ErrCorrupt] when its tensors are damaged or of an unknown form, and when codes or scales
// are no finite numbers, [snug.ErrDevice] for 8 bits on a device other than the CPU,
// [snug.ErrNoMemory], and the errors of the reader and the device.
func (w *Weights) Load(name string, dev *snug.Device) (*Weight, error) {
	if dev == nil {
		dev = snug.CPU()
	}
	if w == nil || w.set == nil {
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
	if t, codes := l.kind(); t != 0 {
		return l.loadKind(t, codes)
	}
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

// describe checks that all tensors exist and have the right length. It returns the weight
// without its data, and the offset of its absmax, nil if the absmax are in float32.
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
	var at safetensors.Place
	for _, kind := range []Type{NF4, FP4} {
		if p, found := l.w.set.Find(l.name + stateSuffix(kind)); found {
			if at.Tensor != nil {
				return 0, nil, fmt.Errorf("it is both nf4 and fp4: %w", snug.ErrCorrupt)
			}
			at, t = p, kind
		}
	}
	found := at.Tensor
	if found == nil {
		return 0, nil, l.missing()
	}
	if n := found.End - found.Begin; found.DType != "U8" || n > maxState {
		return 0, nil, fmt.Errorf("%s is %d bytes of %s, want at most %d of U8: %w", stateSuffix(t)[1:], n, found.DType, maxState, snug.ErrCorrupt)
	}
	text = make([]byte, found.End-found.Begin)
	return t, text, l.w.set.Read(at, text, 0)
}

// want returns an error unless the weight has the tensor, with the given number of bytes
// and one of the types. Codes may be stored as any type.
func (l loader) want(suffix string, bytes int, types ...string) error {
	p, found := l.w.set.Find(l.name + suffix)
	if !found {
		return fmt.Errorf("the file has no tensor %q: %w", l.name+suffix, snug.ErrCorrupt)
	}
	t := p.Tensor
	for _, dt := range types {
		if t.DType == dt && t.End-t.Begin == int64(bytes) {
			return nil
		}
	}
	return fmt.Errorf("tensor %q is %d bytes of %s, want %d of %s: %w",
		l.name+suffix, t.End-t.Begin, t.DType, bytes, strings.Join(types, ", "), snug.ErrCorrupt)
}

// checkMap compares the file's values of the codes with the values of t.
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
			return fmt.Errorf("quant_map[%d] is %g, want %g for %v: %w", c, v, values[c], t, snug.ErrCorrupt)
		}
	}
	return nil
}

package qlora

import (
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/ggml"
	"github.com/snug-ml/snug/internal/safetensors"
	"github.com/snug-ml/snug/internal/sweep"
	"github.com/snug-ml/snug/quant8"
)

// Options say how [NewWeight] quantizes. The zero Options are the settings of the QLoRA
// paper.
type Options struct {
	Type   Type   // NF4 if 0; not GGUF
	Block  int    // of NF4 and FP4: a power of two from MinBlock to MaxBlock, 64 if 0. 0 for other types
	Single bool   // of NF4 and FP4: keep the absmax of blocks in float32, no double quantization
	Scales Scales // of FP8 and FP8E5M2
	// Outliers are columns of an INT8 weight, ascending, that stay in 16 bits: float16 if the weight is, else bfloat16.
	// They do not count for the scales. LLM.int8 keeps the columns whose features of x are large. On the CPU only.
	Outliers []int
}

// Weight is a tensor in 4 or 8 bits an element, or in the blocks of llama.cpp's files, on one device. It does not change
// and is safe for concurrent use until Close. A nil or zero Weight has no elements; methods
// that need elements return [snug.ErrConfig].
type Weight struct {
	shape  []int
	n      int
	dtype  snug.DType
	t      Type
	blocks gguf.Type   // of GGUF
	format ggml.Format // likewise
	block  int
	packed snug.Array[uint8]
	absmax snug.Array[float32] // without double quantization
	codes  snug.Array[uint8]   // with double quantization: the codes of absmax
	nested snug.Array[float32] // with double quantization: the absmax of codes
	offset float32
	m      *quant8.Map // map of codes, nil without double quantization

	// Of types of 8 bits: packed has a byte for each code, and absmax the scales.
	grid     grid
	outliers []int                     // columns
	kept     snug.Array[snug.BFloat16] // their elements, [out, len(outliers)], in the bits of keptType

	groups *groups // of Grouped: packed has the codes, absmax the scales, and codes the zero points

	pages *pages // where the arrays above lie otherwise, nil if they hold the weight
}

// NewWeight quantizes src, a row-major tensor of the given shape, on the device where it lies. [Weight.Bytes] is the
// memory that the weight takes there.
//
// Double quantization runs on the host for every device, so its bits are the same everywhere. During the call it needs
// 4 bytes a block on the device and 5 bytes a block of host memory, and it waits for the device. Types of 8 bits need 4
// bytes for every row of a block. MXFP4 and types of 8 bits are quantized on the host, which then holds a copy of src
// and of the codes.
//
// Errors: the errors of [Quantize]; [snug.ErrShape] when shape and src differ in the number of elements, for rows that
// are no multiple of 32 elements in MXFP4, and for types of 8 bits unless there are two dimensions; [snug.ErrConfig] for
// options of another type and outliers that are no ascending columns; [snug.ErrDevice] for Outliers on a device other
// than the CPU; and [snug.ErrNoMemory]. In NF4 and FP4 on devices other than the CPU a NaN or infinity is an error with
// double quantization only, see Quantize.
func NewWeight[V snug.Vector](src V, shape []int, opt Options) (*Weight, error) {
	w, err := newWeight(snug.ViewOf(src), shape, opt)
	return w, fault.Of(err, "qlora: new weight")
}

func newWeight(src snug.View, shape []int, opt Options) (*Weight, error) {
	if err := opt.complete(); err != nil {
		return nil, err
	}
	n, err := safetensors.Elements(shape)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrShape)
	}
	if n != src.Len() {
		return nil, fmt.Errorf("a shape of %d elements, src has %d: %w", n, src.Len(), snug.ErrShape)
	}
	w := &Weight{shape: slices.Clone(shape), n: n, dtype: src.DType(), t: opt.Type, block: opt.Block}
	dev, err := snug.CommonDevice(src)
	if err == nil {
		err = w.quantize(dev, src, opt)
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// complete sets defaults and checks the options.
func (o *Options) complete() error {
	if o.Type == 0 {
		o.Type = NF4
	}
	byBits := o.Type == NF4 || o.Type == FP4
	if byBits && o.Block == 0 {
		o.Block = 64
	}
	switch {
	case o.Type == Grouped:
		return fmt.Errorf("the option Type is grouped, want one of %q; Weights.Load reads groups of a file: %w", madeNames, snug.ErrConfig)
	case o.Type == GGUF:
		return fmt.Errorf("the option Type is gguf, want one of %q; NewBlocks takes blocks of a file: %w", madeNames, snug.ErrConfig)
	case o.Type.Bits() == 0:
		return fmt.Errorf("format %d, want one of %q: %w", o.Type, madeNames, snug.ErrConfig)
	case !byBits && (o.Block != 0 || o.Single):
		return fmt.Errorf("the options Block and Single are for NF4 and FP4, and Type is %s: %w", o.Type, snug.ErrConfig)
	case o.Scales > ByTensor || o.Scales != 0 && o.Type != FP8 && o.Type != FP8E5M2:
		return fmt.Errorf("the option Scales is %d, and Type is %s: %w", o.Scales, o.Type, snug.ErrConfig)
	case len(o.Outliers) > 0 && o.Type != INT8:
		return fmt.Errorf("the option Outliers is for INT8, and Type is %s: %w", o.Type, snug.ErrConfig)
	case byBits:
		return checkFormat(o.Type, o.Block)
	case o.Type == MXFP4:
		o.Block = mxBlock
	}
	return nil
}

// quantize makes the memory of src.
func (w *Weight) quantize(dev *snug.Device, src snug.View, opt Options) error {
	switch {
	case opt.Type == NF4 || opt.Type == FP4:
		err := w.fill(dev, src)
		if err == nil && !opt.Single {
			err = w.double(dev)
		}
		return err
	case opt.Type == MXFP4:
		return w.fillMX(dev, src)
	}
	return w.fillOctets(dev, src, opt)
}

// finiteSource returns src, or a copy of it on the host if it lies elsewhere. A NaN or an infinity in it is an error.
func finiteSource(src snug.View) (snug.View, error) {
	if !src.Device().IsCPU() {
		host, _, err := snug.MakeView(snug.CPU(), src.DType(), src.Len())
		if err == nil {
			err = snug.Copy(host, src)
		}
		if err != nil {
			return src, err
		}
		src = host
	}
	if i := sweep.First(src, 1, sweep.Infinity); i >= 0 {
		return src, fmt.Errorf("src[%d] is NaN or infinite: %w", i, snug.ErrNonFinite)
	}
	return src, nil
}

// fill makes the codes and absmax of src.
func (w *Weight) fill(dev *snug.Device, src snug.View) (err error) {
	if w.packed, err = snug.Make[uint8](dev, PackedBytes(w.n)); err != nil {
		return err
	}
	if w.absmax, err = snug.Make[float32](dev, Blocks(w.n, w.block)); err != nil {
		return err
	}
	return quantize(w.packed.View(), w.absmax.View(), src, w.t, w.block)
}

// double replaces the absmax by their 8-bit codes.
func (w *Weight) double(dev *snug.Device) error {
	absmax := make([]float32, w.absmax.Len())
	if err := w.absmax.CopyOut(absmax); err != nil {
		return err
	}
	codes, nested := make([]uint8, len(absmax)), make([]float32, Blocks(len(absmax), nestedBlock))
	offset, err := DoubleQuantize(codes, nested, absmax)
	if err != nil {
		return err
	}
	if err := w.absmax.Close(); err != nil {
		return err
	}
	w.absmax, w.offset, w.m = snug.Array[float32]{}, offset, signed
	if w.codes, err = put(dev, codes); err != nil {
		return err
	}
	w.nested, err = put(dev, nested)
	return err
}

// put copies x to a device; on the CPU it keeps x.
func put[T snug.Element](dev *snug.Device, x []T) (snug.Array[T], error) {
	if dev.IsCPU() {
		return snug.FromSlice(x), nil
	}
	a, err := snug.Make[T](dev, len(x))
	if err == nil {
		err = a.CopyIn(x)
	}
	return a, err
}

// usable returns an error unless w was made and is not closed.
func (w *Weight) usable() error {
	switch {
	case w == nil:
		return fmt.Errorf("the weight is nil: %w", snug.ErrConfig)
	case w.t == 0:
		return fmt.Errorf("the weight was not made by NewWeight, NewBlocks or Weights.Load: %w", snug.ErrConfig)
	case w.pages == nil && w.packed.View().Len() != w.codeBytes() || w.pages != nil && w.pages.closed:
		return fmt.Errorf("the weight is closed: %w", snug.ErrDevice)
	}
	return nil
}

// Shape returns the dimensions; the last one is contiguous. The slice is not a copy: do not
// change it.
func (w *Weight) Shape() []int {
	if w == nil {
		return nil
	}
	return w.shape
}

// Len returns the number of elements, the product of the dimensions.
func (w *Weight) Len() int {
	if w == nil {
		return 0
	}
	return w.n
}

// Type returns the format of the codes.
func (w *Weight) Type() Type {
	if w == nil {
		return 0
	}
	return w.t
}

// Block returns the elements of a block; for types of 8 bits the columns that share a scale; for GGUF those of [gguf.Type.Block].
func (w *Weight) Block() int {
	if w == nil {
		return 0
	}
	return w.block
}

// Double reports whether the absmax of blocks are in 8 bits.
func (w *Weight) Double() bool { return w != nil && w.m != nil }

// DType returns the type of the elements before they were quantized: f32, f16 or
// bf16. It is f32 for GGUF.
func (w *Weight) DType() snug.DType {
	if w == nil {
		return 0
	}
	return w.dtype
}

// Device returns the device of the weight, the CPU for a nil or zero Weight.
func (w *Weight) Device() *snug.Device {
	if w == nil {
		return snug.CPU()
	}
	return w.packed.Device()
}

// Packed returns the codes, two in each of [PackedBytes](Len()) bytes, or one in each of Len() for types of 8 bits, or the
// blocks of GGUF, on the device of the weight. Do not change them.
func (w *Weight) Packed() snug.View {
	if w == nil {
		return snug.View{}
	}
	return w.packed.View() // of a weight in a Storage empty
}

// Absmax returns a new host copy of the blocks' absmax, in the form that [Dequantize]
// takes; of MXFP4 the powers of two, and of types of 8 bits the scales, row by row. It is empty for GGUF, whose
// blocks have their scales. It waits for the device. Errors: [snug.ErrDevice] for a closed weight,
// [snug.ErrConfig] for a nil or zero one, and the errors of the device.
func (w *Weight) Absmax() (_ []float32, err error) {
	m, err := w.hold()
	if err != nil {
		return nil, fmt.Errorf("qlora: absmax: %w", err)
	}
	defer func() { err = errors.Join(err, w.drop()) }()
	absmax := make([]float32, w.scaleCount())
	if w.m == nil {
		return absmax, snug.Copy(absmax, m.absmax)
	}
	codes, nested := make([]uint8, m.codes.Len()), make([]float32, m.nested.Len())
	if err := errors.Join(snug.Copy(snug.SliceView(codes), m.codes), snug.Copy(nested, m.nested)); err != nil {
		return nil, err
	}
	unnest(absmax, codes, nested, w.offset, w.m, 0)
	return absmax, nil
}

// Bytes returns the memory of the codes and their absmax on the weight's device, or in its [Storage]. The codes of n
// elements take n/2 bytes. In blocks of 64 the absmax take n/16 bytes more, or n/63 with double quantization. Together
// that is 4.5 or 4.127 bits an element, and 4.254 in MXFP4. Types of 8 bits take
// a byte an element, 4 bytes a scale and 2 bytes an element of an outlier's column. GGUF takes its blocks.
func (w *Weight) Bytes() int64 {
	if w == nil {
		return 0
	}
	packed, absmax, codes, nested, kept := w.lens()
	return int64(packed) + int64(codes) + 4*(int64(absmax)+int64(nested)) + 2*int64(kept)
}

// Dequantize writes the elements to dst, which has any floating-point type and lies on the
// weight's device: value[code]·absmax, computed in float32 and rounded once. In INT8 the product is rounded to float32
// and then multiplied by the float32 next to 1/127, as bitsandbytes does. GGUF has the float32 of [gguf.Type.Decode]. It does not
// wait for the device. It needs no memory: with double quantization each worker decodes up
// to 2 KiB of absmax at a time. Errors, with nothing written: [snug.ErrDType],
// [snug.ErrShape], [snug.ErrDevice], also for a closed weight, and [snug.ErrConfig] for a
// nil or zero one.
func (w *Weight) Dequantize(dst snug.View) error {
	if err := w.usable(); err != nil {
		return fmt.Errorf("qlora: dequantize: %w", err)
	}
	if dst.DType().IsFloat() && dst.Len() != w.n {
		return fmt.Errorf("qlora: dequantize: dst has %d elements, the weight %d: %w", dst.Len(), w.n, snug.ErrShape)
	}
	return w.dequantizeRange(dst, 0)
}

// unit is a number of elements: parts of w that begin at a multiple of it can be decoded.
func (w *Weight) unit() int {
	switch {
	case w.grid.rows > 0 || w.groups != nil && !w.groups.plain():
		return max(1, w.shape[1])
	case w.Double():
		return w.block * nestedBlock
	}
	return w.block
}

// codeBlock returns how many elements of a row share a scale in the loops over codes, 0 if these do not take w.
func (w *Weight) codeBlock() int {
	in := w.shape[1]
	switch {
	case w.groups != nil && !w.groups.blocks(w.block):
		return 0
	case w.grid.rows > 0:
		return w.grid.codeBlock(in, len(w.outliers))
	case in%w.block == 0:
		return w.block
	}
	return 0
}

// dequantizeRange decodes len(dst) elements from begin on, a multiple of the unit.
func (w *Weight) dequantizeRange(dst snug.View, begin int) (err error) {
	if !dst.DType().IsFloat() {
		return fmt.Errorf("qlora: dequantize: dst holds %s, want f32, f16 or bf16: %w", dst.DType(), snug.ErrDType)
	}
	m, err := w.hold()
	if err != nil {
		return fmt.Errorf("qlora: dequantize: %w", err)
	}
	defer func() { err = errors.Join(err, w.drop()) }()
	dev, err := snug.CommonDevice(dst, m.packed)
	if err != nil {
		return fmt.Errorf("qlora: dequantize: %w", err)
	}
	switch {
	case dst.Len() == 0:
		return nil
	case w.t == GGUF:
		return device.Run(dev, blocksJob{dst, w.blockPart(m, begin, dst.Len()), w.format})
	case w.grid.rows > 0:
		return device.Run(dev, w.decodeRows(dst, begin, m))
	case w.groups != nil && !w.groups.plain():
		return device.Run(dev, w.decodeGroups(dst, begin, m))
	}
	return device.Run(dev, w.decodeBlocks(dst, begin, m))
}

// decodeBlocks returns the job that decodes elements of blocks from begin on.
func (w *Weight) decodeBlocks(dst snug.View, begin int, m memory) dequantizeJob {
	j := dequantizeJob{dst: dst, f: w.t.nibbles(), block: w.block, offset: w.offset, m: w.m}
	end := begin + dst.Len()
	first, last := begin/w.block, Blocks(end, w.block)
	j.packed = part(m.packed, begin/2, PackedBytes(end))
	j.absmax = m.absmax
	if w.m != nil {
		j.absmax = m.codes
		j.nested = part(m.nested, first/nestedBlock, Blocks(last, nestedBlock))
	}
	j.absmax = part(j.absmax, first, last)
	return j
}

// Close frees the memory on a device. Closing twice does nothing.
func (w *Weight) Close() error {
	if w == nil {
		return nil
	}
	if w.pages != nil {
		w.pages.closed = true
	}
	return errors.Join(w.packed.Close(), w.absmax.Close(), w.codes.Close(), w.nested.Close(), w.kept.Close())
}

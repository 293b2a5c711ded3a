package qlora

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/safetensors"
	"github.com/snug-ml/snug/internal/sweep"
)

// staged is how many bytes pass through the host at a time.
const staged = 1 << 20

// codes reads a tensor of n bytes to the device, into memory that it makes there.
func (l loader) codes(to *snug.Array[uint8], suffix string, n int) error {
	return l.codesTurned(to, suffix, n, func([]byte) {})
}

// codesTurned is codes with a change of the bytes.
func (l loader) codesTurned(to *snug.Array[uint8], suffix string, n int, turn func(b []byte)) (err error) {
	if *to, err = snug.Make[uint8](l.dev, n); err != nil {
		return err
	}
	p, _ := l.w.set.Find(l.name + suffix) // describe has looked at it
	if l.dev.IsCPU() {
		err := l.w.set.Read(p, to.Host(), 0)
		turn(to.Host())
		return err
	}
	buf := make([]uint8, min(n, staged))
	for lo := 0; lo < n && err == nil; lo += staged {
		piece := buf[:min(staged, n-lo)]
		if err = l.w.set.Read(p, piece, int64(lo)); err == nil {
			turn(piece)
			err = copyIn(*to, lo, piece)
		}
	}
	return err
}

func copyIn[T snug.Element](a snug.Array[T], lo int, piece []T) error {
	to, err := a.Slice(lo, lo+len(piece))
	if err != nil {
		return err
	}
	return to.CopyIn(piece)
}

// absmax reads the absmax of a weight: in float32, or their codes.
func (l loader) absmax(w *Weight, offset *float64) (err error) {
	blocks := Blocks(w.n, w.block)
	if offset == nil {
		w.absmax, err = l.finite(".absmax", blocks)
		return err
	}
	if err := l.floats(w.m[:], ".nested_quant_map"); err != nil {
		return err
	}
	if i := sweep.First(snug.SliceView(w.m[:]), 1, sweep.Infinity); i >= 0 {
		return fmt.Errorf("nested_quant_map[%d] is %g, want a finite value: %w", i, w.m[i], snug.ErrCorrupt)
	}
	if err = l.codes(&w.codes, ".absmax", blocks); err != nil {
		return err
	}
	w.nested, err = l.finite(".nested_absmax", Blocks(blocks, nestedBlock))
	return err
}

// finite reads a tensor of n finite numbers to the device.
func (l loader) finite(suffix string, n int) (snug.Array[float32], error) {
	x := make([]float32, n)
	if err := l.floats(x, suffix); err != nil {
		return snug.Array[float32]{}, err
	}
	if i := sweep.First(snug.SliceView(x), 1, sweep.Infinity); i >= 0 {
		return snug.Array[float32]{}, fmt.Errorf("%s[%d] is %g, want a finite value: %w", suffix[1:], i, x[i], snug.ErrCorrupt)
	}
	return put(l.dev, x)
}

// floats reads a tensor of float32 into x.
func (l loader) floats(x []float32, suffix string) error {
	p, _ := l.w.set.Find(l.name + suffix)
	b := make([]byte, 4*len(x))
	if err := l.w.set.Read(p, b, 0); err != nil {
		return err
	}
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return nil
}

// WriteWeights writes a safetensors file of weights to w, in the form that [Weights]
// describes, and returns the number of bytes written. bitsandbytes reads those of NF4 and FP4 with
// QuantState.from_dict. The tensors of a weight have the name that weights yields, such as
// "model.layers.0.mlp.up_proj.weight". metadata may be nil; some readers want "pt" under
// its key "format".
//
// It walks once and checks everything before it writes the first byte. It needs a few
// times the memory of the header, and up to 2 MiB more. It waits for devices.
//
// Errors, with nothing written: [snug.ErrConfig] when w, weights or one of them is
// nil or zero, a weight is in a Storage or GGUF, which package gguf writes, an INT8 weight has Outliers or a name that does not end
// in "weight", a name comes twice or is not UTF-8, or the header would exceed 100 MB;
// [snug.ErrDevice] for a closed weight. Other errors come from w or from a device.
func WriteWeights(w io.Writer, weights iter.Seq2[string, *Weight], metadata map[string]string) (int64, error) {
	if w == nil {
		return 0, fmt.Errorf("qlora: WriteWeights: the writer is nil: %w", snug.ErrConfig)
	}
	p, err := planFile(weights, metadata)
	if err != nil {
		return 0, fmt.Errorf("qlora: WriteWeights: %w", err)
	}
	n, err := p.writeTo(w)
	return n, fault.Of(err, "qlora: WriteWeights")
}

// filePlan is a file to write.
type filePlan struct {
	tensors []safetensors.Tensor // as they come
	data    map[string]snug.View // of every tensor, U8 or F32
	swapped map[string]bool      // tensors whose bytes are written with their halves swapped
	header  *safetensors.Header
}

func planFile(weights iter.Seq2[string, *Weight], metadata map[string]string) (*filePlan, error) {
	if weights == nil {
		return nil, fmt.Errorf("no weights, the walker is nil: %w", snug.ErrConfig)
	}
	p := &filePlan{data: map[string]snug.View{}, swapped: map[string]bool{}}
	for name, w := range weights {
		if err := p.weight(name, w); err != nil {
			return nil, fmt.Errorf("weight %q: %w", name, err)
		}
	}
	var err error
	p.header, err = safetensors.New(p.tensors, metadata)
	return p, err
}

// weight adds the tensors of w.
func (p *filePlan) weight(name string, w *Weight) error {
	if err := w.usable(); err != nil {
		return err
	}
	if w.pages != nil {
		return fmt.Errorf("the weight is in a Storage: %w", snug.ErrConfig)
	}
	if w.t != NF4 && w.t != FP4 {
		return p.kind(name, w)
	}
	text, err := json.Marshal(describe(w))
	if err != nil {
		return err
	}
	values := w.t.Values()
	p.add(name, w.packed.View(), w.packed.Len(), 1)
	p.add(name+".quant_map", snug.SliceView(values[:]), len(values))
	p.add(name+stateSuffix(w.t), snug.SliceView(text), len(text))
	if w.m == nil {
		p.add(name+".absmax", w.absmax.View(), w.absmax.Len())
		return nil
	}
	p.add(name+".absmax", w.codes.View(), w.codes.Len())
	p.add(name+".nested_absmax", w.nested.View(), w.nested.Len())
	p.add(name+".nested_quant_map", snug.SliceView(w.m[:]), len(w.m))
	return nil
}

// kind adds the tensors of a weight of another form.
func (p *filePlan) kind(name string, w *Weight) error {
	scales := []int{}
	switch {
	case w.t == GGUF:
		return fmt.Errorf("blocks of %s, which package gguf writes: %w", w.blocks, snug.ErrConfig)
	case w.t == Grouped:
		return fmt.Errorf("a grouped weight, which is not written: %w", snug.ErrConfig)
	case w.t == MXFP4:
		last := len(w.shape) - 1
		blocks := append(append([]int(nil), w.shape[:last]...), w.shape[last]/mxBlock)
		p.swapped[name+mxBlocks] = true
		p.add(name+mxBlocks, w.packed.View(), append(blocks, mxBlock/2)...)
		p.add(name+mxScales, w.codes.View(), blocks...)
		return nil
	case len(w.outliers) > 0:
		return fmt.Errorf("no file has columns of outliers: %w", snug.ErrConfig)
	case w.t == INT8:
		if rowScaleOf(name) == "" {
			return fmt.Errorf("an INT8 weight whose name does not end in \"weight\": %w", snug.ErrConfig)
		}
		p.add(rowScaleOf(name), w.absmax.View(), w.absmax.Len())
		p.addAs("I8", name, w.packed.View(), w.shape...)
		return nil
	case w.n == 0:
		scales = []int{0}
	case w.grid.rows == 1 && w.grid.perRow(w.shape[1]):
		scales = []int{w.shape[0], 1}
	case w.scaleCount() > 1:
		scales = []int{cpu.Chunks(w.shape[0], w.grid.rows), cpu.Chunks(w.shape[1], w.grid.cols)}
	}
	suffix := otherScale
	if len(scales) > 0 && w.grid.rows > 1 {
		suffix = blockScale
	}
	p.add(name+suffix, w.absmax.View(), scales...)
	p.addAs(map[Type]string{FP8: "F8_E4M3", FP8E5M2: "F8_E5M2"}[w.t], name, w.packed.View(), w.shape...)
	return nil
}

func (p *filePlan) add(name string, v snug.View, shape ...int) {
	dt := "U8"
	if v.DType() == snug.F32 {
		dt = "F32"
	}
	p.addAs(dt, name, v, shape...)
}

func (p *filePlan) addAs(dt, name string, v snug.View, shape ...int) {
	p.tensors = append(p.tensors, safetensors.Tensor{Name: name, DType: dt, Shape: shape})
	p.data[name] = v
}

// writeTo writes the file and returns the number of bytes written.
func (p *filePlan) writeTo(w io.Writer) (int64, error) {
	s := stage{make([]float32, staged/4), make([]byte, staged)}
	return p.header.Write(w, func(t *safetensors.Tensor, write func(b []byte) error) error {
		return s.write(write, p.data[t.Name], p.swapped[t.Name])
	})
}

// stage is the buffer through which tensors pass, len(floats) elements at a time.
type stage struct {
	floats []float32
	bytes  []byte
}

// write writes the elements of a tensor.
func (s *stage) write(write func(b []byte) error, v snug.View, swapped bool) error {
	for i := range cpu.Chunks(v.Len(), len(s.floats)) {
		lo, hi := cpu.Chunk(v.Len(), len(s.floats), i)
		b, err := s.get(part(v, lo, hi))
		if swapped {
			swapHalves(b)
		}
		if err == nil {
			err = write(b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// get returns the bytes of elements in a file.
func (s *stage) get(v snug.View) ([]byte, error) {
	if v.DType() == snug.F32 {
		x := s.floats[:v.Len()]
		err := snug.Copy(x, v)
		return littleEndian(s.bytes, x), err
	}
	b := s.bytes[:v.Len()]
	return b, snug.Copy(snug.SliceView(b), v)
}

// littleEndian returns the bytes of x in a file, in the memory of b.
func littleEndian(b []byte, x []float32) []byte {
	b = b[:0]
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

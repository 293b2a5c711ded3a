package amp

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/safetensors"
)

// Tensor describes a tensor of a safetensors file.
type Tensor struct {
	Name string
	// DType is the element type by its name in the file: BOOL, F4, F6_E2M3,
	// F6_E3M2, U8, I8, F8_E5M2, F8_E4M3, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, I16,
	// U16, F16, BF16, I32, U32, F32, C64, F64, I64 or U64.
	DType string
	// Shape has the dimensions; the last one is contiguous. Without
	// dimensions it is one element.
	Shape []int
	// Make, for writing only, gives the elements when they are written, so that not all have
	// to exist at once; the walker yields an empty View then. They may change after the
	// next call. nil: the walker yields the elements.
	Make func() (snug.View, error)
}

// Len returns the number of elements, the product of the dimensions.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Bytes returns the size of the elements in the file, 0 for an unknown DType.
func (t Tensor) Bytes() int64 { return int64(t.Len()) * safetensors.Bits(t.DType) / 8 }

// ElementType returns [snug.F32], [snug.F16], [snug.BF16], [snug.F8E4M3] or [snug.F8E5M2] for the
// types that are converted when they are loaded and saved, and 0 for others, which are bytes: see
// [Weights.ReadBytes] and [WriteWeights].
func (t Tensor) ElementType() snug.DType { return elementType(t.DType) }

func elementType(name string) snug.DType {
	switch name {
	case "F32":
		return snug.F32
	case "F16":
		return snug.F16
	case "BF16":
		return snug.BF16
	case "F8_E4M3":
		return snug.F8E4M3
	case "F8_E5M2":
		return snug.F8E5M2
	}
	return 0
}

// Weights are the tensors of a safetensors file, or of a folder with several, open for
// reading. The headers are in memory, the tensors are not. The format is
// github.com/huggingface/safetensors. A Weights is safe for concurrent use. A nil or zero
// Weights has no tensors.
type Weights struct{ set *safetensors.Set }

// OpenWeights opens the weights at a path: a safetensors file, a folder, or the index of
// a folder. In a folder they are the shards that model.safetensors.index.json names, or
// the file model.safetensors where there is no index. It reads and checks the
// headers, no more.
//
// The tensors of a file must lie one after the other and fill the file, as the format
// demands; fields that the format does not know are passed over. An index must name the
// shard of every tensor, and every tensor of the shards. Its metadata, which tools get wrong,
// does not count. Shards are regular files of the folder, or links to regular files. Nothing may save into the
// folder meanwhile.
//
// OpenWeights needs up to about ten times the memory of the headers and keeps all shards
// open. A header has at most 100 MB and is no longer than its file.
//
// The error wraps [snug.ErrCorrupt] when a file is damaged or no safetensors
// file, has a tensor with more elements than an int holds, or does not belong to the
// others; [snug.ErrConfig] when path is no file and no folder, when a folder has no weights
// or two sets of them, or a file there is a pipe, a device or a link to nothing; and the errors of the operating system.
func OpenWeights(path string) (*Weights, error) {
	set, err := safetensors.Open(path)
	if err != nil {
		return nil, fmt.Errorf("amp: OpenWeights: %w", err)
	}
	return &Weights{set}, nil
}

// NewWeights is [OpenWeights] for a file of size bytes that r reads: in memory, in an
// archive, or elsewhere. If many goroutines use the Weights, r must allow concurrent
// reads. Close does not close r. Errors: [snug.ErrCorrupt], [snug.ErrConfig] for a nil r,
// and the errors of r.
func NewWeights(r io.ReaderAt, size int64) (*Weights, error) {
	if r == nil {
		return nil, fmt.Errorf("amp: NewWeights: the reader is nil: %w", snug.ErrConfig)
	}
	h, err := safetensors.Read(r, size)
	if err != nil {
		return nil, fmt.Errorf("amp: NewWeights: %w", err)
	}
	return &Weights{safetensors.One(r, h, nil)}, nil
}

// Close closes the files that OpenWeights opened. Loads then fail, and so does a
// second Close, with [os.ErrClosed].
func (w *Weights) Close() error {
	if w == nil {
		return nil
	}
	return w.set.Close()
}

// Tensors returns all tensors in the order of their data in the file, and of several
// files in the order of their names. The shapes are not copies: do not change them.
func (w *Weights) Tensors() []Tensor {
	if w == nil || w.set == nil {
		return nil
	}
	list := []Tensor{}
	for _, f := range w.set.Files {
		list = slices.Grow(list, len(f.Header.Tensors))
		for i := range f.Header.Tensors {
			list = append(list, describe(&f.Header.Tensors[i]))
		}
	}
	return list
}

func describe(t *safetensors.Tensor) Tensor {
	return Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// Tensor returns the tensor of a name, and whether the file has it.
func (w *Weights) Tensor(name string) (Tensor, bool) {
	p, found := w.find(name)
	if !found {
		return Tensor{}, false
	}
	return describe(p.Tensor), true
}

// Metadata returns what the file says of itself, often its "format", and nil if
// that is nothing. If there are several files, it holds what all of them say. It is not a copy: do not
// change it.
func (w *Weights) Metadata() map[string]string {
	if w == nil || w.set == nil {
		return nil
	}
	return w.set.Metadata
}

// find returns the tensor of a name.
func (w *Weights) find(name string) (safetensors.Place, bool) {
	if w == nil {
		return safetensors.Place{}, false
	}
	return w.set.Find(name)
}

// Load reads a tensor into dst, which holds float32, float16 or bfloat16, has as
// many elements as the tensor and lies on any device. The elements are converted
// as by [Cast]: rounded to nearest with ties to even, values beyond the range of
// dst to infinities, and kept as they are in dst's own type. On the CPU dst may also hold
// F8E4M3 or F8E5M2. Elements of 8 bits are read as they are: scales that belong to them are
// tensors of their own, which package qlora multiplies by.
//
// Memory: a load on the CPU in the file's type reads into dst itself; one that
// converts, or into another device, goes through 256 KiB of pooled memory, and
// one that does both through twice that. It waits for the file, for a device only
// as [snug.Copy] does.
//
// Errors, with nothing written: [snug.ErrConfig] for a name that the file lacks,
// [snug.ErrDType] when the tensor or dst is not of these types, [snug.ErrShape],
// [snug.ErrDevice]. With a part of dst written: [snug.ErrCorrupt] when the file
// has become shorter, and the errors of the reader and the device.
func (w *Weights) Load(name string, dst snug.View) error {
	p, err := w.check(name, true, 0, dst)
	if err == nil {
		err = w.read(p, 0, dst)
	}
	if err != nil {
		return fmt.Errorf("amp: Load: tensor %q: %w", name, err)
	}
	return nil
}

// LoadAt is [Weights.Load] of a part of a tensor: of elements lo to
// lo+dst.Len()-1. With it [Master.Add] fills its chunks. The error wraps
// [snug.ErrShape] when the tensor does not have them.
func (w *Weights) LoadAt(name string, lo int, dst snug.View) error {
	p, err := w.check(name, false, lo, dst)
	if err == nil {
		err = w.read(p, lo, dst)
	}
	if err != nil {
		return fmt.Errorf("amp: LoadAt: tensor %q: %w", name, err)
	}
	return nil
}

// ReadBytes reads the bytes lo to lo+len(dst)-1 of a tensor of any type, as they are in the
// file: the elements in the order of the dimensions, numbers little-endian, and elements of
// fewer than 8 bits packed as the file's writer did. [Tensor.Bytes] says how many there
// are. It reads into dst itself, and allocates nothing.
//
// Errors, with nothing written: [snug.ErrConfig] for a name that the file lacks, and
// [snug.ErrShape] when the tensor does not have these bytes. With a part of dst written:
// [snug.ErrCorrupt] when the file has become shorter, and the errors of the reader.
func (w *Weights) ReadBytes(name string, lo int64, dst []byte) error {
	err := w.readBytes(name, lo, dst)
	if err != nil {
		return fmt.Errorf("amp: ReadBytes: tensor %q: %w", name, err)
	}
	return nil
}

func (w *Weights) readBytes(name string, lo int64, dst []byte) error {
	p, found := w.find(name)
	if !found {
		return fmt.Errorf("the file has no such tensor: %w", snug.ErrConfig)
	}
	if size := p.Tensor.End - p.Tensor.Begin; lo < 0 || lo > size-int64(len(dst)) {
		return fmt.Errorf("%d bytes from %d on, it has %d: %w", len(dst), lo, size, snug.ErrShape)
	}
	return w.set.Read(p, dst, lo)
}

// LoadAll is [Weights.Load] for all parameters of a model: params yields their
// names in the file and their destinations. It walks once, checks everything before it
// writes the first, and reads in the order of the file. Tensors that params does not
// yield are ignored; the error names the first tensor that the file lacks.
// It keeps a list of the parameters meanwhile.
//
// Errors are the errors of Load, and [snug.ErrConfig] when params is nil.
func (w *Weights) LoadAll(params iter.Seq2[string, snug.View]) error {
	loads, err := w.plan(params)
	if err != nil {
		return fmt.Errorf("amp: LoadAll: %w", err)
	}
	for _, l := range loads {
		if err := w.read(l.from, 0, l.to); err != nil {
			return fmt.Errorf("amp: LoadAll: tensor %q: %w", l.from.Tensor.Name, err)
		}
	}
	return nil
}

type load struct {
	from safetensors.Place
	to   snug.View
}

// plan returns what LoadAll does, in the order of the file.
func (w *Weights) plan(params iter.Seq2[string, snug.View]) ([]load, error) {
	if params == nil {
		return nil, fmt.Errorf("no parameters, the walker is nil: %w", snug.ErrConfig)
	}
	var loads []load
	var missing []string
	for name, dst := range params {
		if _, found := w.find(name); !found {
			missing = append(missing, name)
			continue
		}
		p, err := w.check(name, true, 0, dst)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		loads = append(loads, load{p, dst})
	}
	if missing != nil {
		return nil, fmt.Errorf("the file lacks %d of %d tensors, the first are %q: %w",
			len(missing), len(missing)+len(loads), missing[:min(5, len(missing))], snug.ErrConfig)
	}
	slices.SortStableFunc(loads, func(a, b load) int {
		return cmp.Or(cmp.Compare(a.from.File, b.from.File), cmp.Compare(a.from.Tensor.Begin, b.from.Tensor.Begin))
	})
	return loads, nil
}

// check returns the tensor that can be loaded into dst: the whole, or a part from
// element lo on.
func (w *Weights) check(name string, whole bool, lo int, dst snug.View) (safetensors.Place, error) {
	p, found := w.find(name)
	if !found {
		return p, fmt.Errorf("the file has no such tensor: %w", snug.ErrConfig)
	}
	t := p.Tensor
	switch {
	case elementType(t.DType) == 0:
		return p, fmt.Errorf("its type is %s, not F32, F16, BF16, F8_E4M3 or F8_E5M2; use ReadBytes: %w", t.DType, snug.ErrDType)
	case !casts(dst):
		return p, fmt.Errorf("dst is %s, want %s: %w", dst.DType(), castTypes(dst), snug.ErrDType)
	case whole && dst.Len() != elements(t):
		return p, fmt.Errorf("dst has %d elements, want %d: %w", dst.Len(), elements(t), snug.ErrShape)
	case lo < 0 || lo > elements(t)-dst.Len():
		return p, fmt.Errorf("%d elements from %d on, it has %d: %w", dst.Len(), lo, elements(t), snug.ErrShape)
	}
	_, err := snug.CommonDevice(dst)
	return p, err
}

// elements returns the length of a tensor that can be loaded.
func elements(t *safetensors.Tensor) int {
	return int((t.End - t.Begin) / int64(elementType(t.DType).Size()))
}

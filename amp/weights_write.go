package amp

import (
	"fmt"
	"io"
	"iter"
	"math"
	"path/filepath"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/safetensors"
)

// WriteWeights writes a safetensors file to w and returns the number of bytes written. tensors yields the tensors, in
// any order, each with its elements on any device: float32, float16 or bfloat16, converted as by [Cast] to DType, which
// is F32, F16 or BF16, or empty for the type that they have. A tensor of any other DType comes as bytes, of uint8, as
// [Weights.ReadBytes] gives them; so may one of these three, and without a DType they are U8. metadata may be nil; some
// readers want "pt" there, under the key "format".
//
// It walks once, checks all before it writes the first byte, and reads the
// elements, which may not change meanwhile, after the walk. The bytes are those
// of the reference implementation (github.com/huggingface/safetensors): sorted by
// type from wide to narrow and then by name, which is what a file needs to be
// aligned in memory. Keys of the metadata are sorted, where the reference has any
// order.
//
// Memory: a few times the size of the header, and 256 KiB of pooled memory for
// elements that are converted or on another device, 512 KiB for elements that are
// both. It waits for devices.
//
// Errors, with nothing written: [snug.ErrConfig] when w or tensors is nil, a name
// comes twice, names or metadata are not UTF-8, or the header would exceed
// 100 MB; [snug.ErrDType]; [snug.ErrShape] when a shape does not have the
// elements that come with it; [snug.ErrDevice]. Other errors come from w
// or a device.
func WriteWeights(w io.Writer, tensors iter.Seq2[Tensor, snug.View], metadata map[string]string) (int64, error) {
	if w == nil {
		return 0, fmt.Errorf("amp: WriteWeights: the writer is nil: %w", snug.ErrConfig)
	}
	p, err := planWeights(tensors, metadata)
	if err != nil {
		return 0, fmt.Errorf("amp: WriteWeights: %w", err)
	}
	n, err := p.writeTo(w)
	return n, fault.Of(err, "amp: WriteWeights")
}

// SaveWeights is [WriteWeights] to a file, which it replaces as a whole: it writes
// a temporary file in the same folder, syncs it to the disk and renames it to path.
// After an error the old file is what it was and the temporary one is removed;
// only if the process is killed is that left, as <path>.<digits>.tmp. A new file
// has the permissions of the old one. A link at path is replaced, not followed.
//
// Errors are the errors of WriteWeights, [snug.ErrConfig] when path is a folder (see
// [SaveShards]) or anything else that is no file, and errors of the operating system. After an error that
// names the sync of the folder the new file is in place, but a crash of the system could
// undo it.
func SaveWeights(path string, tensors iter.Seq2[Tensor, snug.View], metadata map[string]string) error {
	return fault.Of(saveWeights(files.OS(filepath.Dir(path)), filepath.Base(path), tensors, metadata), "amp: SaveWeights")
}

func saveWeights(d files.Dir, name string, tensors iter.Seq2[Tensor, snug.View], metadata map[string]string) error {
	p, err := planWeights(tensors, metadata)
	if err != nil {
		return err
	}
	return files.ReplaceIn(d, name, func(w io.Writer) error {
		_, err := p.writeTo(w)
		return err
	})
}

// weightsPlan is a file to write.
type weightsPlan struct {
	header *safetensors.Header
	views  map[string]content
}

func planWeights(tensors iter.Seq2[Tensor, snug.View], metadata map[string]string) (*weightsPlan, error) {
	list, views, err := listWeights(tensors)
	if err != nil {
		return nil, err
	}
	header, err := safetensors.New(list, metadata)
	return &weightsPlan{header, views}, err
}

// content is the elements: a View, or the tensor that makes it.
type content struct {
	snug.View
	Tensor
}

// get returns the elements, checked.
func (c content) get() (snug.View, error) {
	if c.Make == nil {
		return c.View, nil
	}
	v, err := c.Make()
	if err == nil {
		err = checkSaved(c.Tensor, v)
	}
	if err != nil {
		return v, fmt.Errorf("tensor %q: %w", c.Name, err)
	}
	return v, nil
}

// listWeights returns the tensors in the order of their walker, checked.
func listWeights(tensors iter.Seq2[Tensor, snug.View]) ([]safetensors.Tensor, map[string]content, error) {
	if tensors == nil {
		return nil, nil, fmt.Errorf("no tensors, the walker is nil: %w", snug.ErrConfig)
	}
	views := map[string]content{}
	var list []safetensors.Tensor
	for t, v := range tensors {
		if t.DType == "" {
			t.DType = fileType(v.DType())
		}
		check := checkSaved
		if t.Make != nil {
			check = checkMade
		}
		if err := check(t, v); err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if _, taken := views[t.Name]; taken {
			return nil, nil, fmt.Errorf("tensor %.100q comes twice: %w", t.Name, snug.ErrConfig)
		}
		list = append(list, safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: slices.Clone(t.Shape)})
		views[t.Name] = content{v, t}
	}
	return list, views, nil
}

// fileType returns the name in files of the type of elements.
func fileType(dt snug.DType) string {
	switch dt {
	case snug.F32:
		return "F32"
	case snug.F16:
		return "F16"
	case snug.BF16:
		return "BF16"
	case snug.U8:
		return "U8"
	case snug.F8E4M3:
		return "F8_E4M3"
	case snug.F8E5M2:
		return "F8_E5M2"
	}
	return ""
}

// checkMade is checkSaved before the elements are made.
func checkMade(t Tensor, v snug.View) error {
	if v.Len() != 0 || t.ElementType() == 0 {
		return fmt.Errorf("%d elements beside Make and the DType %q, want none, and F32, F16, BF16, F8_E4M3 or F8_E5M2: %w", v.Len(), t.DType, snug.ErrConfig)
	}
	if _, err := safetensors.Elements(t.Shape); err != nil {
		return fmt.Errorf("%w: %w", err, snug.ErrShape)
	}
	return nil
}

func checkSaved(t Tensor, v snug.View) error {
	raw := v.DType() == snug.U8
	switch {
	case !raw && !casts(v):
		return fmt.Errorf("its elements are %s, want %s, or bytes of u8: %w", v.DType(), castTypes(v), snug.ErrDType)
	case !raw && t.ElementType() == 0:
		return fmt.Errorf("DType is %q, want F32, F16, BF16, F8_E4M3 or F8_E5M2, or bytes of u8: %w", t.DType, snug.ErrDType)
	case safetensors.Bits(t.DType) == 0:
		return fmt.Errorf("DType is %q, which is no type of the format: %w", t.DType, snug.ErrDType)
	}
	n, err := safetensors.Elements(t.Shape)
	if err != nil {
		return fmt.Errorf("%w: %w", err, snug.ErrShape)
	}
	if raw {
		if bits := safetensors.Bits(t.DType); int64(n) > math.MaxInt64/bits || int64(n)*bits != 8*int64(v.Len()) {
			return fmt.Errorf("a shape of %d elements of %d bits, %d bytes came with it: %w", n, bits, v.Len(), snug.ErrShape)
		}
	} else if n != v.Len() {
		return fmt.Errorf("a shape of %d elements, %d came with it: %w", n, v.Len(), snug.ErrShape)
	}
	_, err = snug.CommonDevice(v)
	return err
}

// writeTo writes the file and returns the number of bytes written.
func (p *weightsPlan) writeTo(w io.Writer) (int64, error) {
	return p.header.Write(w, func(t *safetensors.Tensor, write func(b []byte) error) error {
		v, err := p.views[t.Name].get()
		if err != nil {
			return err
		}
		return writeTensor(write, v, elementType(t.DType))
	})
}

// writeTensor writes the elements of v as dt, and bytes as they are.
func writeTensor(write func(b []byte) error, v snug.View, dt snug.DType) error {
	if v.DType() == snug.U8 {
		return writeBytes(write, v)
	}
	if v.Device().IsCPU() && v.DType() == dt && !bigEndian {
		return write(device.Mem(&v).Bytes())
	}
	buf := staging.Get(staged)
	defer staging.Put(buf)
	for lo := 0; lo < v.Len(); lo += staged {
		from, err := v.Slice(lo, min(lo+staged, v.Len()))
		if err != nil {
			return err
		}
		piece := stagedView(buf, dt, from.Len())
		if err := get(piece, from); err != nil {
			return err
		}
		b := device.Mem(&piece).Bytes()
		if bigEndian {
			swap(b, dt.Size())
		}
		if err := write(b); err != nil {
			return err
		}
	}
	return nil
}

// writeBytes writes bytes of any device.
func writeBytes(write func(b []byte) error, v snug.View) error {
	if v.Device().IsCPU() {
		return write(device.Mem(&v).Bytes())
	}
	buf := staging.Get(staged)
	defer staging.Put(buf)
	floats := snug.ViewOf((*buf)[:staged])
	free := device.Mem(&floats).Bytes()
	for lo := 0; lo < v.Len(); lo += len(free) {
		from, err := v.Slice(lo, min(lo+len(free), v.Len()))
		if err != nil {
			return err
		}
		piece := free[:from.Len()]
		if err := snug.Copy(snug.SliceView(piece), from); err != nil {
			return err
		}
		if err := write(piece); err != nil {
			return err
		}
	}
	return nil
}

// get converts src, on any device, into a staged piece.
func get(piece, src snug.View) error {
	if !src.Device().IsCPU() {
		if src.DType() == piece.DType() {
			return snug.Copy(piece, src)
		}
		buf := staging.Get(staged)
		defer staging.Put(buf)
		host := stagedView(buf, src.DType(), src.Len())
		if err := snug.Copy(host, src); err != nil {
			return err
		}
		src = host
	}
	job := castJob{dst: piece, src: src}
	job.Run()
	return nil
}

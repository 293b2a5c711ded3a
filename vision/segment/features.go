package segment

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/fault"
)

// featuresName is the tensor of a file of features.
const featuresName = "features"

// sumName has the CRC-32C of the features in the metadata of their file.
const sumName = "crc32c"

// EncodeFile writes the features of an image to a safetensors file, as the tensor features of [Config.Rows, Encoder.Out] in a type of
// floats with their checksum, which replaces the file as a whole: a frozen encoder runs once for each image, and whatever has been written stays. Errors are
// those of Encode and of [amp.SaveWeights], and wrap [snug.ErrDType], and [snug.ErrNonFinite] for features that are not finite.
func (e *Encoder) EncodeFile(ctx context.Context, path string, dt snug.DType, image []float32) (err error) {
	defer fault.Named(&err, "segment: EncodeFile")
	name, is := map[snug.DType]string{snug.F32: "F32", snug.F16: "F16", snug.BF16: "BF16"}[dt]
	if !is {
		return fmt.Errorf("features in %v, want F32, F16 or BF16: %w", dt, snug.ErrDType)
	}
	c := e.Config()
	out := make([]float32, c.FeatureLen())
	if err := e.Encode(ctx, out, [][]float32{image}); err != nil {
		return err
	}
	for i, x := range out {
		if x-x != 0 {
			return fmt.Errorf("feature %d is %v: %w", i, x, snug.ErrNonFinite)
		}
	}
	v, _, err := snug.MakeView(snug.CPU(), dt, len(out))
	if err == nil {
		err = amp.Cast(v, out)
	}
	if err != nil {
		return err
	}
	return amp.SaveWeights(path, func(yield func(amp.Tensor, snug.View) bool) {
		yield(amp.Tensor{Name: featuresName, DType: name, Shape: []int{c.Rows(), c.Encoder.Out}}, v)
	}, map[string]string{sumName: sumOf(v)})
}

// sumOf returns the checksum of features in the order of their file, which it copies.
func sumOf(v snug.View) string {
	b := make([]byte, 0, v.Bytes())
	switch v.DType() {
	case snug.F32:
		for _, x := range v.Float32s() {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
	case snug.F16:
		for _, x := range v.Float16s() {
			b = binary.LittleEndian.AppendUint16(b, uint16(x))
		}
	default:
		for _, x := range v.BFloat16s() {
			b = binary.LittleEndian.AppendUint16(b, uint16(x))
		}
	}
	return fmt.Sprintf("%08x", crc32c.Checksum(b))
}

// ReadFeatures reads a file of [Encoder.EncodeFile], for [Item], in the type that it has. It does not know which encoder has written them: those
// of other weights are the caller's to keep apart. The error wraps [snug.ErrCorrupt] for another or a damaged file, or is that of the file system.
func ReadFeatures(path string) (v snug.View, err error) {
	defer fault.Named(&err, "segment: ReadFeatures")
	if path == "" {
		return v, fmt.Errorf("the file has no name: %w", snug.ErrConfig)
	}
	w, err := amp.OpenWeights(path)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	t, has := w.Tensor(featuresName)
	if dt := t.ElementType(); !has || len(t.Shape) != 2 || dt != snug.F32 && dt != snug.F16 && dt != snug.BF16 {
		return v, fmt.Errorf("%s has no features: %w", path, snug.ErrCorrupt)
	}
	if v, _, err = snug.MakeView(snug.CPU(), t.ElementType(), t.Len()); err == nil {
		err = w.Load(featuresName, v)
	}
	if sum := w.Metadata()[sumName]; err == nil && sumOf(v) != sum {
		return snug.View{}, fmt.Errorf("%s: the features have another checksum than %.20q: %w", path, sum, snug.ErrCorrupt)
	}
	return v, err
}

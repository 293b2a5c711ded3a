package transformer

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/safetensors"
)

// The sample of the weights: sampleBlocks blocks of blockBytes at equal distances, and the first and the last block of
// each tensor.
const (
	blockBytes   = 4 << 10
	sampleBlocks = 1 << 10
)

// Checksum returns checksums of a model's folder, in hexadecimal. A run puts them into the About of its checkpoints, so
// that it does not go on with another model.
//
// config is of the arithmetic that config.json describes: fields that change no result, such as Ignored, InitStd, DType
// and the special tokens, are left out. weights is of the names, types, shapes and a sample of the bytes of all tensors:
// the first and the last 4 KiB of each, and 4 MiB at equal distances over all, or everything if the tensors have no more.
// Neither depends on the path, or on how the tensors are divided among files. A change of a few elements outside the sample
// goes unseen.
//
// Checksum reads about 8 KiB for each tensor and 4 MiB more, and holds the headers of the files. Its errors are those of
// [ReadConfig] and of [Open].
func Checksum(dir string) (config, weights string, err error) {
	c, err := ReadConfig(dir)
	if err != nil {
		return "", "", err
	}
	if weights, err = ChecksumWeights(dir); err != nil {
		return "", "", err
	}
	return c.checksum(), weights, nil
}

// ChecksumWeights is the weights' part of [Checksum], of a folder of any model.
func ChecksumWeights(dir string) (weights string, err error) {
	defer fault.Named(&err, "transformer: Checksum")
	if gguf.IsFile(dir) {
		return sampleGGUF(dir)
	}
	set, err := safetensors.Open(dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	var all []sampled
	for i := range set.Files {
		for j := range set.Files[i].Header.Tensors {
			t := &set.Files[i].Header.Tensors[j]
			place := safetensors.Place{File: i, Tensor: t}
			all = append(all, sampled{t.Name, t.DType, t.Shape, t.End - t.Begin, func(b []byte, lo int64) error { return set.Read(place, b, lo) }})
		}
	}
	return sampleWeights(all)
}

// sampleGGUF is ChecksumWeights of a file of llama.cpp's.
func sampleGGUF(path string) (weights string, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var all []sampled
	for _, t := range f.Tensors() {
		n, err := t.Bytes()
		if err != nil {
			return "", err
		}
		all = append(all, sampled{t.Name, t.Type.String(), t.Shape, n, func(b []byte, lo int64) error { return f.ReadAt(t.Name, b, lo) }})
	}
	return sampleWeights(all)
}

// hexed returns half of a sum, which tells any two models apart.
func hexed(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:sha256.Size/2]) }

// checksum returns the checksum of the arithmetic. Fields that are 0 do not enter, so that new ones keep it.
func (c *Config) checksum() string {
	arithmetic := *c
	arithmetic.joined, arithmetic.Ignored, arithmetic.InitStd, arithmetic.DType, arithmetic.BOS, arithmetic.EOS, arithmetic.Pad = false, nil, 0, 0, 0, nil, 0
	h := sha256.New()
	writeFields(h, "", reflect.ValueOf(arithmetic))
	return hexed(h)
}

// writeFields writes the names and values of the fields of a struct that are not 0.
func writeFields(w io.Writer, path string, v reflect.Value) {
	for i := range v.NumField() {
		f, name := v.Field(i), path+v.Type().Field(i).Name
		switch {
		case f.IsZero():
		case f.Kind() == reflect.Struct:
			writeFields(w, name+".", f)
		default:
			fmt.Fprintf(w, "%s=%#v\n", name, f)
		}
	}
}

// sampled is a tensor of which the checksum reads a sample.
type sampled struct {
	name, dtype string
	shape       []int
	size        int64 // in bytes
	read        func(b []byte, lo int64) error
}

// sampleWeights returns the checksum of the weights.
func sampleWeights(all []sampled) (string, error) {
	bytes := int64(0)
	for _, t := range all {
		bytes += t.size
	}
	slices.SortFunc(all, func(a, b sampled) int { return strings.Compare(a.name, b.name) })
	stride := max(1, (bytes+sampleBlocks*blockBytes-1)/(sampleBlocks*blockBytes)) * blockBytes // between two blocks
	h, block := sha256.New(), make([]byte, blockBytes)
	for _, t := range all {
		n := t.size
		fmt.Fprintf(h, "%q %s %v\n", t.name, t.dtype, t.shape)
		for lo := int64(0); lo < n; {
			b := block[:min(n-lo, blockBytes)]
			if err := t.read(b, lo); err != nil {
				return "", err
			}
			h.Write(b)
			last := max(lo+blockBytes, (n-1)/blockBytes*blockBytes) // where the last block begins, or behind it
			lo = min(lo/stride*stride+stride, last)
		}
	}
	return hexed(h), nil
}

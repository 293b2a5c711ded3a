package state

import (
	"errors"
	"fmt"
	"io"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
)

// Kind is one kind of saved state.
type Kind struct {
	Magic, Name string
	describe    func(d *Decoder) Description // reads what it tells of the header
}

// Kinds returns all kinds of saved state that are files by themselves.
func Kinds() []Kind {
	return []Kind{
		{ScalerMagic, "amp's loss scaler", describeScaler},
		{MastersMagic, "amp's master weights", describeMasters},
		{WindowMagic, "accum's window", describeWindow},
		{NoiseMagic, "accum's noise scale", describeNoise},
		{OptimizerMagic, "a quant8 optimizer", describeOptimizer},
		{ZerothMagic, zerothName, describeZeroth},
		{BuffersMagic, "train's buffers of a model", describeBuffers},
	}
}

// KindOf returns the kind of a file that starts with b, nil for one of none.
func KindOf(b []byte) *Kind {
	for _, k := range Kinds() {
		if len(b) >= MagicLen && string(b[:MagicLen]) == k.Magic {
			return &k
		}
	}
	return nil
}

// Description is what a saved state holds.
type Description struct {
	Kind    string
	Version uint32
	Note    string  // what its header says, in some words
	Entries []Entry // parameters; their bytes are all of the data
	Bytes   int64   // of all that is saved
}

// Entry is a parameter, or the part of it that is there.
type Entry struct {
	Name, Type string
	Shape      []int
	Bytes      int64
}

// DescribeAll is Describe of states that were written one after the other. Bytes that follow
// and are no state are an error that wraps [snug.ErrCorrupt].
func DescribeAll(r io.ReaderAt, size int64, numbers func(rule string) int) ([]Description, error) {
	var all []Description
	for at := int64(0); ; {
		rest := io.NewSectionReader(r, at, size-at)
		var start [prefixSize]byte
		n, err := rest.ReadAt(start[:], 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if at > 0 && KindOf(start[:n]) == nil {
			return nil, corrupt("%d bytes follow the state", size-at)
		}
		length := size - at // also where the sizes say more
		header, data := uint64(le.Uint32(start[MagicLen+4:])), le.Uint64(start[MagicLen+8:])
		if left := uint64(length); header < left && data < left && prefixSize+header+data+2*crc32c.Size < left {
			length = int64(prefixSize + header + data + 2*crc32c.Size)
		}
		found, err := Describe(rest, length, numbers)
		switch {
		case err != nil && at > 0:
			return nil, fmt.Errorf("at byte %d: %w", at, err)
		case err != nil:
			return nil, err
		}
		all = append(all, found)
		if at += length; at == size {
			return all, nil
		}
	}
}

// Describe reads and verifies all of a saved state of size bytes, and says what it holds. numbers returns how many numbers
// a rule of quant8 keeps once for all parameters.
// The error wraps [snug.ErrCorrupt] for damage, and [snug.ErrConfig] for a file of another
// kind.
func Describe(r io.ReaderAt, size int64, numbers func(rule string) int) (Description, error) {
	var magic [MagicLen]byte
	if n, err := r.ReadAt(magic[:], 0); n < len(magic) {
		return Description{}, fmt.Errorf("no saved state: %w", shortRead(err))
	}
	kind := KindOf(magic[:])
	if kind == nil {
		return Description{}, fmt.Errorf("no saved state starts with %q: %w", magic, snug.ErrConfig)
	}
	if err := VerifyFile(r, size); err != nil {
		return Description{}, fmt.Errorf("state of %s: %w", kind.Name, err)
	}
	d := NewDecoder(io.NewSectionReader(r, 0, size), kind.Magic)
	d.numbers = numbers
	found := kind.describe(d)
	found.Kind, found.Version, found.Bytes = kind.Name, version, size
	left := int64(d.size)
	for _, e := range found.Entries {
		if left -= e.Bytes; e.Bytes < 0 || left < 0 {
			break
		}
	}
	if left != 0 {
		d.Corrupt("data of %d bytes, which is not what its %d parameters take", d.size, len(found.Entries))
	}
	if d.Err != nil {
		return Description{}, fmt.Errorf("state of %s: %w", kind.Name, d.Err)
	}
	return found, nil
}

package state

import (
	"fmt"
	"io"

	"github.com/snug-ml/snug"
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
}

// Entry is a parameter, or the part of it that is there.
type Entry struct {
	Name, Type string
	Shape      []int
	Bytes      int64
}

// Describe reads and verifies all of a saved state of size bytes, and says what it holds.
// The error wraps [snug.ErrCorrupt] for damage, and [snug.ErrConfig] for a file of another
// kind.
func Describe(r io.ReaderAt, size int64) (Description, error) {
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
	found := kind.describe(d)
	found.Kind, found.Version = kind.Name, version
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

package remat

import (
	"fmt"
	"hash/maphash"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// RecomputeError says that a recomputed value differs from the first one, so that the
// gradient would be wrong. A stage that draws random numbers from a sequence causes it, or a
// stage that reads data that has changed. It wraps [snug.ErrCorrupt].
type RecomputeError struct {
	Stage        int    // the stage whose result differs
	Saved        bool   // the saved set differs, else the output
	First, Again uint64 // the hashes
}

// Error names the stage.
func (e *RecomputeError) Error() string {
	what := "output"
	if e.Saved {
		what = "saved set"
	}
	return fmt.Sprintf("remat: the %s of stage %d has the hash %016x, and had %016x when it was computed first: %v", what, e.Stage, e.Again, e.First, snug.ErrCorrupt)
}

// Unwrap returns [snug.ErrCorrupt].
func (e *RecomputeError) Unwrap() error { return snug.ErrCorrupt }

// hashSeed makes all hashes of one process comparable.
var hashSeed = maphash.MakeSeed()

// HashView returns a 64-bit hash of the bytes of a vector of any element type on any
// device, for [Chain].Hash. In one process equal bytes have equal hashes. If the vector is not
// on the CPU, the call waits for the device, allocates 64 KiB of host memory and copies the
// vector through it. The error is the device's.
func HashView(v snug.View) (uint64, error) {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	if v.Device().IsCPU() {
		h.Write(device.Mem(&v).Bytes()) // never fails
		return h.Sum64(), nil
	}
	const staged = 64 << 10 // bytes
	n := staged / v.DType().Size()
	host, _, err := snug.MakeView(snug.CPU(), v.DType(), n)
	if err != nil {
		return 0, err
	}
	for lo := 0; lo < v.Len(); lo += n {
		part, err := v.Slice(lo, min(lo+n, v.Len()))
		if err != nil {
			return 0, err
		}
		copied, err := host.Slice(0, part.Len())
		if err != nil {
			return 0, err
		}
		if err := snug.Copy(copied, part); err != nil {
			return 0, err
		}
		h.Write(device.Mem(&copied).Bytes())
	}
	return h.Sum64(), nil
}

// hashes are the hashes of the values that the stages of a chain computed first in a run.
type hashes struct {
	outputs, saved []firstHash // by stage; nil without a check
}

type firstHash struct {
	known bool
	hash  uint64
}

// verify compares a hash with the hash of the first computation.
func (f *firstHash) verify(stage int, saved bool, hash uint64) error {
	if !f.known {
		*f = firstHash{true, hash}
		return nil
	}
	if f.hash != hash {
		return &RecomputeError{Stage: stage, Saved: saved, First: f.hash, Again: hash}
	}
	return nil
}

// verifyOutput compares the output of stage i with its first value.
func (r *Runner[A, S]) verifyOutput(i int, y A) error {
	if r.first.outputs == nil || r.slots[i].lossy {
		return nil
	}
	h, err := r.chain.Hash(y)
	if err != nil {
		return fmt.Errorf("hash of the output: %w", err)
	}
	return r.first.outputs[i].verify(i, false, h)
}

// verifySaved compares the saved set of stage i with its first value.
func (r *Runner[A, S]) verifySaved(i int, s S) error {
	if r.first.saved == nil || r.slots[i].lossy {
		return nil
	}
	h, err := r.chain.HashSaved(s)
	if err != nil {
		return fmt.Errorf("hash of the saved set: %w", err)
	}
	return r.first.saved[i].verify(i, true, h)
}

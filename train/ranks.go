package train

import (
	"fmt"
	"hash/fnv"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/device"
)

// alike returns an error unless all ranks have the same parameters and options.
func (t *Trainer[B]) alike() error {
	r := t.options.Reducer
	if r == nil {
		return nil
	}
	o, text := &t.options, fnv.New32a()
	fmt.Fprintf(text, "%T%+v %d %g %v %v %v %v %d", o.Optimizer, o.Optimizer, o.StateBits, o.Clip, o.Masters, o.Stochastic, o.SkipNonFinite, o.Schedule(0), o.Seed)
	values := uint32(0)
	for _, p := range t.params {
		fmt.Fprintf(text, "%s %d %s", p.name, p.value.Len(), p.value.DType())
		sum, err := checksum(values, p.value)
		if err != nil {
			return err
		}
		values = sum
	}
	// Each rank fills in its own numbers, and the sums are those of all.
	sums := make([]float64, 2*r.Size())
	sums[2*r.Rank()], sums[2*r.Rank()+1] = float64(text.Sum32()), float64(values)
	if err := r.Sum(sums); err != nil {
		return err
	}
	for rank := range r.Size() {
		switch {
		case sums[2*rank] != sums[0]:
			return fmt.Errorf("rank %d has other options or parameters than rank 0: %w", rank, snug.ErrConfig)
		case sums[2*rank+1] != sums[1]:
			return fmt.Errorf("rank %d has other values of parameters than rank 0: %w", rank, snug.ErrConfig)
		}
	}
	return nil
}

// checksum continues a checksum with the bytes of a vector, from a device through 1 MiB of memory.
func checksum(sum uint32, v snug.View) (uint32, error) {
	if v.Device().IsCPU() {
		return crc32c.Update(sum, device.Mem(&v).Bytes()), nil
	}
	const piece = 1 << 18
	for lo := 0; lo < v.Len(); lo += piece {
		part, err := v.Slice(lo, min(lo+piece, v.Len()))
		if err != nil {
			return sum, err
		}
		host, _, err := snug.MakeView(snug.CPU(), v.DType(), part.Len())
		if err != nil {
			return sum, err
		}
		if err := snug.Copy(host, part); err != nil {
			return sum, err
		}
		sum = crc32c.Update(sum, device.Mem(&host).Bytes())
	}
	return sum, nil
}

// accumulateNothing takes part in a step of the ranks without a micro-batch.
func (t *Trainer[B]) accumulateNothing() error {
	if err := t.window.Begin(0); err != nil {
		return err
	}
	_, err := t.window.End()
	return err
}

// together returns the loss of a step over all ranks.
func (t *Trainer[B]) together(loss fused.Loss, err error) (fused.Loss, error) {
	r := t.options.Reducer
	if r == nil || err != nil {
		return loss, err
	}
	sums := t.sums[:]
	sums[0], sums[1], sums[2] = loss.Sum, float64(loss.Targets), loss.Weight
	if err := r.Sum(sums); err != nil {
		return loss, err
	}
	if sums[1] == 0 {
		return loss, fmt.Errorf("no micro-batch of any rank has a weight above 0: %w", snug.ErrConfig)
	}
	return fused.Loss{Sum: sums[0], Targets: int(sums[1]), Weight: sums[2]}, nil
}

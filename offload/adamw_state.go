package offload

import (
	"encoding"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/optim"
)

// The saved state, little-endian: "SNUGADMW", version u32, step u64, rate,
// Beta1, Beta2, Eps, WeightDecay f32, PageLen u64, parameters u32, for each
// the name's length u16, name, elements u64, and a bit for every page, the first in the
// lowest, whether the step has updated it; CRC-32C of all before, u32.
const (
	stateMagic   = "SNUGADMW"
	stateVersion = 2
)

var (
	_ encoding.BinaryAppender    = (*AdamW)(nil)
	_ encoding.BinaryUnmarshaler = (*AdamW)(nil)
)

// AppendBinary appends the step count, the learning rate, the options and the
// names and lengths of the parameters to b. The moments are in the store. Put
// the result into a blob of the same store before [Store.Commit], and both
// are of one step. Its length depends on the names and lengths only. Between the steps of
// one Advance it also says which pages are updated.
func (a *AdamW) AppendBinary(b []byte) ([]byte, error) {
	if !a.made() {
		return b, errNoAdamW
	}
	start := len(b)
	le := binary.LittleEndian
	b = append(b, stateMagic...)
	b = le.AppendUint32(b, stateVersion)
	b = le.AppendUint64(b, uint64(a.step))
	for _, x := range [...]float32{a.lr, a.opts.Beta1, a.opts.Beta2, a.opts.Eps, a.opts.WeightDecay} {
		b = le.AppendUint32(b, math.Float32bits(x))
	}
	b = le.AppendUint64(b, uint64(a.opts.PageLen))
	b = le.AppendUint32(b, uint32(len(a.names)))
	for _, name := range a.names {
		b = le.AppendUint16(b, uint16(len(name)))
		b = append(b, name...)
		b = le.AppendUint64(b, uint64(a.params[name].m.Len()))
		b = append(b, a.params[name].marks.Bits()...)
	}
	return le.AppendUint32(b, crc32c.Seal(crc32c.Checksum(b[start:]))), nil
}

// UnmarshalBinary restores what AppendBinary saved into an optimizer made by
// [NewAdamW], whose options and parameters it replaces. The store must have
// the state of all parameters. Errors: [snug.ErrCorrupt] when b is damaged,
// of another kind or of a newer version, those of [Lookup] and
// [snug.ErrShape] when the store does not fit; the optimizer is then as
// before.
func (a *AdamW) UnmarshalBinary(b []byte) error {
	if !a.made() {
		return errNoAdamW
	}
	const fixed = 8 + 4 + 8 + 5*4 + 8 + 4
	if len(b) < fixed+4 || string(b[:8]) != stateMagic {
		return fmt.Errorf("offload: adamw: %d bytes that do not start with the mark of a saved state: %w", len(b), snug.ErrCorrupt)
	}
	body, trailer := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if sum := crc32c.Seal(crc32c.Checksum(body)); sum != trailer {
		return fmt.Errorf("offload: adamw: checksum of the saved state is %#08x, want %#08x: %w", sum, trailer, snug.ErrCorrupt)
	}
	d := decoder{b: body[8:]}
	if v := d.u32(); v != stateVersion {
		return fmt.Errorf("offload: adamw: saved state of version %d, want %d: %w", v, stateVersion, snug.ErrCorrupt)
	}
	restored, err := a.decode(&d)
	if err != nil {
		return err
	}
	*a = *restored
	return nil
}

// decode reads the fields after the version.
func (a *AdamW) decode(d *decoder) (*AdamW, error) {
	r := &AdamW{s: a.s, step: d.int(), params: map[string]moments{}, mu: new(sync.Mutex)}
	for _, x := range [...]*float32{&r.lr, &r.opts.Beta1, &r.opts.Beta2, &r.opts.Eps, &r.opts.WeightDecay} {
		*x = math.Float32frombits(d.u32())
	}
	r.opts.PageLen = d.int()
	for range d.u32() {
		name, n := string(d.bytes(int(d.u16()))), d.int()
		if d.bad {
			break
		}
		if err := r.attach(name, n); err != nil {
			return nil, err
		}
		marks := r.params[name].marks
		bits := d.bytes(optim.BitBytes(len(marks)))
		d.bad = d.bad || !optim.ValidBits(bits, len(marks))
		for i := 0; i < len(marks) && !d.bad; i++ {
			if bits[i/8]>>(i%8)&1 == 1 {
				marks[i] = optim.Updated
			}
		}
	}
	if d.bad || len(d.b) != 0 {
		return nil, fmt.Errorf("offload: adamw: the saved state is malformed: %w", snug.ErrCorrupt)
	}
	if r.step > math.MaxInt32 || !(r.lr >= 0) || !finite(r.lr) {
		return nil, fmt.Errorf("offload: adamw: the saved state is of step %d at rate %g: %w", r.step, r.lr, snug.ErrCorrupt)
	}
	if checked, err := r.opts.check(); err != nil || checked != r.opts {
		return nil, fmt.Errorf("offload: adamw: the saved state has invalid options: %w", snug.ErrCorrupt)
	}
	return r, nil
}

// attach adds a parameter whose state the store must have.
func (a *AdamW) attach(name string, n int) error {
	if _, ok := a.params[name]; ok {
		return fmt.Errorf("offload: adamw: the saved state has parameter %q twice: %w", name, snug.ErrCorrupt)
	}
	var st moments
	for _, t := range []struct {
		suffix string
		to     **Tensor[float32]
	}{{firstMoment, &st.m}, {secondMoment, &st.v}} {
		tensor, err := Lookup[float32](a.s, name+t.suffix)
		if err != nil {
			return fmt.Errorf("offload: adamw: restore %q: %w", name, err)
		}
		if tensor.Len() != n || tensor.PageLen() != a.opts.PageLen {
			return fmt.Errorf("offload: adamw: restore %q: %d elements in pages of %d, the store has %d in pages of %d: %w",
				name, n, a.opts.PageLen, tensor.Len(), tensor.PageLen(), snug.ErrShape)
		}
		if err := tensor.writable(); err != nil {
			return fmt.Errorf("offload: adamw: restore %q: %w", name, err)
		}
		*t.to = tensor
	}
	a.names = append(a.names, name)
	st.marks = optim.NewMarks(st.m.Pages())
	a.params[name] = st
	return nil
}

// decoder reads fields from b. Once bad it yields zeros.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) bytes(n int) []byte {
	if d.bad || len(d.b) < n {
		d.bad = true
		return make([]byte, n)
	}
	field := d.b[:n]
	d.b = d.b[n:]
	return field
}

func (d *decoder) u16() uint16 { return binary.LittleEndian.Uint16(d.bytes(2)) }
func (d *decoder) u32() uint32 { return binary.LittleEndian.Uint32(d.bytes(4)) }
func (d *decoder) u64() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }

// int returns a u64 that must be a non-negative int.
func (d *decoder) int() int {
	x := d.u64()
	if x > math.MaxInt {
		d.bad = true
		return 0
	}
	return int(x)
}

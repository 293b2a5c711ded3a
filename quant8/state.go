package quant8

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/optim"
)

// WriteTo writes the state of the optimizer, StateBytes and a short header: the
// step count, the learning rate of the current step, the maps of the codes if
// they are not the default ones, and all moments. Between the Steps of one Advance it
// also writes which elements are updated, so that a restored run makes the others. It needs no memory beyond the state, on devices other than the
// CPU that of one chunk. The hyperparameters are not part of the state.
func (a *Optimizer) WriteTo(w io.Writer) (int64, error) {
	out := &sumWriter{w: w}
	err := a.save(out)
	if err != nil {
		err = fmt.Errorf("quant8: %s: save: %w", a.label(), err)
	}
	return out.n, err
}

// ReadFrom restores what [Optimizer.WriteTo] has written, into an optimizer with
// the same Bits, Block, Chunk and Min8bit to which the same parameters were
// added, in any order, of each the same shard. The maps of the codes become those
// that were saved. It reads no further than the end of that. A run with the
// same hyperparameters then continues bit for bit. It needs no memory beyond
// the state, on devices other than the CPU that of one chunk.
//
// The error wraps [snug.ErrCorrupt] when the bytes are damaged, cut short, or of
// a newer version, and [snug.ErrConfig] when they are those of another
// configuration or r is nil. An error before the moments are reached leaves the optimizer as
// it was. A later one leaves it unusable, until a ReadFrom succeeds.
func (a *Optimizer) ReadFrom(r io.Reader) (int64, error) {
	in := &sumReader{r: r}
	h, err := a.readHeader(in)
	if err == nil {
		err = a.checkSame(h)
	}
	if err == nil {
		err = a.restore(in, h)
	}
	if err != nil {
		err = fmt.Errorf("quant8: %s: restore: %w", a.label(), err)
	}
	return in.n, err
}

// AppendBinary appends the bytes of [Optimizer.WriteTo] to b. It implements
// [encoding.BinaryAppender]. The result holds all of the state once more; to
// avoid that use WriteTo.
func (a *Optimizer) AppendBinary(b []byte) ([]byte, error) {
	if err := a.made(); err != nil {
		return b, fmt.Errorf("quant8: %s: save: %w", a.label(), err)
	}
	size := int64(len(a.header())) + a.StateBytes() + checksumSize
	if size > int64(math.MaxInt-len(b)) {
		return b, fmt.Errorf("quant8: %s: save %d bytes to a slice: %w", a.o.name, size, snug.ErrNoMemory)
	}
	buf := bytes.NewBuffer(slices.Grow(b, int(size)))
	if _, err := a.WriteTo(buf); err != nil {
		return b, err
	}
	return buf.Bytes(), nil
}

// UnmarshalBinary restores all of data as [Optimizer.ReadFrom] does, but verifies
// it first: damaged data leaves the optimizer as it was.
func (a *Optimizer) UnmarshalBinary(data []byte) error {
	in := &sumReader{r: bytes.NewReader(data)}
	h, err := a.readHeader(in)
	if err == nil {
		err = a.checkSame(h)
	}
	if err == nil {
		err = a.checkWhole(data, in.n)
	}
	if err == nil {
		err = a.restore(in, h)
	}
	if err != nil {
		err = fmt.Errorf("quant8: %s: restore: %w", a.label(), err)
	}
	return err
}

// checkWhole checks the length and the last checksum of data, whose header
// takes the given bytes.
func (a *Optimizer) checkWhole(data []byte, header int64) error {
	if want := header + a.StateBytes() + checksumSize; int64(len(data)) != want {
		return fmt.Errorf("%d bytes, want %d: %w", len(data), want, snug.ErrCorrupt)
	}
	body, sum := data[:len(data)-checksumSize], data[len(data)-checksumSize:]
	if crc32c.Seal(crc32c.Checksum(body)) != binary.LittleEndian.Uint32(sum) {
		return errChecksum
	}
	return nil
}

var errChecksum = fmt.Errorf("the checksum does not match: %w", snug.ErrCorrupt)

func (a *Optimizer) save(out *sumWriter) error {
	if err := a.usable(); err != nil {
		return err
	}
	if out.w == nil {
		return fmt.Errorf("the writer is nil: %w", snug.ErrConfig)
	}
	if _, err := out.Write(a.header()); err != nil {
		return err
	}
	write := func(blob []byte) error {
		_, err := out.Write(blob)
		return err
	}
	if err := a.eachBlob(false, write); err != nil {
		return err
	}
	return out.writeSum()
}

// eachBlob calls use for the factors and the state of every chunk of every parameter.
func (a *Optimizer) eachBlob(dirty bool, use func(blob []byte) error) error {
	for _, name := range a.names() {
		q := a.params[name]
		first := 0
		if q.factorBytes() > 0 {
			first = factors
		}
		for chunk := first; chunk < q.chunks(a.o.Chunk); chunk++ {
			if err := a.withBlob(q, chunk, dirty, use); err != nil {
				return fmt.Errorf("parameter %q: %w", name, err)
			}
		}
	}
	return nil
}

func (a *Optimizer) names() []string { return slices.Sorted(maps.Keys(a.params)) }

// restore reads the state and the last checksum.
func (a *Optimizer) restore(in *sumReader, h *saved) error {
	a.invalid = "a restore of its state failed"
	if err := a.eachBlob(true, in.readFull); err != nil {
		return err
	}
	if err := in.readSum(); err != nil {
		return err
	}
	a.resume(h.step, h.lr, h.maps)
	for i, name := range a.names() {
		q := a.params[name]
		for c := range q.marks {
			if !h.params[i].updated(c) {
				q.marks[c] = optim.Waiting
			}
		}
	}
	return nil
}

// resume takes up a step that was saved, all of whose updates were made.
func (a *Optimizer) resume(step int, lr float32, maps codeMaps) {
	a.t, a.lr, a.rate, a.maps, a.invalid = step, lr, nil, maps, ""
	a.skipped = a.skipped[:0]
	for _, q := range a.params {
		q.marks.Set(0, len(q.marks), optim.Updated)
	}
}

// sumWriter counts and checksums what it writes.
type sumWriter struct {
	w   io.Writer
	n   int64
	sum uint32
}

func (s *sumWriter) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	s.n += int64(n)
	s.sum = crc32c.Update(s.sum, b[:n])
	return n, err
}

func (s *sumWriter) writeSum() error {
	_, err := s.Write(binary.LittleEndian.AppendUint32(nil, crc32c.Seal(s.sum)))
	return err
}

// sumReader counts and checksums what it reads.
type sumReader struct {
	r   io.Reader
	n   int64
	sum uint32
}

func (s *sumReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.n += int64(n)
	s.sum = crc32c.Update(s.sum, b[:n])
	return n, err
}

// readFull fills b. An early end of the input is corruption; other errors are
// the reader's own.
func (s *sumReader) readFull(b []byte) error {
	_, err := io.ReadFull(s, b)
	return endIsCorrupt(err)
}

// readN reads n bytes. Memory grows with what is there, so that a damaged n
// cannot exhaust it.
func (s *sumReader) readN(n uint32) ([]byte, error) {
	if n > maxHeader {
		return nil, fmt.Errorf("a header of %d bytes: %w", n, snug.ErrCorrupt)
	}
	var b bytes.Buffer
	_, err := io.CopyN(&b, s, int64(n))
	return b.Bytes(), endIsCorrupt(err)
}

func endIsCorrupt(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the data end early: %w", snug.ErrCorrupt)
	}
	return err
}

// readSum reads a checksum of all bytes so far and compares it.
func (s *sumReader) readSum() error {
	want := crc32c.Seal(s.sum)
	var b [checksumSize]byte
	if err := s.readFull(b[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(b[:]) != want {
		return errChecksum
	}
	return nil
}

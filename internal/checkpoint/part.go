package checkpoint

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// A part is a file, little-endian:
//
//	"SNUGPART", version u32, run 16 bytes, step u64, length of the name u32, name
//	payload
//	SHA-256 of all bytes so far
const (
	partMagic   = "SNUGPART"
	partVersion = 1
	fixedPrefix = len(partMagic) + 4 + len(ID{}) + 8 + 4
	bufferSize  = 64 << 10
)

// MagicSize is how many bytes [IsPart] looks at.
const MagicSize = len(partMagic)

// IsPart reports whether a file that begins with b is a part of a checkpoint.
func IsPart(b []byte) bool { return bytes.HasPrefix(b, []byte(partMagic)) }

func prefixSize(name string) int64 { return int64(fixedPrefix + len(name)) }

// appendPrefix appends what comes before the payload.
func appendPrefix(b []byte, run ID, step int, name string) []byte {
	le := binary.LittleEndian
	b = append(b, partMagic...)
	b = le.AppendUint32(b, partVersion)
	b = append(b, run[:]...)
	b = le.AppendUint64(b, uint64(step))
	b = le.AppendUint32(b, uint32(len(name)))
	return append(b, name...)
}

// writePart writes a part through w, which has its buffer, and syncs it.
func writePart(folder files.Dir, w *bufio.Writer, run ID, step int, p Part) (PartInfo, error) {
	info := PartInfo{Name: p.Name}
	err := files.Write(folder, p.Name, 0o600, func(f files.File) error {
		file, sum := &counter{w: io.NewOffsetWriter(f, 0)}, sha256.New()
		w.Reset(io.MultiWriter(file, sum))
		if _, err := w.Write(appendPrefix(nil, run, step, p.Name)); err != nil {
			return err
		}
		if err := p.Write(w); err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return err
		}
		sum.Sum(info.SHA256[:0])
		_, err := file.Write(info.SHA256[:])
		info.Size = file.n
		return err
	})
	if err != nil {
		return info, fmt.Errorf("part %s: %w", p.Name, err)
	}
	return info, nil
}

// counter counts the bytes that it writes.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// PartFile is a part by itself.
type PartFile struct {
	Run     ID
	Step    int
	Name    string
	Payload *io.SectionReader
}

// ReadPart checks a part of size bytes, whose checkpoint may be elsewhere. The error wraps
// [snug.ErrCorrupt] when it is damaged.
func ReadPart(r io.ReaderAt, size int64) (*PartFile, error) {
	p, err := parsePart(r, size)
	if err != nil {
		return nil, err
	}
	var want Sum
	if n, err := r.ReadAt(want[:], size-sha256.Size); n < len(want) {
		return nil, shortRead("the part", size-sha256.Size+int64(n), size, err)
	}
	sum, err := sumOf(r, size-sha256.Size)
	if err != nil {
		return nil, err
	}
	if sum != want {
		return nil, fmt.Errorf("its SHA-256 is %v, want %v, stored at its end: %w", sum, want, snug.ErrCorrupt)
	}
	return p, nil
}

// parsePart reads what comes before the payload.
func parsePart(r io.ReaderAt, size int64) (*PartFile, error) {
	head := make([]byte, min(size, int64(fixedPrefix+MaxName)))
	if n, err := r.ReadAt(head, 0); n < len(head) {
		return nil, shortRead("the part", int64(n), size, err)
	}
	if !IsPart(head) {
		return nil, fmt.Errorf("it does not start as a part of a checkpoint: %w", snug.ErrCorrupt)
	}
	if len(head) < fixedPrefix {
		return nil, fmt.Errorf("it ends after %d bytes: %w", size, snug.ErrCorrupt)
	}
	le, at := binary.LittleEndian, len(partMagic)
	p := new(PartFile)
	v, step, length := le.Uint32(head[at:]), le.Uint64(head[at+20:]), le.Uint32(head[at+28:])
	copy(p.Run[:], head[at+4:])
	if v != partVersion {
		return nil, fmt.Errorf("version %d of a part, want %d: %w", v, partVersion, snug.ErrCorrupt)
	}
	if length > MaxName || size < int64(fixedPrefix)+int64(length)+sha256.Size || step > MaxStep {
		return nil, fmt.Errorf("%d bytes, step %d and a name of %d bytes are out of range: %w", size, step, length, snug.ErrCorrupt)
	}
	p.Step, p.Name = int(step), string(head[fixedPrefix:fixedPrefix+int(length)])
	if !validName(p.Name) {
		return nil, fmt.Errorf("the name %q: %w", p.Name, snug.ErrCorrupt)
	}
	p.Payload = io.NewSectionReader(r, prefixSize(p.Name), size-prefixSize(p.Name)-sha256.Size)
	return p, nil
}

// sumOf returns the SHA-256 of the first bytes of a file.
func sumOf(r io.ReaderAt, size int64) (sum Sum, err error) {
	h := sha256.New()
	n, err := io.CopyBuffer(h, io.NewSectionReader(r, 0, size), bufferFor(size))
	if err != nil {
		return sum, err
	}
	if n < size {
		return sum, shortRead("the part", n, size, io.EOF)
	}
	h.Sum(sum[:0])
	return sum, nil
}

// bufferFor returns a buffer to read so many bytes with.
func bufferFor(size int64) []byte { return make([]byte, min(bufferSize, size+1)) }

// shortRead is the error for a file that is shorter than it was, or could not be read.
func shortRead(what string, n, size int64, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: it ends after %d of %d bytes: %w", what, n, size, snug.ErrCorrupt)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// openFile opens a file that has to be there.
func openFile(folder files.Dir, name string) (files.File, error) {
	f, err := folder.Open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is missing: %w", folder.Path(name), snug.ErrCorrupt)
	}
	return f, err
}

// checkPart checks the file of a part against what the header says.
func (h *header) checkPart(folder files.Dir, info PartInfo) error {
	f, err := openFile(folder, info.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	sum, err := h.startOf(f, info)
	if err == nil {
		_, err = io.CopyBuffer(sum, io.NewSectionReader(f, prefixSize(info.Name), info.payload()), bufferFor(info.Size))
	}
	if err == nil {
		err = endOf(f, info, sum)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", folder.Path(info.Name), err)
	}
	return nil
}

func (i PartInfo) payload() int64 { return i.Size - prefixSize(i.Name) - sha256.Size }

// startOf checks what comes before the payload and returns the sum so far.
func (h *header) startOf(f files.File, info PartInfo) (hash.Hash, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	p, err := parsePart(f, size)
	if err != nil {
		return nil, err
	}
	switch {
	case p.Run != h.Run:
		return nil, fmt.Errorf("it is of run %v, want %v as %s says: %w", p.Run, h.Run, HeaderName, snug.ErrCorrupt)
	case p.Step != h.Step:
		return nil, fmt.Errorf("it is of step %d, want %d as %s says: %w", p.Step, h.Step, HeaderName, snug.ErrCorrupt)
	case p.Name != info.Name:
		return nil, fmt.Errorf("it is the part %s: %w", p.Name, snug.ErrCorrupt)
	case size != info.Size:
		return nil, fmt.Errorf("%d bytes, want %d as %s says: %w", size, info.Size, HeaderName, snug.ErrCorrupt)
	}
	sum := sha256.New()
	sum.Write(appendPrefix(nil, h.Run, h.Step, info.Name))
	return sum, nil
}

// endOf compares the sum of what was read with the header's and the file's own.
func endOf(f files.File, info PartInfo, sum hash.Hash) error {
	var got, own Sum
	sum.Sum(got[:0])
	if n, err := f.ReadAt(own[:], info.Size-sha256.Size); n < len(own) {
		return shortRead("the part", info.Size-sha256.Size+int64(n), info.Size, err)
	}
	if got != info.SHA256 || own != info.SHA256 {
		return fmt.Errorf("its SHA-256 is %v, the one stored at its end %v, want %v, stored in %s: %w", got, own, info.SHA256, HeaderName, snug.ErrCorrupt)
	}
	return nil
}

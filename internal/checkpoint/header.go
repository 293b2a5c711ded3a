package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/strictjson"
)

const (
	format  = "snug checkpoint"
	version = 1
	maxPart = 1 << 50 // bytes
)

// header is run.json. Its SHA-256 is the sum of its own encoding with 32 zeros in the
// sum's place.
type header struct {
	Format  string          `json:"format"`
	Version int             `json:"version"`
	Run     ID              `json:"run"`
	Step    int             `json:"step"`
	About   json.RawMessage `json:"about"`
	Parts   []PartInfo      `json:"parts"`
	SHA256  Sum             `json:"sha256"`
}

// PartInfo is what a header says about a part.
type PartInfo struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`   // bytes of the file: payload, PrefixSize and the sum
	SHA256 Sum    `json:"sha256"` // of the file without its last 32 bytes, which are this sum
}

// IsHeader reports whether a text is meant as the header of a checkpoint, be it damaged
// or not.
func IsHeader(text []byte) bool { return bytes.Contains(text, []byte(format)) }

// check checks everything but the sums. names are the names of the parts.
func (h *header) check(names []string) error {
	switch {
	case h.Format != format:
		return fmt.Errorf("format %.40q, want %q", h.Format, format)
	case h.Version != version:
		return fmt.Errorf("version %d, want %d", h.Version, version)
	case h.Step < 1 || h.Step > MaxStep:
		return fmt.Errorf("step %d, want 1 to %d", h.Step, MaxStep)
	case len(h.About) > MaxAbout:
		return fmt.Errorf("a description of the run of %d bytes, want %d at most", len(h.About), MaxAbout)
	case len(names) < 1 || len(names) > MaxParts:
		return fmt.Errorf("%d parts, want 1 to %d", len(names), MaxParts)
	}
	seen := map[string]bool{HeaderName: true}
	for _, name := range names {
		switch {
		case !validName(name):
			return fmt.Errorf("a part with the name %.100q, want 1 to %d of a-z, 0-9, dot, hyphen and underscore", name, MaxName)
		case seen[name]:
			return fmt.Errorf("two parts, or a part and the header, are named %q", name)
		}
		seen[name] = true
	}
	return nil
}

// fits checks that a header with parts of these names will be read again.
func (h header) fits(names []string) error {
	if err := h.check(names); err != nil {
		return err
	}
	h.Parts = nil
	for _, name := range names {
		h.Parts = append(h.Parts, PartInfo{Name: name, Size: maxPart})
	}
	text, err := h.encode()
	if err == nil {
		_, err = decode(text)
	}
	return err
}

// encode returns the text of the header with its sum.
func (h *header) encode() ([]byte, error) {
	h.SHA256 = Sum{}
	text, err := h.text()
	if err != nil {
		return nil, err
	}
	h.SHA256 = sha256.Sum256(text)
	return h.text()
}

func (h *header) text() ([]byte, error) {
	text, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// decode parses a header. Its text is the only one for what it says: encoding the result
// gives the same bytes.
func decode(text []byte) (*header, error) {
	h := new(header)
	if err := (strictjson.Options{Complete: true, MaxBytes: MaxHeader}).Unmarshal(text, h); err != nil {
		return nil, err
	}
	var about bytes.Buffer
	if err := json.Compact(&about, h.About); err != nil { // it was indented
		return nil, err
	}
	h.About = about.Bytes()
	names := make([]string, len(h.Parts))
	for i, p := range h.Parts {
		names[i] = p.Name
		if minSize := prefixSize(p.Name) + sha256.Size; p.Size < minSize || p.Size > maxPart {
			return nil, fmt.Errorf("parts[%d]: a file of %d bytes, want %d to %d", i, p.Size, minSize, int64(maxPart))
		}
	}
	if err := h.check(names); err != nil {
		return nil, err
	}
	sum := h.SHA256
	again, err := h.encode()
	if err != nil {
		return nil, err
	}
	if h.SHA256 != sum {
		return nil, fmt.Errorf("its SHA-256 is %v, want %v, stored in it", h.SHA256, sum)
	}
	if !bytes.Equal(again, text) {
		return nil, fmt.Errorf("another text than the one of %d bytes that it was written with", len(again))
	}
	return h, nil
}

// readHeader reads the header of a checkpoint's folder.
func readHeader(folder files.Dir) (*header, error) {
	f, err := openFile(folder, HeaderName)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > MaxHeader {
		return nil, fmt.Errorf("%s: %d bytes, want %d at most: %w", folder.Path(HeaderName), size, MaxHeader, snug.ErrCorrupt)
	}
	text := make([]byte, size)
	if n, err := f.ReadAt(text, 0); n < len(text) {
		return nil, shortRead(folder.Path(HeaderName), int64(n), size, err)
	}
	h, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", folder.Path(HeaderName), err, snug.ErrCorrupt)
	}
	return h, nil
}

package dataset

import (
	"cmp"
	"io"
)

// Shares of Options.Memory.
const (
	defaultMemory = 256 << 20
	leastMemory   = 4 << 20
	rowShare      = 4 // of a decoded row: its texts are rendered and encoded
	textShare     = 8 // of a stretch of text that is not cut: it is normalized and spelled
	footerShare   = 8 // of the description of a table: it is decoded
)

// limit returns how many bytes reading may take.
func (r *reader) limit() int { return int(max(cmp.Or(r.options.Memory, defaultMemory), leastMemory)) }

// rowLimit returns how many bytes a decoded row may take.
func (r *reader) rowLimit() int64 { return int64(r.limit() / rowShare) }

// meter counts the bytes of a file that are read, and calls Options.Progress.
type meter struct {
	in       io.Reader
	n, shown int64
	progress func(n int64)
}

// metered returns a reader of a file that calls Options.Progress.
func (r *reader) metered(in *input) io.Reader {
	if r.options.Progress == nil {
		return in.file
	}
	return &meter{in: in.file, progress: func(n int64) { r.options.Progress(in.path, n, in.size) }}
}

// Read implements [io.Reader].
func (m *meter) Read(p []byte) (int, error) {
	n, err := m.in.Read(p)
	m.n += int64(n)
	if m.n-m.shown >= 1<<18 || err != nil && m.n > m.shown {
		m.shown = m.n
		m.progress(m.n)
	}
	return n, err
}

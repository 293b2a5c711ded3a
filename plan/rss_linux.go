package plan

import (
	"bytes"
	"os"
)

// rss reads the resident memory of the process from /proc/self/status, which unlike
// getrusage does not count what the parent held when it started the process.
type rss struct {
	file *os.File
	text [4096]byte
}

func openRSS() *rss {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return &rss{}
	}
	return &rss{file: f}
}

// read returns the bytes that are resident now and the most that ever were, or 0 where the
// system does not tell. It allocates nothing.
func (r *rss) read() (now, peak int64) {
	if r.file == nil {
		return 0, 0
	}
	n, _ := r.file.ReadAt(r.text[:], 0) // which ends early, as the text does
	return kibibytes(r.text[:n], "VmRSS:"), kibibytes(r.text[:n], "VmHWM:")
}

// kibibytes returns the number behind a name at the start of a line, in bytes.
func kibibytes(text []byte, name string) (n int64) {
	for len(text) > 0 {
		line := text
		if end := bytes.IndexByte(text, '\n'); end >= 0 {
			line, text = text[:end], text[end+1:]
		} else {
			text = nil
		}
		if len(line) < len(name) || string(line[:len(name)]) != name {
			continue
		}
		for _, b := range line[len(name):] {
			if b >= '0' && b <= '9' {
				n = 10*n + int64(b-'0')
			}
		}
		return n << 10
	}
	return 0
}

func (r *rss) close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

package meter

import (
	"bytes"
	"os"
)

// rss reads the resident memory of the process from /proc/self/status, which unlike
// getrusage does not count the memory of the parent when it started the process.
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

// read returns the resident bytes now and their maximum so far, or 0 if the system does
// not report them. It allocates nothing.
func (r *rss) read() (now, peak int64) {
	if r.file == nil {
		return 0, 0
	}
	n, _ := r.file.ReadAt(r.text[:], 0) // the read ends where the text ends
	return kibibytes(r.text[:n], "VmRSS:"), kibibytes(r.text[:n], "VmHWM:")
}

// kibibytes returns the number after a name at the start of a line, in bytes.
func kibibytes(text []byte, name string) (n int64) {
	for line := range bytes.Lines(text) {
		if rest, found := bytes.CutPrefix(line, []byte(name)); found {
			for _, b := range rest {
				if b >= '0' && b <= '9' {
					n = 10*n + int64(b-'0')
				}
			}
			return n << 10
		}
	}
	return 0
}

func (r *rss) close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

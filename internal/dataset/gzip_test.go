package dataset

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
)

func TestGzip(t *testing.T) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte("{\"text\": \"one\"}\n{\"text\": \"two\"}\n"))
	w.Close()
	read := func(name string, b []byte) error {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open([]string{path}, tok, Options{Context: 8, EOS: eos})
		return err
	}
	if err := read("a.jsonl.gz", b.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := read("a.txt.gz", b.Bytes()); !errors.Is(err, snug.ErrConfig) || !strings.Contains(err.Error(), "gzip holds lines") {
		t.Fatalf("text: %v", err)
	}
	for n := 2; n < b.Len(); n++ {
		if err := read("a.jsonl.gz", b.Bytes()[:n]); !errors.Is(err, snug.ErrCorrupt) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

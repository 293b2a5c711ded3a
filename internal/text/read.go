// Package text makes tokens of plain text for examples: it reads an even sample of a folder, and makes a
// vocabulary of frequent words.
//
//	b, err := text.Read(ctx, "", 1<<20) // of Go's own source
//	v := text.NewVocabulary(b, 1024)
//	tokens := v.Encode(b)
package text

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug/internal/files"
)

// maxFiles is how many files a folder of text may hold.
const maxFiles = 1 << 20

// Read returns the text of a file, or of the files below a folder in a
// scattered but fixed order, up to limit bytes. An empty path stands for the
// Go source of the installed toolchain, without its tests. It reads only
// regular files, because others could wait or never end, and no more of
// them than it returns. The error is the context's when that ends.
func Read(ctx context.Context, path string, limit int) ([]byte, error) {
	keep := func(string) bool { return true }
	if path == "" {
		out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
		root := strings.TrimSpace(string(out))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil || root == "" {
			return nil, errors.New("cannot find Go's source with `go env GOROOT`; name a file or folder with -text")
		}
		path = filepath.Join(root, "src")
		keep = func(name string) bool { return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") }
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return readFiles(ctx, []string{path}, limit)
	}
	names, err := filesBelow(ctx, path, keep, maxFiles)
	if err != nil {
		return nil, err
	}
	return readFiles(ctx, scatter(names), limit)
}

// filesBelow returns the regular files below a folder that keep says so of.
func filesBelow(ctx context.Context, path string, keep func(name string) bool, most int) (names []string, err error) {
	err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "vendor") && name != path {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() || !keep(name) {
			return nil
		}
		if len(names) == most {
			return fmt.Errorf("%s holds more than %d files", path, most)
		}
		names = append(names, name)
		return nil
	})
	return names, err
}

// scatter orders files so that any beginning of the list is spread over all of
// it: by golden-section steps.
func scatter(files []string) []string {
	slices.Sort(files)
	type at struct {
		position uint32
		name     string
	}
	order := make([]at, len(files))
	for i, name := range files {
		order[i] = at{uint32(i) * 2654435769, name} // 2^32/φ
	}
	slices.SortStableFunc(order, func(a, b at) int { return cmp.Compare(a.position, b.position) })
	for i := range order {
		files[i] = order[i].name
	}
	return files
}

func readFiles(ctx context.Context, names []string, limit int) ([]byte, error) {
	var text []byte
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f, size, err := files.Open(name)
		if err != nil {
			return nil, err
		}
		begin, n := len(text), int(min(size, int64(limit-len(text))))
		text = slices.Grow(text, n)
		n, err = io.ReadFull(f, text[begin:begin+n])
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = nil // it became shorter
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		text = text[:begin+n]
		if len(text) == limit {
			break
		}
	}
	return text, nil
}

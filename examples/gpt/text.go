package main

import (
	"bytes"
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

// readText returns the text of a file, or of the files below a folder in a
// scattered but fixed order, up to limit bytes. An empty path stands for the
// Go source of the installed toolchain, without its tests. Only regular files
// are read, of which no other kind could wait or never end, and no more of
// them than is returned. The error is the context's when that ends.
func readText(ctx context.Context, path string, limit int) ([]byte, error) {
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

// vocabulary maps text to tokens: tokens 0 to 255 are the bytes, the others
// the most frequent words of a text. A word is at most one space and then a run
// of letters, digits and underscores, or one of anything else but spaces.
type vocabulary struct {
	words []string // words[i] is token 256+i
	token map[string]uint16
}

// newVocabulary makes a vocabulary of at most size tokens.
func newVocabulary(text []byte, size int) *vocabulary {
	counts := map[string]*int{} // pointers, so that counting makes no strings
	for word := range words(text) {
		if len(word) < 2 || len(word) > 32 {
			continue
		}
		n := counts[string(word)]
		if n == nil {
			n = new(int)
			counts[string(word)] = n
		}
		*n++
	}
	all := make([]string, 0, len(counts))
	for w := range counts {
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(cmp.Compare(*counts[b], *counts[a]), strings.Compare(a, b))
	})
	return vocabularyOf(all[:min(len(all), size-256)])
}

func vocabularyOf(list []string) *vocabulary {
	v := &vocabulary{words: list, token: make(map[string]uint16, len(list))}
	for i, w := range list {
		v.token[w] = uint16(256 + i)
	}
	return v
}

// words yields the pieces of text in order; together they are the text.
func words(text []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(text) > 0 {
			n := 0
			if text[0] == ' ' && len(text) > 1 && isWord(text[1]) {
				n = 1
			}
			kind := isWord(text[n])
			for n < len(text) && isWord(text[n]) == kind && (n == 0 || kind || text[n] != ' ') {
				n++
			}
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}

func isWord(c byte) bool {
	return c == '_' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// encode returns the tokens of text.
func (v *vocabulary) encode(text []byte) []uint16 {
	tokens := make([]uint16, 0, len(text)/3)
	for word := range words(text) {
		if t, ok := v.token[string(word)]; ok {
			tokens = append(tokens, t)
			continue
		}
		for _, c := range word {
			tokens = append(tokens, uint16(c))
		}
	}
	return tokens
}

// decode returns the text of tokens.
func (v *vocabulary) decode(tokens []int32) string {
	var b bytes.Buffer
	for _, t := range tokens {
		if t < 256 {
			b.WriteByte(byte(t))
		} else {
			b.WriteString(v.words[t-256])
		}
	}
	return b.String()
}

// corpus is a text as tokens: a part to train on and a part held out.
type corpus struct {
	vocab       *vocabulary
	train, held []uint16
}

// loadCorpus reads a text and cuts the last tenth off to measure the loss on.
func loadCorpus(ctx context.Context, path string, p preset) (*corpus, error) {
	text, err := readText(ctx, path, p.text)
	if err != nil {
		return nil, err
	}
	if len(text) == 0 {
		return nil, fmt.Errorf("%s: no text", path)
	}
	v := newVocabulary(text, p.vocab)
	tokens := v.encode(text)
	if need := 10 * (p.context + 1); len(tokens) < need {
		return nil, fmt.Errorf("the text is too short: %d tokens, want at least %d", len(tokens), need)
	}
	cut := len(tokens) - len(tokens)/10
	return &corpus{v, tokens[:cut], tokens[cut:]}, nil
}

// sequence copies n inputs and their targets, the tokens after them, from a
// place that depends on key alone.
func sequence(inputs, targets []int32, from []uint16, key uint64) {
	n := len(inputs)
	at := mix(key) % uint64(len(from)-n)
	for i := range n {
		inputs[i], targets[i] = int32(from[at+uint64(i)]), int32(from[at+uint64(i)+1])
	}
}

// mix is the output function of the SplitMix64 generator (Steele, Lea and
// Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

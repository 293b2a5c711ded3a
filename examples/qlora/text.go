package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/snug-ml/snug/transformer"
)

// readText returns the files of this repository that a pattern matches: the first nine
// tenths to train on, and the rest.
func readText(pattern string) (train, held []byte, err error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/snug-ml/snug").Output()
	if err != nil {
		return nil, nil, fmt.Errorf("`go list -m github.com/snug-ml/snug` finds no text, run this in the repository: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), pattern))
	if err != nil {
		return nil, nil, err
	}
	var text []byte
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, err
		}
		text = append(text, b...)
	}
	cut := len(text) / 10 * 9
	if len(text)-cut <= tokens {
		return nil, nil, fmt.Errorf("%d bytes in %d files %s of %s, want more", len(text), len(files), pattern, root)
	}
	return text[:cut], text[cut:], nil
}

// draw returns windows of a text, whose tokens are bytes, with the bytes that follow.
func draw(rng *rand.Rand, text []byte) transformer.Batch {
	b := transformer.Batch{Sequences: sequences}
	for range sequences {
		at := rng.IntN(len(text) - tokens)
		for i := range tokens {
			b.Tokens = append(b.Tokens, int32(text[at+i]))
			b.Labels = append(b.Labels, int32(text[at+i+1]))
		}
	}
	return b
}

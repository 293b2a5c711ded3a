//go:build cuda && linux && amd64

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/snug-ml/snug/internal/files"
)

// compiled is what a compiler gives: NVRTC the PTX of a module, ptxas machine code for one
// architecture and what it says about its kernels.
type compiled struct {
	PTX, Said string
	Cubin     []byte
}

// cache is a folder of what the compilers gave before, in files that are named after all that
// the compilers were given. One folder belongs to one release of the compilers.
type cache string

func openCache(compilers string) (cache, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, "snug-images", compilers)
	return cache(dir), os.MkdirAll(dir, 0o700)
}

// compiled returns what was compiled from the inputs before, or compiles it.
func (c cache) compiled(inputs []any, compile func() (compiled, error)) (compiled, error) {
	text, err := json.Marshal(inputs) // with the keys of maps in order
	if err != nil {
		return compiled{}, err
	}
	name := filepath.Join(string(c), fmt.Sprintf("%x", sha256.Sum256(text)))
	var result compiled
	if held, err := os.ReadFile(name); err == nil && gob.NewDecoder(bytes.NewReader(held)).Decode(&result) == nil {
		return result, nil
	}
	if result, err = compile(); err != nil {
		return compiled{}, err
	}
	return result, files.Replace(name, func(w io.Writer) error { return gob.NewEncoder(w).Encode(result) })
}

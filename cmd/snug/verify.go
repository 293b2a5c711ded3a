package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/state"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
)

func verifyCommand() *command {
	return &command{
		name: "verify", args: "DIR", summary: "whether a store or a checkpoint is whole", flags: []string{"-q"}, operands: "file",
		help: `Reads all of a store, a checkpoint, or any folder of them, or one file, and compares it with
its checksums. It writes a line for each thing that it has checked:

  a store (snug.index, snug.pages)   every page that was committed; the store is not to be in use
  run.json of a checkpoint           the sizes and CRC-32C of the files that it names
  a saved state                      its CRC-32C
  a .safetensors file                its description: it has no checksum

The exit status is 1 when something is damaged or could not be read, such as a store that is
in use, and when there is nothing to check. Files of other kinds are passed over.

  -q   write only what is damaged or could not be read
`,
		run: runVerify,
	}
}

func runVerify(c *call) error {
	v := &verifier{out: c.stdout}
	args, err := c.parse(func(fs *flag.FlagSet) { fs.BoolVar(&v.quiet, "q", false, "") }, 1, 1)
	if err != nil {
		return err
	}
	if _, err := os.Stat(args[0]); err != nil {
		return err
	}
	err = filepath.WalkDir(args[0], func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return v.note(path, "", err)
		}
		return v.visit(path, d)
	})
	switch {
	case err != nil:
		return err
	case v.damaged > 0:
		return fmt.Errorf("%s: %d of %d are damaged: %w", args[0], v.damaged, v.checked, snug.ErrCorrupt)
	case v.unread > 0:
		return fmt.Errorf("%s: %d of %d could not be checked", args[0], v.unread, v.checked)
	case v.checked == 0:
		return fmt.Errorf("%s holds no store, no checkpoint, no saved state and no safetensors file: %w", args[0], snug.ErrConfig)
	}
	return nil
}

// verifier checks one thing after the other.
type verifier struct {
	out                      io.Writer
	quiet                    bool
	checked, damaged, unread int // of the first
}

// note writes what was found of path. The error is that of the output.
func (v *verifier) note(path, what string, err error) error {
	v.checked++
	switch {
	case errors.Is(err, snug.ErrCorrupt):
		v.damaged++
		_, err = fmt.Fprintf(v.out, "damaged\t%s\t%s\n", path, oneLine(err))
	case err != nil:
		v.unread++
		_, err = fmt.Fprintf(v.out, "unread\t%s\t%s\n", path, oneLine(err))
	case !v.quiet:
		_, err = fmt.Fprintf(v.out, "ok\t%s\t%s\n", path, what)
	}
	return err
}

// visit checks a folder or a file, if it is one of those that can be.
func (v *verifier) visit(path string, d fs.DirEntry) error {
	if d.IsDir() {
		if _, err := os.Lstat(filepath.Join(path, storeIndex)); err != nil {
			return nil
		}
		found, err := offload.Verify(path)
		return v.note(path, fmt.Sprintf("store of pages, %d pages, %s", found.Pages, plan.FormatBytes(found.Bytes)), err)
	}
	if !d.Type().IsRegular() {
		return nil
	}
	if d.Name() == checkpointHeader {
		return v.checkpoint(path)
	}
	known, err := recognized(path)
	if err != nil {
		return v.note(path, "", err)
	}
	if !known {
		return nil
	}
	found, err := inspectPath(path, false)
	if err != nil {
		return v.note(path, "", err)
	}
	return v.note(path, fmt.Sprintf("%s, %s", found.Format, plan.FormatBytes(found.Bytes)), nil)
}

// recognized reports whether a file is a saved state, or is named as safetensors.
func recognized(path string) (bool, error) {
	if filepath.Ext(path) == ".safetensors" {
		return true, nil
	}
	f, _, err := files.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	magic := make([]byte, state.MagicLen)
	if _, err := io.ReadFull(f, magic); err != nil {
		return false, nil // too short to be one
	}
	_, saved := states[string(magic)]
	return saved, nil
}

// checkpointHeader is the name of the file that lists the files of a checkpoint, as
// examples/gpt writes it: {"files": {NAME: {"size": BYTES, "crc32c": SUM}}}.
const checkpointHeader = "run.json"

// maxHeader is how long such a file may be, in bytes.
const maxHeader = 1 << 20

// checkpoint checks the files that a header names. Others of that name are passed over.
func (v *verifier) checkpoint(path string) error {
	f, size, err := files.Open(path)
	if err != nil {
		return v.note(path, "", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxHeader))
	if err = errors.Join(err, f.Close()); err != nil {
		return v.note(path, "", err)
	}
	var header struct {
		Files map[string]struct {
			Size int64  `json:"size"`
			CRC  uint32 `json:"crc32c"`
		} `json:"files"`
	}
	if err := json.Unmarshal(text, &header); err != nil {
		return v.note(path, "", fmt.Errorf("%d bytes that are no header of a checkpoint: %w: %w", size, err, snug.ErrCorrupt))
	}
	for _, name := range slices.Sorted(maps.Keys(header.Files)) {
		want := header.Files[name]
		if filepath.Base(name) != name {
			return v.note(path, "", fmt.Errorf("it names %.100q, want a file beside it: %w", name, snug.ErrCorrupt))
		}
		n, sum, err := sumOf(filepath.Join(filepath.Dir(path), name))
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("it names %.100q, which is missing: %w", name, snug.ErrCorrupt)
		} else if err == nil && (n != want.Size || sum != want.CRC) {
			err = fmt.Errorf("%s: %d bytes with CRC-32C %08x, want %d with %08x: %w", name, n, sum, want.Size, want.CRC, snug.ErrCorrupt)
		}
		if err != nil {
			return v.note(path, "", err)
		}
	}
	return v.note(path, fmt.Sprintf("checkpoint of %d files", len(header.Files)), nil)
}

// sumOf returns the bytes and the CRC-32C of a file.
func sumOf(path string) (n int64, sum uint32, err error) {
	f, _, err := files.Open(path)
	if err != nil {
		return 0, 0, err
	}
	var h crc32c.Hash
	n, err = io.Copy(&h, f)
	return n, uint32(h), errors.Join(err, f.Close())
}

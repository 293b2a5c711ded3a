package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/checkpoint"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/state"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
)

func verifyCommand() *command {
	return &command{
		name: "verify", args: "FILE|DIR", summary: "whether a store or a checkpoint is whole", operands: "file",
		help: `Reads a whole store, a checkpoint, any folder of them, or one file, and compares the bytes
with the checksums. It writes a line for each store, checkpoint or file that it has checked:

  a store (its folder or snug.index) every page that was committed; the store must not be in use
  a checkpoint (step-00000025)       its header run.json and the SHA-256 of its parts, that they belong
                                     together, and that a folder has checkpoints of one run only
  a part of a checkpoint by itself   its SHA-256
  saved states, one or more          the CRC-32C of each, and that nothing follows the last
  a .safetensors file                its description: it has no checksum
  an index of safetensors shards     that each shard has the tensors that the index says, and no others
  a .gguf file, with all its parts   its description, and that scales and elements are finite: no checksum

The exit status is 1 when something is damaged or could not be read, such as a store that is
in use, and when there is nothing to check. Files of other kinds are skipped. A folder of
checkpoints may be in use: verify skips its pages and the checkpoints that are not finished.
verify follows a link that is its argument, and links to files inside a folder. A link to a
folder there, or to nothing, counts as unread.
`,
		flags: (&verifier{}).table,
		run:   runVerify,
	}
}

func (v *verifier) table() flagTable {
	return flagTable{switchFlag("q", &v.quiet, "write only the lines of damaged and unread files")}
}

func runVerify(c *call) error {
	v := &verifier{out: c.stdout, runs: map[string]bool{}}
	args, err := c.parse(v.table(), 1, 1)
	if err != nil {
		return err
	}
	if err := notDownloaded("verify", args[0]); err != nil {
		return err
	}
	if err := v.walk(args[0]); err != nil {
		return err
	}
	switch {
	case v.damaged > 0:
		return fmt.Errorf("%s: %d of %d are damaged: %w", args[0], v.damaged, v.checked, snug.ErrCorrupt)
	case v.unread > 0:
		return fmt.Errorf("%s: %d of %d could not be checked", args[0], v.unread, v.checked)
	case v.checked == 0:
		return fmt.Errorf("%s holds no store, no checkpoint, no saved state, and no safetensors or GGUF file: %w", args[0], snug.ErrConfig)
	}
	return nil
}

// walk checks a file or a whole folder. It follows a link to one of them.
func (v *verifier) walk(root string) error {
	info, err := os.Stat(root)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if filepath.Base(root) == storeIndex {
			return v.store(filepath.Dir(root))
		}
		return v.visit(root, fs.FileInfoToDirEntry(info))
	}
	if link, err := os.Lstat(root); err == nil && link.Mode()&fs.ModeSymlink != 0 {
		if root, err = filepath.EvalSymlinks(root); err != nil {
			return err
		}
	}
	v.root = root
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != root {
			return nil // it was removed meanwhile
		}
		if err != nil {
			return v.note(path, "", err)
		}
		return v.visit(path, d)
	})
}

// verifier checks one thing after the other.
type verifier struct {
	out                      io.Writer
	quiet                    bool
	root                     string          // as on the command line
	checked, damaged, unread int             // damaged and unread are parts of checked
	runs                     map[string]bool // folders of checkpoints
}

// note writes the result for path. The error is an error of the output.
func (v *verifier) note(path, what string, err error) error {
	v.checked++
	switch {
	case errors.Is(err, snug.ErrCorrupt):
		v.damaged++
		_, err = fmt.Fprintf(v.out, "damaged\t%s\t%s\n", printable(path), oneLine(err))
	case err != nil:
		v.unread++
		_, err = fmt.Fprintf(v.out, "unread\t%s\t%s\n", printable(path), oneLine(err))
	case !v.quiet:
		_, err = fmt.Fprintf(v.out, "ok\t%s\t%s\n", printable(path), printable(what))
	}
	return err
}

// store checks the store in a folder.
func (v *verifier) store(dir string) error {
	found, err := offload.Verify(dir)
	return v.note(dir, fmt.Sprintf("store of pages, %d pages, %s", found.Pages, meter.FormatBytes(found.Bytes)), err)
}

// partOfGGUF is the name of a part of a model that is split.
var partOfGGUF = regexp.MustCompile(`-[0-9]{5}(-of-[0-9]{5}\.gguf)$`)

// gguf checks a file of llama.cpp's, the first of a model that is split with all others.
func (v *verifier) gguf(path string) error {
	if first := partOfGGUF.ReplaceAllString(path, "-00001$1"); first != path && v.root != "" && gguf.IsFile(first) {
		return nil // it is checked with the first
	}
	f, err := gguf.Open(path)
	if err != nil {
		return v.note(path, "", err)
	}
	var all int64
	decoded, err := f.Verify()
	for _, t := range f.Tensors() {
		n, _ := t.Bytes() // which Verify has asked for
		all += n
	}
	what := fmt.Sprintf("GGUF, %s", meter.FormatBytes(all))
	if decoded < all {
		what += fmt.Sprintf(", %s of them of types that are not decoded", meter.FormatBytes(all-decoded))
	}
	return v.note(path, what, errors.Join(err, f.Close()))
}

// visit checks a folder or a file if verify knows its kind.
func (v *verifier) visit(path string, d fs.DirEntry) error {
	if d.IsDir() {
		if is, err := v.checkpoints(path); is {
			return err
		}
		if _, err := os.Lstat(filepath.Join(path, storeIndex)); err != nil {
			return v.shards(path)
		}
		return v.store(path)
	}
	if d.Type()&fs.ModeSymlink != 0 {
		if v.runs[filepath.Dir(path)] && checkpoint.IsName(d.Name()) {
			return nil // it was checked with the run
		}
		info, err := os.Stat(path)
		if err != nil {
			return v.note(path, "", fmt.Errorf("a symbolic link that leads nowhere: %w", err))
		}
		if !info.Mode().IsRegular() {
			return v.note(path, "", errors.New("a symbolic link to something other than a regular file, which is not followed here"))
		}
	} else if !d.Type().IsRegular() {
		if filepath.Ext(path) != ".safetensors" && !isWeightsIndex(path) {
			return nil
		}
		_, _, err := files.Open(path) // which says what it is
		return v.note(path, "", err)
	}
	if d.Name() == checkpoint.HeaderName {
		return v.header(path)
	}
	if gguf.IsFile(path) {
		return v.gguf(path)
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
	return v.note(path, fmt.Sprintf("%s, %s", found.Format, meter.FormatBytes(found.Bytes)), nil)
}

// recognized reports whether a file is a saved state or a part of a checkpoint, or is named
// as safetensors or as their index.
func recognized(path string) (bool, error) {
	if filepath.Ext(path) == ".safetensors" || isWeightsIndex(path) {
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
	return state.KindOf(magic) != nil || checkpoint.IsPart(magic), nil
}

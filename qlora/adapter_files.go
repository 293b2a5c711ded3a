package qlora

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/files"
)

// The files of a folder of adapters, as PEFT has them.
const (
	adapterConfigFile  = "adapter_config.json"
	adapterWeightsFile = "adapter_model.safetensors"

	// adapterNextFile is the config of the weights after a crash in the middle of a save: the
	// weights were replaced, and the config was not.
	adapterNextFile = adapterConfigFile + ".next"
	// adapterSum is the key of the weights' metadata with the SHA-256 of their config.
	adapterSum = "snug_adapter_config_sha256"
)

func sumOf(config []byte) string {
	sum := sha256.Sum256(config)
	return hex.EncodeToString(sum[:])
}

// writeAdapters replaces two files. At every moment the folder holds a config and weights
// that belong together:
//
//  1. the new config becomes adapterNextFile,
//  2. the new weights replace the old ones, with the sum of their config,
//  3. adapterNextFile replaces the old config.
//
// A reader takes the config with the matching sum. After a crash between 2 and 3 the next
// save begins with 3. When a step before 2 fails, no new file is left.
func writeAdapters(d files.Dir, config []byte, weights func(w io.Writer, sum string) error) error {
	if err := settleAdapters(d); err != nil {
		return err
	}
	model, err := files.Stage(d, adapterWeightsFile, func(w io.Writer) error { return weights(w, sumOf(config)) })
	if err != nil {
		return err
	}
	next, err := files.Stage(d, adapterConfigFile, func(w io.Writer) error {
		_, err := w.Write(config)
		return err
	})
	if err != nil {
		return errors.Join(err, d.Remove(model))
	}
	if err := d.Rename(next, adapterNextFile); err != nil {
		return errors.Join(err, d.Remove(next), d.Remove(model))
	}
	if err = d.Sync(); err == nil {
		err = d.Rename(model, adapterWeightsFile)
	}
	if err != nil {
		return errors.Join(err, d.Remove(adapterNextFile), d.Remove(model))
	}
	// The following calls are tried twice, because they cannot be undone.
	err = twice(d.Sync)
	if err == nil {
		err = twice(func() error { return d.Rename(adapterNextFile, adapterConfigFile) })
	}
	if err != nil {
		return fmt.Errorf("the new adapters are there, with their config in %s: %w", d.Path(adapterNextFile), err)
	}
	return d.Sync()
}

func twice(do func() error) error {
	if do() == nil {
		return nil
	}
	return do()
}

// settleAdapters completes a save that a crash interrupted.
func settleAdapters(d files.Dir) error {
	open := func(name string) (files.File, error) { return d.Open(name, os.O_RDONLY) }
	config, err := readAdapterFile(open, adapterNextFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil && !errors.Is(err, snug.ErrCorrupt) {
		return err
	}
	damaged := err != nil
	w, err := openAdapters(open)
	sum := ""
	switch {
	case err == nil:
		sum = w.Metadata()[adapterSum]
		err = w.close()
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, snug.ErrCorrupt):
		err = nil
	}
	switch {
	case err != nil:
	case !damaged && sum == sumOf(config):
		err = d.Rename(adapterNextFile, adapterConfigFile)
	default:
		err = d.Remove(adapterNextFile)
	}
	if err != nil {
		return err
	}
	return d.Sync()
}

// opener opens a file of a folder for reading.
type opener func(name string) (files.File, error)

// openIn opens files of a folder of the operating system. It follows links, such as the
// links of a download cache.
func openIn(dir string) opener {
	d := files.OS(dir)
	return func(name string) (files.File, error) {
		kind := files.Description
		if name == adapterWeightsFile {
			kind = files.Weights
		}
		f, _, err := files.OpenInput(d.Path(name), kind)
		if err != nil {
			return nil, err
		}
		return files.Of(f), nil
	}
}

// adapterWeights are the weights of a folder, open for reading.
type adapterWeights struct {
	*amp.Weights
	names map[string]string // of tensors in the file, by their names without wrappers, see unwrap
	close func() error
}

// openAdapters opens the weights of a folder.
func openAdapters(open opener) (w adapterWeights, err error) {
	f, err := open(adapterWeightsFile)
	if err != nil {
		return w, err
	}
	w.close = f.Close
	size, err := f.Size()
	if err == nil {
		w.Weights, err = amp.NewWeights(f, size)
	}
	if err == nil {
		err = w.unwrap()
	}
	if err != nil {
		return w, fmt.Errorf("%s: %w", adapterWeightsFile, errors.Join(err, f.Close()))
	}
	return w, nil
}

// adapterConfigOf returns the config with the sum that the weights name, or the only
// config if they name none.
func adapterConfigOf(open opener, sum string) ([]byte, error) {
	config, err := readAdapterFile(open, adapterConfigFile)
	if sum == "" || err == nil && sumOf(config) == sum {
		return config, err
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	next, missing := readAdapterFile(open, adapterNextFile)
	switch {
	case missing == nil && sumOf(next) == sum:
		return next, nil
	case missing != nil && !errors.Is(missing, fs.ErrNotExist):
		return nil, missing
	case err != nil:
		return nil, err
	}
	return nil, fmt.Errorf("%s has changed since it was saved with %s, whose metadata has its SHA-256: %w", adapterConfigFile, adapterWeightsFile, snug.ErrCorrupt)
}

const maxAdapterConfig = 1 << 22 // bytes

// readAdapterFile returns the bytes of a config.
func readAdapterFile(open opener, name string) ([]byte, error) {
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err == nil && size > maxAdapterConfig {
		err = fmt.Errorf("%s has %d bytes, want %d at most: %w", name, size, maxAdapterConfig, snug.ErrCorrupt)
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(io.NewSectionReader(f, 0, size))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return text, nil
}

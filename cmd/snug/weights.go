package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/safetensors"
)

// isWeightsIndex says whether a file is named as the index of safetensors shards.
func isWeightsIndex(path string) bool {
	return strings.HasSuffix(path, ".safetensors"+safetensors.IndexSuffix)
}

// holdsWeights says whether a folder has the files of a published model, and no store.
func holdsWeights(path string) bool {
	return holdsAny(path, func(name string) bool { return isWhole(name) || safetensors.IsShard(name) }) && !holdsFile(path, storeIndex)
}

// isWhole says whether a file has all weights of a folder, or is the index of its shards.
func isWhole(name string) bool { return name == safetensors.FileName || name == safetensors.IndexName }

// lacksIndex says whether a folder has shards, and no index that names them.
func lacksIndex(path string) bool {
	return holdsAny(path, safetensors.IsShard) && !holdsAny(path, isWhole)
}

// The files of an adapter's folder, as PEFT names them.
const adapterFile, adapterConfig = "adapter_model.safetensors", "adapter_config.json"

// mlxFile is the file of an adapter of mlx-lm.
const mlxFile = "adapters.safetensors"

func holdsFile(dir, name string) bool {
	info, err := os.Stat(filepath.Join(dir, name))
	return err == nil && !info.IsDir()
}

// inspectAdapter describes the folder of an adapter.
func inspectAdapter(path string, sum bool) (*content, error) {
	c, err := inspectPath(filepath.Join(path, adapterFile), sum)
	if err != nil {
		return nil, err
	}
	if c.About, err = files.ReadInput(filepath.Join(path, adapterConfig), files.Description); err == nil && !json.Valid(c.About) {
		err = fmt.Errorf("%s is no JSON: %w", adapterConfig, snug.ErrCorrupt)
	}
	c.Note = "an adapter of " + c.Note
	return c, err
}

// inspectShards describes the weights of a folder or of an index.
func inspectShards(path string, sum bool) (*content, error) {
	set, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	c, err := inspectSet(set, sum)
	return c, errors.Join(err, set.Close())
}

// inspectSet describes tensors of one file or several. Its Bytes are the bytes of tensors.
func inspectSet(set *safetensors.Set, sum bool) (*content, error) {
	c := &content{Format: "safetensors", Metadata: set.Metadata, Entries: []entry{}}
	for _, f := range set.Files {
		for _, t := range f.Header.Tensors {
			e := entry{Name: t.Name, DType: t.DType, Shape: t.Shape, Bytes: t.End - t.Begin}
			if len(set.Files) > 1 {
				e.File = f.Name
			}
			if sum {
				var crc crc32c.Hash
				if _, err := io.Copy(&crc, io.NewSectionReader(f.R, f.Header.Data+t.Begin, e.Bytes)); err != nil {
					return nil, err
				}
				value := uint32(crc)
				e.CRC = &value
			}
			c.Bytes += e.Bytes
			c.Entries = append(c.Entries, e)
		}
	}
	c.Note = fmt.Sprintf("%d tensors", len(c.Entries))
	if len(set.Files) > 1 {
		c.Note += fmt.Sprintf(" in %d files", len(set.Files))
	}
	return c, nil
}

// shards checks a folder whose shards no index names. A folder with an index is checked
// where that file is.
func (v *verifier) shards(path string) error {
	if !lacksIndex(path) {
		return nil
	}
	_, err := inspectFolder(path, false)
	return v.note(filepath.Clean(path), "", err)
}

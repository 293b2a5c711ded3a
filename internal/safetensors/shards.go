package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/strictjson"
)

// The names of the files of a model's folder, as transformers writes them.
const (
	FileName    = "model.safetensors"
	IndexName   = FileName + IndexSuffix
	IndexSuffix = ".index.json" // after the name that one file would have
)

// MaxShards is the files of a folder at most. All of them are open at once.
const MaxShards = 10_000

var shardName = regexp.MustCompile(`^model-([0-9]{5,6})-of-([0-9]{5,6})\.safetensors$`)

// IsShard says whether a file's name is the name of a shard of a model.
func IsShard(name string) bool { return shardName.MatchString(name) }

// ShardName returns the name of shard i of n, from 1.
func ShardName(i, n int) string { return fmt.Sprintf("model-%05d-of-%05d.safetensors", i, n) }

// Index is the file that says which shard has which tensor.
type Index struct {
	TotalSize int64             // bytes of all tensors, which ReadIndex leaves out
	Shards    map[string]string // the file of each tensor
}

// ReadIndex reads the index of a folder. Other keys of the document and of its metadata,
// which tools add, are passed over: they say nothing of where a tensor is. The error
// wraps [snug.ErrCorrupt], unless it is one of the folder.
func ReadIndex(d files.Dir, name string) (*Index, error) {
	text, err := readAll(d, name, files.Index.Limit())
	if err != nil {
		return nil, err
	}
	var doc struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := (strictjson.Options{Open: true}).Unmarshal(text, &doc); err != nil {
		return nil, corrupt("%s: %w", name, err)
	}
	if doc.WeightMap == nil {
		return nil, corrupt("%s has no weight_map", name)
	}
	return &Index{Shards: doc.WeightMap}, nil
}

// Bytes returns the text of the index. transformers also writes the number of parameters.
func (x *Index) Bytes() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(map[string]any{"metadata": map[string]int64{"total_size": x.TotalSize}, "weight_map": x.Shards})
	return b.Bytes(), err
}

// readAll reads a file of at most limit bytes.
func readAll(d files.Dir, name string, limit int64) (text []byte, err error) {
	f, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, corrupt("%s has %d bytes, want %d at most", name, size, limit)
	}
	text = make([]byte, size)
	if err := ReadFull(f, text, 0); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := files.NotTheFile(text[:min(len(text), 512)]); err != nil {
		return nil, fmt.Errorf("%s %w", name, err)
	}
	return text, nil
}

// Split returns the shards of a model, each with at most limit bytes of tensors, or with
// one larger tensor. It goes through the tensors in their order, as transformers does.
func Split(tensors []Tensor, limit int64) ([][]Tensor, error) {
	var shards [][]Tensor
	var current []Tensor
	var used int64
	for _, t := range tensors {
		size, err := t.size()
		if err != nil {
			return nil, fmt.Errorf("tensor %.100q: %w: %w", t.Name, err, snug.ErrShape)
		}
		if size > limit {
			shards = append(shards, []Tensor{t})
			continue
		}
		if size > limit-used {
			shards = append(shards, current)
			current, used = nil, 0
		}
		current = append(current, t)
		used += size
	}
	if len(current) > 0 || len(shards) == 0 {
		shards = append(shards, current)
	}
	if len(shards) > MaxShards {
		return nil, fmt.Errorf("%d shards of at most %d bytes, want %d shards at most: %w", len(shards), limit, MaxShards, snug.ErrConfig)
	}
	return shards, nil
}

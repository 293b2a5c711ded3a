package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

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
	TotalSize int64             // bytes of all tensors, -1 if the file does not say it
	Shards    map[string]string // the file of each tensor
}

// ReadIndex reads the index of a folder. Other keys of the document and of its metadata,
// which tools add, are passed over: they say nothing of where a tensor is. The error
// wraps [snug.ErrCorrupt], unless it is one of the folder.
func ReadIndex(d files.Dir, name string) (*Index, error) {
	text, err := readAll(d, name, strictjson.DefaultBytes)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Metadata struct {
			TotalSize json.Number `json:"total_size"`
		} `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := (strictjson.Options{Open: true}).Unmarshal(text, &doc); err != nil {
		return nil, corrupt("%s: %w", name, err)
	}
	if doc.WeightMap == nil {
		return nil, corrupt("%s has no weight_map", name)
	}
	index := &Index{TotalSize: -1, Shards: doc.WeightMap}
	if n := doc.Metadata.TotalSize; n != "" {
		// Old versions of transformers write the number as a float.
		size, err := strconv.ParseFloat(string(n), 64)
		if err != nil || size < 0 || size > 1<<62 || size != math.Trunc(size) {
			return nil, corrupt("%s: metadata.total_size is %.40s, want a number of bytes", name, n)
		}
		index.TotalSize = int64(size)
		if whole, err := n.Int64(); err == nil {
			index.TotalSize = whole
		}
	}
	return index, nil
}

// Bytes returns the text of the index, as transformers writes it but for the number of
// parameters.
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

// Set is a model whose tensors lie in one file or in several.
type Set struct {
	Files    []File            // by name
	Metadata map[string]string // what the files say of themselves and agree on, nil if nothing
	shards   map[string]int    // the file of each tensor, nil if there is one file
}

// File is an open file of a [Set].
type File struct {
	Name   string // in its folder
	R      io.ReaderAt
	Header *Header
	closer io.Closer // nil if the reader is the caller's
}

// One returns the Set of one file, which Close closes unless closer is nil.
func One(r io.ReaderAt, h *Header, closer io.Closer) *Set {
	return &Set{Files: []File{{R: r, Header: h, closer: closer}}, Metadata: h.Metadata}
}

// Close closes the files.
func (s *Set) Close() error {
	var all error
	for _, f := range s.Files {
		if f.closer != nil {
			all = errors.Join(all, f.closer.Close())
		}
	}
	return all
}

// Find returns the tensor of a name and the number of its file; nil if there is none.
func (s *Set) Find(name string) (file int, t *Tensor) {
	if s.shards != nil {
		i, found := s.shards[name]
		if !found {
			return 0, nil
		}
		return i, s.Files[i].Header.Find(name)
	}
	if len(s.Files) == 0 {
		return 0, nil
	}
	return 0, s.Files[0].Header.Find(name)
}

// OpenFolder opens the weights of a folder: the shards that its index names, or the one
// file. The error wraps [snug.ErrCorrupt] when they do not fit together, and
// [snug.ErrConfig] when there are none, or more than one set.
func OpenFolder(d files.Dir) (*Set, error) {
	entries, err := d.List()
	if err != nil {
		return nil, err
	}
	there := namesOf(entries)
	switch {
	case there[IndexName]:
		return OpenIndex(d, IndexName)
	case !there[FileName]:
		return nil, noWeights(d, entries)
	}
	f, err := openFile(d, FileName)
	if err != nil {
		return nil, err
	}
	return &Set{Files: []File{f}, Metadata: f.Header.Metadata}, nil
}

func namesOf(entries []files.Entry) map[string]bool {
	there := make(map[string]bool, len(entries))
	for _, e := range entries {
		there[e.Name] = true
	}
	return there
}

// noWeights says what a folder has in the place of weights.
func noWeights(d files.Dir, entries []files.Entry) error {
	var other, pickles []string
	for _, e := range entries {
		switch {
		case IsShard(e.Name):
			return corrupt("%s has the shard %s and no %s: files are missing, or somebody stopped while saving", d.Path(""), e.Name, IndexName)
		case strings.HasSuffix(e.Name, ".safetensors"):
			other = append(other, e.Name)
		case strings.HasSuffix(e.Name, ".bin") || strings.HasSuffix(e.Name, ".pt") || strings.HasSuffix(e.Name, ".pth"):
			pickles = append(pickles, e.Name)
		}
	}
	more := ""
	switch {
	case other != nil:
		more = fmt.Sprintf("; it has %q, which can be opened by its path", other[:min(3, len(other))])
	case pickles != nil:
		more = fmt.Sprintf("; it has %q, which is not read: convert it to safetensors", pickles[:min(3, len(pickles))])
	}
	return fmt.Errorf("%s has neither %s nor %s%s: %w", d.Path(""), FileName, IndexName, more, snug.ErrConfig)
}

// OpenIndex opens the shards that an index of a folder names. The tensors of the index
// and of the shards must be the same, each in the shard that the index names.
func OpenIndex(d files.Dir, name string) (*Set, error) {
	index, err := ReadIndex(d, name)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Values(index.Shards))
	names = slices.Compact(names)
	one := strings.TrimSuffix(name, IndexSuffix)
	entries, err := d.List()
	there := namesOf(entries)
	switch {
	case err != nil:
		return nil, err
	case len(names) == 0:
		return nil, corrupt("%s names no tensor", name)
	case len(names) > MaxShards:
		return nil, corrupt("%s names %d shards, want %d at most", name, len(names), MaxShards)
	case there[one] && !slices.Contains(names, one):
		return nil, fmt.Errorf("%s has two sets of weights, %s and the shards that %s names; remove the wrong one: %w", d.Path(""), one, name, snug.ErrConfig)
	}
	for _, shard := range names {
		if !strings.HasSuffix(shard, ".safetensors") || strings.ContainsAny(shard, `/\:`) {
			return nil, corrupt("%s: the shard %.100q is not the name of a .safetensors file in this folder", name, shard)
		}
		if !there[shard] {
			return nil, corrupt("%s: the shard %s is missing", name, shard)
		}
	}
	s := &Set{}
	for _, shard := range names {
		f, err := openFile(d, shard)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.Files = append(s.Files, f)
	}
	if err := s.join(name, index); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// openFile opens a file and reads its header.
func openFile(d files.Dir, name string) (File, error) {
	f, err := d.Open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, corrupt("%s was there and is gone: %w", name, err)
	}
	if err != nil {
		return File{}, err
	}
	size, err := f.Size()
	if err != nil {
		return File{}, errors.Join(err, f.Close())
	}
	h, err := Read(f, size)
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", name, errors.Join(err, f.Close()))
	}
	return File{Name: name, R: f, Header: h, closer: f}, nil
}

// join checks the files against their index.
func (s *Set) join(name string, index *Index) error {
	s.shards = map[string]int{}
	var bytes int64
	for i, f := range s.Files {
		for j := range f.Header.Tensors {
			t := &f.Header.Tensors[j]
			if first, twice := s.shards[t.Name]; twice {
				return corrupt("tensor %.100q is in two shards, %s and %s", t.Name, s.Files[first].Name, f.Name)
			}
			switch shard, known := index.Shards[t.Name]; {
			case !known:
				return corrupt("tensor %.100q is in %s, but not in %s", t.Name, f.Name, name)
			case shard != f.Name:
				return corrupt("tensor %.100q is in %s, but %s says %s", t.Name, f.Name, name, shard)
			}
			s.shards[t.Name] = i
		}
		if bytes > math.MaxInt64-f.Header.end() {
			return corrupt("the shards of %s have more than 2^63 bytes", name)
		}
		bytes += f.Header.end()
	}
	for _, tensor := range slices.Sorted(maps.Keys(index.Shards)) {
		if _, found := s.shards[tensor]; !found {
			return corrupt("tensor %.100q is not in %s, where %s says it is", tensor, index.Shards[tensor], name)
		}
	}
	if index.TotalSize >= 0 && index.TotalSize != bytes {
		return corrupt("the tensors have %d bytes, but metadata.total_size of %s is %d", bytes, name, index.TotalSize)
	}
	s.Metadata = common(s.Files)
	return nil
}

// common returns the metadata that all files have.
func common(list []File) map[string]string {
	all := maps.Clone(list[0].Header.Metadata)
	for _, f := range list[1:] {
		maps.DeleteFunc(all, func(key, value string) bool {
			other, found := f.Header.Metadata[key]
			return !found || other != value
		})
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

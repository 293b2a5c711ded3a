package safetensors

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

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

// Place is a tensor in one of the files of a [Set].
type Place struct {
	File   int
	Tensor *Tensor
}

// Open opens a file, the weights of a folder, or an index in it, see [OpenFolder] and
// [OpenIndex].
func Open(path string) (*Set, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		set, err := OpenFolder(files.Snapshot(path))
		return set, located(path, err)
	case strings.HasSuffix(path, ".safetensors"+IndexSuffix):
		dir, name := filepath.Split(path)
		set, err := OpenIndex(files.Snapshot(filepath.Clean(dir)), name)
		return set, located(path, err)
	}
	f, size, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	h, err := Read(f, size)
	if err != nil {
		return nil, located(path, errors.Join(err, f.Close()))
	}
	return One(f, h, f), nil
}

// located says where an error happened.
func located(path string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return err
}

// One returns the Set of one file, which Close closes unless closer is nil.
func One(r io.ReaderAt, h *Header, closer io.Closer) *Set {
	return &Set{Files: []File{{R: r, Header: h, closer: closer}}, Metadata: h.Metadata}
}

// Close closes the files. A nil Set has none.
func (s *Set) Close() error {
	if s == nil {
		return nil
	}
	var all error
	for _, f := range s.Files {
		if f.closer != nil {
			all = errors.Join(all, f.closer.Close())
		}
	}
	return all
}

// Find returns the tensor of a name. A nil Set has none.
func (s *Set) Find(name string) (p Place, found bool) {
	switch {
	case s == nil || len(s.Files) == 0:
		return p, false
	case s.shards != nil:
		if p.File, found = s.shards[name]; !found {
			return p, false
		}
	}
	p.Tensor = s.Files[p.File].Header.Find(name)
	return p, p.Tensor != nil
}

// Read fills b with the bytes of a tensor from byte lo on.
func (s *Set) Read(p Place, b []byte, lo int64) error {
	f := &s.Files[p.File]
	err := ReadFull(f.R, b, f.Header.Data+p.Tensor.Begin+lo)
	if err != nil && f.Name != "" {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	return err
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
	}
	for _, tensor := range slices.Sorted(maps.Keys(index.Shards)) {
		if _, found := s.shards[tensor]; !found {
			return corrupt("tensor %.100q is not in %s, where %s says it is", tensor, index.Shards[tensor], name)
		}
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

package amp

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/safetensors"
)

// defaultShardBytes is the size of a shard at most where the caller names none.
const defaultShardBytes = 5_000_000_000

// SaveShards writes the weights of a folder, which [OpenWeights] and transformers read: the
// file model.safetensors, or shards (model-00001-of-00003.safetensors) with their index
// (model.safetensors.index.json) when all tensors have more than maxBytes bytes. A
// shard has at most maxBytes bytes of tensors, or one tensor that is larger; 0 is 5 GB.
// Tensors are put into shards in the order of the walker, as by save_pretrained of
// transformers, which also writes metadata {"format": "pt"}; tensors and metadata are as for
// [WriteWeights], and every shard has the metadata. SaveShards makes the folder if it is missing.
//
// The weights that the folder had are replaced, also when they are more or fewer files. The
// new files are written and synced beside the old ones, which takes disk space for both,
// and then renamed. After an error before that, the old weights are what they were. If the
// process is killed, the folder has the old weights, the new ones, or files that
// OpenWeights refuses, because the index is missing or there are two sets; it never opens a
// mixture. Temporary files may then be left, as <name>.<digits>.tmp. Other files of the
// folder stay.
//
// On Windows no file of the folder may be open. Memory and errors are as for [SaveWeights],
// and [snug.ErrConfig] for a negative maxBytes or more than 10,000 shards.
func SaveShards(dir string, maxBytes int64, tensors iter.Seq2[Tensor, snug.View], metadata map[string]string) error {
	plans, total, err := planShards(maxBytes, tensors, metadata)
	if err != nil {
		return fmt.Errorf("amp: SaveShards: %w", err)
	}
	d, err := files.Make(dir)
	if err == nil {
		err = saveShards(d, plans, total)
	}
	return fault.Of(err, "amp: SaveShards", dir)
}

// MakeShards is [SaveShards] without files: it makes the elements of all tensors, in the order in which SaveShards makes them.
// Ranks whose Make takes part in the Make of the rank that saves call it there. Errors are as for [WriteWeights], and
// [snug.ErrConfig] as for SaveShards.
func MakeShards(maxBytes int64, tensors iter.Seq2[Tensor, snug.View]) error {
	plans, _, err := planShards(maxBytes, tensors, nil)
	for i := 0; i < len(plans) && err == nil; i++ {
		for _, t := range plans[i].header.Tensors {
			if _, err = plans[i].views[t.Name].get(); err != nil {
				break
			}
		}
	}
	return fault.Of(err, "amp: MakeShards")
}

// planShards returns the files to write, and the bytes of all tensors.
func planShards(maxBytes int64, tensors iter.Seq2[Tensor, snug.View], metadata map[string]string) (plans []*weightsPlan, total int64, err error) {
	if maxBytes < 0 {
		return nil, 0, fmt.Errorf("shards of %d bytes at most, want 0 or more: %w", maxBytes, snug.ErrConfig)
	}
	if maxBytes == 0 {
		maxBytes = defaultShardBytes
	}
	list, views, err := listWeights(tensors)
	if err != nil {
		return nil, 0, err
	}
	shards, err := safetensors.Split(list, maxBytes)
	if err != nil {
		return nil, 0, err
	}
	for _, shard := range shards {
		header, err := safetensors.New(shard, metadata)
		if err != nil {
			return nil, 0, err
		}
		if _, err := header.Bytes(); err != nil { // which is too long, say
			return nil, 0, err
		}
		for _, t := range header.Tensors {
			total += t.End - t.Begin
		}
		plans = append(plans, &weightsPlan{header, views})
	}
	return plans, total, nil
}

// saveShards stages all files, and then changes from the old weights to the new.
func saveShards(d files.Dir, plans []*weightsPlan, total int64) (err error) {
	var names, staged []string // staged[i] becomes names[i], the index last
	defer func() {
		for _, temp := range staged {
			err = errors.Join(err, d.Remove(temp))
		}
	}()
	stage := func(name string, write func(io.Writer) error) error {
		temp, err := files.Stage(d, name, write)
		if err != nil {
			return err
		}
		names, staged = append(names, name), append(staged, temp)
		return nil
	}
	index := safetensors.Index{TotalSize: total, Shards: map[string]string{}}
	for i, p := range plans {
		name := safetensors.FileName
		if len(plans) > 1 {
			name = safetensors.ShardName(i+1, len(plans))
		}
		for _, t := range p.header.Tensors {
			index.Shards[t.Name] = name
		}
		err := stage(name, func(w io.Writer) error {
			_, err := p.writeTo(w)
			return err
		})
		if err != nil {
			return err
		}
	}
	if len(plans) > 1 {
		text, err := index.Bytes()
		if err != nil {
			return err
		}
		err = stage(safetensors.IndexName, func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := retire(d, names); err != nil {
		return err
	}
	for i, name := range names {
		if i > 0 && name == safetensors.IndexName {
			if err := d.Sync(); err != nil { // the shards are there before the index that names them
				return err
			}
		}
		if err := d.Rename(staged[0], name); err != nil {
			return err
		}
		staged = staged[1:]
	}
	if err := d.Sync(); err != nil {
		return err
	}
	return removeOld(d, names)
}

// retire makes sure that an index cannot be opened with a part of the files that it names
// replaced: the single file and the index go first, for good.
func retire(d files.Dir, names []string) error {
	entries, err := d.List()
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, e := range entries {
		there[e.Name] = true
	}
	index := there[safetensors.IndexName]
	replaced := slices.ContainsFunc(names, func(name string) bool { return name != safetensors.IndexName && there[name] })
	if !index || !replaced {
		return nil
	}
	for _, name := range []string{safetensors.FileName, safetensors.IndexName} {
		err := d.Remove(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = d.Sync()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeOld removes the weights that names have replaced, the index first.
func removeOld(d files.Dir, names []string) error {
	entries, err := d.List()
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, name := range names {
		keep[name] = true
	}
	var old []string
	for _, e := range entries {
		switch {
		case keep[e.Name]:
		case e.Name == safetensors.IndexName:
			old = slices.Insert(old, 0, e.Name)
		case e.Name == safetensors.FileName || safetensors.IsShard(e.Name):
			old = append(old, e.Name)
		}
	}
	for i, name := range old {
		if err := d.Remove(name); err != nil {
			return err
		}
		if i == 0 || i == len(old)-1 { // the index is gone before its shards are
			if err := d.Sync(); err != nil {
				return err
			}
		}
	}
	return nil
}
